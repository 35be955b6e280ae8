//! Values for tests.

use std::io::Cursor;

use contract::RunConfig;
use image::{ImageFormat, Rgb, RgbImage};

/// A run over `data`, with images of 24 pixels.
pub(crate) fn config(data: &str) -> RunConfig {
    let manifest = format!(
        "apiVersion: vit-operator.dev/v1alpha1
kind: ViTTrainingJob
metadata: {{name: test}}
spec:
  image: unused
  model: {{imageSize: 24, patchSize: 8, hiddenSize: 16, depth: 1, heads: 2, numClasses: 10}}
  data: {data}
  training: {{epochs: 2, microBatchSize: 4, labelSmoothing: 0.1, seed: 7}}
  workers: {{nodes: 1, device: cpu}}
  checkpoint: {{volume: {{hostPath: {{path: /unused}}}}}}
"
    );
    let job = serde_saphyr::from_str(&manifest).expect("a manifest");
    crds::validate(&job).expect("a sound manifest").run_config
}

/// A PNG file of one color.
pub(crate) fn png(width: u32, height: u32, color: [u8; 3]) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    RgbImage::from_pixel(width, height, Rgb(color))
        .write_to(&mut bytes, ImageFormat::Png)
        .expect("encodes");
    bytes.into_inner()
}

/// A JPEG file of one color.
pub(crate) fn jpeg(width: usize, height: usize, color: [u8; 3]) -> Vec<u8> {
    let mut file = mozjpeg::Compress::new(mozjpeg::ColorSpace::JCS_RGB);
    file.set_size(width, height);
    let mut file = file.start_compress(Vec::new()).expect("starts");
    file.write_scanlines(&color.repeat(width * height))
        .expect("encodes");
    file.finish().expect("ends")
}

/// A TIFF file by the standard, uncompressed, in one strip, or if it is `planar`, in one per
/// channel. `values` are the bytes of the numbers in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiff<'a> {
    pub(crate) width: u16,
    pub(crate) height: u16,
    pub(crate) channels: u16,
    pub(crate) bits: u16,
    /// 1: unsigned, 2: signed, 3: floating point.
    pub(crate) sample_format: u16,
    /// 1: black is zero, 2: RGB.
    pub(crate) color_space: u16,
    /// The kind of channels that are not colors; 1: alpha by which colors are multiplied.
    pub(crate) extra: u16,
    pub(crate) planar: bool,
    /// Width and height; strips if `None`.
    pub(crate) tile: Option<[u16; 2]>,
    pub(crate) orientation: u16,
    pub(crate) big_endian: bool,
    /// `BigTIFF`.
    pub(crate) eight_byte_offsets: bool,
    pub(crate) values: &'a [u8],
}

impl<'a> Tiff<'a> {
    /// Unsigned 16-bit numbers.
    pub(crate) fn of([width, height, channels]: [u16; 3], values: &'a [u8]) -> Self {
        Self {
            width,
            height,
            channels,
            bits: 16,
            sample_format: 1,
            color_space: 1,
            extra: 0,
            planar: false,
            tile: None,
            orientation: 1,
            big_endian: false,
            eight_byte_offsets: false,
            values,
        }
    }

    fn number(&self, number: usize, bytes: usize) -> Vec<u8> {
        if self.big_endian {
            number.to_be_bytes()[8 - bytes..].to_vec()
        } else {
            number.to_le_bytes()[..bytes].to_vec()
        }
    }

    pub(crate) fn file(&self) -> Vec<u8> {
        let channels = usize::from(self.channels);
        let of_color = if self.color_space == 2 { 3 } else { 1 };
        let chunks = if self.planar { channels } else { 1 };
        let chunk = self.values.len() / chunks;
        let [count_bytes, offset_bytes, header] = if self.eight_byte_offsets {
            [8, 8, 16]
        } else {
            [2, 4, 8]
        };
        let [offsets, lengths] = [
            (0..chunks).map(|number| header + number * chunk).collect(),
            vec![chunk; chunks],
        ];
        let mut entries: Vec<(usize, usize, Vec<usize>)> = [
            (256, self.width),
            (257, self.height),
            (259, 1),
            (262, self.color_space),
            (274, self.orientation),
            (277, self.channels),
            (284, 1 + u16::from(self.planar)),
        ]
        .map(|(tag, number)| (tag, 2, vec![number.into()]))
        .into();
        entries.push((258, 2, vec![self.bits.into(); channels]));
        entries.push((339, 2, vec![self.sample_format.into(); channels]));
        if channels > of_color {
            entries.push((338, 2, vec![self.extra.into(); channels - of_color]));
        }
        match self.tile {
            None => {
                entries.push((278, 2, vec![self.height.into()]));
                entries.extend([(273, 4, offsets), (279, 4, lengths)]);
            }
            Some([width, height]) => {
                entries.extend([(322, 2, vec![width.into()]), (323, 2, vec![height.into()])]);
                entries.extend([(324, 4, offsets), (325, 4, lengths)]);
            }
        }
        entries.sort_unstable();

        let directory = (header + self.values.len()).next_multiple_of(2);
        let directory_bytes = count_bytes + entries.len() * (4 + 2 * offset_bytes) + offset_bytes;
        let start = if self.eight_byte_offsets {
            [self.number(43, 2), self.number(8, 2), self.number(0, 2)].concat()
        } else {
            self.number(42, 2)
        };
        let order = if self.big_endian { b"MM" } else { b"II" };
        let mut file = [
            &order[..],
            &start,
            &self.number(directory, offset_bytes),
            self.values,
        ]
        .concat();
        file.resize(directory, 0);
        file.extend(self.number(entries.len(), count_bytes));
        let mut rest = Vec::new();
        for (tag, bytes, numbers) in entries {
            let kind = if bytes == 2 { 3 } else { 4 };
            let values: Vec<u8> = numbers
                .iter()
                .flat_map(|number| self.number(*number, bytes))
                .collect();
            file.extend(
                [
                    self.number(tag, 2),
                    self.number(kind, 2),
                    self.number(numbers.len(), offset_bytes),
                ]
                .concat(),
            );
            if values.len() <= offset_bytes {
                file.extend(&values);
                file.resize(file.len() + offset_bytes - values.len(), 0);
            } else {
                file.extend(self.number(directory + directory_bytes + rest.len(), offset_bytes));
                rest.extend(values);
            }
        }
        file.extend(self.number(0, offset_bytes));
        file.extend(rest);
        file
    }
}

pub(crate) fn folder(files: &[(&str, impl AsRef<[u8]>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs_err::create_dir_all(path.parent().expect("a folder")).expect("creates");
        fs_err::write(path, bytes).expect("writes");
    }
    folder
}

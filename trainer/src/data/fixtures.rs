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

/// A file of an image in one colour.
pub(crate) fn png(width: u32, height: u32, color: [u8; 3]) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    RgbImage::from_pixel(width, height, Rgb(color))
        .write_to(&mut bytes, ImageFormat::Png)
        .expect("encodes");
    bytes.into_inner()
}

/// A file of an image in one colour.
pub(crate) fn jpeg(width: usize, height: usize, color: [u8; 3]) -> Vec<u8> {
    let mut file = mozjpeg::Compress::new(mozjpeg::ColorSpace::JCS_RGB);
    file.set_size(width, height);
    let mut file = file.start_compress(Vec::new()).expect("starts");
    file.write_scanlines(&color.repeat(width * height))
        .expect("encodes");
    file.finish().expect("ends")
}

/// A TIFF file by the standard, uncompressed, in one strip or, where it is `planar`, in one for each channel. `values` are the
/// bytes of little-endian numbers, as they lie in the file.
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
    pub(crate) planar: bool,
    pub(crate) orientation: u16,
    pub(crate) values: &'a [u8],
}

impl Tiff<'_> {
    pub(crate) fn file(&self) -> Vec<u8> {
        let strips = if self.planar { self.channels } else { 1 };
        let of_color = if self.color_space == 2 { 3 } else { 1 };
        let channels = usize::from(self.channels);
        let shorts: [(u16, Vec<u16>); 10] = [
            (256, vec![self.width]),
            (257, vec![self.height]),
            (258, vec![self.bits; channels]),
            (259, vec![1]),
            (262, vec![self.color_space]),
            (274, vec![self.orientation]),
            (277, vec![self.channels]),
            (278, vec![self.height]),
            (284, vec![if self.planar { 2 } else { 1 }]),
            (338, vec![0; channels - of_color]),
        ];
        let strip = self.values.len() / usize::from(strips);
        let long = |number: usize| (number as u32).to_le_bytes();
        let mut entries: Vec<(u16, u16, Vec<u8>)> = shorts
            .into_iter()
            .filter(|(_, numbers)| !numbers.is_empty())
            .map(|(tag, numbers)| {
                (
                    tag,
                    3,
                    numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
                )
            })
            .collect();
        entries.push((339, 3, self.sample_format.to_le_bytes().repeat(channels)));
        entries.push((
            273,
            4,
            (0..strips)
                .flat_map(|number| long(8 + usize::from(number) * strip))
                .collect(),
        ));
        entries.push((279, 4, long(strip).repeat(strips.into())));
        entries.sort_unstable();
        let directory = (8 + self.values.len()).next_multiple_of(2);
        let mut beyond = directory + 2 + entries.len() * 12 + 4;
        let mut file = [&b"II*\0"[..], &long(directory), self.values].concat();
        file.resize(directory, 0);
        file.extend((entries.len() as u16).to_le_bytes());
        let mut rest = Vec::new();
        for (tag, kind, bytes) in entries {
            let count = bytes.len() / if kind == 3 { 2 } else { 4 };
            file.extend([&tag.to_le_bytes()[..], &kind.to_le_bytes(), &long(count)].concat());
            if bytes.len() <= 4 {
                file.extend([&bytes[..], &[0; 4][bytes.len()..]].concat());
            } else {
                file.extend(long(beyond));
                beyond += bytes.len();
                rest.extend(bytes);
            }
        }
        file.extend(long(0));
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

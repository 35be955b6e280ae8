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

pub(crate) fn folder(files: &[(&str, impl AsRef<[u8]>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs_err::create_dir_all(path.parent().expect("a folder")).expect("creates");
        fs_err::write(path, bytes).expect("writes");
    }
    folder
}

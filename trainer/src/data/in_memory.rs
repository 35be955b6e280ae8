//! Images in memory that threads prepare one by one, because their colors change.

use contract::PixelType;
use tch::{Kind, Tensor};

use super::decode::Decoded;
use super::labels::{Label, Labels};
use super::resident::Resident;
use super::source::{ReadError, Source, Stored, fingerprint};

/// Images of bytes, all of one size.
#[derive(Debug)]
pub(super) struct InMemory {
    /// Image by image, row by row, channels together.
    pixels: Vec<u8>,
    labels: Labels,
    width: u32,
    height: u32,
    channels: u32,
    /// Number of images in the set; stored images repeat.
    len: u64,
}

impl InMemory {
    /// Copies the images, which must be bytes.
    pub(super) fn new(images: &Resident) -> Self {
        let (stored, labels) = images.stored();
        assert_eq!(stored.kind(), Kind::Uint8, "checked when the data was opened");
        let (_, channels, height, width) = stored.size4().expect("BCHW");
        let pixels: Tensor = stored.permute([0, 2, 3, 1]).contiguous().view(-1);
        Self {
            pixels: Vec::try_from(pixels).expect("bytes in one row"),
            labels: labels.clone(),
            width: width as u32,
            height: height as u32,
            channels: channels as u32,
            len: images.len(),
        }
    }

    fn row(&self, image: u64) -> usize {
        (image % self.labels.len() as u64) as usize
    }
}

impl Source for InMemory {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, image: u64) -> Result<Stored, ReadError> {
        let bytes = self.pixels.len() / self.labels.len();
        Ok(Stored {
            file: self.pixels[self.row(image) * bytes..][..bytes].to_vec(),
            label: self.label(image)?,
        })
    }

    /// It is already decoded.
    fn decode(&self, pixels: Vec<u8>, _: u32, _: PixelType) -> Result<Decoded, String> {
        Ok(Decoded {
            width: self.width,
            height: self.height,
            channels: self.channels,
            stored_channels: self.channels as u16,
            pixel_type: PixelType::Uint8,
            pixels,
        })
    }

    fn is_whole(&self) -> bool {
        true
    }

    fn label(&self, image: u64) -> Result<Label, ReadError> {
        Ok(self.labels.of(self.row(image)))
    }

    fn fingerprint(&self) -> u32 {
        fingerprint(self.labels.parts())
    }

    fn name(&self, image: u64) -> String {
        format!("image {image}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_come_together_and_images_repeat() {
        let images = Tensor::arange(2 * 3 * 2, (Kind::Uint8, tch::Device::Cpu)).reshape([2, 3, 1, 2]);
        let source = InMemory::new(&Resident::new(images, Labels::from_classes(vec![5, 6]), 7));
        assert_eq!((source.len(), source.is_whole()), (7, true));
        let stored = source.read(3).expect("reads");
        assert_eq!(stored.label, Label::Class(6));
        let decoded = source.decode(stored.file, 3, PixelType::Uint8).expect("is");
        assert_eq!((decoded.width, decoded.height), (2, 1));
        assert_eq!(decoded.pixels, [6, 8, 10, 7, 9, 11]);
    }
}

//! Images held as stored, on the device if they are few.

use contract::PixelType;
use tch::{Device, Kind, Tensor};

use super::labels::Labels;
use super::order::Item;
use super::part;

/// Larger sets stay in host memory, and batches are copied to the device.
const ON_DEVICE_BYTES: u64 = 8 << 30;

/// Labelled images, all of one size.
#[derive(Debug)]
pub(super) struct Resident {
    /// Bytes or floats, [stored, channels, height, width].
    images: Tensor,
    /// Of each stored image.
    labels: Labels,
    /// Number of images in the set; a synthetic set stores fewer and repeats them.
    len: u64,
}

impl Resident {
    /// `labels` has one per image in the first dimension; images repeat if `len` is larger.
    pub(super) fn new(images: Tensor, labels: Labels, len: u64) -> Self {
        Self { images, labels, len }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The type of the images' numbers.
    pub(super) fn pixel_type(&self) -> PixelType {
        if self.images.kind() == Kind::Uint8 {
            PixelType::Uint8
        } else {
            PixelType::Float32
        }
    }

    /// Only the first `fraction` of the images, at least one.
    pub(super) fn first_part(self, fraction: f64) -> Self {
        let len = part::whole(self.len, fraction).clamp(1, self.len.max(1));
        if len >= self.len {
            return self;
        }
        let stored = self.labels.len().min(len as usize);
        let mut labels = self.labels;
        labels.truncate(stored);
        Self {
            images: self.images.narrow(0, 0, stored as i64),
            labels,
            len,
        }
    }

    /// Moves the images to the training device, if they are few enough.
    pub(super) fn to_device(&self, device: Device) -> Self {
        let bytes = self.images.numel() as u64 * self.images.kind().elt_size_in_bytes() as u64;
        let place = if bytes <= ON_DEVICE_BYTES {
            device
        } else {
            Device::Cpu
        };
        Self {
            images: self.images.to_device(place),
            labels: self.labels.clone(),
            len: self.len,
        }
    }

    /// The stored images of these items.
    pub(super) fn rows(&self, items: &[Item]) -> Vec<i64> {
        let stored = self.labels.len() as u64;
        items
            .iter()
            .map(|item| (item.image % stored).cast_signed())
            .collect()
    }

    /// Bytes of a stored image.
    pub(super) fn image_bytes(&self) -> usize {
        self.images.numel() / self.labels.len().max(1) * self.images.kind().elt_size_in_bytes()
    }

    /// Copies stored images on the host, in this order.
    pub(super) fn copy_rows(&self, rows: &[i64], bytes: &mut [u8]) {
        let images = self.images.index_select(0, &Tensor::from_slice(rows));
        images.copy_data_u8(bytes, images.numel());
    }

    /// Images, BCHW, and labels, as stored.
    pub(super) fn stored(&self) -> (&Tensor, &Labels) {
        (&self.images, &self.labels)
    }
}

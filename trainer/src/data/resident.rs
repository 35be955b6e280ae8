//! Images that are held as they are stored, on the device as far as they are few.

use tch::{Device, Kind, Tensor};

use super::order::Item;

/// More bytes than this stay in the host's memory; batches are then copied to the device.
const ON_DEVICE_BYTES: u64 = 8 << 30;

/// What the numbers of stored images are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Values {
    /// Bytes, of which 255 counts as 1.
    Bytes,
    /// Floats in units of their own.
    Floats,
}

/// Labelled images, all of one size.
#[derive(Debug)]
pub(super) struct Resident {
    /// Bytes or floats, [stored, channels, height, width].
    images: Tensor,
    /// Class indices, [stored].
    labels: Tensor,
    /// Images the set counts; a synthetic set stores fewer and repeats them.
    len: u64,
}

impl Resident {
    /// `labels` and `images` have the same first dimension; images repeat where `len` is larger.
    pub(super) fn new(images: Tensor, labels: Tensor, len: u64) -> Self {
        Self { images, labels, len }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// What the numbers of images are.
    pub(super) fn values(&self) -> Values {
        if self.images.kind() == Kind::Uint8 {
            Values::Bytes
        } else {
            Values::Floats
        }
    }

    /// Only the first `fraction` of the images, at least one.
    pub(super) fn first_part(self, fraction: f64) -> Self {
        let len = ((self.len as f64 * fraction) as u64).clamp(1, self.len.max(1));
        if len >= self.len {
            return self;
        }
        let stored = self.images.size()[0].min(len.cast_signed());
        Self::new(
            self.images.narrow(0, 0, stored),
            self.labels.narrow(0, 0, stored),
            len,
        )
    }

    /// Moves the images to where they are trained on, if they are few enough.
    pub(super) fn to_device(&self, device: Device) -> Self {
        let bytes = self.images.numel() as u64 * self.images.kind().elt_size_in_bytes() as u64;
        let place = if bytes <= ON_DEVICE_BYTES {
            device
        } else {
            Device::Cpu
        };
        Self::new(
            self.images.to_device(place),
            self.labels.to_device(place),
            self.len,
        )
    }

    /// Images, BCHW, and labels of these items, on the device.
    pub(super) fn rows(&self, items: &[Item], device: Device) -> (Tensor, Tensor) {
        let stored = self.images.size()[0].cast_unsigned();
        let rows: Vec<i64> = items
            .iter()
            .map(|item| (item.image % stored).cast_signed())
            .collect();
        let rows = Tensor::from_slice(&rows).to_device(self.images.device());
        (
            self.images.index_select(0, &rows).to_device(device),
            self.labels.index_select(0, &rows).to_device(device),
        )
    }

    /// Images and labels as they are stored.
    pub(super) fn stored(&self) -> (&Tensor, &Tensor) {
        (&self.images, &self.labels)
    }
}

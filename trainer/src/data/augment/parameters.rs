//! The device's parameters of a batch: a few numbers per image, as one block of bytes that is
//! copied together with the pixels.

use std::ops::Range;

use tch::{Kind, Tensor};

use crate::data::labels::Label;

/// Numbers of an image, or of whatever uses the image's row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Column {
    /// The class, if an image shows one.
    Label,
    /// For images on the device: the image's row, and whether it is mirrored.
    Stored,
    Flip,
    /// The window that is cropped from it.
    WindowLeft,
    WindowTop,
    WindowWidth,
    WindowHeight,
    /// The image's share of its target.
    Kept,
    /// The image's share of every pixel.
    Share,
    /// The rectangle from the other image of its pair.
    CutTop,
    CutLeft,
    CutBottom,
    CutRight,
    /// For the first, second, ... image with noise: its row, the rectangle, the noise's start.
    ErasedRow,
    ErasedTop,
    ErasedLeft,
    ErasedHeight,
    ErasedWidth,
    NoiseStart,
}

const COLUMNS: usize = Column::NoiseStart as usize + 1;

/// The parameters of a batch on the host. Doubles hold every index and, exactly, every float.
#[derive(Debug)]
pub(in crate::data) struct Parameters {
    rows: Vec<[f64; COLUMNS]>,
    /// One byte per image and class, 1 for shown classes; empty if images show one class each.
    targets: Vec<u8>,
    /// Images with a rectangle of noise.
    pub(super) erased: usize,
    /// Whether pairs of images are mixed.
    pub(super) mixed: bool,
    /// Whether some pair exchanges a rectangle.
    pub(super) cut: bool,
}

impl Parameters {
    /// Bytes of an image's parameters.
    pub(in crate::data) const BYTES: usize = COLUMNS * size_of::<f64>();

    /// Parameters of images with these labels and no augmentation. If images may show several classes, the targets of each
    /// need `target_bytes`.
    pub(super) fn new(labels: &[Label], target_bytes: usize) -> Self {
        let mut parameters = Self {
            rows: vec![[0.0; COLUMNS]; labels.len()],
            targets: vec![0; labels.len() * target_bytes],
            erased: 0,
            mixed: false,
            cut: false,
        };
        for (row, label) in labels.iter().enumerate() {
            if target_bytes > 0 {
                for class in label.classes() {
                    parameters.targets[row * target_bytes + *class as usize] = 1;
                }
            } else if let [class] = label.classes() {
                parameters.set(row, Column::Label, *class as f64);
            }
        }
        parameters
    }

    /// Images of the batch.
    pub(in crate::data) fn images(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn set(&mut self, row: usize, column: Column, number: f64) {
        self.rows[row][column as usize] = number;
    }

    /// Writes them to the start of a block.
    pub(in crate::data) fn write(&self, bytes: &mut [u8], layout: Layout) {
        let numbers = self.rows.as_flattened();
        for (place, number) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
            *place = number.to_ne_bytes();
        }
        bytes[layout.targets()..][..self.targets.len()].copy_from_slice(&self.targets);
    }
}

/// The parameters of a batch on the device.
#[derive(Debug)]
pub(super) struct Columns {
    integers: Tensor,
    floats: Tensor,
}

impl Columns {
    /// For `images` images, from the bytes of [`Parameters::write`].
    pub(super) fn read(bytes: &Tensor, images: usize) -> Self {
        let bytes = bytes.narrow(0, 0, (images * Parameters::BYTES) as i64);
        let numbers = bytes.view_dtype(Kind::Double).view([-1, COLUMNS as i64]);
        Self {
            integers: numbers.to_kind(Kind::Int64),
            floats: numbers.to_kind(Kind::Float),
        }
    }

    /// Integers, one per image.
    pub(super) fn integers(&self, column: Column) -> Tensor {
        self.integers.select(1, column as i64)
    }

    /// 32-bit floats, one per image.
    pub(super) fn floats(&self, column: Column) -> Tensor {
        self.floats.select(1, column as i64)
    }
}

/// The layout of a batch's block: parameters, targets, pixels, in this order, so that a smaller
/// batch is a shorter block.
#[derive(Clone, Copy, Debug)]
pub(in crate::data) struct Layout {
    /// Images of a full batch.
    pub(in crate::data) images: usize,
    /// Bytes of one image; 0 if the device holds the pixels already.
    pub(in crate::data) image_bytes: usize,
    /// Bytes of one image's targets; 0 if images show one class each.
    pub(in crate::data) target_bytes: usize,
}

impl Layout {
    /// Bytes of the first `images` images.
    pub(in crate::data) fn bytes(self, images: usize) -> usize {
        self.pixels(images).start
    }

    /// The start of the targets.
    fn targets(self) -> usize {
        self.images * Parameters::BYTES
    }

    /// The place of an image's pixels.
    pub(in crate::data) fn pixels(self, image: usize) -> Range<usize> {
        let start = self.targets() + self.images * self.target_bytes + image * self.image_bytes;
        start..start + self.image_bytes
    }

    /// The classes that images show, BK, from a block on the device; `None` if they show one each.
    pub(super) fn all_targets(self, block: &Tensor, images: usize, classes: i64) -> Option<Tensor> {
        let bytes = (images * self.target_bytes) as i64;
        (self.target_bytes > 0).then(|| {
            block
                .narrow(0, self.targets() as i64, bytes)
                .view([-1, self.target_bytes as i64])
                .narrow(1, 0, classes)
        })
    }

    /// The pixels of the first `images` images of a block on the device, as bytes.
    pub(super) fn all_pixels(self, block: &Tensor, images: usize) -> Tensor {
        let start = self.pixels(0).start;
        block.narrow(0, start as i64, (images * self.image_bytes) as i64)
    }
}

#[cfg(test)]
impl Parameters {
    /// For images that show one class each.
    pub(super) fn from_classes(classes: &[i64]) -> Self {
        let labels: Vec<Label> = classes.iter().copied().map(Label::Class).collect();
        Self::new(&labels, 0)
    }

    /// As on the device.
    pub(super) fn columns(&self) -> Columns {
        let layout = Layout {
            images: self.images(),
            image_bytes: 0,
            target_bytes: 0,
        };
        let mut bytes = vec![0; layout.bytes(self.images())];
        self.write(&mut bytes, layout);
        Columns::read(&Tensor::from_slice(&bytes), self.images())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_arrive_where_they_belong_and_exactly() {
        let mut parameters = Parameters::from_classes(&[7, 1 << 40, 9]);
        let share = 0.1_f32;
        parameters.set(2, Column::NoiseStart, f64::from(share));
        let columns = parameters.columns();
        let labels = Vec::<i64>::try_from(columns.integers(Column::Label)).expect("numbers");
        assert_eq!(labels, [7, 1 << 40, 9]);
        let shares = Vec::<f32>::try_from(columns.floats(Column::NoiseStart)).expect("numbers");
        assert_eq!(shares, [0.0, 0.0, share]);
    }

    #[test]
    fn targets_lie_before_the_pixels_of_a_batch_of_any_size() {
        let layout = Layout {
            images: 4,
            target_bytes: 8,
            image_bytes: 4,
        };
        let labels = [vec![0, 4], vec![], vec![2]].map(Label::Classes);
        let parameters = Parameters::new(&labels, 8);
        let mut bytes = vec![0; layout.bytes(3)];
        parameters.write(&mut bytes, layout);
        let first = layout.pixels(0).start;
        bytes[first..].fill(9);
        let block = Tensor::from_slice(&bytes);
        let targets = layout.all_targets(&block, 3, 5).expect("several");
        let rows: Vec<u8> = Vec::try_from(targets.contiguous().view(-1)).expect("bytes");
        assert_eq!(rows, [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(layout.all_pixels(&block, 3).min().int64_value(&[]), 9);
    }
}

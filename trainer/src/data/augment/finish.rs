//! The last steps, on the device: a few operations on whole batches, without waits of the host.

use contract::{Interpolation, PixelType, RandomCrop, RandomResizedCrop, RunConfig};
use tch::{Device, Kind, Tensor};

use super::geometry;
use super::mix::{erase, mix_images, mix_targets, noise, one_hot, targets};
use super::parameters::{Column, Columns, Layout, Parameters};
use crate::data::batch::{Batch, Targets};
use crate::data::resident::Resident;
use crate::random::{Stream, derive};

/// Makes batches on the device, from bytes that are copied there or from images that it holds.
#[derive(Debug)]
pub(in crate::data) struct Finish {
    pub(in crate::data) device: Device,
    /// Of the model's images.
    side: i64,
    channels: i64,
    classes: i64,
    label_smoothing: f64,
    /// Weights of classes in the training loss, [classes].
    class_weights: Option<Tensor>,
    pixel_type: PixelType,
    /// How images on the device are resized to the model's size.
    resized_crop: Option<RandomResizedCrop>,
    shift: Option<RandomCrop>,
    interpolation: Interpolation,
    flips: bool,
    /// In units of the stored numbers, [1, channels, 1, 1].
    mean: Tensor,
    std: Tensor,
    /// For random erasing.
    noise: Option<Tensor>,
}

impl Finish {
    pub(in crate::data) fn new(
        config: &RunConfig,
        pixel_type: PixelType,
        class_weights: Option<&[f32]>,
        device: Device,
    ) -> Self {
        let RunConfig {
            model,
            data,
            training,
            ..
        } = config;
        let unit = pixel_type.unit();
        let per_channel = |numbers: &[f64]| {
            let numbers: Vec<f32> = numbers.iter().map(|number| (number * unit) as f32).collect();
            Tensor::from_slice(&numbers)
                .reshape([1, -1, 1, 1])
                .expand([1, i64::from(model.channels), 1, 1], false)
                .contiguous()
                .to_device(device)
        };
        let augmentation = &data.augmentation;
        Self {
            device,
            side: i64::from(model.image_size),
            channels: i64::from(model.channels),
            classes: i64::from(model.num_classes),
            label_smoothing: training.label_smoothing,
            class_weights: class_weights.map(|weights| Tensor::from_slice(weights).to_device(device)),
            pixel_type,
            resized_crop: augmentation.random_resized_crop.clone(),
            shift: augmentation.random_crop,
            interpolation: data.interpolation,
            flips: augmentation.horizontal_flip > 0.0,
            mean: per_channel(&data.normalization.mean),
            std: per_channel(&data.normalization.std),
            noise: (augmentation.random_erasing > 0.0).then(|| {
                let seed = derive(training.seed, Stream::Noise, 0, 0);
                noise(seed, model.channels, model.image_size, device)
            }),
        }
    }

    /// A batch of squares of the model's size in the block, BHWC.
    pub(in crate::data) fn squares(&self, block: &Tensor, layout: Layout, parameters: &Parameters) -> Batch {
        let kind = match self.pixel_type {
            PixelType::Uint8 => Kind::Uint8,
            PixelType::Float32 => Kind::Float,
        };
        let images = layout
            .all_pixels(block, parameters.images())
            .view_dtype(kind)
            .view([-1, self.side, self.side, self.channels])
            .permute([0, 3, 1, 2])
            .contiguous();
        let columns = Columns::read(block, parameters.images());
        let shown = layout.all_targets(block, parameters.images(), self.classes);
        self.finished(&images, parameters, &columns, shown)
    }

    /// A batch of whole stored images, on the device or in the block. They are augmented in
    /// training only.
    pub(in crate::data) fn resident(
        &self,
        stored: &Resident,
        block: &Tensor,
        layout: Layout,
        parameters: &Parameters,
        training: bool,
    ) -> Batch {
        let columns = Columns::read(block, parameters.images());
        let (images, _) = stored.stored();
        let images = if layout.image_bytes == 0 {
            images.index_select(0, &columns.integers(Column::Stored))
        } else {
            let mut shape = images.size();
            shape[0] = -1;
            layout
                .all_pixels(block, parameters.images())
                .view_dtype(images.kind())
                .view(shape.as_slice())
        };
        let images = if training {
            self.varied(&images, &columns)
        } else {
            self.resized(&images)
        };
        let shown = layout.all_targets(block, parameters.images(), self.classes);
        self.finished(&images, parameters, &columns, shown)
    }

    fn varied(&self, images: &Tensor, columns: &Columns) -> Tensor {
        let images = if let Some(crop) = &self.resized_crop {
            let images = geometry::crop_and_resize(images, columns, self.side, crop.interpolation);
            self.within_bytes(images)
        } else if let Some(crop) = self.shift {
            self.resized(&geometry::shift(images, columns, crop.padding))
        } else {
            self.resized(images)
        };
        if self.flips {
            geometry::flip(&images, columns)
        } else {
            images
        }
    }

    fn resized(&self, images: &Tensor) -> Tensor {
        let resized = geometry::resize(images, self.side, self.interpolation);
        self.within_bytes(resized)
    }

    /// A bicubic filter exceeds the range of bytes; Pillow clamps it.
    fn within_bytes(&self, images: Tensor) -> Tensor {
        match self.pixel_type {
            PixelType::Uint8 if images.kind() != Kind::Uint8 => images.clamp(0.0, 255.0),
            _ => images,
        }
    }

    /// `shown`: which classes each image shows, if these may be several.
    fn finished(
        &self,
        images: &Tensor,
        parameters: &Parameters,
        columns: &Columns,
        shown: Option<Tensor>,
    ) -> Batch {
        let mut images = images.to_kind(Kind::Float) - &self.mean;
        // In place: this function owns the difference.
        images /= &self.std;
        if let Some(noise) = &self.noise {
            erase(&mut images, columns, parameters.erased, noise);
        }
        let smoothed = |shown: &Tensor| targets(shown, self.label_smoothing);
        let (images, targets) = if parameters.mixed {
            let shown = shown
                .as_ref()
                .map_or_else(|| one_hot(columns, self.classes), Tensor::shallow_clone);
            let mixed = mix_targets(&smoothed(&shown), columns);
            (mix_images(&images, columns, parameters.cut), Some(mixed))
        } else {
            (images, shown.as_ref().map(smoothed))
        };
        Batch {
            images,
            labels: match shown {
                Some(shown) => shown.to_kind(Kind::Bool),
                None => columns.integers(Column::Label).contiguous(),
            },
            targets: targets.map_or(Targets::Classes, Targets::Smoothed),
            class_weights: self.class_weights.as_ref().map(Tensor::shallow_clone),
            digest: 0,
        }
    }
}

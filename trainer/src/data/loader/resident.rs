//! Batches of images in memory, made on the device when they are asked for.

use std::rc::Rc;
use std::sync::Arc;

use torch_ext::Transfer;

use super::Task;
use crate::data::DataError;
use crate::data::augment::{Finish, Layout, Preparation, TrainingMoment};
use crate::data::batch::Batch;
use crate::data::labels::Label;
use crate::data::resident::Resident;

/// The host writes the next batch's parameters while the device works on one batch.
const IN_FLIGHT: usize = 2;

/// Batches of images in memory.
#[derive(Debug)]
pub(crate) struct ResidentBatches {
    images: Rc<Resident>,
    preparation: Arc<Preparation>,
    finish: Rc<Finish>,
    task: Task,
    layout: Layout,
    transfers: [Transfer; IN_FLIGHT],
    /// Batches that were made.
    done: usize,
}

impl ResidentBatches {
    /// `on_device`: the device holds the images, instead of a copy per batch.
    pub(in crate::data) fn new(
        images: Rc<Resident>,
        on_device: bool,
        preparation: Arc<Preparation>,
        finish: Rc<Finish>,
        task: Task,
    ) -> Result<Self, DataError> {
        let layout = Layout {
            images: task.batching.largest,
            image_bytes: if on_device { 0 } else { images.image_bytes() },
            target_bytes: preparation.target_bytes(),
        };
        let transfer = || Transfer::new(finish.device, layout.bytes(layout.images));
        Ok(Self {
            transfers: [transfer()?, transfer()?],
            images,
            preparation,
            finish,
            task,
            layout,
            done: 0,
        })
    }

    pub(super) fn next(&mut self) -> Result<Option<Batch>, DataError> {
        let items = &self.task.items[self.task.items_of(self.done)];
        if items.is_empty() {
            return Ok(None);
        }
        let (images, labels) = self.images.stored();
        let rows = self.images.rows(items);
        let labels: Vec<Label> = rows.iter().map(|row| labels.of(*row as usize)).collect();
        let moments: Option<Vec<TrainingMoment>> = items.iter().map(|item| self.task.moment(*item)).collect();
        let [height, width] = [2, 3].map(|dimension| images.size()[dimension] as u32);
        let parameters =
            self.preparation
                .resident_parameters(&labels, &rows, [width, height], moments.as_deref());

        let transfer = &mut self.transfers[self.done % IN_FLIGHT];
        let block = transfer.host()?;
        parameters.write(block, self.layout);
        let bytes = self.layout.bytes(items.len());
        if self.layout.image_bytes > 0 {
            let start = self.layout.pixels(0).start;
            self.images.copy_rows(&rows, &mut block[start..bytes]);
        }
        transfer.send(bytes)?;
        let (images, finish, layout) = (&self.images, &self.finish, self.layout);
        let training = moments.is_some();
        let batch =
            transfer.receive(|block| finish.resident(images, block, layout, &parameters, training))?;
        self.done += 1;
        Ok(Some(batch))
    }
}

#[cfg(test)]
mod tests {
    use contract::Loss;
    use tch::{Device, Kind, Tensor};

    use super::super::Batching;
    use super::*;
    use crate::data::batch::{Readable, Targets};
    use crate::data::fixtures::config;
    use crate::data::labels::Labels;
    use crate::data::order::Item;

    const AUGMENTATION: &str =
        "{randomResizedCrop: {}, horizontalFlip: 0.5, randomErasing: 0.5, mixup: 0.8, cutmix: 1.0}";

    fn batches(images: &Tensor, on_device: bool, epoch: Option<u32>) -> Vec<Batch> {
        let labels = Labels::from_classes((0..10).collect());
        batches_of(images, labels, Loss::CrossEntropy, on_device, epoch)
    }

    fn batches_of(
        images: &Tensor,
        labels: Labels,
        loss: Loss,
        on_device: bool,
        epoch: Option<u32>,
    ) -> Vec<Batch> {
        let mut config = config(&format!(
            "{{format: synthetic, syntheticImages: 10, augmentation: {AUGMENTATION}}}"
        ));
        config.training.loss = loss;
        let resident = Resident::new(images.shallow_clone(), labels, 10);
        let finish = Finish::new(&config, resident.pixel_type(), None, Device::Cpu);
        let items = (0..10).map(|place| Item {
            image: 9 - place,
            place,
        });
        let task = Task {
            items: items.collect(),
            batching: Batching::new([4]),
            epoch,
            readable: Readable::new(10, 0.0),
        };
        let preparation = Arc::new(Preparation::new(&config));
        let batches = ResidentBatches::new(Rc::new(resident), on_device, preparation, Rc::new(finish), task);
        let mut batches = batches.expect("memory");
        std::iter::from_fn(|| batches.next().expect("no error")).collect()
    }

    #[test]
    fn classes_that_images_show_come_with_them_wherever_these_are_held() {
        tch::manual_seed(3);
        let floats = Tensor::randn([10, 3, 30, 20], (Kind::Float, Device::Cpu));
        let lists: Vec<Vec<i32>> = (0..10).map(|image| (0..image % 4).collect()).collect();
        for epoch in [Some(1), None] {
            let of = |on_device| {
                let labels = Labels::from_lists(&lists);
                batches_of(&floats, labels, Loss::BinaryCrossEntropy, on_device, epoch)
            };
            let (held, given) = (of(true), of(false));
            for (held, given) in held.iter().zip(&given) {
                assert!(held.images.equal(&given.images) && held.labels.equal(&given.labels));
            }
            let shown: Vec<Tensor> = given.iter().map(|batch| batch.labels.shallow_clone()).collect();
            let counts = Tensor::cat(&shown, 0).sum_dim_intlist([1_i64].as_slice(), false, Kind::Int64);
            let expected: Vec<i64> = (0..10).map(|place| (9 - place) % 4).collect();
            assert_eq!(Vec::<i64>::try_from(counts).expect("numbers"), expected);
        }
    }

    #[test]
    fn it_makes_no_difference_where_images_are_held() {
        tch::manual_seed(3);
        let bytes = Tensor::randint(256, [10, 3, 30, 20], (Kind::Uint8, Device::Cpu));
        let floats = Tensor::randn([10, 3, 30, 20], (Kind::Float, Device::Cpu));
        for (images, epoch) in [
            (&bytes, Some(1)),
            (&bytes, None),
            (&floats, Some(1)),
            (&floats, None),
        ] {
            let held = batches(images, true, epoch);
            let given = batches(images, false, epoch);
            assert_eq!(held.iter().map(|batch| batch.labels.size()[0]).sum::<i64>(), 10);
            assert_eq!(held.len(), given.len());
            for (held, given) in held.iter().zip(&given) {
                assert!(held.images.equal(&given.images), "{:?}, {epoch:?}", images.kind());
                assert!(held.labels.equal(&given.labels));
                if let (Targets::Smoothed(held), Targets::Smoothed(given)) = (&held.targets, &given.targets) {
                    assert!(held.equal(given));
                } else {
                    assert!(epoch.is_none(), "mixed");
                }
            }
        }
        // Two batches are in flight, and the third does not overwrite the first.
        let all = batches(&bytes, false, None);
        let labels: Vec<i64> = all
            .iter()
            .flat_map(|batch| Vec::<i64>::try_from(&batch.labels).expect("labels"))
            .collect();
        assert_eq!(labels, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
    }
}

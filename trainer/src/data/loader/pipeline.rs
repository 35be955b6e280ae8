//! Batches of images in files, made by threads ahead of the step that takes them.
//!
//! Threads take images one by one in the order in which they are needed; whoever finishes the last one of a batch
//! makes the batch. They stay a few batches ahead of the step and no further. Which thread does what changes nothing:
//! an image depends on its place alone.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{RecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use fast_image_resize::Resizer;
use tch::Tensor;

use super::Task;
use crate::data::DataError;
use crate::data::augment::{Moment, Preparation};
use crate::data::batch::Batch;
use crate::data::decode::decode;
use crate::data::order::Item;
use crate::data::source::Source;

/// Batches that are made ahead, and bytes that they may take together. One is always made.
const AHEAD: usize = 4;
const AHEAD_BYTES: usize = 1 << 30;
/// Images in a row that are tried in place of one that cannot be read.
const REPLACEMENTS: u64 = 100;
/// Images left out that are named; more are only counted.
const NAMED: u64 = 100;

/// Threads that make the batches of one epoch or evaluation. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Pipeline {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    source: Arc<dyn Source>,
    preparation: Arc<Preparation>,
    task: Task,
    /// Batches ahead of the step, the one that is being made among them.
    ahead: usize,
    state: Mutex<State>,
    /// A batch is done.
    ready: Condvar,
    /// There is room for another batch.
    room: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Items that threads have taken.
    taken_items: usize,
    /// Batches that the step has taken.
    taken_batches: usize,
    /// Images of batches that are not complete.
    incomplete: BTreeMap<usize, Vec<(usize, Outcome)>>,
    done: BTreeMap<usize, BatchOutcome>,
    left_out: u64,
    closed: bool,
}

/// Pixels and label of an image; `None` if it is left out. A panic is carried on to the step.
type Outcome = std::thread::Result<Result<Option<(Vec<u8>, i64)>, DataError>>;
/// A batch; `None` if all of its images are left out.
type BatchOutcome = std::thread::Result<Result<Option<Batch>, DataError>>;

impl Pipeline {
    pub(in crate::data) fn start(
        source: Arc<dyn Source>,
        preparation: Arc<Preparation>,
        task: Task,
        threads: usize,
    ) -> Result<Self, DataError> {
        let batch_bytes = task.batch_size * preparation.image_bytes();
        let mut pipeline = Self {
            threads: Vec::with_capacity(threads),
            shared: Arc::new(Shared {
                ahead: (AHEAD_BYTES / batch_bytes.max(1)).clamp(1, AHEAD),
                source,
                preparation,
                task,
                state: Mutex::default(),
                ready: Condvar::new(),
                room: Condvar::new(),
            }),
        };
        // Setting the number of threads of an operation applies to the calling thread, and becomes the default of threads
        // that have not used ATen yet. The default is restored once every decode thread has set its own.
        let before = tch::get_num_threads();
        let (setting, all_set) = channel();
        for _ in 0..threads {
            let (shared, setting) = (Arc::clone(&pipeline.shared), setting.clone());
            let thread = std::thread::Builder::new().name("decode".into()).spawn(move || {
                // One, as there is a decode thread for each processor. Reading the number initialises this thread, so that
                // its first operation does not overwrite it with the default.
                let _ = tch::get_num_threads();
                tch::set_num_threads(1);
                drop(setting);
                shared.work();
            });
            pipeline.threads.push(thread.map_err(DataError::Read)?);
        }
        drop(setting);
        let _: Result<(), RecvError> = all_set.recv();
        tch::set_num_threads(before);
        Ok(pipeline)
    }

    /// Images that could not be read so far.
    pub(super) fn left_out(&self) -> u64 {
        self.shared.lock().left_out
    }

    /// The next batch, for which this waits; `None` after the last one.
    pub(super) fn next(&mut self) -> Result<Option<Batch>, DataError> {
        loop {
            let mut state = self.shared.lock();
            if state.taken_batches == self.shared.batches() {
                return Ok(None);
            }
            let outcome = loop {
                let next = state.taken_batches;
                if let Some(outcome) = state.done.remove(&next) {
                    break outcome;
                }
                state = self
                    .shared
                    .ready
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            };
            state.taken_batches += 1;
            drop(state);
            self.shared.room.notify_all();
            match outcome {
                Ok(Ok(None)) => {}
                Ok(batch) => return batch,
                Err(panic) => resume_unwind(panic),
            }
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.room.notify_all();
        for thread in self.threads.drain(..) {
            // A panic went to the step that waited for the batch.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// No thread panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn batches(&self) -> usize {
        self.task.items.len().div_ceil(self.task.batch_size)
    }

    fn work(&self) {
        let mut resizer = Resizer::new();
        while let Some(number) = self.take() {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                self.image(self.task.items[number], &mut resizer)
            }));
            self.put(number, outcome);
        }
    }

    /// The number of the next item to read.
    fn take(&self) -> Option<usize> {
        let mut state = self.lock();
        loop {
            let number = state.taken_items;
            if state.closed || number >= self.task.items.len() {
                return None;
            }
            if number / self.task.batch_size < state.taken_batches + self.ahead {
                state.taken_items += 1;
                return Some(number);
            }
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn put(&self, number: usize, outcome: Outcome) {
        let batch = number / self.task.batch_size;
        let first = batch * self.task.batch_size;
        let size = self.task.batch_size.min(self.task.items.len() - first);
        let mut state = self.lock();
        let images = state.incomplete.entry(batch).or_default();
        images.push((number, outcome));
        if images.len() < size {
            return;
        }
        let images = state.incomplete.remove(&batch).unwrap_or_default();
        drop(state);
        let made = catch_unwind(AssertUnwindSafe(|| self.assemble(images)));
        self.lock().done.insert(batch, made.and_then(|made| made));
        self.ready.notify_all();
    }

    /// Reads an image. In training another one takes the place of one that cannot be read: a batch keeps its size.
    fn image(&self, item: Item, resizer: &mut Resizer) -> Result<Option<(Vec<u8>, i64)>, DataError> {
        match self.read(item.image, item, resizer)? {
            Ok(image) => return Ok(Some(image)),
            Err(reason) => self.leave_out(item.image, &reason)?,
        }
        if self.task.epoch.is_none() {
            return Ok(None);
        }
        let mut last = String::new();
        for offset in 1..=REPLACEMENTS {
            match self.read((item.image + offset) % self.source.len(), item, resizer)? {
                Ok(image) => return Ok(Some(image)),
                Err(reason) => last = reason,
            }
        }
        let left_out = self.lock().left_out;
        Err(self.too_many(item.image, last, left_out))
    }

    /// Pixels and label; the inner error says what is wrong with the file.
    fn read(
        &self,
        image: u64,
        item: Item,
        resizer: &mut Resizer,
    ) -> Result<Result<(Vec<u8>, i64), String>, DataError> {
        let stored = match self.source.read(image) {
            Ok(stored) => stored,
            Err(reason) => return Ok(Err(reason)),
        };
        let classes = self.preparation.classes;
        if !(0..i64::from(classes)).contains(&stored.label) {
            return Err(DataError::LabelOfImage {
                image: self.source.name(image),
                label: stored.label,
                classes,
            });
        }
        let framed = decode(&stored.file, self.preparation.channels).and_then(|decoded| {
            self.preparation
                .frame(&decoded, self.task.epoch, item.place, resizer)
        });
        Ok(framed.map(|pixels| (pixels, stored.label)))
    }

    fn leave_out(&self, image: u64, reason: &str) -> Result<(), DataError> {
        let mut state = self.lock();
        let left_out = state.left_out + 1;
        if left_out > self.task.readable.allowed() {
            drop(state);
            return Err(self.too_many(image, reason.into(), left_out));
        }
        state.left_out = left_out;
        drop(state);
        if left_out <= NAMED {
            tracing::warn!(
                "{} cannot be read and is left out: {reason}",
                self.source.name(image)
            );
        }
        Ok(())
    }

    fn too_many(&self, image: u64, reason: String, left_out: u64) -> DataError {
        self.task
            .readable
            .refuse(self.source.name(image), reason, left_out)
    }

    fn assemble(&self, mut images: Vec<(usize, Outcome)>) -> BatchOutcome {
        images.sort_unstable_by_key(|(number, _)| *number);
        let (mut pixels, mut labels, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (number, outcome) in images {
            match outcome? {
                Ok(Some((image, label))) => {
                    pixels.extend_from_slice(&image);
                    labels.push(label);
                    places.push(self.task.items[number].place);
                }
                Ok(None) => {}
                Err(error) => return Ok(Err(error)),
            }
        }
        if labels.is_empty() {
            return Ok(Ok(None));
        }
        let preparation = &self.preparation;
        let (side, channels) = (preparation.side, i64::from(preparation.channels));
        let images = Tensor::from_slice(&pixels)
            .reshape([-1, side, side, channels])
            .to_device(preparation.device)
            .permute([0, 3, 1, 2])
            .contiguous();
        let labels = Tensor::from_slice(&labels).to_device(preparation.device);
        Ok(Ok(Some(match self.task.epoch {
            Some(epoch) => {
                let moment = Moment {
                    epoch,
                    places: &places,
                };
                preparation.cropped(images, labels, moment)
            }
            None => preparation.evaluation(images, labels),
        })))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use image::ImageFormat;
    use tch::{Device, Kind};

    use super::*;
    use crate::data::batch::Readable;
    use crate::data::fixtures::{config, image_file as file};
    use crate::data::resident::Values;
    use crate::data::source::Stored;

    /// Longer than any wait in these tests.
    const DEADLINE: Duration = Duration::from_secs(60);

    /// Images whose colour is their number; some of them are no images.
    #[derive(Debug)]
    struct Numbered {
        len: u64,
        corrupt: Vec<u64>,
        /// Above the label of every image.
        first_label: i64,
        reads: AtomicU64,
        /// Largest number of threads of an operation, as decode threads see it.
        most_threads: AtomicI32,
    }

    impl Source for Numbered {
        fn len(&self) -> u64 {
            self.len
        }

        fn read(&self, image: u64) -> Result<Stored, String> {
            self.reads.fetch_add(1, Ordering::SeqCst);
            self.most_threads
                .fetch_max(tch::get_num_threads(), Ordering::SeqCst);
            let file = if self.corrupt.contains(&image) {
                b"no image".to_vec()
            } else {
                file(ImageFormat::Png, 30 + image as u32, 40, [image as u8, 7, 100])
            };
            let label = self.label(image)?;
            Ok(Stored { file, label })
        }

        fn label(&self, image: u64) -> Result<i64, String> {
            Ok(self.first_label + image.cast_signed() % 10)
        }

        fn name(&self, image: u64) -> String {
            format!("image {image}")
        }
    }

    fn start(
        data: &str,
        corrupt: &[u64],
        epoch: Option<u32>,
        batch_size: usize,
        threads: usize,
    ) -> (Pipeline, Arc<Numbered>) {
        let source = Arc::new(Numbered {
            len: 24,
            corrupt: corrupt.to_vec(),
            first_label: 0,
            reads: AtomicU64::default(),
            most_threads: AtomicI32::default(),
        });
        let config = config(&format!(
            "{{format: imageFolder, volume: {{hostPath: {{path: /x}}}}, {data}}}"
        ));
        let items = (0..24).map(|place| Item {
            image: 23 - place,
            place,
        });
        let task = Task {
            items: items.collect(),
            batch_size,
            epoch,
            readable: Readable::new(24, config.data.max_corrupt_fraction),
        };
        let preparation = Arc::new(Preparation::new(&config, Values::Bytes, Device::Cpu));
        let shared: Arc<dyn Source> = Arc::clone(&source) as Arc<dyn Source>;
        let pipeline = Pipeline::start(shared, preparation, task, threads).expect("starts");
        (pipeline, source)
    }

    fn all(mut pipeline: Pipeline) -> Result<(Tensor, Vec<i64>), DataError> {
        let (mut images, mut labels) = (Vec::new(), Vec::new());
        while let Some(batch) = pipeline.next()? {
            images.push(batch.images);
            labels.extend(Vec::<i64>::try_from(batch.labels).expect("labels"));
        }
        Ok((Tensor::cat(&images, 0), labels))
    }

    const AUGMENTED: &str = "augmentation: {randomResizedCrop: {}, horizontalFlip: 0.5, \
        randAugment: rand-m9-mstd0.5-inc1, randomErasing: 0.5}";

    #[test]
    fn threads_and_batches_change_nothing() {
        let (one, labels) = all(start(AUGMENTED, &[], Some(3), 8, 1).0).expect("reads");
        assert_eq!(one.size(), [24, 3, 24, 24]);
        let expected: Vec<i64> = (0..24).rev().map(|image| image % 10).collect();
        assert_eq!(labels, expected, "in the order of the task");
        for (batch_size, threads) in [(8, 4), (2, 3), (24, 2)] {
            let (many, _) = all(start(AUGMENTED, &[], Some(3), batch_size, threads).0).expect("reads");
            assert!(many.equal(&one), "{threads} threads, batches of {batch_size}");
        }
        let (other, _) = all(start(AUGMENTED, &[], Some(4), 8, 2).0).expect("reads");
        assert!(!other.equal(&one), "epochs differ");
    }

    #[test]
    fn threads_stay_a_few_batches_ahead_and_end_when_nobody_waits() {
        let (mut pipeline, source) = start("fraction: 1.0", &[], Some(0), 2, 3);
        let first = pipeline.next().expect("no error");
        assert!(first.is_some());
        let shared = &pipeline.shared;
        let waited = shared
            .ready
            .wait_timeout_while(shared.lock(), DEADLINE, |state| state.done.len() < AHEAD);
        let (state, timeout) = waited.expect("no thread panics");
        assert!(!timeout.timed_out(), "{} batches are made", state.done.len());
        drop(state);
        drop(pipeline);
        // All threads have ended; without the bound they would have read more.
        assert_eq!(source.reads.load(Ordering::SeqCst), 2 * (AHEAD as u64 + 1));
        assert_eq!(Arc::strong_count(&source), 1, "all threads have ended");
    }

    #[test]
    fn an_unreadable_image_is_replaced_in_training_and_left_out_of_evaluation() {
        let allowed = "maxCorruptFraction: 0.1";
        let (images, labels) = all(start(allowed, &[5, 23], Some(0), 4, 2).0).expect("reads");
        assert_eq!(images.size()[0], 24);
        // Image 23 comes first and gives its place to image 0; 5 gives it to 6.
        assert_eq!((labels[0], labels[18]), (0, 6));
        let (images, labels) = all(start(allowed, &[5, 23], None, 4, 2).0).expect("reads");
        assert_eq!((images.size()[0], labels.len(), labels[0]), (22, 22, 2));
        let (images, _) = all(start("maxCorruptFraction: 0.5", &[0, 1, 2], None, 2, 2).0).expect("reads");
        assert_eq!(images.size()[0], 21, "a batch may have nothing left");
    }

    #[test]
    fn one_more_than_allowed_ends_it_and_names_it() {
        for epoch in [Some(0), None] {
            let error = all(start("fraction: 1.0", &[9], epoch, 4, 2).0).expect_err("refused");
            assert_eq!(
                error.to_string(),
                "image 9 cannot be read: it is neither JPEG nor PNG (of 24 images 1 cannot, by this rank's count; data.maxCorruptFraction of 0 allows 0)"
            );
        }
        let all_corrupt: Vec<u64> = (0..24).collect();
        let error =
            all(start("maxCorruptFraction: 0.99", &all_corrupt, Some(0), 4, 2).0).expect_err("refused");
        assert!(error.to_string().contains("cannot be read"), "{error}");
    }

    #[test]
    fn a_label_beyond_the_classes_is_named() {
        let source = Arc::new(Numbered {
            len: 4,
            corrupt: Vec::new(),
            first_label: 8,
            reads: AtomicU64::default(),
            most_threads: AtomicI32::default(),
        });
        let config = config("{format: imageFolder, volume: {hostPath: {path: /x}}}");
        let preparation = Arc::new(Preparation::new(&config, Values::Bytes, Device::Cpu));
        let items = (0..4).map(|place| Item { image: place, place });
        let task = Task {
            items: items.collect(),
            batch_size: 4,
            epoch: None,
            readable: Readable::new(4, 0.0),
        };
        let error = all(Pipeline::start(source, preparation, task, 1).expect("starts")).expect_err("refused");
        assert_eq!(
            error.to_string(),
            "image 2 has label 10, but model.numClasses is 10 (labels 0 to 9)"
        );
    }

    #[test]
    fn operations_in_a_decode_thread_use_that_thread_alone() {
        let before = tch::get_num_threads();
        tch::set_num_threads(3);
        let (pipeline, source) = start("fraction: 1.0", &[], Some(0), 2, 2);
        let _ = all(pipeline).expect("reads");
        assert_eq!(source.most_threads.load(Ordering::SeqCst), 1);
        assert_eq!(tch::get_num_threads(), 3);
        // While tests that run side by side start a pipeline, it is 1.
        let began = Instant::now();
        while std::thread::spawn(tch::get_num_threads).join().expect("a number") == 1 {
            assert!(began.elapsed() < DEADLINE, "the default was not restored");
        }
        tch::set_num_threads(before);
    }

    #[test]
    fn colours_are_normalised() {
        let (images, _) = all(start("fraction: 1.0", &[], None, 24, 1).0).expect("reads");
        let mean = images.get(0).mean_dim([1_i64, 2].as_slice(), false, Kind::Float);
        for (channel, value) in (0..).zip([23.0, 7.0, 100.0]) {
            let found = mean.double_value(&[channel]);
            assert!((found - (value / 127.5 - 1.0)).abs() < 1e-5, "{found}");
        }
    }
}

//! Batches of images that threads of the host prepare ahead of the step that uses them.
//!
//! Threads take images in order and write their bytes into their batch's block; whoever finishes
//! the last one adds the parameters. The step's thread has the block copied to the device and
//! finishes it there. Copied blocks are reused, so threads are at most a few batches ahead. Which
//! thread does what changes nothing: an image depends on its place alone.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fast_image_resize::Resizer;
use torch_ext::Transfer;

use super::Task;
use super::stages::{Progress, Stage, Stages};
use crate::data::DataError;
use crate::data::augment::{Finish, Layout, Parameters, Preparation, TrainingMoment};
use crate::data::batch::Batch;
use crate::data::labels::Label;
use crate::data::order::Item;
use crate::data::source::{ReadError, Source, Stored, check_label, pauses};

/// Number of batches that are made ahead, and their maximum bytes in total. One is always made.
const AHEAD: usize = 4;
const AHEAD_BYTES: usize = 1 << 30;
/// How many successive images are tried in place of an unreadable one.
const REPLACEMENTS: u64 = 100;
/// How many left-out images are named; more are only counted.
const NAMED: u64 = 100;

/// Threads that make the batches of one epoch or evaluation. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Pipeline {
    shared: Arc<Shared>,
    finish: Rc<Finish>,
    threads: Vec<JoinHandle<()>>,
    /// Batches whose copy has started.
    sent: usize,
}

#[derive(Debug)]
struct Shared {
    source: Arc<dyn Source>,
    preparation: Arc<Preparation>,
    task: Task,
    layout: Layout,
    /// One per batch ahead of the step, including the one in progress.
    blocks: Vec<Mutex<Transfer>>,
    stages: Stages,
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
    /// Images of incomplete batches.
    incomplete: BTreeMap<usize, Vec<(usize, Outcome)>>,
    done: BTreeMap<usize, BatchOutcome>,
    left_out: u64,
    closed: bool,
}

/// An image whose pixels are in their block.
#[derive(Debug)]
struct PreparedImage {
    label: Label,
    /// Its number, or that of its replacement.
    image: u64,
}

/// A batch whose pixels and parameters are in its block.
#[derive(Debug)]
struct PreparedBatch {
    parameters: Parameters,
    /// [`Batch::digest`].
    digest: u32,
}

/// `None` if the image is left out. A panic is passed on to the step.
type Outcome = std::thread::Result<Result<Option<PreparedImage>, DataError>>;
/// `None` if all of the batch's images are left out.
type BatchOutcome = std::thread::Result<Result<Option<PreparedBatch>, DataError>>;

impl Pipeline {
    pub(in crate::data) fn start(
        source: Arc<dyn Source>,
        preparation: Arc<Preparation>,
        finish: Rc<Finish>,
        task: Task,
        threads: usize,
    ) -> Result<Self, DataError> {
        let layout = Layout {
            images: task.batching.largest,
            image_bytes: preparation.image_bytes(),
            target_bytes: preparation.target_bytes(),
        };
        let bytes = layout.bytes(layout.images);
        let ahead = (AHEAD_BYTES / bytes.max(1)).clamp(1, AHEAD);
        let block = |_| Transfer::new(finish.device, bytes).map(Mutex::new);
        let mut pipeline = Self {
            threads: Vec::with_capacity(threads),
            sent: 0,
            shared: Arc::new(Shared {
                blocks: (0..ahead).map(block).collect::<Result<_, _>>()?,
                source,
                preparation,
                task,
                layout,
                stages: Stages::default(),
                state: Mutex::default(),
                ready: Condvar::new(),
                room: Condvar::new(),
            }),
            finish,
        };
        for _ in 0..threads {
            let shared = Arc::clone(&pipeline.shared);
            let thread = std::thread::Builder::new().name("decode".into());
            let thread = thread.spawn(move || shared.work());
            pipeline.threads.push(thread.map_err(DataError::Read)?);
        }
        Ok(pipeline)
    }

    /// Images that could not be read so far.
    pub(super) fn left_out(&self) -> u64 {
        self.shared.lock().left_out
    }

    /// The work done so far.
    pub(super) fn progress(&self) -> Progress {
        self.shared.stages.progress(self.threads.len())
    }

    /// Waits for the next batch; `None` after the last one.
    pub(super) fn next(&mut self) -> Result<Option<Batch>, DataError> {
        let shared = Arc::clone(&self.shared);
        while let Some((number, outcome)) = shared.wait_for_batch() {
            let batch = match outcome {
                Ok(Ok(Some(made))) => shared
                    .stages
                    .time(Stage::Finish, || self.finish(number, &made.parameters))
                    .map(|batch| {
                        Some(Batch {
                            digest: made.digest,
                            ..batch
                        })
                    }),
                Ok(Ok(None)) => Ok(None),
                Ok(Err(error)) => Err(error),
                Err(panic) => resume_unwind(panic),
            };
            self.sent = self.sent.max(number + 1);
            shared.lock().taken_batches += 1;
            shared.room.notify_all();
            if let Some(batch) = batch? {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    fn finish(&mut self, number: usize, parameters: &Parameters) -> Result<Batch, DataError> {
        if number >= self.sent {
            self.send(number, parameters.images())?;
        }
        let layout = self.shared.layout;
        let batch = self
            .shared
            .block(number)
            .receive(|block| self.finish.squares(block, layout, parameters))?;
        // Ready batches are copied while the device works on this one.
        while let Some(images) = self.shared.images_of(self.sent) {
            self.send(self.sent, images)?;
        }
        Ok(batch)
    }

    /// Starts the copy of a batch to the device.
    fn send(&mut self, number: usize, images: usize) -> Result<(), DataError> {
        let bytes = self.shared.layout.bytes(images);
        self.shared.block(number).send(bytes)?;
        self.sent = number + 1;
        Ok(())
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.room.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was passed on to the step that waited for the batch.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// No thread panics while holding the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The block of a batch. It holds only bytes, written before use, so a panic breaks nothing.
    fn block(&self, batch: usize) -> MutexGuard<'_, Transfer> {
        let block = &self.blocks[batch % self.blocks.len()];
        block.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number and outcome of the next batch, once it is done; `None` after the last one.
    fn wait_for_batch(&self) -> Option<(usize, BatchOutcome)> {
        let mut state = self.lock();
        let number = state.taken_batches;
        if self.task.items_of(number).is_empty() {
            return None;
        }
        loop {
            if let Some(outcome) = state.done.remove(&number) {
                return Some((number, outcome));
            }
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Images of a batch, if it is done and has any.
    fn images_of(&self, batch: usize) -> Option<usize> {
        match self.lock().done.get(&batch) {
            Some(Ok(Ok(Some(made)))) => Some(made.parameters.images()),
            _ => None,
        }
    }

    fn work(&self) {
        let mut resizer = Resizer::new();
        while let Some(number) = self.take() {
            let outcome = catch_unwind(AssertUnwindSafe(|| self.prepare(number, &mut resizer)));
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
            if self.task.batching.batch_of(number) < state.taken_batches + self.blocks.len() {
                state.taken_items += 1;
                return Some(number);
            }
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes an image into its place in its batch's block.
    fn prepare(&self, number: usize, resizer: &mut Resizer) -> Result<Option<PreparedImage>, DataError> {
        let Some((pixels, prepared)) = self.image(self.task.items[number], resizer)? else {
            return Ok(None);
        };
        self.stages.time(Stage::Assemble, || {
            let batch = self.task.batching.batch_of(number);
            let place = self.layout.pixels(number - self.task.items_of(batch).start);
            let mut block = self.block(batch);
            block.host()?[place].copy_from_slice(&pixels);
            self.stages.count_prepared();
            Ok(Some(prepared))
        })
    }

    fn put(&self, number: usize, outcome: Outcome) {
        let batch = self.task.batching.batch_of(number);
        let size = self.task.items_of(batch).len();
        let mut state = self.lock();
        let images = state.incomplete.entry(batch).or_default();
        images.push((number, outcome));
        if images.len() < size {
            return;
        }
        let images = state.incomplete.remove(&batch).unwrap_or_default();
        drop(state);
        let made = self.stages.time(Stage::Assemble, || {
            catch_unwind(AssertUnwindSafe(|| self.assemble(batch, images)))
        });
        self.lock().done.insert(batch, made.and_then(|made| made));
        self.ready.notify_all();
    }

    /// Reads an image. In training another one replaces an unreadable one: batches keep their size.
    fn image(
        &self,
        item: Item,
        resizer: &mut Resizer,
    ) -> Result<Option<(Vec<u8>, PreparedImage)>, DataError> {
        let of = |(pixels, label), image| (pixels, PreparedImage { label, image });
        match self.read(item.image, item, resizer)? {
            Ok(found) => return Ok(Some(of(found, item.image))),
            Err(reason) => self.leave_out(item.image, &reason)?,
        }
        if self.task.epoch.is_none() {
            return Ok(None);
        }
        let mut last = String::new();
        for offset in 1..=REPLACEMENTS {
            let image = (item.image + offset) % self.source.len();
            match self.read(image, item, resizer)? {
                Ok(found) => return Ok(Some(of(found, image))),
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
    ) -> Result<Result<(Vec<u8>, Label), String>, DataError> {
        let stored = match self.stages.time(Stage::Read, || self.stored(image))? {
            Ok(stored) => stored,
            Err(reason) => return Ok(Err(reason)),
        };
        check_label(&*self.source, image, &stored.label, self.preparation.classes)?;
        let stages = &self.stages;
        let (channels, pixel_type) = (self.preparation.channels, self.preparation.config.pixel_type);
        let decoded = stages.time(Stage::Decode, || {
            self.source.decode(stored.file, channels, pixel_type)
        });
        let moment = self.task.moment(item);
        let square = decoded.and_then(|decoded| {
            let whole = self.source.is_whole();
            stages.time(Stage::Geometry, || {
                self.preparation.frame(&decoded, whole, moment, resizer)
            })
        });
        Ok(square.map(|mut square| {
            if let Some(moment) = moment {
                stages.time(Stage::Color, || self.preparation.color(&mut square, moment));
            }
            (square, stored.label)
        }))
    }

    /// A stored image. Storage failures are retried for a while, because an existing image must not
    /// be left out or replaced. The inner error says what is wrong with the image.
    fn stored(&self, image: u64) -> Result<Result<Stored, String>, DataError> {
        let seconds = self.preparation.config.retry_seconds;
        let mut pauses = pauses(seconds).enumerate();
        loop {
            let error = match self.source.read(image) {
                Ok(stored) => return Ok(Ok(stored)),
                Err(ReadError::Bad(reason)) => return Ok(Err(reason)),
                Err(ReadError::Storage(error)) => error,
            };
            let pause = pauses.next();
            if let Some((0, _)) = pause {
                let name = self.source.name(image);
                tracing::warn!("the storage failed to read {name} ({error}): retrying for {seconds} s");
            }
            if pause.is_none_or(|(_, pause)| self.pause(pause)) {
                return Err(DataError::Storage {
                    image: self.source.name(image),
                    error,
                    seconds,
                });
            }
        }
    }

    /// Waits. Returns whether this thread is no longer needed.
    fn pause(&self, time: Duration) -> bool {
        let is_open = |state: &mut State| !state.closed;
        let waited = self.room.wait_timeout_while(self.lock(), time, is_open);
        waited.unwrap_or_else(PoisonError::into_inner).0.closed
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

    /// Adds the parameters to the pixels, and closes gaps between these.
    fn assemble(&self, batch: usize, mut images: Vec<(usize, Outcome)>) -> BatchOutcome {
        images.sort_unstable_by_key(|(number, _)| *number);
        let mut labels = Vec::with_capacity(images.len());
        let mut kept = Vec::with_capacity(images.len());
        let mut digest = crc32fast::Hasher::new();
        for (number, outcome) in images {
            match outcome? {
                Ok(Some(PreparedImage { label, image })) => {
                    labels.push(label);
                    kept.push(number);
                    digest.update(&image.to_le_bytes());
                }
                Ok(None) => {}
                Err(error) => return Ok(Err(error)),
            }
        }
        if kept.is_empty() {
            return Ok(Ok(None));
        }
        let items = kept.iter().map(|number| self.task.items[*number]);
        let moments: Option<Vec<TrainingMoment>> = items.map(|item| self.task.moment(item)).collect();
        let parameters = self.preparation.parameters(&labels, moments.as_deref());
        let mut block = self.block(batch);
        let bytes = match block.host() {
            Ok(bytes) => bytes,
            Err(error) => return Ok(Err(error.into())),
        };
        let first = self.task.items_of(batch).start;
        for (place, number) in kept.iter().map(|number| number - first).enumerate() {
            if place != number {
                bytes.copy_within(self.layout.pixels(number), self.layout.pixels(place).start);
            }
        }
        parameters.write(bytes, self.layout);
        Ok(Ok(Some(PreparedBatch {
            parameters,
            digest: digest.finalize(),
        })))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use std::io::Error;

    use contract::ExitCode;
    use tch::{Device, Kind, Tensor};

    use super::super::Batching;
    use super::*;
    use crate::data::batch::Readable;
    use crate::data::fixtures::{config, png};
    use crate::error::Failure as _;
    use contract::PixelType;

    /// Longer than any wait in these tests.
    const DEADLINE: Duration = Duration::from_secs(60);

    /// Images whose color is their number; some are not images.
    #[derive(Debug)]
    struct Numbered {
        len: u64,
        corrupt: Vec<u64>,
        /// Added to the label of every image.
        first_label: i64,
        reads: AtomicU64,
        /// Number of coming reads that the storage fails.
        failures: AtomicU64,
    }

    impl Source for Numbered {
        fn len(&self) -> u64 {
            self.len
        }

        fn read(&self, image: u64) -> Result<Stored, ReadError> {
            self.reads.fetch_add(1, Ordering::SeqCst);
            let fails = |left: u64| left.checked_sub(1);
            if self
                .failures
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails)
                .is_ok()
            {
                return Err(ReadError::Storage(Error::from_raw_os_error(5)));
            }
            let file = if self.corrupt.contains(&image) {
                b"no image".to_vec()
            } else {
                png(30 + image as u32, 40, [image as u8, 7, 100])
            };
            let label = self.label(image)?;
            Ok(Stored { file, label })
        }

        fn label(&self, image: u64) -> Result<Label, ReadError> {
            Ok(Label::Class(self.first_label + image.cast_signed() % 10))
        }

        fn fingerprint(&self) -> u32 {
            self.len as u32
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
            failures: AtomicU64::default(),
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
            batching: Batching::new([batch_size]),
            epoch,
            readable: Readable::new(24, config.data.max_corrupt_fraction),
        };
        let preparation = Arc::new(Preparation::new(&config));
        let finish = Rc::new(Finish::new(&config, PixelType::Uint8, None, Device::Cpu));
        let shared: Arc<dyn Source> = Arc::clone(&source) as Arc<dyn Source>;
        let pipeline = Pipeline::start(shared, preparation, finish, task, threads).expect("starts");
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
        // All threads have ended. Without the limit they would have read more.
        assert_eq!(source.reads.load(Ordering::SeqCst), 2 * (AHEAD as u64 + 1));
        assert_eq!(Arc::strong_count(&source), 1, "all threads have ended");
    }

    #[test]
    fn an_unreadable_image_is_replaced_in_training_and_left_out_of_evaluation() {
        let allowed = "maxCorruptFraction: 0.1";
        let (images, labels) = all(start(allowed, &[5, 23], Some(0), 4, 2).0).expect("reads");
        assert_eq!(images.size()[0], 24);
        // Image 23 comes first and is replaced by image 0; 5 is replaced by 6.
        assert_eq!((labels[0], labels[18]), (0, 6));
        let (images, labels) = all(start(allowed, &[5, 23], None, 4, 2).0).expect("reads");
        assert_eq!((images.size()[0], labels.len(), labels[0]), (22, 22, 2));
        // The first one is left out, and all others move up: an image's red is its number.
        let red = |image: u8| f64::from(image) / 127.5 - 1.0;
        for (place, image) in [22, 21, 20, 19].into_iter().enumerate() {
            let found = images.get(place as i64).double_value(&[0, 0, 0]);
            assert!((found - red(image)).abs() < 1e-5, "{place}: {found}");
        }
        let (images, _) = all(start("maxCorruptFraction: 0.5", &[0, 1, 2], None, 2, 2).0).expect("reads");
        assert_eq!(images.size()[0], 21, "a batch may have nothing left");
    }

    /// Images whose classes are the bits of their number.
    #[derive(Debug)]
    struct Bits(Numbered);

    impl Source for Bits {
        fn len(&self) -> u64 {
            self.0.len
        }

        fn read(&self, image: u64) -> Result<Stored, ReadError> {
            let label = self.label(image)?;
            self.0.read(image).map(|stored| Stored { label, ..stored })
        }

        fn label(&self, image: u64) -> Result<Label, ReadError> {
            let shown = (0..10).filter(|class| image >> class & 1 == 1);
            Ok(Label::Classes(shown.collect()))
        }

        fn fingerprint(&self) -> u32 {
            self.0.fingerprint()
        }

        fn name(&self, image: u64) -> String {
            self.0.name(image)
        }
    }

    #[test]
    fn several_classes_stay_with_their_image_where_one_is_left_out() {
        let mut config =
            config("{format: imageFolder, volume: {hostPath: {path: /x}}, maxCorruptFraction: 0.1}");
        config.training.loss = contract::Loss::BinaryCrossEntropy;
        for epoch in [Some(0), None] {
            let source = Bits(Numbered {
                len: 24,
                corrupt: vec![5, 21],
                first_label: 0,
                reads: AtomicU64::default(),
                failures: AtomicU64::default(),
            });
            let items = (0..24).map(|place| Item { image: place, place });
            let task = Task {
                items: items.collect(),
                batching: Batching::new([5]),
                epoch,
                readable: Readable::new(24, 0.1),
            };
            let preparation = Arc::new(Preparation::new(&config));
            let finish = Rc::new(Finish::new(&config, PixelType::Uint8, None, Device::Cpu));
            let mut pipeline =
                Pipeline::start(Arc::new(source), preparation, finish, task, 2).expect("starts");
            let mut images = 0;
            while let Some(batch) = pipeline.next().expect("reads") {
                for row in 0..batch.labels.size()[0] {
                    let red = batch.images.double_value(&[row, 0, 0, 0]);
                    let number = ((red + 1.0) * 127.5).round() as i64;
                    let shown = (0..10).filter(|class| batch.labels.int64_value(&[row, *class]) == 1);
                    assert_eq!(shown.map(|class| 1 << class).sum::<i64>(), number, "{epoch:?}");
                    images += 1;
                }
            }
            assert_eq!(images, if epoch.is_some() { 24 } else { 22 });
        }
    }

    #[test]
    fn one_more_than_allowed_ends_it_and_names_it() {
        for epoch in [Some(0), None] {
            let error = all(start("fraction: 1.0", &[9], epoch, 4, 2).0).expect_err("refused");
            assert_eq!(
                error.to_string(),
                "image 9 cannot be read: it is not a JPEG, PNG, WebP or TIFF file (this rank could not read 1 of 24 images; data.maxCorruptFraction of 0 allows 0)"
            );
        }
        let all_corrupt: Vec<u64> = (0..24).collect();
        let error =
            all(start("maxCorruptFraction: 0.99", &all_corrupt, Some(0), 4, 2).0).expect_err("refused");
        assert!(error.to_string().contains("cannot be read"), "{error}");
    }

    #[test]
    fn storage_that_fails_for_a_while_changes_nothing() {
        for epoch in [Some(0), None] {
            let (sound, labels) = all(start(AUGMENTED, &[], epoch, 4, 2).0).expect("reads");
            let (mut pipeline, source) = start(AUGMENTED, &[], epoch, 4, 2);
            let first = pipeline.next().expect("reads").expect("a batch");
            source.failures.store(7, Ordering::SeqCst);
            let (rest, rest_labels) = all(pipeline).expect("reads");
            assert_eq!(source.failures.load(Ordering::SeqCst), 0, "all failures came");
            assert!(Tensor::cat(&[first.images, rest], 0).equal(&sound));
            assert_eq!(rest_labels, labels[4..]);
        }
    }

    #[test]
    fn storage_that_goes_on_failing_ends_the_attempt_and_blames_no_image() {
        for seconds in [0, 1] {
            let data = format!("maxCorruptFraction: 0.9, retrySeconds: {seconds}");
            let (mut pipeline, source) = start(&data, &[], Some(0), 4, 2);
            let _ = pipeline.next().expect("reads");
            source.failures.store(u64::MAX, Ordering::SeqCst);
            let error = all(pipeline).expect_err("fails");
            assert_eq!(error.exit_code(), ExitCode::Storage);
            let told = format!(
                "cannot be read: Input/output error (os error 5) (tried for {seconds} s, data.retrySeconds)"
            );
            assert!(error.to_string().contains(&told), "{error}");
        }
        // A thread that waits for the storage ends with the pipeline.
        let (mut pipeline, source) = start("retrySeconds: 86400", &[], Some(0), 4, 2);
        let _ = pipeline.next().expect("reads");
        source.failures.store(u64::MAX, Ordering::SeqCst);
        drop(pipeline);
        assert_eq!(Arc::strong_count(&source), 1, "all threads have ended");
    }

    #[test]
    fn a_label_beyond_the_classes_is_named() {
        let source = Arc::new(Numbered {
            len: 4,
            corrupt: Vec::new(),
            first_label: 8,
            reads: AtomicU64::default(),
            failures: AtomicU64::default(),
        });
        let config = config("{format: imageFolder, volume: {hostPath: {path: /x}}}");
        let preparation = Arc::new(Preparation::new(&config));
        let finish = Rc::new(Finish::new(&config, PixelType::Uint8, None, Device::Cpu));
        let items = (0..4).map(|place| Item { image: place, place });
        let task = Task {
            items: items.collect(),
            batching: Batching::new([4]),
            epoch: None,
            readable: Readable::new(4, 0.0),
        };
        let pipeline = Pipeline::start(source, preparation, finish, task, 1).expect("starts");
        let error = all(pipeline).expect_err("refused");
        assert_eq!(
            error.to_string(),
            "image 2 has label 10, but model.numClasses is 10 (labels 0 to 9)"
        );
    }

    #[test]
    fn time_is_told_by_what_it_went_to() {
        let (mut pipeline, _) = start(AUGMENTED, &[], Some(0), 8, 2);
        while pipeline.next().expect("reads").is_some() {}
        let progress = pipeline.progress();
        assert_eq!((progress.threads, progress.prepared), (2, 24));
        let stages = progress.seconds.named();
        assert!(stages.iter().all(|(_, seconds)| *seconds > 0.0), "{stages:?}");
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

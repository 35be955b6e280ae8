//! How much time each stage of making batches takes.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Seconds per stage, summed over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StageSeconds {
    /// Reading files.
    pub(crate) read: f64,
    /// From a file's bytes to pixels.
    pub(crate) decode: f64,
    /// Cutting, resizing, mirroring.
    pub(crate) geometry: f64,
    /// Changing colors.
    pub(crate) color: f64,
    /// Collecting images in memory from which the device copies.
    pub(crate) assemble: f64,
    /// The work of the thread that asks for batches: copy, normalization, erasing and mixing. On a
    /// GPU, queuing it.
    pub(crate) finish: f64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    Read,
    Decode,
    Geometry,
    Color,
    Assemble,
    Finish,
}

/// The work done so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Threads of the host that prepare images.
    pub(crate) threads: usize,
    /// Images that these have put into batches.
    pub(crate) prepared: u64,
    pub(crate) seconds: StageSeconds,
}

/// Nanoseconds per stage and prepared images, to which threads add.
#[derive(Debug, Default)]
pub(super) struct Stages {
    nanoseconds: [AtomicU64; Stage::Finish as usize + 1],
    prepared: AtomicU64,
}

impl Stages {
    pub(super) fn time<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        let nanoseconds = start.elapsed().as_nanos() as u64;
        self.nanoseconds[stage as usize].fetch_add(nanoseconds, Ordering::Relaxed);
        result
    }

    pub(super) fn count_prepared(&self) {
        self.prepared.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn progress(&self, threads: usize) -> Progress {
        let [read, decode, geometry, color, assemble, finish] = self
            .nanoseconds
            .each_ref()
            .map(|nanoseconds| nanoseconds.load(Ordering::Relaxed) as f64 / 1e9);
        Progress {
            threads,
            prepared: self.prepared.load(Ordering::Relaxed),
            seconds: StageSeconds {
                read,
                decode,
                geometry,
                color,
                assemble,
                finish,
            },
        }
    }
}

impl StageSeconds {
    /// With names, in the order in which an image passes them.
    pub(crate) fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("read", self.read),
            ("decode", self.decode),
            ("geometry", self.geometry),
            ("color", self.color),
            ("assemble", self.assemble),
            ("finish", self.finish),
        ]
    }

    /// The sum of all stages.
    pub(crate) fn sum(&self) -> f64 {
        self.named().iter().map(|(_, seconds)| seconds).sum()
    }

    /// Per image, for so many prepared and so many taken images.
    pub(crate) fn per_image(self, prepared: u64, taken: u64) -> Self {
        let [prepared, taken] = [prepared, taken].map(|images| images as f64);
        Self {
            read: self.read / prepared,
            decode: self.decode / prepared,
            geometry: self.geometry / prepared,
            color: self.color / prepared,
            assemble: self.assemble / prepared,
            finish: self.finish / taken,
        }
    }
}

impl AddAssign for StageSeconds {
    fn add_assign(&mut self, more: Self) {
        self.read += more.read;
        self.decode += more.decode;
        self.geometry += more.geometry;
        self.color += more.color;
        self.assemble += more.assemble;
        self.finish += more.finish;
    }
}

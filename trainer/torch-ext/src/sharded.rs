//! Weights, gradients and optimizer state divided among the ranks.

use std::ptr::null_mut;

use tch::Tensor;

use crate::error::{Error, check};
use crate::handle::Handle;
use crate::process_group::ProcessGroup;
use crate::sync_step::{Compression, Measurement, SyncRecorder};
use crate::sys::{self, RawSharded};

/// What ranks divide, as the stages of the Zero Redundancy Optimizer (arXiv 1910.02054). Weights in 32 bits and optimizer
/// state are divided in each.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stage {
    /// Gradients are added up once a step: a rank has its own ones whole until then.
    One,
    /// Gradients too: those of a unit are added up after each backward pass.
    Two,
    /// Weights too: those of a unit are gathered when it is computed.
    Three {
        /// Whether they are given back between a unit's forward and its backward pass.
        reshard_after_forward: bool,
    },
}

/// Parameters of one kind that belong to a unit, divided among the ranks.
#[derive(Debug)]
pub struct Flat<'a> {
    /// The model's parameters, views of `full`.
    pub parameters: &'a [Tensor],
    /// Where each begins in `full`.
    pub offsets: &'a [i64],
    /// All values, in the kind of the parameters: as many elements as all shards together.
    pub full: &'a Tensor,
    /// This rank's shard of what the model computes with: in 32 bits where the optimizer changes it itself, or in the kind of
    /// the parameters; on the device or in host memory.
    pub shard: &'a Tensor,
    /// Room for this rank's shard of the gradient, in 32 bits.
    pub gradient: &'a Tensor,
}

/// A model whose training state is divided among the ranks (`cpp/sharded.cpp` tells how).
///
/// The forward pass tells it where it is: [`Sharded::enter`] and [`Sharded::leave`] around each unit, in their order.
#[derive(Debug)]
pub struct Sharded {
    handle: Handle<RawSharded>,
}

impl Sharded {
    /// Among the ranks of a group, without units yet; where there are several such groups, `alike` is of the ranks that have the
    /// same place in theirs. Groups come in pairs of the same ranks: one that takes tensors of the parameters' device, and one
    /// for those on the CPU.
    pub fn new(
        stage: Stage,
        ((group, control), alike): (
            (&ProcessGroup, &ProcessGroup),
            Option<(&ProcessGroup, &ProcessGroup)>,
        ),
        recorder: &SyncRecorder,
        compression: Compression,
    ) -> Result<Self, Error> {
        let (stage, reshards) = match stage {
            Stage::One => (1, false),
            Stage::Two => (2, false),
            Stage::Three {
                reshard_after_forward,
            } => (3, reshard_after_forward),
        };
        let pointer = |group: &ProcessGroup| group.handle.as_ptr();
        let (alike, alike_control) = alike.map_or((null_mut(), null_mut()), |(group, control)| {
            (pointer(group), pointer(control))
        });
        let handle = Handle::new(sys::vit_sharded_free, |out| {
            // SAFETY: groups and recorder are borrowed for the call (the C++ side keeps references of its own), and `out` is a
            // valid place for the object's pointer.
            let status = unsafe {
                sys::vit_sharded_new(
                    group.handle.as_ptr(),
                    control.handle.as_ptr(),
                    alike,
                    alike_control,
                    recorder.handle.as_ptr(),
                    stage,
                    reshards,
                    compression == Compression::Bf16,
                    out,
                )
            };
            check(status, || "failed to divide the training state".into())
        })?;
        Ok(Self { handle })
    }

    /// Adds parameters to a unit; the same on every rank, in the same order. At stage 3 their values are there from then on only
    /// while the unit is computed.
    ///
    /// # Panics
    /// Where there is not one offset for each parameter.
    pub fn add(&self, unit: usize, flat: &Flat<'_>) -> Result<(), Error> {
        assert_eq!(
            flat.parameters.len(),
            flat.offsets.len(),
            "an offset for each parameter"
        );
        let parameters = sys::pointers(flat.parameters);
        // SAFETY: both lists are as long as said, and the tensors borrowed for the call; the C++ side keeps references.
        let status = unsafe {
            sys::vit_sharded_add(
                self.handle.as_ptr(),
                unit,
                parameters.as_ptr(),
                flat.offsets.as_ptr(),
                parameters.len(),
                flat.full.as_ptr().cast(),
                flat.shard.as_ptr().cast(),
                flat.gradient.as_ptr().cast(),
            )
        };
        check(status, || {
            format!("failed to divide the parameters of unit {unit}")
        })
    }

    /// Begins a step: gradients of the one before are forgotten.
    pub fn begin(&self) -> Result<(), Error> {
        // SAFETY: the object is valid.
        let status = unsafe { sys::vit_sharded_begin(self.handle.as_ptr()) };
        check(status, || "failed to begin a step".into())
    }

    /// The backward pass that follows is the step's last one. `arrival` is added up over the ranks during it.
    pub fn prepare(&self, arrival: &Tensor) -> Result<(), Error> {
        // SAFETY: object and tensor are valid; the C++ side keeps a reference to the tensor of its own.
        let status = unsafe { sys::vit_sharded_prepare(self.handle.as_ptr(), arrival.as_ptr().cast()) };
        check(status, || "failed to prepare the reduction of gradients".into())
    }

    /// As [`Reducer::finish`](crate::Reducer::finish): this rank's shards of the mean gradient are there afterwards.
    pub fn finish(&self) -> Result<(Tensor, Measurement), Error> {
        // SAFETY: the object is valid; where the call succeeds it has written a tensor and an object that it gives away.
        unsafe {
            Measurement::of_step(|sums, measurement| {
                sys::vit_sharded_finish(self.handle.as_ptr(), sums, measurement)
            })
        }
    }

    /// To be called before the shards are changed, where not every unit has been used since [`Self::publish`]: weights that are
    /// still being gathered are read from them.
    pub fn settle(&self) -> Result<(), Error> {
        // SAFETY: the object is valid.
        let status = unsafe { sys::vit_sharded_settle(self.handle.as_ptr()) };
        check(status, || "failed to gather the weights".into())
    }

    /// The shards have changed, on every rank: from now on the model computes with their values.
    pub fn publish(&self) -> Result<(), Error> {
        // SAFETY: the object is valid.
        let status = unsafe { sys::vit_sharded_publish(self.handle.as_ptr()) };
        check(status, || "failed to gather the weights".into())
    }

    /// The forward pass is about to use a unit's weights.
    pub fn enter(&self, unit: usize) -> Result<(), Error> {
        // SAFETY: the object is valid.
        let status = unsafe { sys::vit_sharded_enter(self.handle.as_ptr(), unit) };
        check(status, || format!("failed to gather the weights of unit {unit}"))
    }

    /// The forward pass has used them; `output` is all that comes of it.
    pub fn leave(&self, unit: usize, output: &Tensor) -> Result<(), Error> {
        // SAFETY: object and tensor are valid; the C++ side keeps what it needs of the tensor's graph.
        let status = unsafe { sys::vit_sharded_leave(self.handle.as_ptr(), unit, output.as_ptr().cast()) };
        check(status, || {
            format!("failed to give back the weights of unit {unit}")
        })
    }
}

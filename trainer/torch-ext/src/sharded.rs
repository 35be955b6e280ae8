//! Weights, gradients and optimizer state sharded among the ranks.

use std::ptr::null_mut;

use tch::Tensor;

use crate::error::{Error, check};
use crate::handle::Handle;
use crate::process_group::ProcessGroup;
use crate::sync_step::{Compression, Measurement, SyncRecorder};
use crate::sys::{self, RawSharded};

/// What is sharded, by stage of the Zero Redundancy Optimizer (arXiv 1910.02054). Weights in 32
/// bits and optimizer state are sharded in each.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stage {
    /// Gradients are summed once a step; until then a rank has its own whole gradients.
    One,
    /// Gradients too: those of a unit are summed after each backward pass.
    Two,
    /// Weights too: those of a unit are gathered when it is computed.
    Three {
        /// Whether they are freed between a unit's forward and backward pass.
        reshard_after_forward: bool,
    },
}

/// Parameters of one kind in a unit, sharded among the ranks.
#[derive(Debug)]
pub struct Flat<'a> {
    /// The model's parameters, views of `full`.
    pub parameters: &'a [Tensor],
    /// Start of each in `full`.
    pub offsets: &'a [i64],
    /// All values, in the kind of the parameters: the elements of all shards.
    pub full: &'a Tensor,
    /// This rank's shard of the model's weights, on the device or in host memory: in 32 bits if the
    /// optimizer updates it directly, or in the kind of the parameters.
    pub shard: &'a Tensor,
    /// Buffer for this rank's shard of the gradient, in 32 bits.
    pub gradient: &'a Tensor,
}

/// A model whose training state is sharded among the ranks (see `cpp/sharded.cpp`).
///
/// The forward pass calls [`Sharded::enter`] and [`Sharded::leave`] around each unit, in order.
#[derive(Debug)]
pub struct Sharded {
    handle: Handle<RawSharded>,
}

impl Sharded {
    /// Shards among the ranks of a group, without units yet. With several such groups, `replicas`
    /// is the group of ranks with the same place in theirs. Groups come in pairs of the same ranks:
    /// for tensors on the parameters' device, and for CPU tensors. `reads_first`: the backward pass
    /// needs the weights of the first unit.
    pub fn new(
        stage: Stage,
        ((group, control), replicas): (
            (&ProcessGroup, &ProcessGroup),
            Option<(&ProcessGroup, &ProcessGroup)>,
        ),
        recorder: &SyncRecorder,
        compression: Compression,
        reads_first: bool,
    ) -> Result<Self, Error> {
        let (stage, reshards) = match stage {
            Stage::One => (1, false),
            Stage::Two => (2, false),
            Stage::Three {
                reshard_after_forward,
            } => (3, reshard_after_forward),
        };
        let pointer = |group: &ProcessGroup| group.handle.as_ptr();
        let (replicas, replicas_control) = replicas.map_or((null_mut(), null_mut()), |(group, control)| {
            (pointer(group), pointer(control))
        });
        let handle = Handle::new(sys::vit_sharded_free, |out| {
            // SAFETY: groups and recorder are borrowed for the call (the C++ side keeps references of its own), and `out` is a
            // valid place for the object's pointer.
            let status = unsafe {
                sys::vit_sharded_new(
                    group.handle.as_ptr(),
                    control.handle.as_ptr(),
                    replicas,
                    replicas_control,
                    recorder.handle.as_ptr(),
                    stage,
                    reshards,
                    compression == Compression::Bf16,
                    reads_first,
                    out,
                )
            };
            check(status, || "failed to shard the training state".into())
        })?;
        Ok(Self { handle })
    }

    /// Adds parameters to a unit, the same on every rank in the same order. At stage 3 their values
    /// exist from then on only while the unit is computed.
    ///
    /// If there is not one offset per parameter.
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
            format!("failed to shard the parameters of unit {unit}")
        })
    }

    /// Begins a step and forgets the gradients of the previous one.
    pub fn begin(&self) -> Result<(), Error> {
        // SAFETY: the object is valid.
        let status = unsafe { sys::vit_sharded_begin(self.handle.as_ptr()) };
        check(status, || "failed to begin a step".into())
    }

    /// Announces the step's last backward pass. `report` is summed over the ranks during it.
    pub fn prepare(&self, report: &Tensor) -> Result<(), Error> {
        // SAFETY: object and tensor are valid; the C++ side keeps a reference to the tensor of its own.
        let status = unsafe { sys::vit_sharded_prepare(self.handle.as_ptr(), report.as_ptr().cast()) };
        check(status, || "failed to prepare the reduction of gradients".into())
    }

    /// See [`Reducer::finish`](crate::Reducer::finish); the gradients are this rank's shards.
    pub fn finish(&self) -> Result<(Tensor, Measurement), Error> {
        // SAFETY: the object is valid; where the call succeeds it has written a tensor and an object that it gives away.
        unsafe {
            Measurement::from_step(|sums, measurement| {
                sys::vit_sharded_finish(self.handle.as_ptr(), sums, measurement)
            })
        }
    }

    /// Call it before changing the shards if a unit was not used since [`Self::publish`]: a running
    /// gather reads them.
    pub fn settle(&self) -> Result<(), Error> {
        // SAFETY: the object is valid.
        let status = unsafe { sys::vit_sharded_settle(self.handle.as_ptr()) };
        check(status, || "failed to gather the weights".into())
    }

    /// Uses the shards, which have changed on every rank, for the model from now on.
    pub fn publish(&self) -> Result<(), Error> {
        // SAFETY: the object is valid.
        let status = unsafe { sys::vit_sharded_publish(self.handle.as_ptr()) };
        check(status, || "failed to gather the weights".into())
    }

    /// Gathers a unit's weights for the forward pass.
    pub fn enter(&self, unit: usize) -> Result<(), Error> {
        // SAFETY: the object is valid.
        let status = unsafe { sys::vit_sharded_enter(self.handle.as_ptr(), unit) };
        check(status, || format!("failed to gather the weights of unit {unit}"))
    }

    /// Releases them after the forward pass; `output` is its only result.
    pub fn leave(&self, unit: usize, output: &Tensor) -> Result<(), Error> {
        // SAFETY: object and tensor are valid; the C++ side keeps what it needs of the tensor's graph.
        let status = unsafe { sys::vit_sharded_leave(self.handle.as_ptr(), unit, output.as_ptr().cast()) };
        check(status, || format!("failed to release the weights of unit {unit}"))
    }
}

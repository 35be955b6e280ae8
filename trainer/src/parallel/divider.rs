//! Shards the weights of a model among ranks, one unit at a time.

use std::cell::OnceCell;
use std::rc::Rc;

use contract::{Offload, OffloadTo};
use tch::Tensor;
use torch_ext::sharded::{Flat, Stage};
use torch_ext::{Member, Sharded};

use super::weights::{Form, frozen};
use super::{Division, FlatLayout, FlatMember, TrainedWeights, layouts};
use crate::error::TrainError;
use crate::host_memory::{host_copy, host_copy_as, wait_for_copies};
use crate::model::{Parameter, Parameters};
use crate::precision::Precision;

/// The units sharded so far. Their parameters become views of flat tensors, one shard a rank.
#[derive(Debug)]
pub(crate) struct Divider {
    sharded: Rc<Sharded>,
    stage: Stage,
    precision: Precision,
    offload: Offload,
    ranks: Member,
    /// Number of groups of ranks that shard the same weights.
    groups: u32,
    names: Vec<String>,
    divisions: Vec<Rc<Division>>,
    model: Vec<Tensor>,
    masters: Vec<Tensor>,
    gradients: Vec<Tensor>,
    /// See [`Form::Sharded`].
    shards: [Vec<Tensor>; 2],
}

impl Divider {
    /// `sharded` has no units yet.
    pub(crate) fn new(
        (sharded, stage): (Rc<Sharded>, Stage),
        (precision, offload): (Precision, Offload),
        (ranks, groups): (Member, u32),
    ) -> Self {
        Self {
            sharded,
            stage,
            precision,
            offload,
            ranks,
            groups,
            names: Vec::new(),
            divisions: Vec::new(),
            model: Vec::new(),
            masters: Vec::new(),
            gradients: Vec::new(),
            shards: Default::default(),
        }
    }

    /// Shards the trained parameters of the next unit, whose values in 32 bits are the same on each rank.
    /// Units are counted from the `first` with any. At stage 3 only this rank's shard remains.
    pub(crate) fn divide(&mut self, first: usize, unit: &[&Parameter]) -> Result<(), TrainError> {
        let members: Vec<FlatMember> = unit
            .iter()
            .map(|parameter| FlatMember {
                unit: parameter.unit - first,
                kind: self.precision.kind_of(&parameter.name, &parameter.tensor),
                shape: parameter.tensor.size(),
            })
            .collect();
        let ranks = self.ranks;
        let mut placed: Vec<Option<PlacedParameter>> = unit.iter().map(|_| None).collect();
        for layout in layouts(&members, ranks.size) {
            let own = layout.shard_of(ranks.rank);
            let frees_full = matches!(self.stage, Stage::Three { .. });
            let part = Part::new(&layout, unit, ranks, (frees_full, self.offload))?;
            self.sharded.add(layout.unit, &part.flat(&layout))?;
            if part.is_copied {
                let [shards, masters] = &mut self.shards;
                shards.push(part.shard.shallow_clone());
                masters.push(part.master.shallow_clone());
            }
            for (index, offset) in layout.members.iter().zip(&layout.offsets) {
                let parameter = unit[*index];
                let numel = parameter.tensor.numel() as i64;
                let ranges = layout.ranges(*offset, numel, ranks.size);
                let range = ranges[ranks.rank as usize].clone();
                let start = (offset + range.start - own.start).clamp(0, layout.shard);
                let view = |shard: &Tensor| shard.narrow(0, start, range.end - range.start);
                placed[*index] = Some(PlacedParameter {
                    master: view(&part.master),
                    gradient: view(&part.gradient),
                    division: Rc::new(Division::new(parameter, Some((ranges, self.groups)))),
                });
            }
        }
        for (parameter, placed) in unit.iter().zip(placed) {
            let placed = placed.expect("a layout has each parameter");
            self.names.push(parameter.name.clone());
            self.divisions.push(placed.division);
            self.model.push(parameter.tensor.shallow_clone());
            self.masters.push(placed.master);
            self.gradients.push(placed.gradient);
        }
        Ok(())
    }

    /// The weights, once all units are sharded.
    pub(crate) fn finish(self, parameters: &Parameters) -> TrainedWeights {
        TrainedWeights {
            frozen: frozen(parameters, self.precision),
            names: self.names,
            divisions: self.divisions,
            model: self.model,
            masters: self.masters,
            offload: self.offload.optimizer,
            form: Form::Sharded {
                sharded: self.sharded,
                gradients: self.gradients,
                shards: self.shards,
            },
            sums: OnceCell::new(),
        }
    }
}

/// One parameter's place in the flat tensors.
struct PlacedParameter {
    master: Tensor,
    gradient: Tensor,
    division: Rc<Division>,
}

/// The tensors of a layout on one rank.
struct Part {
    parameters: Vec<Tensor>,
    full: Tensor,
    /// This rank's input when the ranks gather `full`.
    shard: Tensor,
    /// Whether it is a copy of the master, to be updated when that changes.
    is_copied: bool,
    master: Tensor,
    gradient: Tensor,
}

impl Part {
    /// Moves the values of a unit to one flat tensor. `frees_full` says if its memory is freed.
    fn new(
        layout: &FlatLayout,
        unit: &[&Parameter],
        ranks: Member,
        (frees_full, offload): (bool, Offload),
    ) -> Result<Self, TrainError> {
        tch::no_grad(|| {
            let parameters: Vec<Tensor> = layout
                .members
                .iter()
                .map(|index| unit[*index].tensor.shallow_clone())
                .collect();
            let device = parameters[0].device();
            let whole = layout.shard * i64::from(ranks.size);
            let values = Tensor::zeros([whole], (tch::Kind::Float, device));
            let slot = |flat: &Tensor, parameter: &Tensor, offset: i64| {
                flat.narrow(0, offset, parameter.numel() as i64)
                    .view(parameter.size().as_slice())
            };
            for (parameter, offset) in parameters.iter().zip(&layout.offsets) {
                slot(&values, parameter, *offset).copy_(parameter);
            }
            let full = values.to_kind(layout.kind);
            let own = |flat: &Tensor| flat.narrow(0, layout.shard_of(ranks.rank).start, layout.shard);
            let kept = |own: Tensor| if frees_full { own.copy() } else { own };
            let is_half = layout.kind != tch::Kind::Float;
            let (shard, master, is_copied) = match (offload.optimizer, offload.parameters) {
                (OffloadTo::Cpu, parameters) => {
                    let master = host_copy(&own(&values))?;
                    let (shard, is_copied) = match parameters {
                        OffloadTo::None => (kept(own(&full)), true),
                        OffloadTo::Cpu if is_half => (host_copy_as(&own(&full), layout.kind)?, true),
                        OffloadTo::Cpu => (master.shallow_clone(), false),
                    };
                    wait_for_copies(device)?;
                    (shard, master, is_copied)
                }
                // Weights in 32 bits that stay in memory are their own masters.
                (OffloadTo::None, _) => {
                    let own = own(&values);
                    let master = if is_half { own.copy() } else { kept(own) };
                    (master.shallow_clone(), master, false)
                }
            };
            for (parameter, offset) in parameters.iter().zip(&layout.offsets) {
                parameter
                    .shallow_clone()
                    .set_data(&slot(&full, parameter, *offset));
            }
            let options = (tch::Kind::Float, device);
            Ok(Self {
                gradient: Tensor::f_zeros([layout.shard], options)?,
                parameters,
                full,
                shard,
                is_copied,
                master,
            })
        })
    }

    fn flat<'a>(&'a self, layout: &'a FlatLayout) -> Flat<'a> {
        Flat {
            parameters: &self.parameters,
            offsets: &layout.offsets,
            full: &self.full,
            shard: &self.shard,
            gradient: &self.gradient,
        }
    }
}

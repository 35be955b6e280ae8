//! Training state between this rank's part of it and whole tensors of 32 bits in host memory. Offloaded state
//! goes through the device, where ranks exchange it one tensor at a time.

use std::ops::Range;

use tch::{Kind, Tensor};
use torch_ext::{HostCopies, Member};

use super::World;
use crate::error::TrainError;
use crate::model::SplitTensor as _;
use crate::parallel::{Division, StateTensor};

impl World {
    /// Whole copies of these tensors in host memory, each on its rank in `owners`. If some are
    /// sharded, every rank calls this; owners assemble one tensor at a time on the device.
    pub(crate) fn collect(
        &self,
        tensors: &[StateTensor],
        owners: &[u32],
    ) -> Result<Vec<(String, Tensor)>, TrainError> {
        let mut copies = Vec::new();
        let mut host = HostCopies::begin(self.device)?;
        for (tensor, owner) in tensors.iter().zip(owners) {
            let whole = if tensor.division.is_whole() {
                (*owner == self.rank)
                    .then(|| tensor.local.f_to_kind(Kind::Float))
                    .transpose()?
            } else {
                self.gather_on(*owner, tensor)?
            };
            if let Some(whole) = whole {
                copies.push((tensor.name.clone(), host.add(&whole)?));
            }
        }
        host.finish()?;
        Ok(copies)
    }

    fn gather_on(&self, owner: u32, tensor: &StateTensor) -> Result<Option<Tensor>, TrainError> {
        let division = &tensor.division;
        if owner != self.rank {
            if self.pieces_of(division).any(|piece| piece.rank == self.rank) {
                let values = self.on_device(&tensor.local)?.f_to_kind(Kind::Float)?;
                self.gradients.send(&values, owner)?;
            }
            return Ok(None);
        }
        let options = (Kind::Float, self.device);
        let whole = Tensor::f_empty(division.shape(), options)?;
        for part in 0..division.parts() {
            let member = Member {
                rank: part,
                size: division.parts(),
            };
            let values = Tensor::f_empty([division.numel() / i64::from(division.parts())], options)?;
            for piece in self.pieces_of(division).filter(|piece| piece.part == part) {
                let mut slice = values.f_narrow(0, piece.range.start, piece.range.end - piece.range.start)?;
                if piece.rank == self.rank {
                    slice.f_copy_(&tensor.local.f_flatten(0, -1)?)?;
                } else {
                    self.gradients.receive(&mut slice, piece.rank)?;
                }
            }
            division.split().put(&whole, &values, member)?;
        }
        Ok(Some(whole))
    }

    /// The pieces of a tensor, in the order its owner receives them; one rank sends each.
    fn pieces_of<'a>(&'a self, division: &'a Division) -> impl Iterator<Item = Piece> + 'a {
        (0..division.parts()).flat_map(move |part| {
            let whole = 0..division.numel() / i64::from(division.parts());
            let ranges = match division.by_rank() {
                Some(ranges) => ranges.to_vec(),
                None => vec![whole],
            };
            (0..)
                .zip(ranges)
                .filter(|(_, range)| !range.is_empty())
                .map(move |(place, range)| Piece {
                    part,
                    rank: self.mesh.rank_of(place, part),
                    range,
                })
        })
    }

    /// Gives every rank its part of rank 0's values: the given whole tensors, or rank 0's own.
    /// Sharded tensors need given values. They are read one at a time.
    pub(crate) fn spread(
        &self,
        tensors: &[StateTensor],
        mut values: Option<impl Iterator<Item = Result<Tensor, TrainError>>>,
    ) -> Result<(), TrainError> {
        for tensor in tensors {
            let value = values.as_mut().and_then(Iterator::next).transpose()?;
            if !tensor.division.is_whole() {
                self.scatter_from_first(tensor, value.as_ref())?;
            } else if let Some(value) = value {
                tch::no_grad(|| tensor.local.shallow_clone().f_copy_(&value))?;
            }
        }
        let whole = tensors
            .iter()
            .filter(|tensor| tensor.division.is_whole())
            .map(|tensor| tensor.local.shallow_clone());
        let (here, offloaded): (Vec<Tensor>, Vec<Tensor>) =
            whole.partition(|tensor| tensor.device() == self.device);
        if !here.is_empty() {
            tch::no_grad(|| self.gradients.broadcast(&here, 0))?;
        }
        for mut tensor in offloaded {
            let on_device = self.on_device(&tensor)?;
            tch::no_grad(|| self.gradients.broadcast(std::slice::from_ref(&on_device), 0))?;
            tch::no_grad(|| tensor.f_copy_(&on_device))?;
        }
        Ok(())
    }

    /// The tensor itself if it is on the device, else a copy there.
    fn on_device(&self, tensor: &Tensor) -> Result<Tensor, TrainError> {
        Ok(tensor.f_to_device(self.device)?)
    }

    fn scatter_from_first(&self, tensor: &StateTensor, value: Option<&Tensor>) -> Result<(), TrainError> {
        let mut local = tensor.local.shallow_clone();
        let Some(value) = value else {
            if local.numel() > 0 {
                let mut received = self.on_device(&local)?.f_to_kind(Kind::Float)?;
                self.gradients.receive(&mut received, 0)?;
                tch::no_grad(|| local.f_copy_(&received))?;
            }
            return Ok(());
        };
        let division = &tensor.division;
        let value = self.on_device(value)?;
        let size = division.parts();
        let parts = (0..size)
            .map(|rank| division.split().take(&value, Member { rank, size }))
            .collect::<Result<Vec<_>, _>>()?;
        for rank in 0..self.size {
            let (place, tensor_place) = self.mesh.places_of(rank);
            // There is one per rank that divides heads, or one for all.
            let part = &parts[(tensor_place % size) as usize];
            let own = match division.by_rank() {
                None => part.shallow_clone(),
                Some(ranges) => {
                    let range = &ranges[place as usize % ranges.len()];
                    part.f_flatten(0, -1)?
                        .f_narrow(0, range.start, range.end - range.start)?
                }
            };
            if own.numel() == 0 {
                continue;
            }
            if rank == self.rank {
                tch::no_grad(|| local.f_copy_(&own))?;
            } else {
                self.gradients.send(&own, rank)?;
            }
        }
        Ok(())
    }
}

/// A piece of a tensor on one rank.
struct Piece {
    /// Index of the tensor's part among ranks that divide heads.
    part: u32,
    rank: u32,
    /// Range within that part.
    range: Range<i64>,
}

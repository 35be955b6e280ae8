//! Training state between this rank's part of it and whole tensors in rank 0's host memory.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::World;
use crate::error::TrainError;
use crate::parallel::StateTensor;

impl World {
    /// Copies of these tensors in rank 0's host memory, whole; `None` on the other ranks. Each rank calls this where some are
    /// divided; one tensor at a time is put together on rank 0's device.
    pub(crate) fn collect(
        &self,
        tensors: &[StateTensor],
    ) -> Result<Option<Vec<(String, Tensor)>>, TrainError> {
        let mut copies = Vec::new();
        for tensor in tensors {
            let whole = match tensor.division.by_rank() {
                None if self.is_first() => Some(tensor.local.shallow_clone()),
                None => None,
                Some(by_rank) => self.gather_on_first(tensor, by_rank)?,
            };
            if let Some(whole) = whole {
                copies.push((tensor.name.clone(), host_copy(&whole)?));
            }
        }
        wait_for_copies(tensors)?;
        Ok(self.is_first().then_some(copies))
    }

    fn gather_on_first(
        &self,
        tensor: &StateTensor,
        by_rank: &[Range<i64>],
    ) -> Result<Option<Tensor>, TrainError> {
        let own = &by_rank[self.rank as usize];
        if !self.is_first() {
            if !own.is_empty() {
                self.gradients.send(&tensor.local, 0)?;
            }
            return Ok(None);
        }
        let division = &tensor.division;
        let whole = Tensor::f_empty([division.numel()], (Kind::Float, tensor.local.device()))?;
        for (rank, range) in (0..).zip(by_rank).filter(|(_, range)| !range.is_empty()) {
            let mut part = whole.f_narrow(0, range.start, range.end - range.start)?;
            if rank == self.rank {
                part.f_copy_(&tensor.local)?;
            } else {
                self.gradients.receive(&mut part, rank)?;
            }
        }
        Ok(Some(whole.f_reshape(division.shape())?))
    }

    /// Gives every rank its part of rank 0's values: those given, as many whole tensors, or without them rank 0's own.
    /// Where tensors are divided there must be values.
    pub(crate) fn spread(
        &self,
        tensors: &[StateTensor],
        values: Option<&[Tensor]>,
    ) -> Result<(), TrainError> {
        for (index, tensor) in tensors.iter().enumerate() {
            let value = values.map(|values| &values[index]);
            match (tensor.division.by_rank(), value) {
                (None, Some(value)) => tch::no_grad(|| tensor.local.shallow_clone().f_copy_(value))?,
                (None, None) => {}
                (Some(by_rank), value) => self.scatter_from_first(tensor, by_rank, value)?,
            }
        }
        let whole: Vec<Tensor> = tensors
            .iter()
            .filter(|tensor| tensor.division.by_rank().is_none())
            .map(|tensor| tensor.local.shallow_clone())
            .collect();
        if !whole.is_empty() {
            tch::no_grad(|| self.gradients.broadcast(&whole, 0))?;
        }
        Ok(())
    }

    fn scatter_from_first(
        &self,
        tensor: &StateTensor,
        by_rank: &[Range<i64>],
        value: Option<&Tensor>,
    ) -> Result<(), TrainError> {
        let mut local = tensor.local.shallow_clone();
        let Some(value) = value else {
            if local.numel() > 0 {
                self.gradients.receive(&mut local, 0)?;
            }
            return Ok(());
        };
        let flat = value.f_to_device(local.device())?.f_flatten(0, -1)?;
        for (rank, range) in (0..).zip(by_rank).filter(|(_, range)| !range.is_empty()) {
            let part = flat.f_narrow(0, range.start, range.end - range.start)?;
            if rank == self.rank {
                tch::no_grad(|| local.f_copy_(&part))?;
            } else {
                self.gradients.send(&part, rank)?;
            }
        }
        Ok(())
    }
}

/// Queues a copy, of a tensor on a GPU into pinned memory.
fn host_copy(tensor: &Tensor) -> Result<Tensor, TrainError> {
    Ok(tch::no_grad(|| {
        tensor.f_to_device_(Device::Cpu, Kind::Float, true, true)
    })?)
}

/// Returns once what is queued before on the device of these tensors is done.
fn wait_for_copies(tensors: &[StateTensor]) -> Result<(), TrainError> {
    let on_device = tensors.iter().find(|tensor| {
        let local = &tensor.local;
        local.device() != Device::Cpu && local.numel() > 0
    });
    if let Some(tensor) = on_device {
        tensor.local.f_flatten(0, -1)?.f_get(0)?.f_double_value(&[])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_the_values_of_its_moment() {
        let mut live = Tensor::full([2], 1.0, (Kind::Float, Device::Cpu));
        let copy = host_copy(&live).expect("copies");
        let _ = live.fill_(9.0);
        assert_eq!(Vec::<f32>::try_from(copy).expect("numbers"), [1.0, 1.0]);
    }
}

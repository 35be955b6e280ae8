//! The values of a tensor that a rank holds.

use std::ops::Range;
use std::rc::Rc;

use contract::architecture::Split;
use tch::Tensor;

use crate::model::Parameter;

/// How a tensor of training state is sharded: by `split` among ranks that compute a model together,
/// then in memory order among the ranks with the same part.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Division {
    shape: Vec<i64>,
    split: Split,
    /// The number of ranks that compute a model together and divide its heads.
    split_ranks: u32,
    /// Range of each rank, and how many groups of ranks hold it so; `None` if each holds all.
    by_rank: Option<(Vec<Range<i64>>, u32)>,
}

impl Division {
    /// For a parameter whose elements are divided by contiguous ranges, some maybe empty. Each of
    /// `groups` groups of ranks has all of them.
    pub(crate) fn new(parameter: &Parameter, by_rank: Option<(Vec<Range<i64>>, u32)>) -> Self {
        let last = by_rank.as_ref().and_then(|(ranges, _)| ranges.last());
        debug_assert!(last.is_none_or(|last| last.end == parameter.tensor.numel() as i64));
        Self {
            shape: parameter.shape.clone(),
            split: parameter.split,
            split_ranks: parameter.split_ranks,
            by_rank,
        }
    }

    /// Shape of the whole tensor.
    pub(crate) fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Elements of the whole tensor.
    pub(crate) fn numel(&self) -> i64 {
        self.shape.iter().product()
    }

    pub(crate) fn split(&self) -> Split {
        self.split
    }

    /// Number of parts that `split` makes.
    pub(crate) fn parts(&self) -> u32 {
        match self.split {
            Split::Whole => 1,
            _ => self.split_ranks,
        }
    }

    /// Number of ranks that hold the same values.
    pub(crate) fn copies(&self) -> u32 {
        let groups = self.by_rank.as_ref().map_or(1, |(_, groups)| *groups);
        self.split_ranks / self.parts() * groups
    }

    /// The range of each rank of a group; `None` if each rank holds all.
    pub(crate) fn by_rank(&self) -> Option<&[Range<i64>]> {
        self.by_rank.as_ref().map(|(ranges, _)| &ranges[..])
    }

    /// Whether every rank holds the whole tensor.
    pub(crate) fn is_whole(&self) -> bool {
        self.by_rank.is_none() && self.parts() == 1
    }
}

/// A tensor of training state: this rank's values, and their place in the whole.
#[derive(Debug)]
pub(crate) struct StateTensor {
    pub(crate) name: String,
    /// A handle to the live values; flat if they are divided by ranges.
    pub(crate) local: Tensor,
    pub(crate) division: Rc<Division>,
}

impl StateTensor {
    /// Another handle to the same values.
    pub(super) fn shallow_clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            local: self.local.shallow_clone(),
            division: Rc::clone(&self.division),
        }
    }
}

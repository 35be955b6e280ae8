//! Which values of a tensor a rank holds.

use std::ops::Range;
use std::rc::Rc;

use tch::Tensor;

use crate::model::{Parameter, Split};

/// How a tensor of training state is divided among the ranks: first by `split` among those that compute a model together,
/// and then what such a rank has, in the order in which it lies in memory, among those that have the same.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Division {
    shape: Vec<i64>,
    split: Split,
    /// The ranks that compute a model together and divide its heads.
    split_ranks: u32,
    /// What each rank that has the same holds, and how many groups of ranks hold it so; `None` where each holds all of it.
    by_rank: Option<(Vec<Range<i64>>, u32)>,
}

impl Division {
    /// Of a parameter and its elements by ranges that follow one another, some maybe empty, of which so many groups of ranks
    /// each have all.
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

    /// Of the whole tensor.
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

    /// How many parts `split` makes.
    pub(crate) fn parts(&self) -> u32 {
        match self.split {
            Split::Whole => 1,
            _ => self.split_ranks,
        }
    }

    /// How many ranks hold the same, of those among which the tensor is divided.
    pub(crate) fn copies(&self) -> u32 {
        let groups = self.by_rank.as_ref().map_or(1, |(_, groups)| *groups);
        self.split_ranks / self.parts() * groups
    }

    /// What each rank of a group holds; `None` where each rank holds all.
    pub(crate) fn by_rank(&self) -> Option<&[Range<i64>]> {
        self.by_rank.as_ref().map(|(ranges, _)| &ranges[..])
    }

    /// Whether every rank holds the whole tensor.
    pub(crate) fn is_whole(&self) -> bool {
        self.by_rank.is_none() && self.parts() == 1
    }
}

/// A tensor of training state: this rank's values, and which of the whole they are.
#[derive(Debug)]
pub(crate) struct StateTensor {
    pub(crate) name: String,
    /// A handle to the live values. Flat where they are divided by ranges.
    pub(crate) local: Tensor,
    pub(crate) division: Rc<Division>,
}

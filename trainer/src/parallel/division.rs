//! Which values of a tensor a rank holds.

use std::ops::Range;
use std::rc::Rc;

use tch::Tensor;

/// How a tensor's values, in the order in which they lie in memory, are divided among the ranks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Division {
    shape: Vec<i64>,
    /// What each rank holds; `None` where every rank holds all.
    by_rank: Option<Vec<Range<i64>>>,
}

impl Division {
    pub(crate) fn whole(shape: Vec<i64>) -> Self {
        Self { shape, by_rank: None }
    }

    /// Into ranges that follow one another, some maybe empty, a rank each.
    pub(crate) fn into_ranges(shape: Vec<i64>, by_rank: Vec<Range<i64>>) -> Self {
        debug_assert_eq!(by_rank.last().map(|last| last.end), Some(shape.iter().product()));
        Self {
            shape,
            by_rank: Some(by_rank),
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

    /// What each rank holds; `None` where every rank holds all.
    pub(crate) fn by_rank(&self) -> Option<&[Range<i64>]> {
        self.by_rank.as_deref()
    }
}

/// A tensor of training state: this rank's values, and which of the whole they are.
#[derive(Debug)]
pub(crate) struct StateTensor {
    pub(crate) name: String,
    /// A handle to the live values. Flat where they are not all.
    pub(crate) local: Tensor,
    pub(crate) division: Rc<Division>,
}

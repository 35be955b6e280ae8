//! Division of parameters in tensor parallelism (Megatron-LM, arXiv 1909.08053).

use contract::architecture::Split;
use tch::{TchError, Tensor};
use torch_ext::Member;

/// The values of a parameter on a rank.
pub(crate) trait SplitTensor {
    /// A rank's values of a `whole` parameter, copied unless they are all.
    fn take(self, whole: &Tensor, member: Member) -> Result<Tensor, TchError>;

    /// Puts a rank's values, in their order, into a `whole` parameter.
    fn put(self, whole: &Tensor, part: &Tensor, member: Member) -> Result<(), TchError>;
}

impl SplitTensor for Split {
    fn take(self, whole: &Tensor, member: Member) -> Result<Tensor, TchError> {
        if self == Self::Whole {
            return Ok(whole.shallow_clone());
        }
        let local = self.local_shape(&whole.size(), member.size);
        slot(self, whole, member)?.f_reshape(local)?.f_contiguous()
    }

    fn put(self, whole: &Tensor, part: &Tensor, member: Member) -> Result<(), TchError> {
        let mut slot = slot(self, whole, member)?;
        slot.f_copy_(&part.f_reshape(slot.size())?)
    }
}

/// A rank's values as a view, by contiguous pieces.
fn slot(split: Split, whole: &Tensor, member: Member) -> Result<Tensor, TchError> {
    let apart = match split {
        Split::Whole => return whole.f_flatten(0, -1),
        Split::Rows { blocks } => blocks,
        Split::Columns => whole.size()[0],
    };
    whole
        .f_view([apart, i64::from(member.size), -1])?
        .f_select(1, i64::from(member.rank))
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    const OPTIONS: (Kind, Device) = (Kind::Float, Device::Cpu);

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor.flatten(0, -1)).expect("numbers")
    }

    #[test]
    fn a_rank_has_its_share_of_rows_of_each_block_or_of_columns() {
        let second = Member { rank: 1, size: 2 };
        // Twelve rows of two.
        let rows = Tensor::arange(24, OPTIONS).view([12, 2]);
        let taken = Split::Rows { blocks: 3 }.take(&rows, second).expect("takes");
        assert_eq!(taken.size(), [6, 2]);
        let of_blocks = [4.0, 5.0, 6.0, 7.0, 12.0, 13.0, 14.0, 15.0, 20.0, 21.0, 22.0, 23.0];
        assert_eq!(numbers(&taken), of_blocks);
        let columns = Tensor::arange(8, OPTIONS).view([2, 4]);
        let taken = Split::Columns.take(&columns, second).expect("takes");
        assert_eq!(
            (taken.size(), numbers(&taken)),
            (vec![2, 2], vec![2.0, 3.0, 6.0, 7.0])
        );
        let bias = Tensor::arange(6, OPTIONS);
        let taken = Split::Rows { blocks: 3 }.take(&bias, second).expect("takes");
        assert_eq!(numbers(&taken), [1.0, 3.0, 5.0]);
    }

    #[test]
    fn what_all_ranks_have_is_the_whole() {
        for split in [
            Split::Rows { blocks: 3 },
            Split::Rows { blocks: 1 },
            Split::Columns,
        ] {
            let whole = Tensor::randn([18, 6], OPTIONS);
            let again = Tensor::zeros([18, 6], OPTIONS);
            for rank in 0..3 {
                let member = Member { rank, size: 3 };
                let part = split.take(&whole, member).expect("takes");
                assert_eq!(part.size(), split.local_shape(&[18, 6], 3));
                split.put(&again, &part.flatten(0, -1), member).expect("puts");
            }
            assert_eq!(whole, again, "{split:?}");
        }
    }
}

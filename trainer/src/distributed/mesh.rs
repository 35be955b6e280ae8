//! Which ranks do what together.

use contract::Parallelism;
use torch_ext::Member;

/// A rank's place in each dimension along which the work of a step is divided. Ranks that compute a model together are
/// neighbours, so that they are on one node: in `data` lies what is left.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Mesh {
    /// Images, among replicas of the model.
    pub(crate) data: Member,
    /// Tokens of the same images.
    pub(crate) sequence: Member,
    /// Heads, and hidden values of the MLP, of the same tokens.
    pub(crate) tensor: Member,
    all: Member,
}

impl Mesh {
    /// The place of a rank among all ranks, which `settings` divides evenly.
    pub(super) fn new(all: Member, settings: &Parallelism) -> Self {
        let (sequence, tensor) = (settings.sequence, settings.tensor);
        let replica = sequence * tensor;
        Self {
            data: Member {
                rank: all.rank / replica,
                size: all.size / replica,
            },
            sequence: Member {
                rank: all.rank / tensor % sequence,
                size: sequence,
            },
            tensor: Member {
                rank: all.rank % tensor,
                size: tensor,
            },
            all,
        }
    }

    /// The replica that a rank computes, alone or with others.
    pub(crate) fn replica_of(&self, rank: u32) -> u32 {
        rank / (self.sequence.size * self.tensor.size)
    }

    /// Whether this rank speaks for those that have the same images.
    pub(crate) fn is_first_of_replica(&self) -> bool {
        self.sequence.rank == 0 && self.tensor.rank == 0
    }

    /// This rank among those that have gradients for the same weights.
    pub(crate) fn reducing(&self) -> Member {
        Member {
            rank: self.places_of(self.all.rank).0,
            size: self.all.size / self.tensor.size,
        }
    }

    /// The place of a rank among those that have gradients for the same weights, and among those that divide heads.
    pub(super) fn places_of(&self, rank: u32) -> (u32, u32) {
        (rank / self.tensor.size, rank % self.tensor.size)
    }

    /// The rank among all that is in this place of [`Mesh::reducing`] and has these heads.
    pub(super) fn rank_of(&self, reducing: u32, tensor: u32) -> u32 {
        reducing * self.tensor.size + tensor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_compute_a_model_together() {
        let settings = Parallelism {
            zero_stage: 0,
            reshard_after_forward: true,
            sequence: 2,
            tensor: 3,
            across_nodes: false,
            bucket_megabytes: 25,
            compress_gradients: contract::GradientCompression::None,
        };
        let places = (0..12).map(|rank| {
            let mesh = Mesh::new(Member { rank, size: 12 }, &settings);
            assert_eq!((mesh.data.size, mesh.sequence.size, mesh.tensor.size), (2, 2, 3));
            assert_eq!(mesh.is_first_of_replica(), rank % 6 == 0);
            assert_eq!(mesh.replica_of(rank), mesh.data.rank);
            // Those of other images and of other tokens.
            assert_eq!((mesh.reducing().rank, mesh.reducing().size), (rank / 3, 4));
            assert_eq!(mesh.rank_of(mesh.reducing().rank, mesh.tensor.rank), rank);
            (mesh.data.rank, mesh.sequence.rank, mesh.tensor.rank)
        });
        let expected = (0..2).flat_map(|data| {
            (0..2).flat_map(move |sequence| (0..3).map(move |tensor| (data, sequence, tensor)))
        });
        assert!(places.eq(expected));
    }
}

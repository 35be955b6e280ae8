//! The ranks that work together in each dimension.

use contract::Parallelism;
use torch_ext::Member;

/// A rank's place in each dimension that divides the work of a step. Ranks that compute a model
/// together are neighbors, so that they share a node; `data` is the remaining dimension.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Mesh {
    /// Images, among replicas of the model.
    pub(crate) data: Member,
    /// Tokens of the same images.
    pub(crate) sequence: Member,
    /// Heads, and hidden values of the MLP, of the same tokens.
    pub(crate) tensor: Member,
    /// Training state of the same weights.
    pub(crate) sharding: Member,
    all: Member,
}

impl Mesh {
    /// The place of a rank; `settings` divides `all` evenly, with `ranks_per_node` on each node.
    pub(super) fn new(all: Member, settings: &Parallelism, ranks_per_node: u32) -> Self {
        let (sequence, tensor) = (settings.sequence, settings.tensor);
        let replica = sequence * tensor;
        let shards = settings.shards(all.size / ranks_per_node, ranks_per_node);
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
            sharding: Member {
                rank: all.rank / tensor % shards,
                size: shards,
            },
            all,
        }
    }

    /// The replica that a rank computes, alone or with others.
    pub(crate) fn replica_of(&self, rank: u32) -> u32 {
        rank / (self.sequence.size * self.tensor.size)
    }

    /// Summed over the ranks, this is zero if those with the same images have the same `digest`.
    pub(crate) fn disagreement(&self, digest: u32) -> i64 {
        let ranks = i64::from(self.sequence.size * self.tensor.size);
        let weight = if self.is_first_of_replica() { ranks - 1 } else { -1 };
        weight * i64::from(digest)
    }

    /// Whether this rank counts the images that it shares with others.
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

    /// This rank among those with the same part of sharded training state.
    pub(crate) fn replicating(&self) -> Member {
        let reducing = self.reducing();
        Member {
            rank: reducing.rank / self.sharding.size,
            size: reducing.size / self.sharding.size,
        }
    }

    /// The place of a rank in [`Mesh::reducing`], and among the ranks that divide heads.
    pub(super) fn places_of(&self, rank: u32) -> (u32, u32) {
        (rank / self.tensor.size, rank % self.tensor.size)
    }

    /// The global rank with this place in [`Mesh::reducing`] and these heads.
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
            sequence: 2,
            tensor: 3,
            ..Parallelism::default()
        };
        let places = (0..12).map(|rank| {
            let mesh = Mesh::new(Member { rank, size: 12 }, &settings, 6);
            assert_eq!((mesh.data.size, mesh.sequence.size, mesh.tensor.size), (2, 2, 3));
            assert_eq!(mesh.is_first_of_replica(), rank % 6 == 0);
            assert_eq!(mesh.disagreement(7), if rank % 6 == 0 { 35 } else { -7 });
            assert_eq!(mesh.replica_of(rank), mesh.data.rank);
            // Ranks with other images and other tokens.
            assert_eq!((mesh.reducing().rank, mesh.reducing().size), (rank / 3, 4));
            assert_eq!(mesh.rank_of(mesh.reducing().rank, mesh.tensor.rank), rank);
            assert_eq!((mesh.sharding, mesh.replicating().size), (mesh.reducing(), 1));
            let settings = Parallelism {
                shard_within_node: true,
                ..settings.clone()
            };
            let hybrid = Mesh::new(Member { rank, size: 12 }, &settings, 6);
            assert_eq!((hybrid.sharding.rank, hybrid.sharding.size), (rank % 6 / 3, 2));
            assert_eq!(
                (hybrid.replicating().rank, hybrid.replicating().size),
                (rank / 6, 2)
            );
            (mesh.data.rank, mesh.sequence.rank, mesh.tensor.rank)
        });
        let expected = (0..2).flat_map(|data| {
            (0..2).flat_map(move |sequence| (0..3).map(move |tensor| (data, sequence, tensor)))
        });
        assert!(places.eq(expected));
    }
}

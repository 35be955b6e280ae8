//! Layout of parameters in the flat tensors that are sharded among ranks.

use std::ops::Range;

use tch::Kind;

/// Alignment of parameters in elements: GPU kernels read whole lines of 64 bytes and more.
const ALIGNMENT: i64 = 32;

/// A parameter to lay out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct FlatMember {
    /// The part of the model that uses it, in the order of the forward pass.
    pub(crate) unit: usize,
    /// Number format of the values that the model computes with.
    pub(crate) kind: Kind,
    pub(crate) shape: Vec<i64>,
}

/// The parameters of one kind in a unit, one after the other.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct FlatLayout {
    pub(crate) unit: usize,
    pub(crate) kind: Kind,
    /// Indices of the unit's parameters.
    pub(crate) members: Vec<usize>,
    /// Start of each.
    pub(crate) offsets: Vec<i64>,
    /// Elements per rank, with padding.
    pub(crate) shard: i64,
}

/// Lays out parameters in equal shards for `ranks` ranks.
pub(crate) fn layouts(parameters: &[FlatMember], ranks: u32) -> Vec<FlatLayout> {
    let mut flats: Vec<FlatLayout> = Vec::new();
    let mut ends: Vec<i64> = Vec::new();
    for (index, member) in parameters.iter().enumerate() {
        let same = |flat: &FlatLayout| flat.unit == member.unit && flat.kind == member.kind;
        let place = flats.iter().position(same).unwrap_or_else(|| {
            flats.push(FlatLayout {
                unit: member.unit,
                kind: member.kind,
                members: Vec::new(),
                offsets: Vec::new(),
                shard: 0,
            });
            ends.push(0);
            flats.len() - 1
        });
        flats[place].members.push(index);
        flats[place].offsets.push(ends[place]);
        let numel: i64 = member.shape.iter().product();
        ends[place] += round_up(numel, ALIGNMENT);
    }
    for (flat, end) in flats.iter_mut().zip(ends) {
        flat.shard = round_up(end, ALIGNMENT * i64::from(ranks)) / i64::from(ranks);
    }
    flats
}

impl FlatLayout {
    /// The part on each of `ranks` ranks of a parameter with `numel` elements at `offset`.
    pub(crate) fn ranges(&self, offset: i64, numel: i64, ranks: u32) -> Vec<Range<i64>> {
        let ranges = (0..ranks).map(|rank| {
            let shard = self.shard_of(rank);
            let within = |place: i64| (place - offset).clamp(0, numel);
            within(shard.start)..within(shard.end)
        });
        ranges.collect()
    }

    /// The elements that a rank holds.
    pub(crate) fn shard_of(&self, rank: u32) -> Range<i64> {
        let start = i64::from(rank) * self.shard;
        start..start + self.shard
    }
}

fn round_up(value: i64, multiple: i64) -> i64 {
    (value + multiple - 1) / multiple * multiple
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(unit: usize, kind: Kind, shape: &[i64]) -> FlatMember {
        FlatMember {
            unit,
            kind,
            shape: shape.to_vec(),
        }
    }

    #[test]
    fn parameters_lie_with_those_of_their_unit_and_kind() {
        let parameters = [
            member(0, Kind::Float, &[3, 10]),
            member(1, Kind::BFloat16, &[33]),
            member(1, Kind::Float, &[64]),
            member(1, Kind::BFloat16, &[5]),
        ];
        let found = layouts(&parameters, 3);
        let flat = |unit, kind, members: &[usize], offsets: &[i64], shard| FlatLayout {
            unit,
            kind,
            members: members.to_vec(),
            offsets: offsets.to_vec(),
            shard,
        };
        assert_eq!(
            found,
            [
                flat(0, Kind::Float, &[0], &[0], 32),
                flat(1, Kind::BFloat16, &[1, 3], &[0, 64], 32),
                flat(1, Kind::Float, &[2], &[0], 32),
            ]
        );
        // 33 elements, 32 of them in the first shard; padding follows them in the second.
        assert_eq!(found[1].ranges(0, 33, 3), [0..32, 32..33, 33..33]);
        assert_eq!(found[1].ranges(64, 5, 3), [0..0, 0..0, 0..5]);
    }

    #[test]
    fn every_element_is_held_by_one_rank() {
        let all_sizes: [&[(usize, i64)]; 4] = [
            &[(0, 1)],
            &[(0, 31), (0, 32), (0, 33), (1, 299)],
            &[(2, 1000), (0, 7), (2, 1), (1, 64), (0, 640)],
            &[(0, 5), (0, 5), (0, 5), (0, 5)],
        ];
        for sizes in all_sizes {
            for ranks in 1..=9 {
                check(sizes, ranks);
            }
        }
    }

    fn check(sizes: &[(usize, i64)], ranks: u32) {
        let members = sizes
            .iter()
            .map(|(unit, size)| member(*unit, Kind::Float, &[*size]));
        let mut held = vec![0; sizes.len()];
        for flat in layouts(&members.collect::<Vec<_>>(), ranks) {
            let mut last_end = 0;
            for (index, offset) in flat.members.iter().zip(&flat.offsets) {
                assert!(*offset >= last_end, "members overlap");
                let size = sizes[*index].1;
                last_end = offset + size;
                let mut next = 0;
                for (rank, range) in (0..).zip(flat.ranges(*offset, size, ranks)) {
                    assert_eq!(range.start, next, "{sizes:?} among {ranks}");
                    next = range.end;
                    let shard = flat.shard_of(rank);
                    let lies_in_shard =
                        shard.start <= offset + range.start && offset + range.end <= shard.end;
                    assert!(range.is_empty() || lies_in_shard, "{sizes:?} among {ranks}");
                }
                assert_eq!(next, size);
                held[*index] += 1;
            }
            assert!(last_end <= flat.shard * i64::from(ranks));
        }
        assert!(held.iter().all(|times| *times == 1));
    }
}

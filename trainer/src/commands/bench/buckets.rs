//! The bandwidth of links between ranks, by the size of gradient buckets.

use std::str::FromStr;

use serde::Serialize;

use crate::distributed::BucketTime;

/// Size of a bucket in units of 2^20 bytes, as in `parallelism.bucketMegabytes`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BucketSize(f64);

impl BucketSize {
    const MEGABYTE: f64 = 1_048_576.0;

    pub(super) fn bytes(self) -> u64 {
        (self.0 * Self::MEGABYTE) as u64
    }
}

impl FromStr for BucketSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let megabytes: f64 = text
            .parse()
            .map_err(|_| "is not a number of megabytes".to_owned())?;
        if (0.001..=4096.0).contains(&megabytes) {
            Ok(Self(megabytes))
        } else {
            Err("must be 0.001 to 4096 megabytes".into())
        }
    }
}

/// All-reduces with nothing else running.
#[derive(Debug, Serialize)]
pub(super) struct Buckets {
    /// Ranks that add up gradients for the same weights.
    ranks: u32,
    sizes: Vec<Bucket>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Bucket {
    megabytes: f64,
    /// Of one all-reduce.
    seconds: f64,
    /// Bandwidth of each rank's link, as nccl-tests' "busbw": independent of the number of ranks.
    bus_gigabits_per_second: f64,
    /// Share of the link's nominal bandwidth, if that is given.
    share_of_link: Option<f64>,
}

impl Buckets {
    /// `None` if no buckets were measured; `link_gigabits` is the link's nominal bandwidth.
    pub(super) fn new(times: &[BucketTime], link_gigabits: Option<f64>) -> Option<Self> {
        let ranks = times.first()?.ranks;
        let sizes = times.iter().map(|time| {
            // How often a ring sends each byte.
            let sent = 2.0 * (f64::from(ranks) - 1.0) / f64::from(ranks);
            let gigabits = time.bytes as f64 * sent * 8.0 / time.seconds / 1e9;
            Bucket {
                megabytes: time.bytes as f64 / BucketSize::MEGABYTE,
                seconds: time.seconds,
                bus_gigabits_per_second: gigabits,
                share_of_link: link_gigabits.map(|link| gigabits / link),
            }
        });
        Some(Self {
            ranks,
            sizes: sizes.collect(),
        })
    }

    /// Lines of a table.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            String::new(),
            format!(
                "{:<14}{:>14}{:>14}{:>13}",
                "bucket MB", "all-reduce ms", "bus Gbit/s", "of the link"
            ),
        ];
        for bucket in &self.sizes {
            let share = bucket
                .share_of_link
                .map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0));
            lines.push(format!(
                "{:<14}{:>14.3}{:>14.3}{share:>13}",
                (bucket.megabytes * 1e3).round() / 1e3,
                bucket.seconds * 1e3,
                bucket.bus_gigabits_per_second
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_bandwidth_and_its_share_of_the_link() {
        // 4 ranks, 50 us, 10 Gbit/s: 2 x 50 us x 2, and 1.5 x 8 bits of each byte.
        let times = [1_000_000, 100_000_000].map(|bytes: u32| BucketTime {
            bytes: bytes.into(),
            ranks: 4,
            seconds: 200e-6 + f64::from(bytes) * 12.0 / 10e9,
        });
        let buckets = Buckets::new(&times, Some(20.0)).expect("two sizes");
        let lines = buckets.lines();
        assert_eq!(
            lines[3],
            "95.367               120.200         9.983         50 %"
        );
        let one = Buckets::new(&times[..1], None).expect("a size");
        assert!(one.lines()[2].ends_with(" -"));
    }

    #[test]
    fn a_size_is_a_number_of_megabytes_in_bounds() {
        assert_eq!("0.25".parse().map(BucketSize::bytes), Ok(262_144));
        for bad in ["0", "-1", "nan", "5000"] {
            assert_eq!(
                bad.parse::<BucketSize>(),
                Err("must be 0.001 to 4096 megabytes".into()),
                "{bad}"
            );
        }
        assert_eq!(
            "25MB".parse::<BucketSize>(),
            Err("is not a number of megabytes".into())
        );
    }
}

//! Predicts step times for ranks and batches that were not measured.
//!
//! A step of N ranks with n images each is the sum of
//!
//! ```text
//!   compute    c0 + c1 n + c2 n (m - 1)           fixed, per image, per image and other local rank
//!   straggler  s compute x(N)                     x(N): expected maximum of N standard normals
//!   exposed    max(r T, T - w b)                  the part of T that computation does not hide
//!              T = a k log2(N) + B q 2 (N - 1)/N  latency of k all-reduces, ring of their q bytes,
//!                  + d (m - 1)                    contention with other local ranks
//! ```
//! m is the number of ranks on a machine and b the images of a micro-batch, whose backward pass
//! hides communication. A reduce-scatter and an all-gather count as half an all-reduce each. If
//! collectives repeat for each micro-batch, each backward pass hides some, and b counts all images.
//!
//! The trainer's log has each part, so each is fitted separately, with non-negative coefficients,
//! by its error relative to the step. If only whole steps are known, as from external trainers,
//! `compute + a k log2(N) + B q 2 (N - 1)/N` is fitted to them.

mod fit;
mod normal;

use serde::Serialize;

use fit::{Row, fit};
use normal::expected_maximum;

/// A measured step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Number of ranks.
    pub ranks: u32,
    /// Ranks on the measured machine.
    pub ranks_on_machine: u32,
    /// Images per micro-batch.
    pub micro_batch: u32,
    /// Micro-batches per step.
    pub accumulation: u32,
    /// Seconds of a step.
    pub seconds: f64,
    /// Its parts, if known.
    pub parts: Option<Parts>,
    /// A rank's traffic per step; ignored for a single rank.
    pub traffic: Traffic,
}

/// Collectives of a rank in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// k: number of all-reduces; a reduce-scatter and an all-gather count as half of one each.
    pub all_reduces: f64,
    /// q: their bytes.
    pub bytes: f64,
}

impl Traffic {
    /// Stands for unknown traffic.
    pub const UNIT: Self = Self {
        all_reduces: 1.0,
        bytes: 1.0,
    };
}

/// Seconds of a step by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Parts {
    /// Computing.
    pub compute: f64,
    /// Waiting for communication.
    pub exposed: f64,
    /// Waiting for slower ranks.
    pub straggler: f64,
    /// Running collectives, hidden or not.
    pub communication: f64,
}

impl Parts {
    /// Seconds of the whole step.
    pub fn step(&self) -> f64 {
        self.compute + self.exposed + self.straggler
    }
}

/// A fitted model of a step's time, see the module.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CostModel {
    /// c0: fixed seconds of a step.
    pub fixed: f64,
    /// c1: seconds per image.
    pub image: f64,
    /// c2: seconds per image and other rank on the same machine.
    pub interference: f64,
    /// Most ranks on one machine in any sample; predictions use no more.
    pub ranks_on_machine: u32,
    /// s: relative spread of compute time between ranks and steps.
    pub spread: f64,
    /// a: seconds of an all-reduce per doubling of the ranks.
    pub latency: f64,
    /// B: seconds to transfer a byte over a link once.
    pub transfer: f64,
    /// A rank's traffic per step, regardless of its micro-batches.
    pub traffic: Traffic,
    /// Its additional traffic per micro-batch.
    pub micro_batch_traffic: Traffic,
    /// d: seconds of communication per other rank on the same machine.
    pub contention: f64,
    /// r: share of communication that is always exposed.
    pub tail: f64,
    /// w: seconds of communication that the backward pass of an image hides.
    pub hiding: f64,
}

/// Grid size per dimension of the search in [`CostModel::fit_hiding`].
const TRIES: u32 = 40;

impl CostModel {
    /// Fits samples of one job that differ by ranks and batch; `None` without samples.
    pub fn fit(samples: &[Sample]) -> Option<Self> {
        if samples.iter().all(|sample| sample.parts.is_some()) {
            Self::from_parts(samples)
        } else {
            Self::from_steps(samples)
        }
    }

    /// Fits the baseline: a step with as many images lasts as long on any number of ranks.
    pub fn constant(samples: &[Sample]) -> Option<Self> {
        let alone = samples.iter().map(|sample| Sample {
            ranks: 1,
            parts: None,
            ..*sample
        });
        Self::from_steps(&alone.collect::<Vec<_>>())
    }

    fn from_parts(samples: &[Sample]) -> Option<Self> {
        let of = |sample: &Sample| sample.parts.unwrap_or_default();
        let compute = samples
            .iter()
            .map(|sample| sample.row(sample.compute_features(), of(sample).compute));
        let [fixed, image, interference] = fit(&compute.collect::<Vec<_>>())?;
        let several = || samples.iter().filter(|sample| sample.ranks > 1);
        let spread = several().map(|sample| {
            let feature = of(sample).compute * expected_maximum(sample.ranks);
            sample.row([feature], of(sample).straggler)
        });
        let communication = several().map(|sample| {
            let features = communication_features(sample.ranks, sample.ranks_on_machine, sample.traffic);
            sample.row(features, of(sample).communication)
        });
        let [spread] = fit(&spread.collect::<Vec<_>>()).unwrap_or_default();
        let [latency, transfer, contention] = fit(&communication.collect::<Vec<_>>()).unwrap_or_default();
        let (traffic, micro_batch_traffic) = fit_traffic(samples);
        let mut model = Self {
            fixed,
            image,
            interference,
            ranks_on_machine: most_on_machine(samples),
            spread,
            latency,
            transfer,
            traffic,
            micro_batch_traffic,
            contention,
            tail: 1.0,
            hiding: 0.0,
        };
        model.fit_hiding(samples);
        Some(model)
    }

    /// Fits whole steps, which do not separate exposed communication from waiting for stragglers.
    fn from_steps(samples: &[Sample]) -> Option<Self> {
        let rows: Vec<_> = samples
            .iter()
            .map(|sample| {
                let [one, images, _] = sample.compute_features();
                let [doublings, ring, _] = communication_features(sample.ranks, 1, sample.traffic);
                sample.row([one, images, doublings, ring], sample.seconds)
            })
            .collect();
        let [fixed, image, latency, transfer] = fit(&rows)?;
        let (interference, spread, tail, hiding) = (0.0, 0.0, 1.0, 0.0);
        let (traffic, micro_batch_traffic) = fit_traffic(samples);
        Some(Self {
            fixed,
            image,
            interference,
            ranks_on_machine: most_on_machine(samples),
            spread,
            latency,
            transfer,
            traffic,
            micro_batch_traffic,
            contention: 0.0,
            tail,
            hiding,
        })
    }

    /// Grid search for `tail` (0 to 1) and `hiding` (0 to the seconds of an image).
    fn fit_hiding(&mut self, samples: &[Sample]) {
        let apart: Vec<(&Sample, Parts)> = samples
            .iter()
            .filter(|sample| sample.ranks > 1)
            .filter_map(|sample| Some((sample, sample.parts?)))
            .collect();
        let error = |model: &Self| -> f64 {
            let of = |(sample, parts): &(&Sample, Parts)| {
                let exposed = model.exposed(parts.communication, sample.micro_batch, sample.accumulation);
                ((exposed - parts.exposed) / parts.step()).powi(2)
            };
            apart.iter().map(of).sum()
        };
        let mut best = (f64::INFINITY, self.tail, self.hiding);
        for share in 0..=TRIES {
            for window in 0..=TRIES {
                let part = |tried: u32| f64::from(tried) / f64::from(TRIES);
                let tried = Self {
                    tail: part(share),
                    hiding: part(window) * self.image,
                    ..*self
                };
                let found = error(&tried);
                if found < best.0 {
                    best = (found, tried.tail, tried.hiding);
                }
            }
        }
        (_, self.tail, self.hiding) = best;
    }

    fn exposed(&self, communication: f64, micro_batch: u32, accumulation: u32) -> f64 {
        // Each backward pass hides collectives that repeat for every micro-batch.
        let passes = if self.micro_batch_traffic.bytes > 0.0 {
            accumulation
        } else {
            1
        };
        let hidden = self.hiding * f64::from(micro_batch) * f64::from(passes);
        (self.tail * communication).max(communication - hidden).max(0.0)
    }

    /// Predicted parts of a step.
    pub fn step(&self, ranks: u32, micro_batch: u32, accumulation: u32) -> Parts {
        let on_machine = ranks.min(self.ranks_on_machine);
        let [one, images, shared] = compute_features(on_machine, micro_batch, accumulation);
        let [doublings, ring, others] =
            communication_features(ranks, on_machine, self.traffic_of(accumulation));
        let compute = self.fixed * one + self.image * images + self.interference * shared;
        let communication = self.latency * doublings + self.transfer * ring + self.contention * others;
        Parts {
            compute,
            exposed: self.exposed(communication, micro_batch, accumulation),
            straggler: self.spread * compute * expected_maximum(ranks),
            communication,
        }
    }

    /// A rank's traffic in a step of `accumulation` micro-batches.
    pub fn traffic_of(&self, accumulation: u32) -> Traffic {
        let of = |whole: f64, each: f64| whole + each * f64::from(accumulation);
        Traffic {
            all_reduces: of(self.traffic.all_reduces, self.micro_batch_traffic.all_reduces),
            bytes: of(self.traffic.bytes, self.micro_batch_traffic.bytes),
        }
    }

    /// Training images per second.
    pub fn images_per_second(&self, ranks: u32, micro_batch: u32, accumulation: u32) -> f64 {
        let images = f64::from(ranks) * f64::from(micro_batch) * f64::from(accumulation);
        images / self.step(ranks, micro_batch, accumulation).step()
    }

    /// The smallest power of two for the micro-batch whose doubling gains less than this share in
    /// images per second.
    pub fn enough_images(&self, ranks: u32, accumulation: u32, gain: f64) -> Option<u32> {
        let rate = |images| self.images_per_second(ranks, images, accumulation);
        (0..16)
            .map(|power| 1_u32 << power)
            .find(|images| rate(2 * images) < rate(*images) * (1.0 + gain))
    }
}

impl Sample {
    /// Errors of every part are relative to the whole step.
    fn row<const FEATURES: usize>(&self, features: [f64; FEATURES], value: f64) -> Row<FEATURES> {
        Row {
            features,
            value,
            scale: self.seconds,
        }
    }

    fn compute_features(&self) -> [f64; 3] {
        compute_features(self.ranks_on_machine, self.micro_batch, self.accumulation)
    }
}

/// A rank's traffic per step, and per micro-batch. If all samples have the same number of
/// micro-batches, everything counts as per step.
fn fit_traffic(samples: &[Sample]) -> (Traffic, Traffic) {
    let of = |amount: fn(&Traffic) -> f64| {
        let rows = samples
            .iter()
            .filter(|sample| sample.ranks > 1)
            .map(|sample| Row {
                features: [1.0, f64::from(sample.accumulation)],
                value: amount(&sample.traffic),
                scale: amount(&sample.traffic),
            });
        fit(&rows.collect::<Vec<_>>()).unwrap_or_default()
    };
    let [all_reduces, all_reduces_each] = of(|traffic| traffic.all_reduces);
    let [bytes, bytes_each] = of(|traffic| traffic.bytes);
    let whole = Traffic { all_reduces, bytes };
    let each = Traffic {
        all_reduces: all_reduces_each,
        bytes: bytes_each,
    };
    (whole, each)
}

fn most_on_machine(samples: &[Sample]) -> u32 {
    let on_machine = samples.iter().map(|sample| sample.ranks_on_machine);
    on_machine.max().unwrap_or(1)
}

fn compute_features(ranks_on_machine: u32, micro_batch: u32, accumulation: u32) -> [f64; 3] {
    let images = f64::from(micro_batch) * f64::from(accumulation);
    [1.0, images, images * f64::from(ranks_on_machine.max(1) - 1)]
}

fn communication_features(ranks: u32, ranks_on_machine: u32, traffic: Traffic) -> [f64; 3] {
    let ranks = f64::from(ranks.max(1));
    [
        traffic.all_reduces * ranks.log2(),
        traffic.bytes * 2.0 * (ranks - 1.0) / ranks,
        f64::from(ranks_on_machine.max(1) - 1),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole steps of the study arXiv 2602.21081, with micro-batches of 64 on T4 GPUs.
    fn published(ranks_and_seconds: &[(u32, f64)]) -> Vec<Sample> {
        let sample = |(ranks, seconds): &(u32, f64)| Sample {
            ranks: *ranks,
            ranks_on_machine: 1,
            micro_batch: 64,
            accumulation: 1,
            seconds: *seconds,
            parts: None,
            traffic: Traffic::UNIT,
        };
        ranks_and_seconds.iter().map(sample).collect()
    }

    fn errors(fitted: &[Sample], held_out: &[Sample]) -> Vec<f64> {
        let model = CostModel::fit(fitted).expect("samples");
        let error = |sample: &Sample| model.step(sample.ranks, 64, 1).step() / sample.seconds - 1.0;
        held_out.iter().map(error).collect()
    }

    #[test]
    fn the_published_study_is_predicted_from_its_small_runs() {
        // Figure 14: seconds per epoch of 50,000 images by number of nodes with one GPU.
        let epochs = [
            (1, 1817.65),
            (2, 869.35),
            (4, 482.73),
            (8, 238.07),
            (16, 122.50),
            (32, 61.32),
        ];
        let steps = epochs.map(|(ranks, seconds)| (ranks, seconds * f64::from(ranks) * 64.0 / 50_000.0));
        let (small, large) = steps.split_at(3);
        let of_nodes = errors(&published(small), &published(large));
        // Figure 13: speedup on one node.
        let speedups = [
            (1, 1.0),
            (2, 2.03),
            (4, 3.90),
            (3, 2.86),
            (5, 4.84),
            (6, 5.89),
            (7, 6.69),
            (8, 7.41),
        ];
        let steps = speedups.map(|(ranks, speedup)| (ranks, f64::from(ranks) / speedup));
        let (small, large) = steps.split_at(3);
        let of_gpus = errors(&published(small), &published(large));
        for error in of_nodes.iter().chain(&of_gpus) {
            assert!(error.abs() < 0.08, "{of_nodes:?} {of_gpus:?}");
        }
    }

    #[test]
    fn the_published_batches_have_one_of_which_a_larger_one_gains_little() {
        // Figure 6: seconds per epoch of 50,000 images on one and two GPUs.
        let epochs = [
            (16, [276.31, 232.61]),
            (32, [212.21, 152.21]),
            (64, [171.17, 115.02]),
            (128, [149.08, 92.80]),
            (256, [142.34, 86.57]),
        ];
        let samples: Vec<Sample> = epochs
            .iter()
            .flat_map(|(images, seconds)| {
                let of_ranks = move |(ranks, seconds): (u32, &f64)| Sample {
                    micro_batch: *images,
                    ..published(&[(ranks, seconds * f64::from(ranks * images) / 50_000.0)])[0]
                };
                (1..).zip(seconds).map(of_ranks)
            })
            .collect();
        let model = CostModel::fit(&samples).expect("samples");
        let error =
            |sample: &Sample| model.step(sample.ranks, sample.micro_batch, 1).step() / sample.seconds - 1.0;
        let errors: Vec<f64> = samples.iter().map(error).collect();
        assert!(errors.iter().all(|error| error.abs() < 0.08), "{errors:?}");
        // A doubling gains less than 5 %.
        let enough = [1, 2].map(|ranks| model.enough_images(ranks, 1, 0.05));
        assert_eq!(enough, [Some(256), Some(512)], "{errors:?} {model:?}");
    }

    /// A step of [`truth`], by part.
    fn sample(ranks: u32, micro_batch: u32, accumulation: u32) -> Sample {
        let truth = truth();
        let parts = truth.step(ranks, micro_batch, accumulation);
        Sample {
            ranks,
            ranks_on_machine: ranks.min(truth.ranks_on_machine),
            micro_batch,
            accumulation,
            seconds: parts.step(),
            parts: Some(parts),
            traffic: truth.traffic_of(accumulation),
        }
    }

    /// Gathers weights once per step and scatters gradients in each micro-batch.
    fn truth() -> CostModel {
        CostModel {
            fixed: 0.005,
            image: 0.002,
            interference: 0.0002,
            ranks_on_machine: 4,
            spread: 0.03,
            latency: 0.0004,
            transfer: 2e-10,
            traffic: Traffic {
                all_reduces: 5.0,
                bytes: 4e7,
            },
            micro_batch_traffic: Traffic {
                all_reduces: 5.0,
                bytes: 6e7,
            },
            contention: 0.001,
            tail: 0.25,
            hiding: 0.0005,
        }
    }

    #[test]
    fn a_job_is_taken_apart_into_what_it_is_made_of() {
        let samples: Vec<Sample> = [1, 2, 4, 8]
            .into_iter()
            .flat_map(|ranks| [4, 16, 64].map(|images| sample(ranks, images, 1)))
            .chain([sample(4, 8, 4)])
            .collect();
        let found = CostModel::fit(&samples).expect("samples");
        let truth = truth();
        for (found, expected) in [
            (found.fixed, truth.fixed),
            (found.image, truth.image),
            (found.interference, truth.interference),
            (found.ranks_on_machine.into(), truth.ranks_on_machine.into()),
            (found.spread, truth.spread),
            (found.latency, truth.latency),
            (found.transfer * 1e9, truth.transfer * 1e9),
            (found.traffic.bytes, truth.traffic.bytes),
            (found.micro_batch_traffic.bytes, truth.micro_batch_traffic.bytes),
            (found.contention, truth.contention),
            (found.tail, truth.tail),
            (found.hiding, truth.hiding),
        ] {
            assert!(
                (found - expected).abs() < 1e-6 + 0.01 * expected,
                "{found} is not {expected}"
            );
        }
        for accumulation in [1, 8] {
            let far = found.step(256, 32, accumulation).step() / truth.step(256, 32, accumulation).step();
            assert!((far - 1.0).abs() < 0.001, "{far}");
        }
    }

    /// A step of 12 blocks with 28 MB of gradients each, sent block by block over 25 GB/s, by
    /// Calculon's closed form (Isaev et al., SC 2023; `llm.py` and `network.py`). A block's
    /// all-reduce costs a latency, independent of the ranks, and a ring's bytes. The backward pass
    /// hides all but the last; communication uses a share of its processor.
    fn by_calculon(ranks: u32, micro_batch: u32) -> Sample {
        let (blocks, usage, latency, bytes, bandwidth) = (12.0, 0.1, 30e-6, 28e6, 25e9);
        let (ranks_f64, images) = (f64::from(ranks), f64::from(micro_batch));
        let (forward, backward) = (0.1e-3 * images, 0.2e-3 * images);
        let sent = if ranks == 1 {
            0.0
        } else {
            latency + 2.0 * (ranks_f64 - 1.0) / ranks_f64 * bytes / bandwidth
        };
        let (block, hideable) = (backward / blocks, (blocks - 1.0) * sent);
        let left = hideable + usage * block - (blocks - 1.0) * block;
        let parts = Parts {
            compute: 0.4e-3 + forward + backward,
            exposed: sent + if left > 0.0 { left } else { hideable * usage },
            straggler: 0.0,
            communication: blocks * sent,
        };
        Sample {
            ranks,
            ranks_on_machine: 1,
            micro_batch,
            accumulation: 1,
            seconds: parts.step(),
            parts: Some(parts),
            traffic: Traffic {
                all_reduces: blocks,
                bytes: blocks * bytes,
            },
        }
    }

    /// Unlike Calculon's, the model's latency grows with ranks, and communication needs no CPU.
    #[test]
    fn what_calculon_leaves_exposed_is_predicted_from_few_ranks() {
        let batches = [4, 16, 64, 256];
        let of = |ranks: &[u32]| -> Vec<Sample> {
            let of_ranks = |ranks: &u32| batches.map(|images| by_calculon(*ranks, images));
            ranks.iter().flat_map(of_ranks).collect()
        };
        let model = CostModel::fit(&of(&[1, 2, 4, 8])).expect("samples");
        let (mut shares, mut errors) = (Vec::new(), Vec::new());
        for sample in of(&[16, 64, 512]) {
            let found = model.step(sample.ranks, sample.micro_batch, 1).exposed;
            let parts = sample.parts.expect("parts");
            shares.push(parts.exposed / sample.seconds);
            errors.push((found - parts.exposed) / sample.seconds);
        }
        // The exposed share ranges from the last block alone to most of the step.
        assert!(
            shares.iter().any(|share| *share < 0.06) && shares.iter().any(|share| *share > 0.6),
            "{shares:?}"
        );
        assert!(errors.iter().all(|error| error.abs() < 0.01), "{errors:?}");
    }

    #[test]
    fn a_part_that_is_nothing_once_is_not_taken_for_nothing() {
        let mut samples: Vec<Sample> = [2, 4, 8]
            .into_iter()
            .flat_map(|ranks| [4, 16, 64].map(|images| sample(ranks, images, 1)))
            .collect();
        if let Some(parts) = &mut samples[0].parts {
            parts.straggler = 0.0;
        }
        let spread = CostModel::fit(&samples).expect("samples").spread;
        assert!((0.02..0.04).contains(&spread), "{spread}");
    }
}

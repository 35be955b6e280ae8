//! The throughput of the input pipeline and of the steps: which of the two limits training.

use indexmap::IndexMap;
use serde::Serialize;

use crate::train::RankResult;

/// The input pipelines of all ranks.
#[derive(Debug, Serialize)]
pub(super) struct Input {
    /// Per rank.
    threads: usize,
    /// Throughput of all ranks' threads while no model runs.
    images_per_second: f64,
    /// Throughput of the steps if they never waited for a batch.
    needed_images_per_second: f64,
    /// The smaller of the two.
    limit: Limit,
    /// Throughput of one thread in each stage, and in `all` of them in sequence.
    images_per_second_per_core: IndexMap<&'static str, f64>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Limit {
    Input,
    Step,
}

impl Input {
    /// `None` if no threads prepare batches. `images` is the global batch size.
    pub(super) fn new(ranks: &[RankResult], images: u64) -> Option<Self> {
        let inputs: Vec<_> = ranks.iter().map(|rank| rank.input).collect::<Option<_>>()?;
        let first = inputs.first()?;
        let images_per_second = inputs.iter().map(|input| input.images_per_second).sum();
        // Ranks wait for one another in each step: the slowest one determines its duration.
        let busy = ranks
            .iter()
            .map(|rank| rank.step_ms.mean / 1e3 - rank.phases.data)
            .fold(0.0, f64::max);
        let needed_images_per_second = images as f64 / busy;
        let mut seconds = IndexMap::<_, f64>::new();
        for input in &inputs {
            let stages = input.seconds_per_image;
            for (stage, of_image) in stages.named().into_iter().chain([("all", stages.sum())]) {
                *seconds.entry(stage).or_default() += of_image;
            }
        }
        let rate = |(stage, seconds)| (stage, inputs.len() as f64 / seconds);
        Some(Self {
            threads: first.threads,
            images_per_second,
            needed_images_per_second,
            limit: if images_per_second < needed_images_per_second {
                Limit::Input
            } else {
                Limit::Step
            },
            images_per_second_per_core: seconds.into_iter().map(rate).collect(),
        })
    }

    /// Names and values of a table.
    pub(super) fn rows(&self) -> [(&'static str, String); 3] {
        let stages: Vec<String> = self
            .images_per_second_per_core
            .iter()
            .map(|(stage, rate)| format!("{stage} {rate:.0}"))
            .collect();
        [
            (
                "input alone, images/s",
                format!("{:.1}, {} threads a rank", self.images_per_second, self.threads),
            ),
            ("  of one core, by stage", stages.join(", ")),
            (
                "steps alone, images/s",
                format!(
                    "{:.1}: the limit is the {}",
                    self.needed_images_per_second,
                    match self.limit {
                        Limit::Input => "input",
                        Limit::Step => "step",
                    }
                ),
            ),
        ]
    }
}

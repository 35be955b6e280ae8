//! Each rank gets its shard of the mean gradient and all weights.

#![allow(clippy::float_cmp, reason = "means and sums of small whole numbers are exact")]

use tch::{Kind, Tensor};
use torch_ext::sharded::{Flat, Stage};
use torch_ext::{Compression, Sharded};

use crate::ranks::{ReportOver, Worker, on_ranks};

const STAGES: [Stage; 4] = [
    Stage::One,
    Stage::Two,
    Stage::Three {
        reshard_after_forward: false,
    },
    Stage::Three {
        reshard_after_forward: true,
    },
];

/// Elements of a unit's only parameter: the last of three or four shards is padded.
const SIZE: i64 = 10;

/// A sequence of units: each multiplies its input by its parameter, elementwise.
pub(crate) struct Model {
    pub(crate) sharded: Sharded,
    parameters: Vec<Tensor>,
    full: Vec<Tensor>,
    masters: Vec<Tensor>,
    gradients: Vec<Tensor>,
}

impl Model {
    /// All weights are 1.
    pub(crate) fn new(rank: &Worker, units: usize, stage: Stage) -> Self {
        Self::compressed(rank, units, stage, Compression::None)
    }

    fn compressed(rank: &Worker, units: usize, stage: Stage, compression: Compression) -> Self {
        let groups = (&rank.gradients, &rank.control);
        let recorder = rank.recorder(ReportOver::Control);
        let sharded = Sharded::new(stage, (groups, None), &recorder, compression, false).expect("shards");
        let shard = (SIZE + i64::from(rank.world_size) - 1) / i64::from(rank.world_size);
        let (mut parameters, mut full) = (Vec::new(), Vec::new());
        let (mut masters, mut gradients) = (Vec::new(), Vec::new());
        for unit in 0..units {
            let values = Tensor::ones([shard * i64::from(rank.world_size)], (Kind::Float, rank.device));
            let own = rank.parameter(SIZE);
            own.shallow_clone().set_data(&values.narrow(0, 0, SIZE));
            let master = Tensor::ones([shard], (Kind::Float, rank.device));
            // Leftover values are not part of a step.
            let gradient = Tensor::full([shard], f64::NAN, (Kind::Float, rank.device));
            let flat = Flat {
                parameters: std::slice::from_ref(&own),
                offsets: &[0],
                full: &values,
                shard: &master,
                gradient: &gradient,
            };
            sharded.add(unit, &flat).expect("adds");
            parameters.push(own);
            full.push(values);
            masters.push(master);
            gradients.push(gradient);
        }
        sharded.publish().expect("publishes");
        Self {
            sharded,
            parameters,
            full,
            masters,
            gradients,
        }
    }

    /// The sum of the last unit's output for ones.
    pub(crate) fn loss(&self) -> Tensor {
        let mut x = Tensor::ones([SIZE], (Kind::Float, self.full[0].device()));
        for (unit, parameter) in self.parameters.iter().enumerate() {
            self.sharded.enter(unit).expect("gathers");
            x = &x * parameter;
            self.sharded.leave(unit, &x).expect("releases");
        }
        x.sum(Kind::Float)
    }

    /// Units whose weights are in memory now.
    fn resident(&self) -> usize {
        self.full.iter().filter(|full| !full.data_ptr().is_null()).count()
    }

    /// A step of `micro_batches` micro-batches, each with the loss times `rank + 1`. Returns this
    /// rank's gradients of each unit, without padding, and the sums of the reports.
    fn step(&self, rank: &Worker, micro_batches: u32) -> (Vec<Vec<f32>>, Vec<f64>) {
        self.sharded.begin().expect("begins");
        for micro_batch in 1..=micro_batches {
            let loss = self.loss() * f64::from(rank.rank + 1);
            if micro_batch == micro_batches {
                let report = rank.numbers(&[f64::from(rank.rank), 1.0]);
                self.sharded.prepare(&report).expect("prepares");
            }
            loss.backward();
        }
        let (sums, measurement) = self.sharded.finish().expect("finishes");
        rank.finish();
        let times = measurement.times().expect("compares");
        assert!(
            times.reduce_scatter.total >= times.reduce_scatter.exposed,
            "{times:?}"
        );
        assert_eq!(
            times.all.bytes,
            times.reduce_scatter.bytes + times.all_gather.bytes
        );
        assert_eq!(times.all_reduce.bytes, 0);
        let own = |gradient: &Tensor| {
            let start = i64::from(rank.rank) * gradient.numel() as i64;
            let length = (SIZE - start).clamp(0, gradient.numel() as i64);
            Vec::try_from(gradient.narrow(0, 0, length)).expect("numbers")
        };
        let gradients = self.gradients.iter().map(own);
        (gradients.collect(), Vec::try_from(sums).expect("numbers"))
    }
}

/// Steps of one and several micro-batches with all weights 1: a gradient is the factor of the loss.
fn check_shards(ranks: u32, stage: Stage, compression: Compression) {
    on_ranks(ranks, |rank| {
        let model = Model::compressed(&rank, 3, stage, compression);
        let ranks = f64::from(ranks);
        let mean = f64::midpoint(ranks, 1.0) as f32;
        for micro_batches in [1, 3, 2] {
            let (gradients, sums) = model.step(&rank, micro_batches);
            for gradient in gradients {
                let expected = vec![mean * micro_batches as f32; gradient.len()];
                assert_eq!(
                    gradient, expected,
                    "{stage:?}, {micro_batches} micro-batches of {ranks} ranks"
                );
            }
            assert_eq!(sums, [ranks * (ranks - 1.0) / 2.0, ranks]);
            model.sharded.publish().expect("publishes");
        }
    });
}

#[test]
fn every_rank_gets_its_shard_of_the_mean_gradient() {
    for stage in STAGES {
        for ranks in 2..=4 {
            check_shards(ranks, stage, Compression::None);
        }
        // Small whole numbers and halves are exact in bf16 too.
        check_shards(3, stage, Compression::Bf16);
    }
}

#[test]
fn the_model_computes_with_what_the_masters_of_all_ranks_became() {
    for stage in STAGES {
        on_ranks(3, |rank| {
            let model = Model::new(&rank, 3, stage);
            for value in [2.0, 3.0] {
                model.sharded.settle().expect("waits");
                for master in &model.masters {
                    // Shards of 4; the last has 2 elements and padding.
                    let _ = master.shallow_clone().fill_(value + f64::from(rank.rank));
                }
                model.sharded.publish().expect("publishes");
                let expected = [(0.0, 4.0), (1.0, 4.0), (2.0, 2.0)]
                    .map(|(rank, elements)| elements * f64::powi(value + rank, 3));
                let expected: f64 = expected.iter().sum();
                let evaluated = tch::no_grad(|| model.loss().double_value(&[]));
                assert_eq!(evaluated, expected, "{stage:?}, evaluation");
                assert_eq!(model.loss().double_value(&[]), expected, "{stage:?}, training");
                let (gradients, _) = model.step(&rank, 1);
                let square = f64::powi(value + f64::from(rank.rank), 2) as f32;
                assert_eq!(
                    gradients[1][0],
                    2.0 * square,
                    "{stage:?}: the mean of 1 to 3 times the other weights"
                );
            }
        });
    }
}

#[test]
fn weights_have_memory_only_while_the_stage_says_so() {
    // At rest, after a forward pass and after the backward pass, of five units.
    for (stage, expected) in STAGES
        .into_iter()
        .zip([[5, 5, 5], [5, 5, 5], [0, 5, 0], [0, 1, 0]])
    {
        on_ranks(2, |rank| {
            let model = Model::new(&rank, 5, stage);
            for _ in 0..2 {
                let at_rest = model.resident();
                model.sharded.begin().expect("begins");
                let loss = model.loss();
                let after_forward = model.resident();
                model.sharded.prepare(&rank.numbers(&[0.0])).expect("prepares");
                loss.backward();
                let _ = model.sharded.finish().expect("finishes");
                assert_eq!([at_rest, after_forward, model.resident()], expected, "{stage:?}");
                model.sharded.publish().expect("publishes");
                let _ = tch::no_grad(|| model.loss());
                model.sharded.publish().expect("publishes");
            }
        });
    }
}

#[test]
fn gradients_of_a_rank_are_gone_once_they_are_reduced() {
    for stage in STAGES {
        on_ranks(2, |rank| {
            let model = Model::new(&rank, 3, stage);
            model.sharded.begin().expect("begins");
            model.loss().backward();
            let held = model
                .parameters
                .iter()
                .filter(|parameter| parameter.grad().defined())
                .count();
            assert_eq!(
                held,
                if stage == Stage::One { 3 } else { 0 },
                "{stage:?}: between micro-batches"
            );
            model.sharded.prepare(&rank.numbers(&[0.0])).expect("prepares");
            model.loss().backward();
            let _ = model.sharded.finish().expect("finishes");
            assert!(
                model
                    .parameters
                    .iter()
                    .all(|parameter| !parameter.grad().defined())
            );
        });
    }
}

#[test]
fn a_backward_pass_after_the_weights_are_gone_is_an_error() {
    on_ranks(2, |rank| {
        let model = Model::new(
            &rank,
            3,
            Stage::Three {
                reshard_after_forward: true,
            },
        );
        let loss = model.loss();
        drop(model.sharded);
        let error = loss.f_backward().expect_err("needs the weights");
        assert!(
            error
                .to_string()
                .contains("weights that the backward pass needs are gone"),
            "{error}"
        );
    });
}

//! The three kinds of synchronization cost under deliberate delays: each changes by the delay that
//! it measures, within 15 %, and by no other.

#![allow(unsafe_code, reason = "the delaying process group is C++")]

use std::ffi::{c_int, c_void};
use std::time::Duration;

use tch::{Device, Kind, Tensor};
use torch_ext::sharded::Stage;
use torch_ext::{Collectives, Compression, ProcessGroup, Reducer, SyncCost, SyncTimes};

use crate::ranks::{ReportOver, Worker, on_ranks};
use crate::sharding::Model;

/// Far above the noise of a busy machine.
const DELAY: Duration = Duration::from_millis(600);
/// Allowed error, as a share of the delay.
const TOLERANCE: f64 = 0.15;
/// Steps whose median counts, after the first two, which connect and rebuild buckets.
const STEPS: usize = 5;
const WARM_UP: usize = 2;

unsafe extern "C" {
    /// `tests/reducer/delay.cpp`.
    fn vit_group_delay(
        group: *mut c_void,
        delay_ms: i64,
        gathers_delay_ms: i64,
        exchanges_delay_ms: i64,
    ) -> c_int;
}

/// Delays the end of every reduction and message of the group.
fn delay(group: &ProcessGroup, delay: Duration) {
    delay_apart(group, [delay, Duration::ZERO, Duration::ZERO]);
}

/// Delays reductions and messages, gathers, and all-to-alls separately.
fn delay_apart(group: &ProcessGroup, delays: [Duration; 3]) {
    let [reductions, gathers, exchanges] =
        delays.map(|delay| i64::try_from(delay.as_millis()).expect("a short delay"));
    // SAFETY: the pointer is that of a live group, and the function takes such a one.
    let status = unsafe { vit_group_delay(group.as_raw(), reductions, gathers, exchanges) };
    assert_eq!(status, 0);
}

/// The delayed part.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Delayed {
    Nothing,
    /// The last rank begins its backward pass late.
    LastRank,
    /// All-reduces of gradients take longer.
    Gradients,
    /// All-reduces of the control group take longer.
    Control,
    /// All take longer, as over a slow network.
    Network,
}

/// A chain of matrix products, one bucket each, whose gradients become ready one after the other.
struct Layers {
    weights: Vec<Tensor>,
    input: Tensor,
}

impl Layers {
    fn new(count: usize, size: i64) -> Self {
        let options = (Kind::Float, Device::Cpu);
        Self {
            weights: (0..count)
                .map(|_| (Tensor::rand([size, size], options) / size as f64).set_requires_grad(true))
                .collect(),
            input: Tensor::rand([size, size], options),
        }
    }

    fn loss(&self) -> Tensor {
        let output = self
            .weights
            .iter()
            .fold(self.input.shallow_clone(), |values, weight| values.matmul(weight));
        output.sum(Kind::Float)
    }
}

/// Median synchronization cost of this rank over steps.
fn cost(rank: &Worker, layers: &Layers, delayed: Delayed, report: ReportOver) -> SyncCost {
    if matches!(delayed, Delayed::Gradients | Delayed::Network) {
        delay(&rank.gradients, DELAY);
    }
    if matches!(delayed, Delayed::Control | Delayed::Network) {
        delay(&rank.control, DELAY);
    }
    let mut reducer = rank.reducer(&layers.weights, 1024, Compression::None, report);
    let mut steps = Vec::new();
    for _ in 0..WARM_UP + STEPS {
        for weight in &layers.weights {
            let mut gradient = weight.grad();
            if gradient.defined() {
                let _ = gradient.zero_();
            }
        }
        reducer.begin().expect("begins");
        reducer
            .prepare(&Tensor::from_slice(&[0.0_f64]))
            .expect("prepares");
        let loss = layers.loss();
        if delayed == Delayed::LastRank && rank.rank + 1 == rank.world_size {
            // The delay under test, not a wait for something.
            std::thread::sleep(DELAY);
        }
        loss.backward();
        let (_, measurement) = reducer.finish().expect("finishes");
        steps.push(measurement.times().expect("compares"));
    }
    median(&steps, |times| times.all)
}

/// Medians over the steps after the warm-up.
fn median(steps: &[SyncTimes], cost: fn(&SyncTimes) -> SyncCost) -> SyncCost {
    let median = |seconds: fn(&SyncCost) -> f64| {
        let mut sorted: Vec<f64> = steps[WARM_UP..].iter().map(|step| seconds(&cost(step))).collect();
        sorted.sort_by(f64::total_cmp);
        sorted[STEPS / 2]
    };
    SyncCost {
        total: median(|times| times.total),
        exposed: median(|times| times.exposed),
        straggler: median(|times| times.straggler),
        bytes: cost(&steps[0]).bytes,
        collectives: cost(&steps[0]).collectives,
    }
}

/// The effect of a delay on total, exposed and straggler of two ranks, as shares of the delay.
fn added(layers: usize, size: i64, delayed: Delayed, report: ReportOver) -> Vec<[f64; 3]> {
    let costs = |delayed| on_ranks(2, |rank| cost(&rank, &Layers::new(layers, size), delayed, report));
    let (plain, late) = (costs(Delayed::Nothing), costs(delayed));
    plain
        .iter()
        .zip(&late)
        .map(|(plain, late)| shares(plain, late))
        .collect()
}

/// The difference of two costs, as shares of the delay.
fn shares(plain: &SyncCost, late: &SyncCost) -> [f64; 3] {
    [
        late.total - plain.total,
        late.exposed - plain.exposed,
        late.straggler - plain.straggler,
    ]
    .map(|seconds| seconds / DELAY.as_secs_f64())
}

#[track_caller]
fn assert_near(found: [f64; 3], expected: [f64; 3]) {
    for (kind, (found, expected)) in ["total", "exposed", "straggler"]
        .iter()
        .zip(found.iter().zip(expected))
    {
        assert!(
            (found - expected).abs() < TOLERANCE,
            "{kind} moves by {found:.3} delays instead of {expected}"
        );
    }
}

#[test]
fn a_late_rank_is_the_others_straggler_wait_and_nothing_else() {
    for report in [ReportOver::Control, ReportOver::Gradients] {
        // Pauses of some 100 ms a step between all-reduces, filled by the wait for the late rank.
        let added = added(4, 768, Delayed::LastRank, report);
        assert_near(added[0], [0.0, 0.0, 1.0]);
        assert_near(added[1], [0.0, 0.0, 0.0]);
    }
}

#[test]
fn a_slow_all_reduce_is_total_and_exposed_cost_on_every_rank_and_no_straggler() {
    for delayed in [Delayed::Gradients, Delayed::Control, Delayed::Network] {
        for added in added(1, 64, delayed, ReportOver::Control) {
            assert_near(added, [1.0, 1.0, 0.0]);
        }
    }
}

#[test]
fn with_the_arrival_among_the_gradients_nothing_waits_for_the_control_group() {
    for (delayed, share) in [(Delayed::Gradients, 1.0), (Delayed::Control, 0.0)] {
        for added in added(1, 64, delayed, ReportOver::Gradients) {
            assert_near(added, [share, share, 0.0]);
        }
    }
}

#[test]
fn communication_that_computation_hides_is_not_exposed() {
    // All all-reduces but the last overlap; many, because a busy machine may delay each.
    let costs = on_ranks(2, |rank| {
        cost(
            &rank,
            &Layers::new(16, 768),
            Delayed::Nothing,
            ReportOver::Control,
        )
    });
    for cost in costs {
        assert!(cost.total > 4.0 * cost.exposed, "{cost:?}");
    }
}

/// The delayed part while two ranks train two units with sharded weights.
#[derive(Clone, Copy, Debug, PartialEq)]
enum DelayedPart {
    Nothing,
    Gathers,
    Reductions,
    /// Exchanges of activations among ranks that compute a model together.
    Exchanges,
    /// The last rank begins its forward pass late.
    LastRankForward,
    /// The last rank begins its backward pass late.
    LastRankBackward,
}

/// Median costs of gathered weights and of reduced gradients.
fn cost_of_sharded(rank: &Worker, delayed: DelayedPart) -> [SyncCost; 2] {
    match delayed {
        DelayedPart::Gathers => delay_apart(&rank.gradients, [Duration::ZERO, DELAY, Duration::ZERO]),
        DelayedPart::Reductions => delay(&rank.gradients, DELAY),
        _ => {}
    }
    let late = |part| {
        if delayed == part && rank.rank + 1 == rank.world_size {
            // The delay under test, not a wait for something.
            std::thread::sleep(DELAY);
        }
    };
    let model = Model::new(
        rank,
        2,
        Stage::Three {
            reshard_after_forward: true,
        },
    );
    let steps: Vec<SyncTimes> = (0..WARM_UP + STEPS)
        .map(|_| {
            model.sharded.begin().expect("begins");
            late(DelayedPart::LastRankForward);
            let loss = model.loss();
            model
                .sharded
                .prepare(&Tensor::from_slice(&[0.0_f64]))
                .expect("prepares");
            late(DelayedPart::LastRankBackward);
            loss.backward();
            let (_, measurement) = model.sharded.finish().expect("finishes");
            let times = measurement.times().expect("compares");
            let waited = times.all_gather.exposed + times.all_gather.straggler;
            // With two units, the backward pass gathers no weights again.
            assert!((times.waited_in_forward - waited).abs() < 1e-9, "{times:?}");
            model.sharded.publish().expect("publishes");
            times
        })
        .collect();
    [
        median(&steps, |times| times.all_gather),
        median(&steps, |times| times.reduce_scatter),
    ]
}

#[test]
fn each_operation_on_divided_weights_has_its_own_cost() {
    let costs = |delayed| on_ranks(2, |rank| cost_of_sharded(&rank, delayed));
    let plain = costs(DelayedPart::Nothing);
    // Added to gathers and reductions (total, exposed, straggler): on rank 0, on the last.
    for (delayed, first, last) in [
        // The two units are gathered at the same time.
        (
            DelayedPart::Gathers,
            [[1.0, 1.0, 0.0], [0.0; 3]],
            [[1.0, 1.0, 0.0], [0.0; 3]],
        ),
        (
            DelayedPart::Reductions,
            [[0.0; 3], [1.0, 1.0, 0.0]],
            [[0.0; 3], [1.0, 1.0, 0.0]],
        ),
        (
            DelayedPart::LastRankForward,
            [[0.0, 0.0, 1.0], [0.0; 3]],
            [[0.0; 3]; 2],
        ),
        (
            DelayedPart::LastRankBackward,
            [[0.0; 3], [0.0, 0.0, 1.0]],
            [[0.0; 3]; 2],
        ),
    ] {
        let found = costs(delayed);
        for (rank, expected) in [first, last].iter().enumerate() {
            for operation in 0..2 {
                let added = shares(&plain[rank][operation], &found[rank][operation]);
                assert_near(added, expected[operation]);
            }
        }
    }
}

/// Median costs of exchanged activations, and of summed activations and gradients. Each forward
/// pass has an exchange and a sum, and each backward pass an exchange.
fn cost_of_model_parallel(rank: &Worker, delayed: DelayedPart) -> [SyncCost; 2] {
    if delayed == DelayedPart::Exchanges {
        delay_apart(&rank.model, [Duration::ZERO, Duration::ZERO, DELAY]);
    }
    let recorder = rank.recorder(ReportOver::Control);
    let collectives = Collectives::new(&rank.model, &rank.model_control, &recorder).expect("collectives");
    let groups = (&rank.gradients, &rank.control);
    let parameters = [rank.parameter(8)];
    let mut reducer =
        Reducer::new(&parameters, groups, &recorder, 1024, Compression::None).expect("a reducer");
    let steps: Vec<SyncTimes> = (0..WARM_UP + STEPS)
        .map(|_| {
            reducer.begin().expect("begins");
            if delayed == DelayedPart::LastRankForward && rank.rank + 1 == rank.world_size {
                // The delay under test, not a wait for something.
                std::thread::sleep(DELAY);
            }
            let exchanged = collectives.all_to_all(&parameters[0]).expect("exchanges");
            let loss = collectives
                .sum_for_all(&exchanged)
                .expect("adds up")
                .sum(Kind::Float);
            reducer
                .prepare(&Tensor::from_slice(&[0.0_f64]))
                .expect("prepares");
            loss.backward();
            let (_, measurement) = reducer.finish().expect("finishes");
            measurement.times().expect("compares")
        })
        .collect();
    // 32 bytes forth and 32 back; 32 of activations and 32 of gradients.
    let SyncTimes {
        all,
        all_to_all,
        all_reduce,
        ..
    } = steps[0];
    assert_eq!((all_to_all.bytes, all_reduce.bytes), (64, 64));
    assert_eq!(
        (all_to_all.collectives, all_reduce.collectives, all.collectives),
        (2, 2, 4)
    );
    [
        median(&steps, |times| times.all_to_all),
        median(&steps, |times| times.all_reduce),
    ]
}

#[test]
fn activations_that_ranks_exchange_have_their_own_cost() {
    let costs = |delayed| on_ranks(2, |rank| cost_of_model_parallel(&rank, delayed));
    let plain = costs(DelayedPart::Nothing);
    for (delayed, first, last) in [
        // One in the forward pass and one in the backward pass.
        (DelayedPart::Exchanges, [2.0, 2.0, 0.0], [2.0, 2.0, 0.0]),
        (DelayedPart::LastRankForward, [0.0, 0.0, 1.0], [0.0; 3]),
    ] {
        let found = costs(delayed);
        for (rank, exchanges) in [first, last].into_iter().enumerate() {
            for (operation, expected) in [exchanges, [0.0; 3]].into_iter().enumerate() {
                let added = shares(&plain[rank][operation], &found[rank][operation]);
                assert_near(added, expected);
            }
        }
    }
}

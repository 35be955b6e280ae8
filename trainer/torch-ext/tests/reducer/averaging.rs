//! The optimizer gets the mean gradient, reduced in fp32 or bf16.

#![allow(clippy::float_cmp, reason = "means and sums of small whole numbers are exact")]

use std::time::Duration;

use tch::{Device, Kind, Tensor};
use torch_ext::{Compression, ErrorKind, Rendezvous, Store, SyncTimes};

use crate::ranks::{LOOPBACK, ReportOver, Worker, on_ranks};

/// `steps` steps of two parameters whose gradient is `rank + 1`.
fn train(rank: &Worker, steps: usize, report: ReportOver) -> Trained {
    let parameters = [rank.parameter(1000), rank.parameter(1000)];
    let mut reducer = rank.reducer(&parameters, 1024, Compression::None, report);
    let mut times = Vec::new();
    let mut sums = Vec::new();
    for _ in 0..steps {
        for parameter in &parameters {
            if parameter.grad().defined() {
                let _ = parameter.grad().zero_();
            }
        }
        let report = rank.numbers(&[f64::from(rank.rank), 1.0]);
        reducer.begin().expect("begins");
        reducer.prepare(&report).expect("prepares");
        let loss = (&parameters[0] + &parameters[1]).sum(Kind::Float) * f64::from(rank.rank + 1);
        loss.backward();
        let (found, measurement) = reducer.finish().expect("finishes");
        sums = Vec::try_from(found).expect("numbers");
        rank.finish();
        times.push(measurement.times().expect("compares"));
    }
    let gradients = parameters
        .iter()
        .map(|parameter| parameter.grad().mean(Kind::Float).double_value(&[]))
        .collect();
    (gradients, sums, times)
}

#[test]
fn every_rank_gets_the_mean_gradient_and_the_sum_of_arrivals() {
    // Ranks beyond a power of two have their sums computed by others.
    for ranks in 2..=9 {
        check_means_and_sums(ranks, |rank| train(&rank, 3, ReportOver::Control));
    }
    check_means_and_sums(3, |rank| train(&rank, 3, ReportOver::Gradients));
}

type Trained = (Vec<f64>, Vec<f64>, Vec<SyncTimes>);

fn check_means_and_sums(ranks: u32, train: impl Fn(Worker) -> Trained + Sync) {
    for (gradients, sums, times) in on_ranks(ranks, train) {
        let ranks = f64::from(ranks);
        let mean = f64::midpoint(ranks, 1.0);
        assert_eq!(gradients, [mean, mean], "of 1 to {ranks}");
        assert_eq!(
            sums,
            [ranks * (ranks - 1.0) / 2.0, ranks],
            "all ranks, and their number"
        );
        assert!(
            times.iter().all(|sync| sync.all.bytes == 8000
                && sync.all.total >= sync.all.exposed
                && sync.all == sync.all_reduce),
            "{times:?}"
        );
    }
}

#[test]
fn a_single_rank_pays_nothing() {
    for (gradients, sums, times) in on_ranks(1, |rank| train(&rank, 3, ReportOver::Control)) {
        assert_eq!(gradients, [1.0, 1.0]);
        assert_eq!(sums, [0.0, 1.0]);
        assert!(
            times.iter().all(|sync| *sync == SyncTimes::default()),
            "{times:?}"
        );
    }
}

#[test]
fn a_backward_pass_that_was_not_prepared_only_accumulates() {
    let gradients = on_ranks(2, |rank| {
        let parameters = [rank.parameter(10)];
        let mut reducer = rank.reducer(&parameters, 1024, Compression::None, ReportOver::Control);
        let loss = || parameters[0].sum(Kind::Float) * f64::from(rank.rank + 1);
        reducer.begin().expect("begins");
        loss().backward();
        reducer.prepare(&rank.numbers(&[0.0])).expect("prepares");
        loss().backward();
        let _ = reducer.finish().expect("finishes");
        parameters[0].grad().mean(Kind::Float).double_value(&[])
    });
    assert_eq!(gradients, [3.0, 3.0], "the mean of twice 1 and twice 2");
}

#[test]
fn a_broadcast_gives_every_rank_the_roots_values() {
    let values = on_ranks(3, |rank| {
        let mut tensor = Tensor::from_slice(&[f64::from(rank.rank)]);
        rank.control
            .broadcast(std::slice::from_ref(&tensor), 2)
            .expect("broadcasts");
        let received = tensor.double_value(&[0]);
        rank.control.all_reduce_sum(&mut tensor).expect("adds up");
        rank.control.barrier().expect("meets");
        (received, tensor.double_value(&[0]))
    });
    assert_eq!(values, [(2.0, 6.0); 3]);
}

#[test]
fn a_rendezvous_without_peers_says_where_it_waited_and_for_how_many() {
    let error = Store::connect(&Rendezvous {
        host: LOOPBACK.to_string(),
        port: 1,
        rank: 1,
        world_size: 2,
        prefix: "test".into(),
        timeout: Duration::from_secs(1),
    })
    .expect_err("nobody is there");
    assert_eq!(error.kind, ErrorKind::Communication);
    assert!(
        error
            .to_string()
            .starts_with("failed to meet 2 ranks at 127.0.0.1:1 within 1 s: "),
        "{error}"
    );
}

#[test]
fn gradients_sent_in_bf16_are_half_the_bytes_and_nearly_the_mean() {
    const SIZE: i64 = 10_000;
    let own = |rank: u32| {
        // Equal on every call, and different on every rank.
        let places = Tensor::arange(SIZE, (Kind::Float, Device::Cpu));
        (places * 0.37 + f64::from(rank)).sin()
    };
    let ranks = on_ranks(3, |rank| {
        let parameters = [rank.parameter(SIZE)];
        let mut reducer = rank.reducer(&parameters, 1 << 20, Compression::Bf16, ReportOver::Control);
        reducer.begin().expect("begins");
        reducer.prepare(&rank.numbers(&[1.0])).expect("prepares");
        (&parameters[0] * own(rank.rank).to_device(rank.device))
            .sum(Kind::Float)
            .backward();
        let (sums, measurement) = reducer.finish().expect("finishes");
        assert_eq!(sums, rank.numbers(&[3.0]), "the report stays exact");
        rank.finish();
        let gradient = parameters[0].grad();
        assert_eq!(gradient.kind(), Kind::Float);
        (
            gradient.to_device(Device::Cpu),
            measurement.times().expect("compares").all.bytes,
        )
    });
    let mean = (own(0) + own(1) + own(2)) / 3.0;
    for (gradient, bytes) in &ranks {
        assert_eq!(*bytes, 2 * SIZE as u64);
        // Each of three addends below 1/3 and two sums below 1 are rounded to 8 bits.
        let error = (gradient - &mean).abs().max().double_value(&[]);
        assert!(error > 0.0 && error < 5.0 / 512.0, "off by {error}");
        assert_eq!(
            gradient, &ranks[0].0,
            "the same on every rank, or weights drift apart"
        );
    }
}

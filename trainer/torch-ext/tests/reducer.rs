//! Two ranks as two threads of one process, each with groups and a model of its own: what reaches the optimizer is the
//! mean gradient, and a late rank shows as the other's straggler wait.

#![allow(clippy::float_cmp, reason = "means and sums of small whole numbers are exact")]

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::time::Duration;

use tch::{Device, Kind, Tensor};
use torch_ext::{ErrorKind, ProcessGroup, Reducer, Rendezvous, Store, SyncTimes};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const TIMEOUT: Duration = Duration::from_secs(30);

struct Worker {
    rank: u32,
    world_size: u32,
    gradients: ProcessGroup,
    control: ProcessGroup,
    _store: Store,
}

/// Runs `body` on each of `world_size` ranks at once and gives their results in order.
fn on_ranks<T: Send>(world_size: u32, body: impl Fn(Worker) -> T + Sync) -> Vec<T> {
    let port = TcpListener::bind((LOOPBACK, 0))
        .and_then(|socket| socket.local_addr())
        .expect("a port")
        .port();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..world_size)
            .map(|rank| {
                let body = &body;
                scope.spawn(move || {
                    let store = Store::connect(&Rendezvous {
                        host: LOOPBACK.to_string(),
                        port,
                        rank,
                        world_size,
                        prefix: "test".into(),
                        timeout: TIMEOUT,
                    })
                    .expect("all ranks meet");
                    let group = |name| ProcessGroup::gloo(&store, name, LOOPBACK, TIMEOUT).expect("a group");
                    let (gradients, control) = (group("gradients"), group("control"));
                    body(Worker {
                        rank,
                        world_size,
                        gradients,
                        control,
                        _store: store,
                    })
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("the rank ends well"))
            .collect()
    })
}

/// `steps` steps of two parameters whose gradient is `rank + 1`, each delayed by `delay` on the last rank.
fn train(rank: &Worker, steps: usize, delay: Duration) -> (Vec<f64>, [f64; 2], Vec<SyncTimes>) {
    let parameters: Vec<Tensor> = (0..2)
        .map(|_| Tensor::zeros([1000], (Kind::Float, Device::Cpu)).set_requires_grad(true))
        .collect();
    let mut reducer = Reducer::new(&parameters, &rank.gradients, &rank.control, 1024).expect("a reducer");
    let mut times = Vec::new();
    let mut sums = [0.0; 2];
    for _ in 0..steps {
        for parameter in &parameters {
            if parameter.grad().defined() {
                let _ = parameter.grad().zero_();
            }
        }
        let arrival = Tensor::from_slice(&[f64::from(rank.rank), 1.0]);
        reducer.prepare(&arrival).expect("prepares");
        let loss = (&parameters[0] + &parameters[1]).sum(Kind::Float) * f64::from(rank.rank + 1);
        if rank.rank + 1 == rank.world_size {
            // The delay under test, not a wait for something.
            std::thread::sleep(delay);
        }
        loss.backward();
        let (found, sync) = reducer.finish::<2>().expect("finishes");
        sums = found;
        times.push(sync);
    }
    let gradients = parameters
        .iter()
        .map(|parameter| parameter.grad().mean(Kind::Float).double_value(&[]))
        .collect();
    (gradients, sums, times)
}

#[test]
fn every_rank_gets_the_mean_gradient_and_the_sum_of_arrivals() {
    for (gradients, sums, times) in on_ranks(3, |rank| train(&rank, 3, Duration::ZERO)) {
        assert_eq!(gradients, [2.0, 2.0], "the mean of 1, 2 and 3");
        assert_eq!(sums, [3.0, 3.0], "ranks 0 + 1 + 2, and three of them");
        assert!(
            times
                .iter()
                .all(|sync| sync.bytes == 8000 && sync.total >= sync.exposed),
            "{times:?}"
        );
    }
}

#[test]
fn a_late_rank_is_the_others_straggler_wait_and_nothing_else() {
    let delay = Duration::from_millis(150);
    let ranks = on_ranks(2, |rank| train(&rank, 4, delay).2);
    // The first step makes connections and rebuilds buckets.
    for (punctual, late) in ranks[0].iter().zip(&ranks[1]).skip(1) {
        assert!(punctual.straggler > 0.1, "the punctual rank waited: {punctual:?}");
        assert!(
            late.straggler < 0.1,
            "the late rank is the last to arrive: {late:?}"
        );
        for sync in [punctual, late] {
            assert!(
                sync.exposed < 0.1 && sync.total < 0.1,
                "the wire is as fast as ever: {sync:?}"
            );
        }
    }
}

#[test]
fn a_single_rank_pays_nothing() {
    for (gradients, sums, times) in on_ranks(1, |rank| train(&rank, 3, Duration::ZERO)) {
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
        let parameter = Tensor::zeros([10], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let parameters = [parameter];
        let mut reducer = Reducer::new(&parameters, &rank.gradients, &rank.control, 1024).expect("a reducer");
        let loss = || parameters[0].sum(Kind::Float) * f64::from(rank.rank + 1);
        loss().backward();
        reducer
            .prepare(&Tensor::from_slice(&[0.0_f64]))
            .expect("prepares");
        loss().backward();
        reducer.finish::<1>().expect("finishes");
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

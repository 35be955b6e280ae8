//! Ranks as threads of one process, each with groups and a model of its own.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use tch::{Device, Kind, Tensor};
use torch_ext::{Compression, ProcessGroup, Reducer, Rendezvous, Store, SyncRecorder};

pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const TIMEOUT: Duration = Duration::from_secs(30);

/// What adds up the numbers of an arrival.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ArrivalOver {
    /// The group of everything else, beside the gradients.
    Control,
    /// The group of the gradients, in their queue, as on a GPU.
    Gradients,
}

pub(crate) struct Worker {
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) gradients: ProcessGroup,
    pub(crate) control: ProcessGroup,
    /// For ranks that compute a model together.
    pub(crate) model: ProcessGroup,
    pub(crate) model_control: ProcessGroup,
    _store: Store,
}

impl Worker {
    pub(crate) fn reducer(
        &self,
        parameters: &[Tensor],
        bucket_bytes: usize,
        compression: Compression,
        arrival: ArrivalOver,
    ) -> Reducer {
        let groups = (&self.gradients, &self.control);
        Reducer::new(
            parameters,
            groups,
            &self.recorder(arrival),
            bucket_bytes,
            compression,
        )
        .expect("a reducer")
    }

    pub(crate) fn recorder(&self, arrival: ArrivalOver) -> SyncRecorder {
        let arrivals = (arrival == ArrivalOver::Gradients).then_some(&self.gradients);
        SyncRecorder::new(&self.control, arrivals).expect("a recorder")
    }
}

pub(crate) fn parameter(size: i64) -> Tensor {
    Tensor::zeros([size], (Kind::Float, Device::Cpu)).set_requires_grad(true)
}

/// Runs `body` on each of `world_size` ranks at once and gives their results in order.
pub(crate) fn on_ranks<T: Send>(world_size: u32, body: impl Fn(Worker) -> T + Sync) -> Vec<T> {
    let port = Rendezvous::reserve_port(LOOPBACK).expect("a port");
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
                    let group = |name| {
                        ProcessGroup::gloo(&store, (name, store.member()), LOOPBACK, TIMEOUT)
                            .expect("a group")
                    };
                    let [gradients, control, model, model_control] =
                        ["gradients", "control", "model", "model-control"].map(group);
                    body(Worker {
                        rank,
                        world_size,
                        gradients,
                        control,
                        model,
                        model_control,
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

//! Ranks as threads of one process, each with groups and a model of its own.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use tch::{Device, Kind, Tensor};
use torch_ext::{ArrivalOver, Compression, ProcessGroup, Reducer, Rendezvous, Store};

pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Worker {
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) gradients: ProcessGroup,
    pub(crate) control: ProcessGroup,
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
        Reducer::new(
            parameters,
            &self.gradients,
            &self.control,
            bucket_bytes,
            compression,
            arrival,
        )
        .expect("a reducer")
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

//! Ranks as threads of one process, each with its own groups and model.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use tch::{Device, Kind, Tensor};
use torch_ext::{Compression, Cuda, ProcessGroup, Reducer, Rendezvous, Store, SyncRecorder, load_cuda};

pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const TIMEOUT: Duration = Duration::from_secs(30);

/// The group that sums reports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReportOver {
    /// The control group, during the gradient reduction.
    Control,
    /// The group of the gradients, in its queue, as on a GPU.
    Gradients,
}

pub(crate) struct Worker {
    /// Device of its tensors: the CPU, or a separate GPU.
    pub(crate) device: Device,
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
        report: ReportOver,
    ) -> Reducer {
        let groups = (&self.gradients, &self.control);
        Reducer::new(
            parameters,
            groups,
            &self.recorder(report),
            bucket_bytes,
            compression,
        )
        .expect("a reducer")
    }

    pub(crate) fn recorder(&self, report: ReportOver) -> SyncRecorder {
        let reports = (report == ReportOver::Gradients || self.device.is_cuda()).then_some(&self.gradients);
        SyncRecorder::new(&self.control, reports).expect("a recorder")
    }

    /// Waits for the device: then the times of a step are known.
    pub(crate) fn finish(&self) {
        if let Device::Cuda(index) = self.device {
            tch::Cuda::synchronize(index as i64);
        }
    }

    pub(crate) fn parameter(&self, size: i64) -> Tensor {
        Tensor::zeros([size], (Kind::Float, self.device)).set_requires_grad(true)
    }

    /// Numbers in double precision.
    pub(crate) fn numbers(&self, numbers: &[f64]) -> Tensor {
        Tensor::from_slice(numbers).to_device(self.device)
    }
}

/// The simulated GPUs of this process, if any.
pub(crate) fn gpus() -> Option<Cuda> {
    std::env::var_os("VIT_SIMULATED_GPUS")?;
    Some(load_cuda().expect("a simulated GPU"))
}

/// Runs `body` on `world_size` ranks at once and returns their results in order.
pub(crate) fn on_ranks<T: Send>(world_size: u32, body: impl Fn(Worker) -> T + Sync) -> Vec<T> {
    let port = Rendezvous::reserve_port(LOOPBACK).expect("a port");
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..world_size)
            .map(|rank| {
                let body = &body;
                scope.spawn(move || {
                    let cuda = gpus();
                    let store = Store::connect(&Rendezvous {
                        host: LOOPBACK.to_string(),
                        port,
                        rank,
                        world_size,
                        prefix: "test".into(),
                        timeout: TIMEOUT,
                    })
                    .expect("all ranks meet");
                    let member = store.member();
                    let on_cpu = |name| {
                        ProcessGroup::gloo(&store, (name, member), LOOPBACK, TIMEOUT).expect("a group")
                    };
                    let on_device = |name| match &cuda {
                        Some(cuda) => {
                            ProcessGroup::nccl(&store, (name, member), (cuda, rank as usize), TIMEOUT)
                                .expect("a group")
                        }
                        None => on_cpu(name),
                    };
                    let [gradients, model] = ["gradients", "model"].map(on_device);
                    let [control, model_control] = ["control", "model-control"].map(on_cpu);
                    body(Worker {
                        device: match cuda {
                            Some(_) => Device::Cuda(rank as usize),
                            None => Device::Cpu,
                        },
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

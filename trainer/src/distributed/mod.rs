//! The ranks of one attempt: how they meet, on what device each works, and what they do together.

mod accelerator;
mod peers;
mod state;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Kind, Tensor};
use torch_ext::optim::global_norm;
use torch_ext::sharded::Stage;
use torch_ext::{ArrivalOver, Compression, ProcessGroup, Reducer, Rendezvous, Sharded, Store};

use crate::error::TrainError;
use peers::{Door, Peers};

pub(crate) use accelerator::Accelerator;
pub(crate) use peers::LostPeer;

/// How long ranks wait for one another at the start. Pods of a gang are created together, but images may still have
/// to be pulled.
const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// How long a collective may take before the peers count as lost. The others wait while rank 0 finishes a checkpoint at
/// the end of an epoch or of training, so this bounds a slow write there too.
const COLLECTIVE_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Room for a value that rank 0 gives to the others.
const VALUE_BYTES: usize = 4096;

/// An error on every rank where some have a GPU and some have none: they would wait for one another over different
/// libraries until the time limit.
fn agree_on_device(control: &ProcessGroup, accelerator: Accelerator, ranks: u32) -> Result<(), TrainError> {
    let mut with_gpu = Tensor::from(i64::from(matches!(accelerator, Accelerator::Cuda { .. })));
    control.all_reduce_sum(&mut with_gpu)?;
    same_device(with_gpu.int64_value(&[]).cast_unsigned(), ranks)
}

fn same_device(with_gpu: u64, ranks: u32) -> Result<(), TrainError> {
    if with_gpu == 0 || with_gpu == u64::from(ranks) {
        Ok(())
    } else {
        Err(TrainError::MixedDevices { with_gpu, ranks })
    }
}

/// Which rank this process is, and where it meets the others.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) local_rank: u32,
    pub(crate) world_size: u32,
    pub(crate) coordinator_host: String,
    pub(crate) coordinator_port: u16,
    pub(crate) address: IpAddr,
    /// Uid of the job, where it has one.
    pub(crate) job: Option<String>,
    pub(crate) attempt: u32,
}

impl Place {
    /// What no other gang has, were it to find this one's rank 0: not another attempt of the job, nor a job of the same name that
    /// was deleted and has not stopped yet.
    fn prefix(&self) -> String {
        let job = self.job.as_deref().unwrap_or("job");
        format!("{job}-attempt-{}", self.attempt)
    }
}

/// All ranks, from the point of view of one.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Gradients and parameters, on the device.
    gradients: ProcessGroup,
    /// Small things, on the CPU.
    control: ProcessGroup,
    /// What averages gradients takes an arrival's numbers along.
    arrival: ArrivalOver,
    peers: Peers,
    _store: Store,
}

impl World {
    /// Meets the other ranks. From then on `lost` holds the first of them that is lost, `tell` is called with it, and what
    /// waits for it on a GPU is ended.
    pub(crate) fn join(
        place: &Place,
        accelerator: Accelerator,
        lost: &LostPeer,
        tell: impl Fn(u32) + Send + 'static,
    ) -> Result<Self, TrainError> {
        let deadline = Instant::now() + RENDEZVOUS_TIMEOUT;
        let store = Store::connect(&Rendezvous {
            host: place.coordinator_host.clone(),
            port: place.coordinator_port,
            rank: place.rank,
            world_size: place.world_size,
            prefix: place.prefix(),
            timeout: RENDEZVOUS_TIMEOUT,
        })?;
        let control = ProcessGroup::gloo(&store, "control", place.address, COLLECTIVE_TIMEOUT)?;
        agree_on_device(&control, accelerator, place.world_size)?;
        let (gradients, arrival) = match accelerator {
            Accelerator::Cpu => {
                let group = ProcessGroup::gloo(&store, "gradients", place.address, COLLECTIVE_TIMEOUT)?;
                (group, ArrivalOver::Control)
            }
            Accelerator::Cuda { cuda, .. } => {
                let group = ProcessGroup::nccl(&store, "gradients", &cuda, COLLECTIVE_TIMEOUT)?;
                (group, ArrivalOver::Gradients)
            }
        };
        let aborter = gradients.aborter()?;
        let lost = lost.clone();
        let on_lost = move |rank| {
            // First, because the process may end as soon as its main thread knows.
            tell(rank);
            lost.set(rank);
            if let Err(error) = aborter.abort() {
                tracing::warn!("rank {rank} is lost: {error}");
            }
        };
        let peers = connect_to_peers(place, &control, deadline, on_lost)?;
        Ok(Self {
            rank: place.rank,
            size: place.world_size,
            gradients,
            control,
            arrival,
            peers,
            _store: store,
        })
    }

    /// All ranks have done what there was to do together.
    pub(crate) fn leave(&mut self) {
        self.peers.leave();
    }

    /// Whether this rank writes what is written once: checkpoints and the log.
    pub(crate) fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// Gives every rank rank 0's values.
    pub(crate) fn broadcast(&self, tensors: &[Tensor]) -> Result<(), TrainError> {
        Ok(self.gradients.broadcast(tensors, 0)?)
    }

    /// Gives every rank rank 0's value, which takes less than [`VALUE_BYTES`] as JSON.
    pub(crate) fn broadcast_value<T: Serialize + DeserializeOwned>(
        &self,
        value: &T,
    ) -> Result<T, TrainError> {
        broadcast_value(&self.control, value)
    }

    pub(crate) fn sum<const N: usize>(&self, counts: [u64; N]) -> Result<[u64; N], TrainError> {
        let mut tensor = Tensor::from_slice(&counts.map(u64::cast_signed)).to_kind(Kind::Int64);
        self.control.all_reduce_sum(&mut tensor)?;
        Ok(std::array::from_fn(|index| {
            tensor.int64_value(&[index as i64]).cast_unsigned()
        }))
    }

    /// Returns once every rank is here.
    pub(crate) fn barrier(&self) -> Result<(), TrainError> {
        Ok(self.control.barrier()?)
    }

    /// Averages these parameters' gradients over the ranks from now on.
    pub(crate) fn reducer(
        &self,
        parameters: &[Tensor],
        settings: &contract::Parallelism,
    ) -> Result<Reducer, TrainError> {
        let bytes = parameters.iter().map(bytes_of).sum();
        Ok(Reducer::new(
            parameters,
            &self.gradients,
            &self.control,
            bucket_bytes(bytes, settings.bucket_megabytes as usize * MEBIBYTE),
            compression(settings),
            self.arrival,
        )?)
    }

    /// What divides training state among the ranks, as yet without parameters.
    pub(crate) fn sharded(
        &self,
        stage: Stage,
        settings: &contract::Parallelism,
    ) -> Result<Sharded, TrainError> {
        Ok(Sharded::new(
            stage,
            &self.gradients,
            &self.control,
            compression(settings),
            self.arrival,
        )?)
    }

    /// The ranks among which tensors on the device are divided.
    pub(crate) fn ranks(&self) -> &ProcessGroup {
        &self.gradients
    }

    /// The Euclidean norm over all elements of all tensors of which every rank has a part: a float scalar on their device.
    pub(crate) fn norm_of_parts(&self, tensors: &[Tensor]) -> Result<Tensor, TrainError> {
        let mut square = global_norm(tensors)?.to_kind(Kind::Double).f_square()?;
        self.gradients.all_reduce_sum(&mut square)?;
        Ok(square.f_sqrt()?.to_kind(Kind::Float))
    }
}

fn compression(settings: &contract::Parallelism) -> Compression {
    match settings.compress_gradients {
        contract::GradientCompression::None => Compression::None,
        contract::GradientCompression::Bf16 => Compression::Bf16,
    }
}

fn broadcast_value<T: Serialize + DeserializeOwned>(
    control: &ProcessGroup,
    value: &T,
) -> Result<T, TrainError> {
    let mut json = serde_json::to_vec(value).expect("a plain value");
    json.resize(VALUE_BYTES, b' ');
    let tensor = Tensor::from_slice(&json);
    control.broadcast(std::slice::from_ref(&tensor), 0)?;
    let json = Vec::<u8>::try_from(tensor)?;
    Ok(serde_json::from_slice(&json).expect("rank 0's JSON"))
}

/// The connections by which ranks hear of a lost one.
fn connect_to_peers(
    place: &Place,
    control: &ProcessGroup,
    deadline: Instant,
    on_lost: impl Fn(u32) + Send + 'static,
) -> Result<Peers, TrainError> {
    let door = match place.rank {
        0 => Some(Door::open(place.address).map_err(no_connection)?),
        _ => None,
    };
    let own = door
        .as_ref()
        .map(Door::address)
        .transpose()
        .map_err(no_connection)?;
    let address: Option<SocketAddr> = broadcast_value(control, &own)?;
    let address = address.expect("rank 0 has a door");
    let secret = place.prefix();
    let peers = match door {
        Some(door) => door.admit(place.world_size, &secret, deadline, on_lost),
        None => Peers::connect(address, place.rank, &secret, deadline, on_lost),
    };
    peers.map_err(no_connection)
}

fn no_connection(error: std::io::Error) -> TrainError {
    TrainError::Rendezvous(format!("failed to connect ranks with rank 0: {error}"))
}

const MEBIBYTE: usize = 1024 * 1024;
/// Buckets of a model whose gradients would fit few of the largest size.
const LEAST_BUCKETS: usize = 16;

fn bytes_of(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}

/// Size of a bucket for gradients of `total` bytes. The last bucket of a step is reduced when no computation is left
/// to hide it: with buckets of the 25 MiB that suit ViT-B and larger, ViT-Ti's gradients are a single one.
fn bucket_bytes(total: usize, limit: usize) -> usize {
    (total / LEAST_BUCKETS).clamp(MEBIBYTE.min(limit), limit)
}

#[cfg(test)]
mod tests {
    use contract::ExitCode;

    use super::*;

    #[test]
    fn a_small_model_has_several_buckets_to_hide_all_but_the_last() {
        let limit = 25 * MEBIBYTE;
        let (tiny, base, giant) = (22 * MEBIBYTE, 330 * MEBIBYTE, 4000 * MEBIBYTE);
        assert_eq!(bucket_bytes(tiny, limit), tiny / 16);
        assert_eq!(bucket_bytes(base, limit), base / 16);
        assert_eq!(bucket_bytes(giant, limit), limit);
        assert_eq!(
            bucket_bytes(1000, limit),
            MEBIBYTE,
            "a message of its own costs too"
        );
        assert_eq!(bucket_bytes(giant, 1000), 1000);
    }

    #[test]
    fn ranks_on_different_devices_are_a_fault() {
        same_device(0, 4).expect("all on the CPU");
        same_device(4, 4).expect("all on GPUs");
        let error = same_device(3, 4).expect_err("one fell back");
        assert_eq!(error.exit_code(), ExitCode::DeviceFault);
        assert!(error.to_string().contains("3 of 4 ranks"), "{error}");
    }
}

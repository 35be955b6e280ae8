//! The ranks of one attempt: rendezvous, devices and collectives.

mod accelerator;
mod groups;
mod links;
mod mesh;
mod peers;
mod state;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use contract::DataConfig;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Kind, Tensor};
use torch_ext::optim::global_norm;
use torch_ext::sharded::Stage;
use torch_ext::{
    Collectives, Compression, Member, ProcessGroup, Reducer, Rendezvous, Sharded, Store, SyncRecorder,
};

use crate::error::TrainError;
use crate::parallel::TrainedWeights;
use groups::{GroupPair, Groups};
use peers::{PeerListener, Peers};

pub(crate) use accelerator::Accelerator;
pub(crate) use links::BucketTime;
pub(crate) use mesh::Mesh;
pub(crate) use peers::LostPeer;

/// Rendezvous timeout. Pods of a gang are created together, but images may still have to be pulled.
const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// The same if a pod may still fetch the data set, or read its files, after others have finished.
const FETCH_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// How long ranks wait for each other at the start.
pub(crate) fn rendezvous_timeout(data: &DataConfig) -> Duration {
    match data.from {
        Some(_) => FETCH_TIMEOUT,
        None => RENDEZVOUS_TIMEOUT,
    }
}

/// An error on every rank if only some have a GPU: they would wait for each other over different
/// libraries until the timeout.
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

/// The rank of this process, and where it meets the others.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) local_rank: u32,
    pub(crate) world_size: u32,
    pub(crate) coordinator_host: String,
    pub(crate) coordinator_port: u16,
    pub(crate) address: IpAddr,
    /// Uid of the job, if it has one.
    pub(crate) job: Option<String>,
    pub(crate) attempt: u32,
}

impl Place {
    /// A prefix unique to this gang, in case others reach its rank 0: another attempt, or a deleted
    /// job of the same name that still runs.
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
    pub(crate) mesh: Mesh,
    /// Device of this rank.
    device: tch::Device,
    /// For gradients and parameters, on the device.
    gradients: ProcessGroup,
    /// For small data, on the CPU.
    control: ProcessGroup,
    recorder: SyncRecorder,
    /// The ranks that have gradients for the same weights as this one, unless all have.
    reducing: Option<GroupPair>,
    /// With hybrid sharding: the ranks that shard training state, and those with the same shard.
    hybrid: Option<(GroupPair, GroupPair)>,
    /// The ranks that divide tokens with this one, if any.
    sequence: Option<Collectives>,
    /// The ranks that divide heads with this one, if any, and their group.
    tensor: Option<(Collectives, ProcessGroup)>,
    peers: Peers,
    _store: Store,
}

impl World {
    /// Meets the other ranks. From then on `lost` holds the first lost rank, `tell` is called with
    /// it, and GPU operations that wait for it are aborted.
    pub(crate) fn join(
        place: &Place,
        (settings, ranks_per_node): (&contract::Parallelism, u32),
        accelerator: Accelerator,
        timeout: Duration,
        lost: &LostPeer,
        tell: impl Fn(u32) + Send + 'static,
    ) -> Result<Self, TrainError> {
        let deadline = Instant::now() + timeout;
        let store = Store::connect(&Rendezvous {
            host: place.coordinator_host.clone(),
            port: place.coordinator_port,
            rank: place.rank,
            world_size: place.world_size,
            prefix: place.prefix(),
            timeout,
        })?;
        let groups = Groups {
            store: &store,
            accelerator,
            address: place.address,
        };
        let control = groups.on_cpu("control", store.member())?;
        agree_on_device(&control, accelerator, place.world_size)?;
        let gradients = groups.on_device("gradients", store.member())?;
        // On a GPU the report is reduced in the queue of the gradients.
        let reports = matches!(accelerator, Accelerator::Cuda { .. }).then_some(&gradients);
        let recorder = SyncRecorder::new(&control, reports)?;
        let mut aborters = vec![gradients.aborter()?];
        let mesh = Mesh::new(store.member(), settings, ranks_per_node);
        let mut pair = |name: String, member: Member| -> Result<GroupPair, TrainError> {
            let pair = groups.pair(&name, member)?;
            aborters.push(pair.group.aborter()?);
            Ok(pair)
        };
        let Mesh {
            data,
            sequence,
            tensor,
            ..
        } = mesh;
        let reducing = (tensor.size > 1)
            .then(|| pair(format!("reducing-{}", tensor.rank), mesh.reducing()))
            .transpose()?;
        let hybrid = (mesh.replicating().size > 1)
            .then(|| {
                let sharding = format!("sharding-{}-{}", tensor.rank, mesh.replicating().rank);
                let replicating = format!("replicating-{}-{}", tensor.rank, mesh.sharding.rank);
                Ok::<_, TrainError>((
                    pair(sharding, mesh.sharding)?,
                    pair(replicating, mesh.replicating())?,
                ))
            })
            .transpose()?;
        let sequence = (sequence.size > 1)
            .then(|| {
                let pair = pair(format!("sequence-{}-{}", data.rank, tensor.rank), sequence)?;
                Ok::<_, TrainError>(Collectives::new(&pair.group, &pair.control, &recorder)?)
            })
            .transpose()?;
        let tensor = (tensor.size > 1)
            .then(|| {
                let pair = pair(format!("tensor-{}", mesh.reducing().rank), tensor)?;
                let collectives = Collectives::new(&pair.group, &pair.control, &recorder)?;
                Ok::<_, TrainError>((collectives, pair.group))
            })
            .transpose()?;
        let lost = lost.clone();
        let on_lost = move |rank| {
            // First: the process may end as soon as its main thread knows.
            tell(rank);
            lost.set(rank);
            for aborter in &aborters {
                if let Err(error) = aborter.abort() {
                    tracing::warn!("rank {rank} is lost: {error}");
                }
            }
        };
        let peers = connect_to_peers(place, &control, deadline, on_lost)?;
        Ok(Self {
            rank: place.rank,
            size: place.world_size,
            mesh,
            device: accelerator.device(),
            gradients,
            control,
            recorder,
            reducing,
            hybrid,
            sequence,
            tensor,
            peers,
            _store: store,
        })
    }

    /// All ranks have finished their work.
    pub(crate) fn leave(&mut self) {
        self.peers.leave();
    }

    /// Whether this rank writes checkpoints and the log.
    pub(crate) fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// Copies rank 0's values to every rank.
    pub(crate) fn broadcast(&self, tensors: &[Tensor]) -> Result<(), TrainError> {
        Ok(self.gradients.broadcast(tensors, 0)?)
    }

    /// Returns rank 0's value on every rank.
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

    /// Sums numbers in host memory over the ranks.
    pub(crate) fn sum_on_host(&self, numbers: &mut Tensor) -> Result<(), TrainError> {
        Ok(self.control.all_reduce_sum(numbers)?)
    }

    /// The value of each rank, by rank.
    pub(crate) fn gather(&self, own: f64) -> Result<Vec<f64>, TrainError> {
        let mut values = Tensor::zeros([i64::from(self.size)], (Kind::Double, tch::Device::Cpu));
        let _ = values.get(i64::from(self.rank)).fill_(own);
        self.control.all_reduce_sum(&mut values)?;
        Ok(Vec::try_from(values)?)
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
            self.reducing(),
            &self.recorder,
            bucket_bytes(bytes, settings.bucket_megabytes as usize * MEBIBYTE),
            compression(settings),
        )?)
    }

    /// The sharding of training state, without parameters yet, from the model's `first` trained unit on.
    pub(crate) fn sharded(
        &self,
        stage: Stage,
        settings: &contract::Parallelism,
        first: usize,
    ) -> Result<Sharded, TrainError> {
        let (among, replicas) = match &self.hybrid {
            Some((sharding, replicating)) => (sharding.groups(), Some(replicating.groups())),
            None => (self.reducing(), None),
        };
        Ok(Sharded::new(
            stage,
            (among, replicas),
            &self.recorder,
            compression(settings),
            // The embedding's gradients need no weights.
            first > 0,
        )?)
    }

    /// The ranks that divide tokens with this one; `None` if each has all tokens.
    pub(crate) fn sequence(&self) -> Result<Option<Collectives>, TrainError> {
        Ok(self.sequence.as_ref().map(Collectives::share).transpose()?)
    }

    /// The ranks that divide heads with this one; `None` if each has all heads.
    pub(crate) fn tensor(&self) -> Result<Option<Collectives>, TrainError> {
        let ranks = self.tensor.as_ref().map(|(ranks, _)| ranks.share());
        Ok(ranks.transpose()?)
    }

    /// The device and CPU groups of the ranks that have gradients for the same weights.
    fn reducing(&self) -> (&ProcessGroup, &ProcessGroup) {
        match &self.reducing {
            Some(pair) => pair.groups(),
            None => (&self.gradients, &self.control),
        }
    }

    /// The ranks among which parameters are divided: all if they are sharded, or those that divide
    /// heads. `None` if every rank has all.
    pub(crate) fn dividing(&self, are_sharded: bool) -> Option<&ProcessGroup> {
        if are_sharded {
            return Some(&self.gradients);
        }
        self.tensor.as_ref().map(|(_, group)| group)
    }

    /// The Euclidean norm over all elements of tensors shaped like the weights, of which `tensors`
    /// are this rank's: a float scalar on their device.
    pub(crate) fn norm(&self, tensors: &[Tensor], weights: &TrainedWeights) -> Result<Tensor, TrainError> {
        let Some(ranks) = self.dividing(weights.are_sharded()) else {
            return Ok(global_norm(tensors)?);
        };
        let mut square = Tensor::f_zeros([], (Kind::Double, tensors[0].device()))?;
        let mut by_copies = BTreeMap::<u32, Vec<Tensor>>::new();
        for (tensor, division) in tensors.iter().zip(weights.divisions()) {
            let same_copies = by_copies.entry(division.copies()).or_default();
            same_copies.push(tensor.shallow_clone());
        }
        // Copies on several ranks count once.
        for (copies, same_copies) in by_copies {
            square += global_norm(&same_copies)?.to_kind(Kind::Double).f_square()? / f64::from(copies);
        }
        ranks.all_reduce_sum(&mut square)?;
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
    // The length may differ between ranks.
    let length = Tensor::from(json.len() as i64);
    control.broadcast(std::slice::from_ref(&length), 0)?;
    json.resize(length.int64_value(&[]) as usize, b' ');
    let tensor = Tensor::from_slice(&json);
    control.broadcast(std::slice::from_ref(&tensor), 0)?;
    let json = Vec::<u8>::try_from(tensor)?;
    Ok(serde_json::from_slice(&json).expect("rank 0's JSON"))
}

/// Opens the connections that report a lost rank.
fn connect_to_peers(
    place: &Place,
    control: &ProcessGroup,
    deadline: Instant,
    on_lost: impl Fn(u32) + Send + 'static,
) -> Result<Peers, TrainError> {
    let listener = match place.rank {
        0 => Some(PeerListener::open(place.address).map_err(no_connection)?),
        _ => None,
    };
    let own = listener
        .as_ref()
        .map(PeerListener::address)
        .transpose()
        .map_err(no_connection)?;
    let address: Option<SocketAddr> = broadcast_value(control, &own)?;
    let address = address.expect("rank 0 listens for peers");
    let secret = place.prefix();
    let peers = match listener {
        Some(listener) => listener.admit(place.world_size, &secret, deadline, on_lost),
        None => Peers::connect(address, place.rank, &secret, deadline, on_lost),
    };
    peers.map_err(no_connection)
}

fn no_connection(error: std::io::Error) -> TrainError {
    TrainError::Rendezvous(format!("failed to connect ranks with rank 0: {error}"))
}

const MEBIBYTE: usize = 1024 * 1024;
/// Target number of buckets for a small model.
const LEAST_BUCKETS: usize = 16;

fn bytes_of(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}

/// Bucket size for gradients of `total` bytes. Nothing hides the reduction of a step's last bucket:
/// at 25 MiB, good for ViT-B and larger, ViT-Ti's gradients would be a single one.
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
            "each message has a cost, too"
        );
        assert_eq!(bucket_bytes(giant, 1000), 1000);
    }

    #[test]
    fn a_value_of_any_length_reaches_every_rank() {
        let address = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
        let port = Rendezvous::reserve_port(address).expect("a port");
        let timeout = Duration::from_secs(60);
        let receive = |rank: u32| {
            let store = Store::connect(&Rendezvous {
                host: address.to_string(),
                port,
                rank,
                world_size: 2,
                prefix: "test".into(),
                timeout,
            })
            .expect("a store");
            let group =
                ProcessGroup::gloo(&store, ("control", store.member()), address, timeout).expect("a group");
            let own = ["a path of rank 0's ", ""][rank as usize].repeat(1000);
            broadcast_value(&group, &own).expect("broadcasts")
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| receive(1));
            let first = receive(0);
            assert_eq!(first.len(), 19_000);
            assert_eq!(other.join().expect("a rank"), first);
        });
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

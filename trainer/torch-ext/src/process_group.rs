//! Rendezvous and collectives of c10d.

use std::ffi::{CString, c_int};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::Duration;

use tch::Tensor;

use crate::device::Cuda;
use crate::error::{Error, ErrorKind, check};
use crate::handle::Handle;
use crate::sys::{self, RawGroup, RawStore};

/// Where the ranks of one attempt meet, and which of them this process is.
#[derive(Clone, Debug)]
pub struct Rendezvous {
    /// Host of the store; the process of rank 0 runs there.
    pub host: String,
    /// TCP port of the store.
    pub port: u16,
    /// Own rank, `0..world_size`.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// Put before every key: ranks with different prefixes never meet.
    pub prefix: String,
    /// How long to wait for the other ranks.
    pub timeout: Duration,
}

impl Rendezvous {
    /// A port at `address`, an interface of this machine, for the store of ranks that are about to start here.
    ///
    /// The system gives it to nobody who asks for any free port within the next minute, as another rank's listener
    /// does: a connection of that port was closed on the listening side just before. Listening on it by its number is
    /// possible all the same, as c10d and others do it, with `SO_REUSEADDR`.
    pub fn reserve_port(address: IpAddr) -> std::io::Result<u16> {
        let listener = TcpListener::bind((address, 0))?;
        let place = listener.local_addr()?;
        let _connected = TcpStream::connect(place)?;
        let (accepted, _) = listener.accept()?;
        drop(accepted);
        Ok(place.port())
    }
}

/// The key-value store through which ranks find one another (c10d's `TCPStore` with a `PrefixStore` over it).
#[derive(Debug)]
pub struct Store {
    handle: Handle<RawStore>,
    member: Member,
}

/// This rank among those of a group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Member {
    /// Own place, `0..size`.
    pub rank: u32,
    /// Number of ranks.
    pub size: u32,
}

/// Ranks that take part in collectives together. Collectives must be called in the same order on every rank.
#[derive(Debug)]
pub struct ProcessGroup {
    pub(crate) handle: Handle<RawGroup>,
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn c_string(text: &str, what: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error {
        action: format!("failed to use {text:?} as {what}"),
        kind: ErrorKind::Other,
        message: "it holds a zero byte".into(),
    })
}

/// A rendezvous that fails is the network's or a peer's doing, whatever type libtorch gives it, unless the own device has no
/// memory for a communicator or is faulty.
fn communication(error: Error) -> Error {
    let kind = match ErrorKind::of_message(&error.message) {
        kind @ (ErrorKind::OutOfDeviceMemory | ErrorKind::Device) => kind,
        _ => ErrorKind::Communication,
    };
    Error { kind, ..error }
}

impl Store {
    /// Meets the other ranks: rank 0 serves the store, all connect to it. Returns once all are there.
    pub fn connect(rendezvous: &Rendezvous) -> Result<Self, Error> {
        let Rendezvous {
            host,
            port,
            rank,
            world_size,
            prefix,
            timeout,
        } = rendezvous;
        let c_host = c_string(host, "a host name")?;
        let c_prefix = c_string(prefix, "a key prefix")?;
        let handle = Handle::new(sys::vit_store_free, |out| {
            // SAFETY: the strings outlive the call and `out` is a valid place for the object's pointer.
            let status = unsafe {
                sys::vit_store_new(
                    c_host.as_ptr(),
                    *port,
                    *rank == 0,
                    *world_size as usize,
                    c_prefix.as_ptr(),
                    milliseconds(*timeout),
                    out,
                )
            };
            check(status, || {
                format!(
                    "failed to meet {world_size} ranks at {host}:{port} within {} s",
                    timeout.as_secs()
                )
            })
        })
        .map_err(communication)?;
        Ok(Self {
            handle,
            member: Member {
                rank: *rank,
                size: *world_size,
            },
        })
    }

    /// This rank among all that met.
    pub fn member(&self) -> Member {
        self.member
    }
}

impl ProcessGroup {
    /// A group for CPU tensors over Gloo, on the interface that has `address`. `name` tells it from other groups over
    /// the same store, also from those of other ranks; a collective that takes longer than `timeout` fails.
    pub fn gloo(
        store: &Store,
        (name, member): (&str, Member),
        address: IpAddr,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let c_name = c_string(name, "the name of a group")?;
        let c_address = c_string(&address.to_string(), "an address")?;
        let handle = Handle::new(sys::vit_group_free, |out| {
            // SAFETY: the store and the strings outlive the call and `out` is a valid place for the pointer.
            let status = unsafe {
                sys::vit_group_gloo(
                    store.handle.as_ptr(),
                    c_name.as_ptr(),
                    member.rank.cast_signed(),
                    member.size.cast_signed(),
                    c_address.as_ptr(),
                    milliseconds(timeout),
                    out,
                )
            };
            check(status, || {
                format!(
                    "failed to connect rank {} to its peers from {address} over Gloo",
                    store.member.rank
                )
            })
        })
        .map_err(communication)?;
        Ok(Self { handle })
    }

    /// A group for tensors on the GPU of index `gpu` over NCCL. Every rank of the group calls it, and it returns once all are
    /// connected.
    pub fn nccl(
        store: &Store,
        (name, member): (&str, Member),
        (cuda, gpu): (&Cuda, usize),
        timeout: Duration,
    ) -> Result<Self, Error> {
        let c_name = c_string(name, "the name of a group")?;
        let handle = Handle::new(sys::vit_group_free, |out| {
            // SAFETY: as for Gloo; the plugin's entry has the signature that the C++ side casts it to (both are
            // written in this crate), and `cuda` keeps the library loaded for the life of the process.
            let status = unsafe {
                sys::vit_group_nccl(
                    store.handle.as_ptr(),
                    c_name.as_ptr(),
                    gpu as c_int,
                    member.rank.cast_signed(),
                    member.size.cast_signed(),
                    milliseconds(timeout),
                    cuda.nccl_backend_new(),
                    out,
                )
            };
            check(status, || {
                format!(
                    "failed to connect rank {} to its peers over NCCL",
                    store.member.rank
                )
            })
        })
        .map_err(communication)?;
        Ok(Self { handle })
    }

    /// The C++ object, for this crate's tests.
    #[doc(hidden)]
    pub fn as_raw(&self) -> *mut std::ffi::c_void {
        self.handle.as_ptr().cast()
    }

    /// Replaces `tensor` by the sum of all ranks' tensors.
    pub fn all_reduce_sum(&self, tensor: &mut Tensor) -> Result<(), Error> {
        // SAFETY: group and tensor are valid and borrowed for the call.
        let status = unsafe { sys::vit_group_all_reduce_sum(self.handle.as_ptr(), tensor.as_ptr().cast()) };
        check(status, || "failed to add up a tensor over the ranks".into())
    }

    /// Sends a contiguous tensor to another rank, which receives it into one of the same kind and size. Those between two
    /// ranks arrive in the order in which they are sent.
    pub fn send(&self, tensor: &Tensor, to: u32) -> Result<(), Error> {
        // SAFETY: group and tensor are valid and borrowed for the call, which returns when the tensor is sent.
        let status =
            unsafe { sys::vit_group_send(self.handle.as_ptr(), tensor.as_ptr().cast(), to.cast_signed()) };
        check(status, || format!("failed to send a tensor to rank {to}"))
    }

    /// Receives a contiguous tensor's values from another rank.
    pub fn receive(&self, tensor: &mut Tensor, from: u32) -> Result<(), Error> {
        // SAFETY: group and tensor are valid and borrowed for the call, which returns when the values are there.
        let status = unsafe {
            sys::vit_group_receive(self.handle.as_ptr(), tensor.as_ptr().cast(), from.cast_signed())
        };
        check(status, || format!("failed to receive a tensor from rank {from}"))
    }

    /// Replaces `tensors` by those of rank `root`. They may differ in type and shape, not in device.
    pub fn broadcast(&self, tensors: &[Tensor], root: u32) -> Result<(), Error> {
        let pointers = sys::pointers(tensors);
        // SAFETY: group and tensors are valid and borrowed for the call.
        let status = unsafe {
            sys::vit_group_broadcast(
                self.handle.as_ptr(),
                pointers.as_ptr(),
                pointers.len(),
                root.cast_signed(),
            )
        };
        check(status, || format!("failed to get the parameters of rank {root}"))
    }

    /// What ends the group's operations from another thread.
    pub fn aborter(&self) -> Result<Aborter, Error> {
        let handle = Handle::new(sys::vit_group_free, |out| {
            // SAFETY: the group is valid, and `out` is a valid place for the pointer.
            check(unsafe { sys::vit_group_share(self.handle.as_ptr(), out) }, || {
                "failed to share a group".into()
            })
        })?;
        Ok(Aborter(handle))
    }

    /// Returns once every rank has called it.
    pub fn barrier(&self) -> Result<(), Error> {
        // SAFETY: the group is valid.
        let status = unsafe { sys::vit_group_barrier(self.handle.as_ptr()) };
        check(status, || "failed to wait for the other ranks".into())
    }
}

/// Ends what is under way in a [`ProcessGroup`] that another thread uses.
#[derive(Debug)]
pub struct Aborter(Handle<RawGroup>);

// SAFETY: it is a reference of its own to the group, counted atomically, and aborting is made for other threads than the
// one that uses the group (`ProcessGroupNCCL::abort`).
unsafe impl Send for Aborter {}

impl Aborter {
    /// Ends the operations that wait for a peer on a GPU, and fails those that follow. Their results are undefined. Gloo's
    /// go on: they fail by themselves when a connection ends.
    pub fn abort(&self) -> Result<(), Error> {
        // SAFETY: the group is valid.
        let status = unsafe { sys::vit_group_abort(self.0.as_ptr()) };
        check(status, || "failed to abort what waits for other ranks".into())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_reserved_port_goes_to_whoever_names_it_and_to_nobody_who_asks_for_any() {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let port = Rendezvous::reserve_port(loopback).expect("a port");
        // Several times as many as there are ports to choose from.
        for _ in 0..60_000 {
            let any = TcpListener::bind((loopback, 0)).expect("a port");
            assert_ne!(any.local_addr().expect("an address").port(), port);
        }
        TcpListener::bind((loopback, port)).expect("the reserved one");
    }
}

//! Rendezvous and collectives of c10d.

use std::ffi::{CString, c_int};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::Duration;

use tch::Tensor;

use crate::device::Cuda;
use crate::error::{Error, ErrorKind, check};
use crate::handle::Handle;
use crate::sys::{self, RawGroup, RawStore};

/// Where the ranks of one attempt meet, and the rank of this process.
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
    /// Prefix of every key: ranks with different prefixes never meet.
    pub prefix: String,
    /// How long to wait for the other ranks.
    pub timeout: Duration,
}

impl Rendezvous {
    /// A port at `address`, on this machine, for the store of ranks about to start here.
    ///
    /// For the next minute the system does not assign it to listeners on any free port: a
    /// connection on it was just closed on the listening side. Listening on it by number still
    /// works with `SO_REUSEADDR`, as in c10d.
    pub fn reserve_port(address: IpAddr) -> std::io::Result<u16> {
        let listener = TcpListener::bind((address, 0))?;
        let place = listener.local_addr()?;
        let _connected = TcpStream::connect(place)?;
        let (accepted, _) = listener.accept()?;
        drop(accepted);
        Ok(place.port())
    }
}

/// The store through which ranks find each other (c10d's `TCPStore` with a `PrefixStore`).
#[derive(Debug)]
pub struct Store {
    handle: Handle<RawStore>,
    member: Member,
}

/// This rank in a group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Member {
    /// Own place, `0..size`.
    pub rank: u32,
    /// Number of ranks.
    pub size: u32,
}

/// Ranks that take part in collectives together, in the same order on every rank.
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
        message: "it contains a zero byte".into(),
    })
}

/// A failed rendezvous is an error of the network or a peer, whatever its type in libtorch, unless
/// the own device is faulty or lacks memory for a communicator.
fn communication(error: Error) -> Error {
    let kind = match ErrorKind::from_message(&error.message) {
        kind @ (ErrorKind::OutOfDeviceMemory | ErrorKind::Device) => kind,
        _ => ErrorKind::Communication,
    };
    Error { kind, ..error }
}

impl Store {
    /// Meets the other ranks at rank 0, which serves the store. Returns once all are connected.
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
    /// A group for CPU tensors over Gloo, on the interface that has `address`. `name` is unique in
    /// the store, also among other ranks' groups. A collective fails after `timeout`.
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

    /// A group for tensors on GPU `gpu` over NCCL. Every rank of the group calls it; it returns
    /// once all are connected.
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
        check(status, || "failed to sum a tensor over the ranks".into())
    }

    /// Sends a contiguous tensor to another rank, which receives it into one of the same kind and
    /// size. Tensors between two ranks arrive in order.
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

    /// Replaces `tensors`, of any types and shapes on one device, by those of rank `root`.
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

    /// A handle that ends the group's operations from another thread.
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

/// Aborts operations of a [`ProcessGroup`] that another thread uses.
#[derive(Debug)]
pub struct Aborter(Handle<RawGroup>);

// SAFETY: it is a reference of its own to the group, counted atomically, and aborting is made for other threads than the
// one that uses the group (`ProcessGroupNCCL::abort`).
unsafe impl Send for Aborter {}

impl Aborter {
    /// Ends GPU operations that wait for a peer and fails later ones. Their results are undefined.
    /// Gloo operations continue; they fail when a connection ends.
    pub fn abort(&self) -> Result<(), Error> {
        // SAFETY: the group is valid.
        let status = unsafe { sys::vit_group_abort(self.0.as_ptr()) };
        check(status, || {
            "failed to abort operations that wait for other ranks".into()
        })
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
        // Several times as many as there are ports.
        for _ in 0..60_000 {
            let any = TcpListener::bind((loopback, 0)).expect("a port");
            assert_ne!(any.local_addr().expect("an address").port(), port);
        }
        TcpListener::bind((loopback, port)).expect("the reserved one");
    }
}

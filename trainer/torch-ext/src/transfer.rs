//! Copies from the host to a device during the device's other work.

use tch::{Device, Tensor};

use crate::device;
use crate::error::{Error, check};
use crate::handle::{Handle, tensor_from};
use crate::sys;

/// Memory on the host, pinned for a GPU, and as much on a device. Copies run on a separate stream.
/// Only operations that need them wait, and writers to the host's memory. On the CPU a copy has
/// ended when [`Self::send`] returns.
#[derive(Debug)]
pub struct Transfer {
    handle: Handle<sys::RawTransfer>,
    bytes: usize,
}

// SAFETY: nothing of it belongs to a thread: tensors, streams and events may be used by any, one at a time.
unsafe impl Send for Transfer {}

impl Transfer {
    /// Memory of `bytes` bytes on the host and on `device`, zero on the host.
    pub fn new(device: Device, bytes: usize) -> Result<Self, Error> {
        let handle = Handle::new(sys::vit_transfer_free, |out| {
            // SAFETY: `out` is a valid place for the new object.
            check(
                unsafe { sys::vit_transfer_new(device::index(device), bytes, out) },
                || format!("failed to reserve {bytes} bytes on the host and on {device:?}"),
            )
        })?;
        Ok(Self { handle, bytes })
    }

    /// The host's memory, after its last copy has ended.
    pub fn host(&mut self) -> Result<&mut [u8], Error> {
        let mut bytes = std::ptr::null_mut();
        // SAFETY: the object is alive, and `bytes` is a valid place.
        let status = unsafe { sys::vit_transfer_host(self.handle.as_ptr(), &raw mut bytes) };
        check(status, || "failed to copy to the device".into())?;
        // SAFETY: the memory is this object's own, initialised and of this size, and no copy reads it: a new one needs this
        // borrow to have ended.
        Ok(unsafe { std::slice::from_raw_parts_mut(bytes, self.bytes) })
    }

    /// Starts copying the first `bytes` bytes, after operations on the last ones. Does not wait.
    pub fn send(&mut self, bytes: usize) -> Result<(), Error> {
        // SAFETY: the object is alive.
        let status = unsafe { sys::vit_transfer_send(self.handle.as_ptr(), bytes) };
        check(status, || {
            format!("failed to copy {bytes} of {} bytes to the device", self.bytes)
        })
    }

    /// Runs `operations` on the device's memory, a tensor of bytes. They wait for the copy, the
    /// caller does not. They must not keep the tensor: the next copy overwrites it.
    pub fn receive<T>(&mut self, operations: impl FnOnce(&Tensor) -> T) -> Result<T, Error> {
        const FAILED: &str = "failed to use data copied to the device";
        // SAFETY: the object is alive, and the call makes a tensor for us.
        let device = unsafe {
            tensor_from(FAILED, |device| {
                sys::vit_transfer_begin_use(self.handle.as_ptr(), device)
            })
        }?;
        let result = operations(&device);
        // SAFETY: the object is alive.
        check(unsafe { sys::vit_transfer_end_use(self.handle.as_ptr()) }, || {
            FAILED.into()
        })?;
        Ok(result)
    }
}

/// An asynchronous copy of a host tensor on `device`; the tensor itself for the CPU.
pub fn sent(tensor: &Tensor, device: Device) -> Result<Tensor, Error> {
    // SAFETY: the tensor is borrowed for the call, which makes a tensor for us.
    unsafe {
        tensor_from("failed to copy a tensor to the device", |out| {
            sys::vit_sent(tensor.as_ptr().cast(), device::index(device), out)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(transfer: &mut Transfer) -> i64 {
        let sum = transfer.receive(|bytes| bytes.sum(tch::Kind::Int64));
        sum.expect("received").int64_value(&[])
    }

    #[test]
    fn what_was_sent_is_received_and_no_more() {
        let mut transfer = Transfer::new(Device::Cpu, 6).expect("memory");
        transfer
            .host()
            .expect("mine")
            .copy_from_slice(&[1, 2, 3, 4, 5, 6]);
        transfer.send(6).expect("sent");
        transfer.host().expect("mine").fill(100);
        assert_eq!(sum(&mut transfer), 21, "what is written later is not sent yet");
        transfer.send(2).expect("sent");
        assert_eq!(sum(&mut transfer), 200 + 3 + 4 + 5 + 6);
    }

    #[test]
    fn another_thread_may_write_what_this_one_sends() {
        let mut transfer = Transfer::new(Device::Cpu, 4).expect("memory");
        let mut transfer = std::thread::spawn(move || {
            transfer.host().expect("mine").fill(7);
            transfer
        })
        .join()
        .expect("no panic");
        transfer.send(4).expect("sent");
        assert_eq!(sum(&mut transfer), 28);
    }

    #[test]
    fn more_than_there_is_is_refused() {
        let mut transfer = Transfer::new(Device::Cpu, 4).expect("memory");
        let error = transfer.send(5).expect_err("refused").to_string();
        assert!(
            error.starts_with("failed to copy 5 of 4 bytes to the device"),
            "{error}"
        );
    }
}

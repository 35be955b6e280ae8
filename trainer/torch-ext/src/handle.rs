//! Ownership of C++ objects.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use crate::error::{Error, check};

/// Frees a C++ object when dropped. Not `Sync`: only one thread at a time calls an object.
pub(crate) struct Handle<T> {
    pointer: NonNull<T>,
    free: unsafe extern "C" fn(*mut T),
}

impl<T> Handle<T> {
    /// Takes ownership of what `make` writes to its argument; `make` must write a valid object unless it fails.
    pub(crate) fn new<E>(
        free: unsafe extern "C" fn(*mut T),
        make: impl FnOnce(*mut *mut T) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut pointer = std::ptr::null_mut();
        make(&raw mut pointer)?;
        let pointer = NonNull::new(pointer).expect("a constructor that succeeded wrote its object");
        Ok(Self { pointer, free })
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.pointer.as_ptr()
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from the constructor that belongs to `free`, and is freed only here.
        unsafe { (self.free)(self.pointer.as_ptr()) }
    }
}

impl<T> std::fmt::Debug for Handle<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:p}", self.pointer)
    }
}

/// The tensor that `make` writes to its argument.
///
/// # Safety
/// Where `make` succeeds it must have written a tensor that it gives away.
pub(crate) unsafe fn tensor_from(
    action: &str,
    make: impl FnOnce(*mut *mut c_void) -> c_int,
) -> Result<tch::Tensor, Error> {
    let mut output = std::ptr::null_mut();
    check(make(&raw mut output), || action.into())?;
    // SAFETY: it is a tensor of which no one else knows.
    Ok(unsafe { tch::Tensor::from_ptr(output.cast()) })
}

//! Ownership of a C++ object.

use std::ptr::NonNull;

/// Frees a C++ object when dropped. Not `Sync`: calls on one object are made by one thread at a time.
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

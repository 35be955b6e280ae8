//! Memory use of tensors.

use crate::error::{Error, check};
use crate::handle::Handle;
use crate::sys;

/// Counts the bytes of CPU tensors that this thread allocates minus those it frees, until dropped.
#[derive(Debug)]
pub struct Meter(Handle<sys::RawMeter>);

impl Meter {
    /// Starts at zero.
    pub fn start() -> Result<Self, Error> {
        Handle::new(sys::vit_meter_free, |out| {
            // SAFETY: `out` is a valid place for the new meter.
            check(unsafe { sys::vit_meter_new(out) }, || {
                "failed to count memory".into()
            })
        })
        .map(Self)
    }

    /// Bytes allocated since the start and not freed; negative if older tensors were freed.
    pub fn held(&self) -> i64 {
        self.read().0
    }

    /// Peak of the bytes held.
    pub fn peak(&self) -> i64 {
        self.read().1
    }

    fn read(&self) -> (i64, i64) {
        let (mut held, mut peak) = (0, 0);
        // SAFETY: the meter is alive, and both are valid places.
        unsafe { sys::vit_meter_read(self.0.as_ptr(), &raw mut held, &raw mut peak) };
        (held, peak)
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;

    #[test]
    fn what_is_freed_counts_for_the_peak_only() {
        let meter = Meter::start().expect("counts");
        let kept = Tensor::zeros([256], (Kind::Float, Device::Cpu));
        drop(Tensor::zeros([512], (Kind::Float, Device::Cpu)));
        assert_eq!((meter.held(), meter.peak()), (1024, 3072));
        drop(kept);
        assert_eq!(meter.held(), 0);
    }
}

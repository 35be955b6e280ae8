//! Arithmetic of GPUs for matrix products in 32 bits and attention.

use serde::{Deserialize, Serialize};

use crate::error::{Error, check};
use crate::sys;

/// Attention kernels with libtorch's numbers (`ATen/SDPBackend.h`).
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AttentionKernel {
    /// Plain matrix products and a softmax.
    Math,
    /// `FlashAttention`, arXiv 2205.14135.
    Flash,
    /// Memory-efficient attention, arXiv 2112.05682.
    MemoryEfficient,
    /// Attention of cuDNN.
    Cudnn,
}

impl AttentionKernel {
    fn from_number(number: i64) -> Option<Self> {
        match number {
            0 => Some(Self::Math),
            1 => Some(Self::Flash),
            2 => Some(Self::MemoryEfficient),
            3 => Some(Self::Cudnn),
            _ => None,
        }
    }
}

/// Arithmetic of this process on GPUs. A CPU has no TF32 and one fused attention kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Arithmetic {
    /// Whether the inputs of matrix products in 32 bits may be rounded to TensorFloat-32.
    pub tf32: bool,
    /// Allowed attention kernels, in order of preference.
    pub attention: Vec<AttentionKernel>,
}

impl Arithmetic {
    /// Sets the arithmetic of the whole process: TF32 or not; for attention flash,
    /// memory-efficient, then plain, with cuDNN first or not at all.
    pub fn set(tf32: bool, cudnn_attention: bool) -> Result<(), Error> {
        set(tf32, cudnn_attention)
    }

    /// The current settings of libtorch.
    pub fn current() -> Result<Self, Error> {
        let (tf32, numbers) = current()?;
        Ok(Self {
            tf32,
            attention: numbers
                .into_iter()
                .filter_map(AttentionKernel::from_number)
                .collect(),
        })
    }
}

/// Restores the setting of cuDNN's attention when dropped, also after a panic.
struct CudnnAttention {
    was_allowed: bool,
}

impl Drop for CudnnAttention {
    fn drop(&mut self) {
        // A setting that could be changed can be restored.
        let _ = allow_cudnn_attention(self.was_allowed);
    }
}

/// Runs `attention` without cuDNN's kernels; its backward pass uses the kernel of its forward pass.
/// No other thread may compute attention meanwhile: the setting is global to the process.
pub fn without_cudnn_attention<T>(attention: impl FnOnce() -> T) -> Result<T, Error> {
    let was_allowed = allow_cudnn_attention(false)?;
    let _guard = CudnnAttention { was_allowed };
    Ok(attention())
}

fn allow_cudnn_attention(allowed: bool) -> Result<bool, Error> {
    let mut before = false;
    // SAFETY: a plain value and a valid place.
    let status = unsafe { sys::vit_exchange_cudnn_attention(allowed, &raw mut before) };
    check(status, || "failed to choose the attention kernels".into())?;
    Ok(before)
}

fn set(tf32: bool, cudnn_attention: bool) -> Result<(), Error> {
    // SAFETY: plain values.
    let status = unsafe { sys::vit_set_arithmetic(tf32, cudnn_attention) };
    check(status, || "failed to set the arithmetic of GPUs".into())
}

/// Whether TF32 is on, and the kernel numbers.
fn current() -> Result<(bool, Vec<i64>), Error> {
    let (mut tf32, mut numbers, mut count) = (false, [0; 5], 0);
    // SAFETY: the places are valid, and there are as many numbers as libtorch has kernels.
    let status = unsafe { sys::vit_arithmetic(&raw mut tf32, numbers.as_mut_ptr(), &raw mut count) };
    check(status, || "failed to read the arithmetic of GPUs".into())?;
    Ok((tf32, numbers[..count].to_vec()))
}

#[cfg(test)]
mod tests {
    use AttentionKernel::{Cudnn, Flash, Math, MemoryEfficient};

    use super::*;

    /// One test for all: the settings are global to the process.
    #[test]
    fn libtorch_tells_what_was_set_and_cudnn_is_used_only_where_asked_for() {
        let before = Arithmetic::current().expect("reads");
        assert!(
            before.attention.contains(&Cudnn),
            "libtorch's own choice: {before:?}"
        );
        for tf32 in [true, false] {
            Arithmetic::set(tf32, true).expect("sets");
            let with = Arithmetic::current().expect("reads");
            assert_eq!(
                (with.tf32, &with.attention[..]),
                (tf32, &[Cudnn, Flash, MemoryEfficient, Math][..])
            );
            let inside = without_cudnn_attention(|| Arithmetic::current().expect("reads"));
            assert_eq!(inside.expect("runs").attention, [Flash, MemoryEfficient, Math]);
            assert_eq!(Arithmetic::current().expect("reads"), with);

            Arithmetic::set(tf32, false).expect("sets");
            let without = Arithmetic::current().expect("reads");
            assert_eq!(
                (without.tf32, &without.attention[..]),
                (tf32, &[Flash, MemoryEfficient, Math][..])
            );
        }
    }
}

//! Load, memory, temperature and power of this rank's GPU, read during training.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use contract::gpu::{GpuReading, ThrottleReason};
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

/// The driver measures load over up to a second.
const INTERVAL: Duration = Duration::from_secs(1);
/// The driver library in containers; development packages have the name without a number.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Reads a GPU every second until dropped, on a thread: a driver call may take milliseconds.
#[derive(Debug)]
pub(crate) struct GpuMonitor {
    newest: Arc<Mutex<Option<GpuReading>>>,
}

impl GpuMonitor {
    /// Starts reading the GPU or MIG instance of this UUID. If the driver does not report it,
    /// training continues without, and a warning is logged.
    pub(crate) fn start(uuid: [u8; 16]) -> std::io::Result<Self> {
        let newest = Arc::default();
        let shared = Arc::downgrade(&newest);
        std::thread::Builder::new().name("gpu".into()).spawn(move || {
            if let Err(error) = watch(uuid, &shared) {
                tracing::warn!("GPU load, temperature and power are not measured: {error}");
            }
        })?;
        Ok(Self { newest })
    }

    /// The newest reading; `None` before the first.
    pub(crate) fn newest(&self) -> Option<GpuReading> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn watch(uuid: [u8; 16], shared: &Weak<Mutex<Option<GpuReading>>>) -> Result<(), NvmlError> {
    let nvml = Nvml::builder().lib_path(LIBRARY.as_ref()).init()?;
    let digits = dashed(uuid);
    let gpu = nvml
        .device_by_uuid(format!("GPU-{digits}"))
        .or_else(|_| nvml.device_by_uuid(format!("MIG-{digits}")))?;
    while let Some(newest) = shared.upgrade() {
        let reading = read(&gpu);
        *newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
        drop(newest);
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

fn read(gpu: &Device<'_>) -> GpuReading {
    GpuReading {
        utilization: gpu
            .utilization_rates()
            .ok()
            .map(|rates| f64::from(rates.gpu) / 100.0),
        memory_used_bytes: gpu.memory_info().ok().map(|memory| memory.used),
        temperature_celsius: gpu.temperature(TemperatureSensor::Gpu).ok().map(f64::from),
        power_watts: gpu
            .power_usage()
            .ok()
            .map(|milliwatts| f64::from(milliwatts) / 1e3),
        throttled_by: gpu.current_throttle_reasons().ok().map(reasons),
    }
}

/// The reasons that throttle a GPU under load.
fn reasons(flags: ThrottleReasons) -> Vec<ThrottleReason> {
    let thermal = ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN;
    ThrottleReason::ALL
        .into_iter()
        .filter(|reason| match reason {
            ThrottleReason::PowerCap => flags.contains(ThrottleReasons::SW_POWER_CAP),
            ThrottleReason::PowerBrake => flags.contains(ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN),
            ThrottleReason::Thermal => flags.intersects(thermal),
            // The more specific flags, if the driver sets them, come with this one.
            ThrottleReason::Hardware => {
                flags.contains(ThrottleReasons::HW_SLOWDOWN)
                    && !flags.intersects(
                        ThrottleReasons::HW_THERMAL_SLOWDOWN | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN,
                    )
            }
        })
        .collect()
}

/// Formats a UUID as NVML does after `GPU-`.
fn dashed(uuid: [u8; 16]) -> String {
    let mut text = String::new();
    for (place, byte) in uuid.iter().enumerate() {
        if [4, 6, 8, 10].contains(&place) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_the_driver_writes_it() {
        let uuid = 0x0476_47c2_4d46_4f50_9c42_659b_f17b_c95e_u128.to_be_bytes();
        assert_eq!(dashed(uuid), "047647c2-4d46-4f50-9c42-659bf17bc95e");
    }

    #[test]
    fn only_what_slows_a_gpu_down_is_a_reason() {
        let none = ThrottleReasons::GPU_IDLE | ThrottleReasons::APPLICATIONS_CLOCKS_SETTING;
        assert_eq!(reasons(none), []);
        assert_eq!(
            reasons(none | ThrottleReasons::SW_POWER_CAP | ThrottleReasons::SW_THERMAL_SLOWDOWN),
            [ThrottleReason::PowerCap, ThrottleReason::Thermal]
        );
        let slow = ThrottleReasons::HW_SLOWDOWN;
        assert_eq!(reasons(slow), [ThrottleReason::Hardware]);
        assert_eq!(
            reasons(slow | ThrottleReasons::HW_THERMAL_SLOWDOWN),
            [ThrottleReason::Thermal]
        );
    }

    #[test]
    fn a_gpu_that_no_driver_knows_is_an_error() {
        let error = watch([0; 16], &Weak::new()).expect_err("no such GPU");
        // With a driver, the error is another one.
        if matches!(error, NvmlError::LibloadingError(_)) {
            assert!(error.to_string().contains(LIBRARY), "{error}");
        }
    }
}

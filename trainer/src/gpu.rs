//! The load, memory, temperature and power of this rank's GPU, read beside training.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use contract::gpu::{GpuReading, ThrottleReason};
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

/// The driver measures load over up to a second.
const INTERVAL: Duration = Duration::from_secs(1);
/// The name that the container toolkit gives to the driver's library; the one without a number is of development packages.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Reads a GPU once a second, on a thread of its own, until it is dropped: a call to the driver may take milliseconds.
#[derive(Debug)]
pub(crate) struct GpuMonitor {
    newest: Arc<Mutex<Option<GpuReading>>>,
}

impl GpuMonitor {
    /// Begins with the GPU or MIG instance of this UUID. Where the driver does not tell of it, training goes on without, and a
    /// warning says so.
    pub(crate) fn start(uuid: [u8; 16]) -> std::io::Result<Self> {
        let newest = Arc::default();
        let told = Arc::downgrade(&newest);
        std::thread::Builder::new().name("gpu".into()).spawn(move || {
            if let Err(error) = watch(uuid, &told) {
                tracing::warn!("no load, temperature or power of the GPU is measured: {error}");
            }
        })?;
        Ok(Self { newest })
    }

    /// The newest reading; `None` before the first.
    pub(crate) fn newest(&self) -> Option<GpuReading> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn watch(uuid: [u8; 16], told: &Weak<Mutex<Option<GpuReading>>>) -> Result<(), NvmlError> {
    let nvml = Nvml::builder().lib_path(LIBRARY.as_ref()).init()?;
    let digits = dashed(uuid);
    let gpu = nvml
        .device_by_uuid(format!("GPU-{digits}"))
        .or_else(|_| nvml.device_by_uuid(format!("MIG-{digits}")))?;
    while let Some(newest) = told.upgrade() {
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

/// The reasons that slow down a GPU which has work.
fn reasons(told: ThrottleReasons) -> Vec<ThrottleReason> {
    let thermal = ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN;
    ThrottleReason::ALL
        .into_iter()
        .filter(|reason| match reason {
            ThrottleReason::PowerCap => told.contains(ThrottleReasons::SW_POWER_CAP),
            ThrottleReason::PowerBrake => told.contains(ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN),
            ThrottleReason::Thermal => told.intersects(thermal),
            // Its other flags, where the driver has them, come with this one.
            ThrottleReason::Hardware => {
                told.contains(ThrottleReasons::HW_SLOWDOWN)
                    && !told.intersects(
                        ThrottleReasons::HW_THERMAL_SLOWDOWN | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN,
                    )
            }
        })
        .collect()
}

/// As NVML writes a UUID behind `GPU-`.
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
        // With a driver, it is another one.
        if matches!(error, NvmlError::LibloadingError(_)) {
            assert!(error.to_string().contains(LIBRARY), "{error}");
        }
    }
}

//! Speeds of ranks that emulate slower devices, to try different GPUs on one machine.

use std::ffi::OsString;
use std::path::Path;

use contract::{Device, RunConfig};

use crate::calibration::CalibrationFile;
use crate::error::TrainError;

/// The minimum speed.
const LEAST: f64 = 1e-4;

/// Speeds of all ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Speeds {
    /// By rank, each a share of a core's speed.
    shares: Vec<f64>,
    /// The file with the core's speed.
    pub(crate) calibration: Option<CalibrationFile>,
}

impl Speeds {
    /// Environment variable of the ranks with the shares, separated by commas.
    const VARIABLE: &str = "VIT_SPEEDS";
    /// Environment variable with the file.
    const CALIBRATION: &str = "VIT_CALIBRATION";

    /// The speeds of the command line; `None` if it has none.
    pub(crate) fn from_arguments(
        speeds: &[f64],
        calibration: Option<&Path>,
        config: &RunConfig,
    ) -> Result<Option<Self>, TrainError> {
        if speeds.is_empty() {
            return Ok(None);
        }
        let speeds = Self::new(speeds, config)?;
        Ok(Some(Self {
            calibration: calibration.map(CalibrationFile::open).transpose()?,
            ..speeds
        }))
    }

    /// Speeds for the ranks of a run.
    fn new(speeds: &[f64], config: &RunConfig) -> Result<Self, TrainError> {
        let ranks = config.world_size();
        let refuse = |message: String| Err(TrainError::Config(format!("--speeds {message}")));
        if speeds.len() != ranks as usize {
            return refuse(format!(
                "has {} for {ranks} ranks: give one speed per rank",
                speeds.len()
            ));
        }
        if let Some(speed) = speeds.iter().find(|speed| !(LEAST..=1.0).contains(*speed)) {
            return refuse(format!(
                "has {speed}: must be between {LEAST} and 1, the speed of this machine"
            ));
        }
        if config.device != Device::Cpu {
            return refuse("needs workers.device cpu: slower GPUs cannot be emulated".into());
        }
        Ok(Self {
            shares: speeds.to_vec(),
            calibration: None,
        })
    }

    /// For the environment of the ranks. Each computes on one thread, so that its speed does not
    /// depend on how many ranks share this machine.
    pub(crate) fn variables(&self) -> [(OsString, OsString); 3] {
        let shares: Vec<String> = self.shares.iter().map(f64::to_string).collect();
        let file = self.calibration.as_ref().map(|file| file.path().into());
        [
            (Self::VARIABLE.into(), shares.join(",").into()),
            (Self::CALIBRATION.into(), file.unwrap_or_default()),
            ("OMP_NUM_THREADS".into(), "1".into()),
        ]
    }

    /// The speed of a rank.
    pub(crate) fn of_rank(&self, rank: u32) -> f64 {
        self.shares.get(rank as usize).copied().unwrap_or(1.0).max(LEAST)
    }

    /// Reads the variables of [`Self::variables`]; `None` if they are not set.
    pub(crate) fn from_environment() -> Result<Option<Self>, TrainError> {
        let Ok(speeds) = std::env::var(Self::VARIABLE) else {
            return Ok(None);
        };
        let parsed: Result<Vec<f64>, _> = speeds.split(',').map(str::parse).collect();
        let parsed = parsed
            .map_err(|error| TrainError::Config(format!("{} is {speeds:?}: {error}", Self::VARIABLE)))?;
        Ok(Some(Self {
            shares: parsed,
            calibration: std::env::var_os(Self::CALIBRATION)
                .filter(|path| !path.is_empty())
                .map(|path| CalibrationFile::opened(path.into())),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::fixtures::config;

    #[test]
    fn speeds_are_those_of_ranks_on_the_cpu() {
        let config = RunConfig {
            nodes: 2,
            device: Device::Cpu,
            ..config("{format: synthetic, syntheticImages: 80}")
        };
        let speeds = Speeds::new(&[1.0, 0.25], &config).expect("one a rank");
        let [shares, calibration, _] = speeds.variables().map(|(_, value)| value);
        assert_eq!((shares, calibration), ("1,0.25".into(), "".into()));
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("calibration.json");
        let kept = Speeds::from_arguments(&[1.0, 0.25], Some(&file), &config).expect("as good");
        assert_eq!(kept.expect("speeds").variables()[1].1, file);
        let refused = |speeds: &[f64], config: &RunConfig| {
            Speeds::new(speeds, config).expect_err("refused").to_string()
        };
        assert_eq!(
            refused(&[1.0], &config),
            "--speeds has 1 for 2 ranks: give one speed per rank"
        );
        for speed in [0.0, 1.5, f64::NAN] {
            assert!(refused(&[1.0, speed], &config).contains("must be between 0.0001 and 1"));
        }
        let on_any = RunConfig {
            device: Device::Auto,
            ..config
        };
        assert!(refused(&[1.0, 0.5], &on_any).contains("needs workers.device cpu"));
    }
}

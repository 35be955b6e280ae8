//! The GPUs that a process may use, split among a local run's agents and an agent's ranks.

use contract::{Device, RunConfig};

use crate::error::TrainError;

/// CUDA's variable for the GPUs that a process may use, in the order in which it numbers them.
pub(crate) const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The GPUs that this process may use, as named in [`VISIBLE`].
pub(crate) fn of_this_process() -> Vec<String> {
    if let Ok(names) = std::env::var(VISIBLE) {
        let names = names.split(',').map(|name| name.trim().to_owned());
        return names.filter(|name| !name.is_empty()).collect();
    }
    let is_gpu = |name: &str| {
        let number = name.strip_prefix("nvidia");
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let files = fs_err::read_dir("/dev").into_iter().flatten().flatten();
    let count = files
        .filter(|file| file.file_name().to_str().is_some_and(is_gpu))
        .count();
    (0..count).map(|number| number.to_string()).collect()
}

/// The value of [`VISIBLE`] for each agent; empty without GPUs. Without it the agents of all nodes
/// would use the same GPUs.
pub(crate) fn divide(gpus: &[String], config: &RunConfig) -> Result<Vec<String>, TrainError> {
    if config.device == Device::Cpu || gpus.is_empty() {
        return Ok(Vec::new());
    }
    if gpus.len() < config.world_size() as usize {
        return Err(TrainError::TooFewGpus {
            found: gpus.len(),
            nodes: config.nodes,
            ranks_per_node: config.ranks_per_node,
        });
    }
    let agents = gpus
        .chunks(config.ranks_per_node as usize)
        .take(config.nodes as usize);
    Ok(agents.map(|gpus| gpus.join(",")).collect())
}

/// The GPU for each rank of an agent, as a value of [`VISIBLE`]; empty without GPUs.
///
/// A rank that sees a single GPU has index 0 on every thread. With another index, code that does
/// not set its thread's current device, here or in a library, would allocate on another rank's GPU.
pub(crate) fn of_ranks(config: &RunConfig) -> Result<Vec<String>, TrainError> {
    let gpus = of_this_process();
    let ranks = config.ranks_per_node as usize;
    if config.device == Device::Cpu || gpus.is_empty() {
        return Ok(Vec::new());
    }
    if gpus.len() < ranks {
        return Err(TrainError::TooFewGpusInPod {
            found: gpus.len(),
            ranks,
        });
    }
    Ok(gpus.into_iter().take(ranks).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(
        gpus: &[&str],
        device: Device,
        nodes: u32,
        ranks_per_node: u32,
    ) -> Result<Vec<String>, TrainError> {
        let manifest = include_str!("../../examples/digits.yaml");
        let job = serde_saphyr::from_str(manifest).expect("a job");
        let config = crate::manifest::local_config(job, None, std::path::Path::new("runs"), Some(nodes));
        let config = RunConfig {
            device,
            ranks_per_node,
            ..config.expect("a sound manifest")
        };
        let gpus: Vec<String> = gpus.iter().map(ToString::to_string).collect();
        divide(&gpus, &config)
    }

    #[test]
    fn no_two_agents_have_a_gpu_in_common() {
        let none: [&str; 0] = [];
        for device in [Device::Auto, Device::Cuda] {
            let two = |gpus: &[&str]| divided(gpus, device, 2, 2).expect("enough");
            assert_eq!(two(&["0", "1", "2", "3", "4"]), ["0,1", "2,3"]);
            assert_eq!(two(&["GPU-8f", "GPU-31", "3", "1"]), ["GPU-8f,GPU-31", "3,1"]);
            assert_eq!(two(&[]), none, "ranks say what is missing");
        }
        assert_eq!(divided(&["0"], Device::Cpu, 2, 2).expect("the CPU"), none);
    }

    #[test]
    fn a_machine_with_too_few_gpus_is_refused() {
        let error = divided(&["0", "1", "2"], Device::Auto, 2, 2).expect_err("refused");
        assert_eq!(
            error.to_string(),
            "workers.nodes x workers.gpusPerNode is 2 x 2, but this machine has 3 GPUs"
        );
    }
}

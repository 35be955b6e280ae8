//! Builds the job of a point.

use contract::{Device, RunConfig};
use crds::spec::Strategy;
use crds::study::{GlobalBatch, Sweep, Variant, ViTScalingStudySpec};
use crds::{ViTTrainingJob, ViTTrainingJobSpec};
use serde_json::Value;

use super::key::key;
use super::{Choice, Run, count};

/// Builds the run of one choice of a sweep's values, without a label. The error says why its job is
/// invalid.
pub(super) fn run(study: &ViTScalingStudySpec, sweep: &Sweep, choice: Choice<'_>) -> Result<Run, String> {
    let mut spec = merged(&study.template.spec, choice.variant)?;
    if spec.elastic.is_some() {
        return Err("elastic is set: a point has a fixed number of ranks, remove it".into());
    }
    if spec.parallelism.strategy == Strategy::Auto {
        return Err(
            "parallelism.strategy is Auto: a point needs a fixed strategy, make each one a variant".into(),
        );
    }
    let gpus_per_node = spec.workers.gpus_per_node;
    if gpus_per_node < 1 {
        return Err(format!(
            "workers.gpusPerNode is {gpus_per_node}: must be at least 1"
        ));
    }
    let repetitions = study.measure.repetitions;
    let seed = i64::try_from(spec.training.seed).ok();
    if seed
        .and_then(|seed| seed.checked_add(repetitions.into()))
        .is_none()
    {
        return Err(format!(
            "training.seed is {}: leaves no room for {repetitions} repetitions, each with its own seed",
            spec.training.seed
        ));
    }
    spec.training.epochs = count(study.measure.epochs);
    if let Some(accumulation) = choice.accumulation {
        spec.training.gradient_accumulation_steps = count(accumulation);
    }
    if let Some(images) = choice.micro_batch_size {
        spec.training.micro_batch_size = count(images);
    }
    if let Some(ranks) = choice.ranks {
        on_ranks(&mut spec, sweep, ranks)?;
    }
    let config = config(&spec)?;
    let speeds = speeds(choice.variant, &config, spec.external.is_some())?;
    Ok(Run {
        key: key(&spec, &speeds),
        label: String::new(),
        spec,
        speeds,
        gpus_per_node,
        config,
    })
}

/// Applies a variant to the template: removes the fields in `without`, then merges its `spec`.
fn merged(template: &ViTTrainingJobSpec, variant: Option<&Variant>) -> Result<ViTTrainingJobSpec, String> {
    let Some(variant) = variant else {
        return Ok(template.clone());
    };
    let mut spec = serde_json::to_value(template).map_err(|error| error.to_string())?;
    for path in &variant.without {
        let (object, field) = match path.rsplit_once('.') {
            Some((object, field)) => (spec.pointer_mut(&format!("/{}", object.replace('.', "/"))), field),
            None => (Some(&mut spec), path.as_str()),
        };
        let removed = object
            .and_then(Value::as_object_mut)
            .and_then(|object| object.remove(field));
        if removed.is_none() {
            return Err(format!(
                "without names {path}: the template's spec has no such field"
            ));
        }
    }
    if !variant.spec.is_null() {
        json_patch::merge(&mut spec, &variant.spec);
    }
    serde_json::from_value(spec).map_err(|error| error.to_string())
}

/// Sets nodes and ranks per node, and scales the micro-batch and the data to the number of ranks.
fn on_ranks(spec: &mut ViTTrainingJobSpec, sweep: &Sweep, ranks: i32) -> Result<(), String> {
    let per_node = spec.workers.gpus_per_node;
    let (nodes, per_node) = if ranks < per_node {
        (1, ranks)
    } else {
        (ranks / per_node, per_node)
    };
    if nodes * per_node != ranks {
        return Err(format!(
            "{ranks} ranks do not fill whole nodes: workers.gpusPerNode is {per_node}"
        ));
    }
    (spec.workers.nodes, spec.workers.gpus_per_node) = (nodes, per_node);
    if sweep.global_batch == GlobalBatch::Fixed {
        let fewest = i64::from(fewest(sweep));
        let images = i64::from(spec.training.micro_batch_size) * fewest;
        if images % i64::from(ranks) != 0 {
            return Err(format!(
                "the micro-batches of {fewest} ranks have {images} images together: must be a multiple of {ranks} ranks"
            ));
        }
        spec.training.micro_batch_size =
            u32::try_from(images / i64::from(ranks)).map_err(|error| error.to_string())?;
    }
    if let Some(fraction) = sweep.fraction_per_rank {
        let fraction = fraction * f64::from(ranks);
        if fraction > 1.0 + 1e-9 {
            return Err(format!(
                "{ranks} ranks would need {fraction:.3} times the available images"
            ));
        }
        spec.data.fraction = fraction.min(1.0);
    }
    Ok(())
}

pub(super) fn fewest(sweep: &Sweep) -> u32 {
    sweep.ranks.iter().copied().min().map_or(1, count)
}

fn config(spec: &ViTTrainingJobSpec) -> Result<RunConfig, String> {
    let job = ViTTrainingJob::new("point", spec.clone());
    crds::validate(&job)
        .map(|job| job.run_config)
        .map_err(|error| error.to_string())
}

fn speeds(variant: Option<&Variant>, config: &RunConfig, is_external: bool) -> Result<Vec<f64>, String> {
    let Some((given, last)) =
        variant.and_then(|variant| variant.speeds.last().map(|last| (&variant.speeds, *last)))
    else {
        return Ok(vec![]);
    };
    if is_external {
        return Err("speeds are set with external: an external trainer cannot be slowed down".into());
    }
    if config.device != Device::Cpu {
        return Err("speeds need workers.device cpu: slower GPUs cannot be emulated".into());
    }
    let ranks = config.world_size() as usize;
    let all = given.iter().copied().chain(std::iter::repeat(last));
    Ok(all.take(ranks).collect())
}

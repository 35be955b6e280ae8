//! A study and measurements for tests, also of `study-report`.

use contract::{Epoch, Measurement, PhaseSeconds};

use crate::Plan;

/// The example's template with other sweeps.
pub(crate) fn plan(sweeps: &str) -> Plan {
    let example = include_str!("../../examples/studies/digits.yaml");
    let mut study: crds::ViTScalingStudy = serde_saphyr::from_str(example).expect("a study");
    study.spec.sweeps = serde_saphyr::from_str(sweeps).expect("sweeps");
    crate::plan(&study.spec).expect("a plan")
}

/// A run that trains `images_per_second`, in steps of 32 images.
pub(crate) fn measurement(images_per_second: f64) -> Measurement {
    let step_seconds = 32.0 / images_per_second;
    let epoch = |validation_accuracy| Epoch {
        seconds: 10.0 * step_seconds,
        loss: 1.0,
        train_accuracy: 0.5,
        validation_accuracy: Some(validation_accuracy),
    };
    Measurement {
        world_size: 2,
        global_batch_size: 32,
        train_images: 320,
        device: None,
        epochs: vec![epoch(0.25), epoch(0.375)],
        steps: 20,
        step_seconds,
        images_per_second,
        phases: PhaseSeconds {
            forward: 0.75 * step_seconds,
            sync_exposed: 0.25 * step_seconds,
            ..PhaseSeconds::default()
        },
        ranks: None,
        communication_seconds: 0.3 * step_seconds,
        memory_bytes: Some(1_500_000),
        gpu: None,
        nodes: vec![],
        machine: None,
    }
}

//! `spec.training`.

use contract::{ClassWeights, ConfigError, Course, LossScale, TrainingConfig};

use super::{count, refuse};
use crate::spec;

/// Default decay of the first and second moment, as in PyTorch.
const BETAS: [f64; 2] = [0.9, 0.999];
/// PyTorch's epsilon for AdamW.
const ADAMW_EPSILON: f64 = 1e-8;
/// timm's epsilon for LAMB.
const LAMB_EPSILON: f64 = 1e-6;
/// timm's momentum.
const MOMENTUM: f64 = 0.9;
/// Default factor of the schedule step, as in timm and PyTorch.
const DECAY_RATE: f64 = 0.1;

pub(super) fn training(training: &spec::Training, errors: &mut Vec<ConfigError>) -> TrainingConfig {
    TrainingConfig {
        epochs: count(training.epochs),
        micro_batch_size: count(training.micro_batch_size),
        gradient_accumulation_steps: count(training.gradient_accumulation_steps),
        seed: u64::try_from(training.seed).unwrap_or(0),
        optimizer: optimizer(&training.optimizer, errors),
        learning_rate_scaling: training.learning_rate_scaling,
        layer_decay: training.layer_decay.unwrap_or(1.0),
        schedule: schedule(&training.schedule, errors),
        loss: training.loss,
        label_smoothing: training.label_smoothing,
        class_weights: training
            .class_weights
            .as_ref()
            .and_then(|weights| class_weights(weights, errors)),
        clip_grad_norm: training.clip_grad_norm,
        wall_clock_breakdown: training.wall_clock_breakdown,
        precision: training.precision,
        master_weights: training.master_weights,
        tf32: training.tf32,
        attention_backend: training.attention_backend,
        loss_scale: loss_scale(training, errors),
        ema: training.ema,
        balance: training.balance,
        activation_checkpointing: training.activation_checkpointing,
    }
}

fn class_weights(weights: &spec::ClassWeights, errors: &mut Vec<ConfigError>) -> Option<ClassWeights> {
    match (weights.balanced, &weights.values) {
        (true, None) => Some(ClassWeights::Balanced),
        (false, Some(values)) => Some(ClassWeights::Values(values.clone())),
        (balanced, _) => {
            let given = if balanced { "balanced with values" } else { "empty" };
            let expected = "set balanced to true or give values, but not both";
            refuse(errors, "training.classWeights", given, expected);
            None
        }
    }
}

fn optimizer(optimizer: &spec::Optimizer, errors: &mut Vec<ConfigError>) -> contract::Optimizer {
    let spec::Optimizer {
        name,
        learning_rate,
        weight_decay,
        ref betas,
        epsilon,
        momentum,
        nesterov,
    } = *optimizer;
    let mut only_of = |owners: &str, field: &'static str, is_given: bool| {
        if is_given {
            refuse(errors, field, "given", format!("is a parameter of {owners} only"));
        }
    };
    match name {
        spec::OptimizerName::Sgd => {
            only_of("adamw and lamb", "training.optimizer.betas", betas.is_some());
            only_of("adamw and lamb", "training.optimizer.epsilon", epsilon.is_some());
        }
        spec::OptimizerName::Adamw | spec::OptimizerName::Lamb => {
            only_of("sgd", "training.optimizer.momentum", momentum.is_some());
            only_of("sgd", "training.optimizer.nesterov", nesterov.is_some());
        }
    }
    let betas = betas.as_ref().map_or(BETAS, |betas| {
        <[f64; 2]>::try_from(betas.as_slice()).unwrap_or_else(|_| {
            let value = format!("a list of {}", betas.len());
            let expected = "must be two numbers, the decay of the first and second moment";
            refuse(errors, "training.optimizer.betas", value, expected);
            BETAS
        })
    });
    match name {
        spec::OptimizerName::Adamw => contract::Optimizer::Adamw {
            learning_rate,
            weight_decay,
            betas,
            epsilon: epsilon.unwrap_or(ADAMW_EPSILON),
        },
        spec::OptimizerName::Sgd => contract::Optimizer::Sgd {
            learning_rate,
            weight_decay,
            momentum: momentum.unwrap_or(MOMENTUM),
            nesterov: nesterov.unwrap_or(false),
        },
        spec::OptimizerName::Lamb => contract::Optimizer::Lamb {
            learning_rate,
            weight_decay,
            betas,
            epsilon: epsilon.unwrap_or(LAMB_EPSILON),
        },
    }
}

fn schedule(schedule: &spec::Schedule, errors: &mut Vec<ConfigError>) -> contract::Schedule {
    let course = match (schedule.name, schedule.decay_epochs) {
        (spec::ScheduleName::Step, None) => {
            let expected = "the schedule step needs the number of epochs between two decays";
            refuse(errors, "training.schedule.decayEpochs", "missing", expected);
            Course::Constant
        }
        (spec::ScheduleName::Step, Some(decay_epochs)) => Course::Step {
            decay_epochs,
            decay_rate: schedule.decay_rate.unwrap_or(DECAY_RATE),
        },
        (spec::ScheduleName::Constant, _) => Course::Constant,
        (spec::ScheduleName::Cosine, _) => Course::Cosine,
    };
    let given = [
        ("training.schedule.decayEpochs", schedule.decay_epochs),
        ("training.schedule.decayRate", schedule.decay_rate),
    ];
    for (field, value) in given {
        if let Some(value) = value
            && schedule.name != spec::ScheduleName::Step
        {
            let expected = "is a parameter of the schedule step only";
            refuse(errors, field, value.to_string(), expected);
        }
    }
    contract::Schedule {
        course,
        warmup_epochs: schedule.warmup_epochs,
        min_learning_rate: schedule.min_learning_rate,
    }
}

fn loss_scale(training: &spec::Training, errors: &mut Vec<ConfigError>) -> LossScale {
    if training.loss_scale.is_some() && training.precision != spec::Precision::Fp16 {
        let expected = "needs training.precision fp16: other formats have no loss scale";
        refuse(errors, "training.lossScale", "given", expected);
    }
    training.loss_scale.unwrap_or_default()
}

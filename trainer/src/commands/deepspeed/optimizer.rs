//! The optimizer and the schedule of its learning rate.

use super::document::{Entries, Node};
use super::keys;
use super::section::Fate::{self, NoEffect};
use super::section::{Findings, Section};

#[derive(Clone, Copy, Debug)]
pub(super) struct Epochs {
    pub(super) images: Option<u64>,
    pub(super) global_batch_size: Option<u64>,
    /// The number of epochs that the user asked for.
    pub(super) given: Option<u32>,
}

impl Epochs {
    /// Optimizer steps per epoch: images that do not fill the last one are dropped.
    fn steps(&self, path: &str, findings: &mut Findings) -> Option<u64> {
        // A missing batch size is already an error.
        let batch = self.global_batch_size?;
        match self.images {
            Some(images) if images >= batch => Some(images / batch),
            Some(images) => {
                findings.errors.push(format!(
                    "{path}: {images} training images do not fill one step of {batch}"
                ));
                None
            }
            None => {
                findings.errors.push(format!(
                    "{path} counts steps, and the manifest counts epochs: pass --train-images"
                ));
                None
            }
        }
    }
}

/// Converts the sections `optimizer` and `scheduler`.
pub(super) fn take(root: &mut Section, epochs: &Epochs, base: &Node, findings: &mut Findings) {
    let learning_rate = optimizer(root, findings).or_else(|| {
        match base.get(&["spec", "training", "optimizer", "learningRate"]) {
            Some(Node::Number(rate)) => Some(*rate),
            Some(Node::Integer(rate)) => Some(*rate as f64),
            _ => None,
        }
    });
    scheduler(root, epochs, learning_rate, findings);
}

/// Returns the section's learning rate.
fn optimizer(root: &mut Section, findings: &mut Findings) -> Option<f64> {
    let Some(mut section) = root.section("optimizer", findings) else {
        findings.different.push(
            "optimizer: not in the file, so the script creates it; training.optimizer is not converted"
                .into(),
        );
        return None;
    };
    let kind = section.text("type", findings);
    let mut params = section.section("params", findings).unwrap_or_default();
    let path = |name| ["training", "optimizer", name];
    // The base's own optimizer may have parameters unknown to this one.
    findings.field(&["training", "optimizer"], Node::Map(Entries::new()), "");
    // DeepSpeed compares names of its optimizers in lower case, and torch's SGD exactly.
    let lower = kind.as_deref().map(str::to_lowercase);
    let name = match (lower.as_deref(), kind.as_deref()) {
        (Some("adam" | "adamw"), _) => {
            // DeepSpeed's Adam is AdamW unless adam_w_mode is false; its AdamW always is.
            if params.flag("adam_w_mode", findings) == Some(false) && lower.as_deref() == Some("adam") {
                findings.refuse(
                    "optimizer.params.adam_w_mode",
                    false,
                    "weight decay is decoupled from the gradient (AdamW)",
                );
            }
            "adamw"
        }
        (Some("lamb"), _) => {
            for key in ["max_coeff", "min_coeff"] {
                params.number(key, findings);
            }
            findings.different.push("optimizer.type: this is timm's Lamb, which scales gradients to a global norm of 1 first and does not clamp the trust ratio to min_coeff and max_coeff".into());
            "lamb"
        }
        (_, Some("SGD")) => {
            parameter(&mut params, "momentum", "momentum", 0.0, findings);
            if let Some(nesterov) = params.flag("nesterov", findings) {
                findings.field(
                    &path("nesterov"),
                    Node::Bool(nesterov),
                    "optimizer.params.nesterov",
                );
            }
            "sgd"
        }
        (_, Some(other)) => {
            findings.refuse(
                "optimizer.type",
                format!("{other:?}"),
                "must be Adam, AdamW, Lamb or SGD",
            );
            return None;
        }
        (_, None) => {
            findings
                .errors
                .push("optimizer.type is missing: must name the optimizer".into());
            return None;
        }
    };
    findings.field(&path("name"), Node::Text(name.into()), "optimizer.type");
    let rate = parameter(&mut params, "lr", "learningRate", 1e-3, findings);
    if parameter(&mut params, "weight_decay", "weightDecay", 0.0, findings) > 0.0 {
        findings.different.push(
            "optimizer.params.weight_decay: biases, norms, the class token and the position embedding are not decayed here".into(),
        );
    }
    if let Some(betas) = params.numbers("betas", findings) {
        let betas = betas.into_iter().map(Node::Number).collect();
        findings.field(&path("betas"), Node::List(betas), "optimizer.params.betas");
    }
    if name != "sgd" {
        parameter(&mut params, "eps", "epsilon", 1e-8, findings);
    }
    if params.flag("bias_correction", findings) == Some(false) {
        findings.refuse(
            "optimizer.params.bias_correction",
            false,
            "moments are always corrected",
        );
    }
    params.finish(keys::OPTIMIZER_PARAMS, findings);
    section.finish(keys::OPTIMIZER, findings);
    Some(rate)
}

/// Converts a parameter of the optimizer, or torch's or DeepSpeed's default, to a field.
fn parameter(
    params: &mut Section,
    key: &str,
    field: &'static str,
    default: f64,
    findings: &mut Findings,
) -> f64 {
    let value = params.number(key, findings);
    let from = match value {
        Some(_) => params.path_of(key),
        None => format!("DeepSpeed's default of optimizer.params.{key}"),
    };
    let value = value.unwrap_or(default);
    findings.number(&["training", "optimizer", field], value, from);
    value
}

/// Keys of all schedules.
const SCHEDULE: &[(&str, Fate)] = &[("last_batch_iteration", NoEffect("checkpoints store the position"))];

fn scheduler(root: &mut Section, epochs: &Epochs, learning_rate: Option<f64>, findings: &mut Findings) {
    let path = |name| ["training", "schedule", name];
    let Some(mut section) = root.section("scheduler", findings) else {
        return;
    };
    let Some(kind) = section.text("type", findings) else {
        findings
            .errors
            .push("scheduler.type is missing: must name the schedule".into());
        return;
    };
    let mut params = section.section("params", findings).unwrap_or_default();
    let name = match kind.as_str() {
        "WarmupLR" => "constant",
        "WarmupCosineLR" => "cosine",
        "WarmupDecayLR" => {
            findings.refuse("scheduler.type", "WarmupDecayLR", "linear decay is not supported; use WarmupCosineLR or WarmupLR (--set scheduler.type=WarmupCosineLR, and remove warmup_max_lr and warmup_min_lr)");
            return;
        }
        other => {
            findings.refuse(
                "scheduler.type",
                format!("{other:?}"),
                "must be WarmupLR or WarmupCosineLR",
            );
            return;
        }
    };
    findings.field(&["training", "schedule"], Node::Map(Entries::new()), "");
    findings.field(&path("name"), Node::Text(name.into()), "scheduler.type");

    // DeepSpeed's default.
    let warmup = params.count("warmup_num_steps", findings).unwrap_or(1000);
    if let Some(steps) = epochs.steps("scheduler.params.warmup_num_steps", findings) {
        let epochs = (warmup as f64 / steps as f64 * 1e4).round() / 1e4;
        let from = format!("scheduler.params.warmup_num_steps {warmup} / {steps} steps an epoch");
        findings.number(&path("warmupEpochs"), epochs, from);
    }
    if params.text("warmup_type", findings).as_deref() != Some("linear") {
        findings
            .different
            .push("scheduler.params.warmup_type: DeepSpeed's warm-up is logarithmic unless it says linear; here it is linear".into());
    }
    for key in ["warmup_min_lr", "warmup_min_ratio"] {
        if params.number(key, findings).is_some_and(|least| least > 0.0) {
            findings
                .different
                .push(format!("scheduler.params.{key}: the warm-up starts at 0 here"));
        }
    }
    if name == "constant" {
        if let Some(peak) = params.number("warmup_max_lr", findings) {
            findings.number(
                &["training", "optimizer", "learningRate"],
                peak,
                "scheduler.params.warmup_max_lr",
            );
        }
    } else {
        cosine(&mut params, epochs, learning_rate, findings);
    }
    params.finish(SCHEDULE, findings);
    section.finish(&[], findings);
}

fn cosine(params: &mut Section, epochs: &Epochs, learning_rate: Option<f64>, findings: &mut Findings) {
    let key = "scheduler.params.total_num_steps";
    match params.count("total_num_steps", findings) {
        None => findings
            .errors
            .push(format!("{key} is missing: WarmupCosineLR needs it")),
        Some(total) => {
            if let Some(steps) = epochs.steps(key, findings) {
                let whole = (total as f64 / steps as f64).round().max(1.0) as u64;
                if whole * steps != total {
                    findings.different.push(format!(
                        "{key}: {total} steps are {:.2} epochs of {steps} steps; here they are {whole}",
                        total as f64 / steps as f64
                    ));
                }
                match epochs.given {
                    Some(given) if u64::from(given) != whole => findings.different.push(format!(
                        "{key}: {total} steps would be {whole} epochs; --epochs {given} moves the end of the cosine"
                    )),
                    Some(_) => {}
                    None => findings.field(&["training", "epochs"], Node::Integer(whole.cast_signed()), key),
                }
            }
        }
    }
    // DeepSpeed's default.
    let ratio = params.number("cos_min_ratio", findings).unwrap_or(1e-4);
    if let Some(rate) = learning_rate {
        findings.number(
            &["training", "schedule", "minLearningRate"],
            ratio * rate,
            format!("scheduler.params.cos_min_ratio {ratio} of the learning rate"),
        );
    }
}

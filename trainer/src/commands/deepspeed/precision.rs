//! Number formats of weights, activations and gradients.

use super::document::Node;
use super::section::Fate::{self, NoEffect, Off};
use super::section::{Findings, Section};

const MASTER_FP32: &str = "master weights and optimizer state are in fp32";

const FP16: &[(&str, Fate)] = &[
    (
        "auto_cast",
        NoEffect("images are always cast to the format of the weights"),
    ),
    ("fused_mode", NoEffect("kernels are always fused")),
    (
        "consecutive_hysteresis",
        Off("hysteresis is restored only when the scale is doubled"),
    ),
    ("fp16_master_weights_and_grads", Off(MASTER_FP32)),
];

const BF16: &[(&str, Fate)] = &[
    (
        "immediate_grad_update",
        NoEffect("gradients are stored in buckets"),
    ),
    (
        "check_grad_overflow",
        NoEffect("every step checks that its gradients are finite"),
    ),
    ("bf16_master_weights_and_grads", Off(MASTER_FP32)),
    ("bf16_optimizer_states", Off(MASTER_FP32)),
];

const AUTOCAST: &[(&str, Fate)] = &[(
    "lower_precision_safe_modules",
    Off("torch's own list of operations is used"),
)];

/// Converts the sections `fp16`, `bf16`, `torch_autocast`, and the format for reducing gradients.
pub(super) fn take(root: &mut Section, findings: &mut Findings) {
    let fp16 = fp16(root, findings);
    let bf16 = enabled(root, "bf16", BF16, findings) | enabled(root, "bfloat16", BF16, findings);
    let autocast = autocast(root, findings);
    let on: Vec<_> = [(fp16, "fp16"), (bf16, "bf16"), (autocast, "torch_autocast")]
        .into_iter()
        .filter_map(|(on, name)| on.then_some(name))
        .collect();
    if on.len() > 1 {
        findings
            .errors
            .push(format!("{} are both enabled: only one can be", on.join(" and ")));
    }
    // As in DeepSpeed: the model in half precision, its fp32 masters in the optimizer.
    for (on, name) in [(fp16, "fp16"), (bf16, "bf16")] {
        if on {
            let (from, format) = (format!("{name}.enabled"), Node::Text(name.into()));
            findings.field(&["training", "precision"], format, from.as_str());
            findings.field(&["training", "masterWeights"], Node::Bool(true), from);
        }
    }
    let weights = match (fp16, bf16) {
        (true, _) => "fp16",
        (_, true) => "bf16",
        _ => "fp32",
    };
    communication(root, weights, findings);
}

fn enabled(root: &mut Section, key: &str, fates: &[(&str, Fate)], findings: &mut Findings) -> bool {
    let Some(mut section) = root.section(key, findings) else {
        return false;
    };
    let on = section.flag("enabled", findings) == Some(true);
    if on {
        section.finish(fates, findings);
    } else {
        findings.without_effect.push(format!("{key}: is off"));
    }
    on
}

fn fp16(root: &mut Section, findings: &mut Findings) -> bool {
    let Some(mut section) = root.section("fp16", findings) else {
        return false;
    };
    if section.flag("enabled", findings) != Some(true) {
        findings.without_effect.push("fp16: is off".into());
        return false;
    }
    if let Some(scale) = section
        .number("loss_scale", findings)
        .filter(|scale| *scale != 0.0)
    {
        findings.refuse("fp16.loss_scale", scale, "must be 0: the loss scale is dynamic");
    }
    for (key, field) in [
        ("initial_scale_power", "initialScalePower"),
        ("loss_scale_window", "lossScaleWindow"),
        ("hysteresis", "hysteresis"),
        ("min_loss_scale", "minLossScale"),
    ] {
        if let Some(count) = section.count(key, findings) {
            let path = ["training", "lossScale", field];
            findings.field(&path, Node::Integer(count.cast_signed()), section.path_of(key));
        }
    }
    section.finish(FP16, findings);
    true
}

fn autocast(root: &mut Section, findings: &mut Findings) -> bool {
    let Some(mut section) = root.section("torch_autocast", findings) else {
        return false;
    };
    if section.flag("enabled", findings) != Some(true) {
        findings.without_effect.push("torch_autocast: is off".into());
        return false;
    }
    let dtype = section.text("dtype", findings);
    let precision = match dtype.as_deref().map(|dtype| dtype.trim_start_matches("torch.")) {
        Some("bfloat16" | "bf16") => "bf16",
        Some("float16" | "fp16" | "half") => "fp16",
        other => {
            findings.refuse(
                "torch_autocast.dtype",
                other.unwrap_or("missing"),
                "must be bfloat16 or float16",
            );
            return false;
        }
    };
    findings.field(
        &["training", "precision"],
        Node::Text(precision.into()),
        "torch_autocast.dtype",
    );
    section.finish(AUTOCAST, findings);
    true
}

fn communication(root: &mut Section, weights: &str, findings: &mut Findings) {
    let key = "communication_data_type";
    match root.text(key, findings).as_deref() {
        None => {}
        Some(kind) if kind == weights => findings
            .without_effect
            .push(format!("{key}: gradients are reduced in {weights}")),
        Some("bf16") if weights == "fp32" => {
            findings.field(
                &["parallelism", "compressGradients"],
                Node::Text("bf16".into()),
                key,
            );
        }
        Some(kind) => findings.refuse(
            key,
            format!("{kind:?}"),
            &format!("gradients of {weights} weights are reduced in {weights}, or fp32 ones in bf16"),
        ),
    }
}

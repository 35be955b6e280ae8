//! The metadata of a file of weights, and how to create its model in Python.

use contract::architecture::{Mlp, Position};
use contract::preset::{TIMM_NAMES, TORCHVISION_NAMES};
use contract::{ModelConfig, Pooling};
use serde_json::{Value, json};

use crate::checkpoint::{SavedCheckpoint, WeightsKind};
use crate::model::Naming;
use crate::tensor_file::{Metadata, PRODUCER};

/// The class behind the presets in both libraries.
const CLASS: &str = "VisionTransformer";
/// A call that makes a model in Python.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PythonModel {
    naming: Naming,
    /// A preset's name, or the class's.
    pub(super) name: &'static str,
    arguments: Vec<(&'static str, Value)>,
}

impl PythonModel {
    /// The call for `model`, with a preset's name if the library has one.
    pub(super) fn new(naming: Naming, model: &ModelConfig) -> Self {
        let (presets, image_size) = match naming {
            Naming::Timm => (&TIMM_NAMES[..], "img_size"),
            Naming::Torchvision => (&TORCHVISION_NAMES[..], "image_size"),
        };
        let preset_that = |fits: &dyn Fn(ModelConfig) -> bool| {
            // Of names of the same model, the plain ViT's before DeiT's.
            let names = presets
                .iter()
                .filter(|name| name.starts_with("vit"))
                .chain(presets);
            names.copied().find(|name| {
                let preset = ModelConfig::preset(name, model.num_classes, model.channels);
                preset.is_some_and(fits)
            })
        };
        let same_but_for = |image_size: Option<u32>| {
            preset_that(&|mut preset| {
                preset.image_size = image_size.unwrap_or(preset.image_size);
                preset.difference(model).is_none()
            })
        };
        let mut arguments = Vec::new();
        let name = if let Some(name) = same_but_for(None) {
            name
        } else {
            arguments.push((image_size, model.image_size.into()));
            same_but_for(Some(model.image_size)).unwrap_or_else(|| match naming {
                Naming::Timm => {
                    timm_sizes(model, &mut arguments);
                    // A model of another family is created from one of the family's presets.
                    let of_family = preset_that(&|preset| preset.architecture == model.architecture);
                    of_family
                        .filter(|_| !model.architecture.is_plain())
                        .unwrap_or(CLASS)
                }
                Naming::Torchvision => {
                    torchvision_sizes(model, &mut arguments);
                    CLASS
                }
            })
        };
        if naming == Naming::Timm && model.channels != 3 {
            arguments.push(("in_chans", model.channels.into()));
        }
        arguments.push(("num_classes", model.num_classes.into()));
        Self {
            naming,
            name,
            arguments,
        }
    }

    pub(super) fn arguments(&self) -> Value {
        let arguments = self.arguments.iter().cloned();
        Value::Object(arguments.map(|(name, value)| (name.into(), value)).collect())
    }

    /// Python that makes the model and loads the weights of `file`.
    pub(super) fn code(&self, file: &str) -> Vec<String> {
        let arguments: Vec<String> = self
            .arguments
            .iter()
            .map(|(name, value)| format!("{name}={}", literal(value)))
            .collect();
        let (arguments, file) = (arguments.join(", "), literal(&file.into()));
        let name = self.name;
        if self.naming == Naming::Timm && name != CLASS {
            return vec![format!(
                "model = timm.create_model(\"{name}\", {arguments}, checkpoint_path={file})"
            )];
        }
        let module = match self.naming {
            Naming::Timm => "timm.models",
            Naming::Torchvision => "torchvision.models",
        };
        vec![
            format!("model = {module}.{name}({arguments})"),
            format!("model.load_state_dict(safetensors.torch.load_file({file}))"),
        ]
    }
}

fn timm_sizes(model: &ModelConfig, arguments: &mut Vec<(&'static str, Value)>) {
    let mut add = |name, value: Value| arguments.push((name, value));
    add("patch_size", model.patch_size.into());
    add("embed_dim", model.hidden_size.into());
    add("depth", model.depth.into());
    add("num_heads", model.heads.into());
    add("mlp_ratio", mlp_ratio(model).into());
    let parts = &model.architecture;
    let is_plain = parts.is_plain();
    let is_eva = parts.position == Position::Rotary;
    let pool = match model.pooling {
        Pooling::Token => "token",
        Pooling::Average => "avg",
        Pooling::Attention => "map",
    };
    if !is_eva && !parts.distillation_token && (!is_plain || model.pooling != Pooling::Token) {
        add("class_token", (model.pooling == Pooling::Token).into());
    }
    if !is_plain || model.pooling != Pooling::Token {
        add("global_pool", pool.into());
    }
    if is_eva {
        add("num_reg_tokens", model.register_tokens.into());
    } else if model.register_tokens > 0 {
        add("reg_tokens", model.register_tokens.into());
        add("no_embed_class", true.into());
    }
    if parts.mlp == Mlp::SwiGlu {
        add("swiglu_align_to", 1.into());
    }
    if !is_plain || model.layer_scale.is_some() {
        add("init_values", json!(model.layer_scale));
    }
}

fn torchvision_sizes(model: &ModelConfig, arguments: &mut Vec<(&'static str, Value)>) {
    let mut add = |name, value: u32| arguments.push((name, value.into()));
    add("patch_size", model.patch_size);
    add("num_layers", model.depth);
    add("num_heads", model.heads);
    add("hidden_dim", model.hidden_size);
    add("mlp_dim", model.mlp_size);
}

/// The factor from which timm computes the MLP's width: the product is truncated to an integer.
fn mlp_ratio(model: &ModelConfig) -> f64 {
    let (hidden, mlp) = (f64::from(model.hidden_size), f64::from(model.mlp_size));
    let exact = mlp / hidden;
    if (hidden * exact) as u32 == model.mlp_size {
        exact
    } else {
        (mlp + 0.5) / hidden
    }
}

fn literal(value: &Value) -> String {
    match value {
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Null => "None".into(),
        other => other.to_string(),
    }
}

/// The metadata of a file. Readers in PyTorch's ecosystem need `format`.
pub(super) fn metadata(checkpoint: &SavedCheckpoint, kind: WeightsKind, python: &PythonModel) -> Metadata {
    let state = &checkpoint.state;
    let model = &state.model;
    let mut metadata = Metadata::from([
        ("format", "pt".to_owned()),
        ("producer", PRODUCER.to_owned()),
        ("job", state.job.name.clone()),
        ("step", state.position.step.to_string()),
        ("epoch", state.position.epoch.to_string()),
        ("weights", json!(kind).as_str().unwrap_or_default().to_owned()),
        ("architecture", CLASS.to_owned()),
        ("library", python.naming.to_string()),
        ("model", python.name.to_owned()),
        ("arguments", python.arguments().to_string()),
        ("image_size", model.image_size.to_string()),
        ("patch_size", model.patch_size.to_string()),
        ("hidden_size", model.hidden_size.to_string()),
        ("depth", model.depth.to_string()),
        ("heads", model.heads.to_string()),
        ("mlp_size", model.mlp_size.to_string()),
        ("num_classes", model.num_classes.to_string()),
        ("channels", model.channels.to_string()),
        ("pooling", model.pooling.to_string()),
        ("register_tokens", model.register_tokens.to_string()),
        ("layer_scale", model.layer_scale.is_some().to_string()),
    ]);
    // Within an epoch, the accuracy is that of the previous epoch.
    let evaluated = kind == WeightsKind::Trained && state.position.images_into_epoch == 0;
    let validation = state.validation();
    for (name, score) in [
        ("validation_accuracy", validation.accuracy),
        (
            "validation_mean_average_precision",
            validation.mean_average_precision,
        ),
    ] {
        if let Some(score) = score.filter(|_| evaluated) {
            metadata.insert(name, score.to_string());
        }
    }
    metadata
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixtures;

    fn preset(name: &str) -> ModelConfig {
        ModelConfig {
            num_classes: 10,
            ..fixtures::preset(name)
        }
    }

    fn code(naming: Naming, model: &ModelConfig) -> String {
        PythonModel::new(naming, model).code("vit.safetensors").join("\n")
    }

    #[test]
    fn every_preset_is_found_by_its_own_name() {
        for (naming, names) in [
            (Naming::Timm, &TIMM_NAMES[..]),
            (Naming::Torchvision, &TORCHVISION_NAMES[..]),
        ] {
            for name in names {
                let python = PythonModel::new(naming, &preset(name));
                // timm has some models under several names.
                let same = preset(python.name).difference(&preset(name));
                assert_eq!(same, None, "{name} and {}", python.name);
                assert_eq!(python.arguments.len(), 1, "{name}");
            }
        }
    }

    #[test]
    fn a_preset_at_another_size_or_with_other_channels_keeps_its_name() {
        let model = ModelConfig {
            image_size: 448,
            channels: 5,
            ..preset("vit_base_patch16_224")
        };
        assert_eq!(
            code(Naming::Timm, &model),
            r#"model = timm.create_model("vit_base_patch16_224", img_size=448, in_chans=5, num_classes=10, checkpoint_path="vit.safetensors")"#
        );
        let model = ModelConfig {
            image_size: 448,
            ..preset("vit_l_32")
        };
        assert_eq!(
            code(Naming::Torchvision, &model),
            "model = torchvision.models.vit_l_32(image_size=448, num_classes=10)\n\
             model.load_state_dict(safetensors.torch.load_file(\"vit.safetensors\"))"
        );
    }

    #[test]
    fn any_other_model_is_told_by_its_sizes() {
        let model = ModelConfig {
            depth: 4,
            register_tokens: 2,
            layer_scale: Some(0.5),
            pooling: Pooling::Average,
            ..preset("vit_tiny_patch16_224")
        };
        assert_eq!(
            code(Naming::Timm, &model).lines().next(),
            Some(
                "model = timm.models.VisionTransformer(img_size=224, patch_size=16, embed_dim=192, depth=4, num_heads=3, mlp_ratio=4.0, class_token=False, global_pool=\"avg\", reg_tokens=2, no_embed_class=True, init_values=0.5, num_classes=10)"
            )
        );
        let model = ModelConfig {
            depth: 4,
            ..preset("vit_b_16")
        };
        assert_eq!(
            code(Naming::Torchvision, &model).lines().next(),
            Some(
                "model = torchvision.models.VisionTransformer(image_size=224, patch_size=16, num_layers=4, num_heads=12, hidden_dim=768, mlp_dim=3072, num_classes=10)"
            )
        );
    }

    #[test]
    fn a_model_of_another_family_is_created_from_a_preset_of_it() {
        let model = ModelConfig {
            hidden_size: 48,
            depth: 2,
            heads: 4,
            mlp_size: 96,
            ..preset("vit_small_plus_patch16_dinov3")
        };
        assert_eq!(
            code(Naming::Timm, &model),
            r#"model = timm.create_model("vit_huge_plus_patch16_dinov3", img_size=256, patch_size=16, embed_dim=48, depth=2, num_heads=4, mlp_ratio=2.0, global_pool="avg", num_reg_tokens=4, swiglu_align_to=1, init_values=0.00001, num_classes=10, checkpoint_path="vit.safetensors")"#
        );
        let model = ModelConfig {
            depth: 2,
            ..preset("deit_tiny_distilled_patch16_224")
        };
        assert_eq!(
            code(Naming::Timm, &model),
            r#"model = timm.create_model("deit_base_distilled_patch16_224", img_size=224, patch_size=16, embed_dim=192, depth=2, num_heads=3, mlp_ratio=4.0, global_pool="token", init_values=None, num_classes=10, checkpoint_path="vit.safetensors")"#
        );
    }

    #[test]
    fn timm_finds_every_width_of_the_mlp_by_its_ratio() {
        let mut inexact = 0;
        for hidden_size in [24, 49, 192, 1408] {
            for mlp_size in 1..3000 {
                let model = ModelConfig {
                    hidden_size,
                    mlp_size,
                    ..preset("vit_b_16")
                };
                let ratio = mlp_ratio(&model);
                // As timm's Block: int(dim * mlp_ratio).
                assert_eq!((f64::from(hidden_size) * ratio) as u32, mlp_size);
                inexact += u32::from(ratio * f64::from(hidden_size) > f64::from(mlp_size) + 0.1);
            }
        }
        assert!(inexact > 0, "some quotients are cut off one too low");
    }
}

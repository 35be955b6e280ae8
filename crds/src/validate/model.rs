//! `spec.model`.

use std::path::{Component, Path, PathBuf};

use contract::{ConfigError, ModelConfig, ModelPreset, preset};

use super::{count, refuse, volume};
use crate::spec;

/// Mount path of the volume of pretrained weights.
pub(super) const PRETRAINED_FOLDER: &str = "/pretrained";

pub(super) fn model(model: &spec::Model, errors: &mut Vec<ConfigError>) -> ModelConfig {
    let preset = model.name.as_deref().and_then(ModelPreset::by_name);
    if let (Some(name), None) = (&model.name, &preset) {
        let names = preset::KNOWN_NAMES;
        let expected = format!("must be {names}; or leave it out and give the sizes");
        refuse(errors, "model.name", name, expected);
    }
    let mut size = |field: &'static str, given: Option<i32>, of_preset: fn(ModelPreset) -> u32| {
        let size = given.map(count).or_else(|| preset.map(of_preset));
        if size.is_none() && model.name.is_none() {
            let expected = "must be given, unless model.name is a preset";
            refuse(errors, field, "missing", expected);
        }
        size.unwrap_or(0)
    };
    let image_size = size("model.imageSize", model.image_size, |preset| preset.image_size);
    let patch_size = size("model.patchSize", model.patch_size, |preset| preset.patch_size);
    let hidden_size = size("model.hiddenSize", model.hidden_size, |preset| preset.hidden_size);
    let depth = size("model.depth", model.depth, |preset| preset.depth);
    let heads = size("model.heads", model.heads, |preset| preset.heads);
    // A preset's MLP size belongs to its width; another width gets the usual factor of 4.
    let mlp_size = match (model.mlp_size, preset) {
        (Some(mlp_size), _) => count(mlp_size),
        (None, Some(preset)) if preset.hidden_size == hidden_size => preset.mlp_size,
        (None, _) => 4 * hidden_size,
    };
    ModelConfig {
        image_size,
        patch_size,
        hidden_size,
        depth,
        heads,
        mlp_size,
        num_classes: count(model.num_classes),
        channels: count(model.channels),
        pooling: match model.pooling {
            Some(pooling) => pooling,
            None => preset.map_or(contract::Pooling::Token, |preset| preset.pooling),
        },
        register_tokens: match model.register_tokens {
            Some(tokens) => count(tokens),
            None => preset.map_or(0, |preset| preset.register_tokens),
        },
        // As in timm, zero is none.
        layer_scale: match model.layer_scale {
            Some(value) => Some(value).filter(|value| *value != 0.0),
            None => preset.and_then(|preset| preset.layer_scale),
        },
        drop_path: model.drop_path,
        pretrained: model.pretrained.as_ref().map(|file| pretrained(file, errors)),
    }
}

/// The file's path in a pod.
fn pretrained(pretrained: &spec::Pretrained, errors: &mut Vec<ConfigError>) -> PathBuf {
    volume("model.pretrained.volume", &pretrained.volume, errors);
    let path = Path::new(&pretrained.path);
    let mut parts = path.components();
    if parts.any(|part| !matches!(part, Component::Normal(_))) || pretrained.path.is_empty() {
        let expected = "must be the path of a file in the volume, without . or ..";
        refuse(errors, "model.pretrained.path", &pretrained.path, expected);
    }
    Path::new(PRETRAINED_FOLDER).join(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str) -> ModelConfig {
        let mut errors = Vec::new();
        let spec = serde_saphyr::from_str(text).expect("parses");
        let config = model(&spec, &mut errors);
        assert_eq!(errors, [], "{text}");
        config
    }

    #[test]
    fn a_preset_brings_pooling_registers_and_layer_scale_unless_overridden() {
        let name = "name: vit_medium_patch16_reg4_gap_256\nnumClasses: 10\n";
        let preset = resolved(name);
        assert_eq!(
            (preset.pooling, preset.register_tokens, preset.layer_scale),
            (contract::Pooling::Average, 4, Some(1e-5))
        );
        let changed = resolved(&format!(
            "{name}pooling: token\nregisterTokens: 0\nlayerScale: 0\n"
        ));
        assert_eq!(
            (changed.pooling, changed.register_tokens, changed.layer_scale),
            (contract::Pooling::Token, 0, None)
        );
    }

    #[test]
    fn without_a_preset_there_is_a_class_token_and_nothing_else() {
        let own = resolved(
            "imageSize: 32\npatchSize: 4\nhiddenSize: 64\ndepth: 2\nheads: 2\nnumClasses: 10\ndropPath: 0.1\n",
        );
        assert_eq!(
            (own.pooling, own.register_tokens, own.layer_scale, own.mlp_size),
            (contract::Pooling::Token, 0, None, 256)
        );
        assert!((own.drop_path - 0.1).abs() < f64::EPSILON);
    }

    #[test]
    fn pretrained_weights_are_a_file_within_their_volume() {
        let text = |path: &str| {
            format!(
                "name: vit_b_16\nnumClasses: 10\npretrained: {{path: '{path}', volume: {{persistentVolumeClaim: {{claimName: weights}}}}}}\n"
            )
        };
        let config = resolved(&text("timm/vit.safetensors"));
        assert_eq!(
            config.pretrained.as_deref(),
            Some(Path::new("/pretrained/timm/vit.safetensors"))
        );
        for path in ["../secret", "/etc/passwd", "a/../../b"] {
            let mut errors = Vec::new();
            let spec = serde_saphyr::from_str(&text(path)).expect("parses");
            model(&spec, &mut errors);
            assert_eq!(errors.len(), 1, "{path}");
            assert_eq!(
                (errors[0].field.as_ref(), errors[0].value.as_str()),
                ("model.pretrained.path", path)
            );
        }
    }
}

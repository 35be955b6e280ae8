//! `spec.model`.

use std::path::{Component, Path, PathBuf};

use contract::{ConfigError, ModelConfig, preset};

use super::{count, refuse, volume};
use crate::spec;

/// Mount path of the volume of pretrained weights.
pub const PRETRAINED_FOLDER: &str = "/pretrained";

pub(super) fn model(model: &spec::Model, errors: &mut Vec<ConfigError>) -> ModelConfig {
    let [num_classes, channels] = [model.num_classes, model.channels].map(count);
    let name = model.name.as_deref();
    let preset = name.and_then(|name| ModelConfig::preset(name, num_classes, channels));
    if let (Some(name), None) = (name, &preset) {
        refuse(errors, "model.name", name, preset::expected_instead_of(name));
    }
    let mut size = |field: &'static str, given: Option<i32>, of_preset: fn(&ModelConfig) -> u32| {
        let size = given.map(count).or_else(|| preset.as_ref().map(of_preset));
        if size.is_none() && name.is_none() {
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
    let preset = preset.as_ref();
    // A preset's MLP size belongs to its width; another width gets the usual factor of 4.
    let of_preset = preset.filter(|preset| preset.hidden_size == hidden_size);
    let mlp_size = of_preset.map_or(4 * hidden_size, |preset| preset.mlp_size);
    let pooling = model.pooling.or(preset.map(|preset| preset.pooling));
    let register_tokens = model.register_tokens.map(count);
    let layer_scale = model.layer_scale.or(preset.and_then(|preset| preset.layer_scale));
    ModelConfig {
        image_size,
        patch_size,
        hidden_size,
        depth,
        heads,
        mlp_size: model.mlp_size.map_or(mlp_size, count),
        num_classes,
        channels,
        pooling: pooling.unwrap_or(contract::Pooling::Token),
        register_tokens: register_tokens
            .or(preset.map(|preset| preset.register_tokens))
            .unwrap_or(0),
        // As in timm, zero is none.
        layer_scale: layer_scale.filter(|value| *value != 0.0),
        drop_path: model.drop_path,
        train_last_blocks: model.train_last_blocks.map(count),
        architecture: preset.map(|preset| preset.architecture).unwrap_or_default(),
        pretrained: model.pretrained.as_ref().map(|file| pretrained(file, errors)),
    }
}

/// The file's path in a pod.
fn pretrained(pretrained: &spec::Pretrained, errors: &mut Vec<ConfigError>) -> PathBuf {
    if let Some(given) = &pretrained.volume {
        volume("model.pretrained.volume", given, errors);
    }
    let from = pretrained.from.as_ref();
    if from.is_some() == pretrained.path.is_some() {
        let given = if from.is_some() {
            "with both path and from"
        } else {
            "without a file"
        };
        let expected = "must have path in a volume, or from";
        refuse(errors, "model.pretrained", given, expected);
    }
    if pretrained.path.is_some() && pretrained.volume.is_none() {
        let expected = "must be the volume that has the file at path";
        refuse(errors, "model.pretrained.volume", "missing", expected);
    }
    if let Some(from) = from.filter(|from| from.locations.len() != 1) {
        let given = format!("{} locations", from.locations.len());
        refuse(
            errors,
            "model.pretrained.from",
            given,
            "must be one location, of one file",
        );
    }
    let Some(location) = pretrained.location() else {
        let given = pretrained.path.as_deref().unwrap_or_default();
        let path = Path::new(given);
        let mut parts = path.components();
        if parts.any(|part| !matches!(part, Component::Normal(_))) || given.is_empty() {
            let expected = "must be the path of a file in the volume, without . or ..";
            refuse(errors, "model.pretrained.path", given, expected);
        }
        return Path::new(PRETRAINED_FOLDER).join(path);
    };
    let name = location.rsplit('/').next().unwrap_or_default();
    if !name.ends_with(".safetensors") || name.contains(['*', '{', '%']) {
        let expected =
            "must be the location of one .safetensors file, or hf://OWNER/NAME[@REVISION] of a model";
        refuse(errors, "model.pretrained.from", &location, expected);
    }
    Path::new(PRETRAINED_FOLDER).join(name)
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
        let config = resolved(
            "name: vit_b_16\nnumClasses: 10\npretrained: {path: timm/vit.safetensors, volume: {hostPath: {path: /srv}}}\n",
        );
        assert_eq!(
            config.pretrained.as_deref(),
            Some(Path::new("/pretrained/timm/vit.safetensors"))
        );
    }

    #[test]
    fn fetched_weights_are_one_file() {
        let of = |location: &str| {
            let mut errors = Vec::new();
            let text = format!(
                "name: vit_b_16\nnumClasses: 10\npretrained: {{from: {{locations: ['{location}']}}}}\n"
            );
            let config = model(&serde_saphyr::from_str(&text).expect("parses"), &mut errors);
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            (config.pretrained.expect("a file").display().to_string(), errors)
        };
        for (location, file) in [
            ("hf://timm/vit_small_patch16_dinov3.lvd1689m", "model.safetensors"),
            ("hf://timm/vit@refs/pr/1/model.safetensors", "model.safetensors"),
            ("s3://weights/vit/a.safetensors", "a.safetensors"),
        ] {
            assert_eq!(of(location), (format!("/pretrained/{file}"), Vec::new()));
        }
        let (_, errors) = of("s3://weights/vit-*.safetensors");
        assert_eq!(
            errors,
            [
                "model.pretrained.from is s3://weights/vit-*.safetensors: must be the location of one .safetensors file, or hf://OWNER/NAME[@REVISION] of a model"
            ]
        );
    }
}

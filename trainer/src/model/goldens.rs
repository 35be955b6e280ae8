//! Comparison with results of PyTorch, timm and torchvision: see `tests/peers/make_goldens.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use contract::{ActivationCheckpointing, ModelConfig};
use safetensors::{Dtype, SafeTensors};
use tch::{Device, Kind, Reduction, Tensor};
use torch_ext::memory::Meter;

use super::weights::WeightsError;
use super::{DropSeed, Fit, Mode, VisionTransformer, Weights};
use crate::tensor_file::tensor_of;

const TOLERANCE: f64 = 1e-4;

fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/peers/goldens")
        .join(case)
}

fn config(case: &str) -> ModelConfig {
    let text = fs_err::read_to_string(folder(case).join("model.json")).expect("a golden");
    serde_json::from_str(&text).expect("a model")
}

/// The model of one case with the weights of another.
fn loaded(case: &str, weights: &str, fit: Fit) -> Result<VisionTransformer, WeightsError> {
    load_file(&config(case), &folder(weights).join("model.safetensors"), fit)
}

fn expected(case: &str) -> BTreeMap<String, Tensor> {
    let bytes = fs_err::read(folder(case).join("expected.safetensors")).expect("a golden");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    file.iter()
        .map(|(name, view)| {
            let tensor = tensor_of(&view).expect("numbers of a known type");
            (name.to_owned(), tensor)
        })
        .collect()
}

fn distance(left: &Tensor, right: &Tensor) -> f64 {
    assert_eq!(left.size(), right.size());
    (left - right).abs().max().double_value(&[])
}

fn logits_agreeing(case: &str, model: &VisionTransformer) -> Tensor {
    let expected = expected(case);
    let logits = model.forward(&expected["images"], Mode::Evaluate).expect("runs");
    let apart = distance(&logits, &expected["logits"]);
    assert!(apart < TOLERANCE, "{case}: logits are {apart} apart");
    logits
}

#[test]
fn logits_gradients_and_ten_losses_are_timms() {
    for case in [
        "class_token",
        "pooled",
        "registers",
        "registers_pooled",
        "layer_scale",
        "channels_5",
        "gap",
        "clip",
        "deit_distilled",
        "deit3",
        "siglip",
        "dinov3",
        "dinov3_plus",
        "dinov3_qkvb",
    ] {
        let model = loaded(case, case, Fit::Exact).expect(case);
        let expected = expected(case);
        let _ = logits_agreeing(case, &model);
        for step in 0..10 {
            let logits = model.forward(&expected["images"], Mode::Evaluate).expect("runs");
            let labels = &expected["labels"];
            let loss = logits.cross_entropy_loss(labels, None::<&Tensor>, Reduction::Mean, -100, 0.0);
            let apart = (loss.double_value(&[]) - expected["losses"].double_value(&[step])).abs();
            assert!(
                apart < TOLERANCE,
                "{case}: the loss of step {step} is {apart} apart"
            );
            loss.backward();
            for parameter in model.parameters().iter() {
                let mut live = parameter.tensor.grad();
                if step == 0 {
                    let apart = distance(&live, &expected[&format!("grad.{}", parameter.name)]);
                    assert!(apart < TOLERANCE, "{case}: {} is {apart} apart", parameter.name);
                }
                tch::no_grad(|| {
                    let _ = parameter
                        .tensor
                        .shallow_clone()
                        .f_sub_(&(&live * 0.1))
                        .expect("subtracts");
                    let _ = live.zero_();
                });
            }
        }
        assert_eq!(expected.len() - 4, model.parameters().iter().count(), "{case}");
    }
}

#[test]
fn weights_of_another_size_are_adapted_as_timm_adapts_them() {
    for case in ["resized", "adapted_1", "adapted_5"] {
        let _ = logits_agreeing(case, &loaded(case, "class_token", Fit::Adapted).expect(case));
        let error = loaded(case, "class_token", Fit::Exact).expect_err("not exact");
        assert!(matches!(error, WeightsError::Shape { .. }), "{case}: {error}");
    }
}

#[test]
fn names_of_other_libraries_are_known() {
    for case in [
        "torchvision",
        "hf_vit",
        "hf_deit",
        "hf_dinov2",
        "hf_dinov2_registers",
        "hf_dinov3",
        "hf_dinov3_gated",
        "hf_clip",
        "hf_siglip",
        "openai_clip",
        "meta_dinov2",
        "meta_dinov3",
    ] {
        let _ = logits_agreeing(case, &loaded(case, case, Fit::Exact).expect(case));
    }
}

/// The weights of a case written in `dtype`, except `without`.
fn rewritten(case: &str, dtype: Dtype, kind: Kind, without: &[&str]) -> tempfile::NamedTempFile {
    let weights = Weights::read(&folder(case).join("model.safetensors")).expect("reads");
    let values: Vec<(String, Vec<usize>, Vec<u8>)> = weights
        .tensors
        .iter()
        .filter(|(name, _)| !without.contains(&name.as_str()))
        .map(|(name, tensor)| {
            let tensor = tensor.to_kind(kind);
            let mut bytes = vec![0; tensor.numel() * kind.elt_size_in_bytes()];
            tensor.copy_data_u8(&mut bytes, tensor.numel());
            let shape = tensor.size().iter().map(|size| *size as usize).collect();
            (name.clone(), shape, bytes)
        })
        .collect();
    let views = values.iter().map(|(name, shape, bytes)| {
        let view = safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes);
        (name.as_str(), view.expect("a view"))
    });
    let bytes = safetensors::serialize(views, None).expect("serializes");
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs_err::write(file.path(), bytes).expect("writes");
    file
}

fn load_file(config: &ModelConfig, path: &Path, fit: Fit) -> Result<VisionTransformer, WeightsError> {
    let model = VisionTransformer::new(config, 0, Device::Cpu);
    Weights::read(path)?.load_into(&model, fit)?;
    Ok(model)
}

#[test]
fn files_in_half_precision_are_read() {
    let exact = loaded("class_token", "class_token", Fit::Exact).expect("loads");
    for (dtype, kind, tolerance) in [
        (Dtype::F16, Kind::Half, 1e-3),
        (Dtype::BF16, Kind::BFloat16, 1e-2),
        (Dtype::F64, Kind::Double, 1e-12),
    ] {
        let file = rewritten("class_token", dtype, kind, &[]);
        let model = load_file(&config("class_token"), file.path(), Fit::Exact).expect("loads");
        for (own, others) in model.parameters().iter().zip(exact.parameters().iter()) {
            assert_eq!(own.tensor.kind(), Kind::Float);
            let apart = distance(&own.tensor, &others.tensor);
            assert!(apart < tolerance, "{dtype:?}: {} is {apart} apart", own.name);
        }
    }
    let integers = rewritten("class_token", Dtype::I64, Kind::Int64, &[]);
    let message = load_file(&config("class_token"), integers.path(), Fit::Exact)
        .expect_err("refused")
        .to_string();
    assert!(
        message.contains("holds I64 values: must be F32, F16, BF16 or F64"),
        "{message}"
    );
}

#[test]
fn a_head_for_other_classes_starts_at_random_and_nothing_else_does() {
    let other = ModelConfig {
        num_classes: 7,
        ..config("class_token")
    };
    let exact = loaded("class_token", "class_token", Fit::Exact).expect("loads");
    let path = folder("class_token").join("model.safetensors");
    let headless = rewritten(
        "class_token",
        Dtype::F32,
        Kind::Float,
        &["head.weight", "head.bias"],
    );
    for path in [path.as_path(), headless.path()] {
        let adapted = load_file(&other, path, Fit::Adapted).expect("loads");
        for (own, pretrained) in adapted.parameters().iter().zip(exact.parameters().iter()) {
            if own.name.starts_with("head.") {
                assert_eq!(own.tensor.size()[0], 7, "{}", own.name);
            } else {
                assert!(own.tensor.equal(&pretrained.tensor), "{}", own.name);
            }
        }
        let message = load_file(&other, path, Fit::Exact)
            .expect_err("refused")
            .to_string();
        assert!(message.contains("head.weight"), "{message}");
    }
    let half_a_head = rewritten("class_token", Dtype::F32, Kind::Float, &["head.bias"]);
    let message = load_file(&other, half_a_head.path(), Fit::Adapted)
        .expect_err("refused")
        .to_string();
    assert!(message.contains("has no tensor head.bias"), "{message}");
}

#[test]
fn what_does_not_fit_is_named_with_both_shapes_and_changes_nothing() {
    type Change = fn(&mut ModelConfig);
    let cases: [(Change, &str); 5] = [
        (
            |model| model.mlp_size = 96,
            "blocks.0.mlp.fc1.weight has shape [48, 24] in the file and [96, 24] in the model: see model.hiddenSize",
        ),
        (
            |model| model.depth = 1,
            "has a tensor blocks.1.attn.proj.bias of shape [24], which the model does not have",
        ),
        (
            |model| model.layer_scale = Some(0.1),
            "has no tensor blocks.0.ls1.gamma, which has shape [24] in the model: see model.layerScale",
        ),
        (
            |model| model.patch_size = 8,
            "patch_embed.proj.weight has shape [24, 3, 4, 4] in the file and [24, 3, 8, 8] in the model",
        ),
        (
            |model| model.pooling = contract::Pooling::Average,
            "pos_embed has shape [1, 17, 24] in the file and [1, 16, 24] in the model",
        ),
    ];
    let path = folder("class_token").join("model.safetensors");
    for (change, expected) in cases {
        let mut config = config("class_token");
        change(&mut config);
        let model = VisionTransformer::new(&config, 3, Device::Cpu);
        // Tests share one random number generator, so a second model of the same seed may differ.
        let before: Vec<Tensor> = model.parameters().iter().map(|own| own.tensor.copy()).collect();
        let error = Weights::read(&path)
            .expect("reads")
            .load_into(&model, Fit::Adapted);
        let message = error.expect_err("refused").to_string();
        assert!(message.contains(expected), "{message}");
        for (own, before) in model.parameters().iter().zip(&before) {
            assert!(own.tensor.equal(before), "{}", own.name);
        }
    }
}

#[test]
fn a_file_that_is_cut_off_or_missing_is_named() {
    let whole = fs_err::read(folder("class_token").join("model.safetensors")).expect("reads");
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs_err::write(file.path(), &whole[..whole.len() / 2]).expect("writes");
    let message = Weights::read(file.path()).expect_err("refused").to_string();
    assert!(
        message.contains("is not a safetensors file") && message.contains(&file.path().display().to_string()),
        "{message}"
    );
    let message = Weights::read(Path::new("/nowhere/vit.safetensors"))
        .expect_err("refused")
        .to_string();
    assert!(message.contains("/nowhere/vit.safetensors"), "{message}");
}

#[test]
fn recomputed_activations_give_the_same_gradients_and_take_less_memory() {
    let mut config = config("registers_pooled");
    config.depth = 4;
    let images = Tensor::randn([6, 3, 16, 16], (Kind::Float, Device::Cpu));
    let mut model = VisionTransformer::new(&config, 5, Device::Cpu);
    let mut held = BTreeMap::new();
    let mut expected: Vec<Tensor> = Vec::new();
    for checkpointing in [
        ActivationCheckpointing::None,
        ActivationCheckpointing::Selective,
        ActivationCheckpointing::Block,
    ] {
        model.checkpoint_activations(checkpointing);
        let meter = Meter::start().expect("counts");
        let logits = model
            .forward(&images, Mode::Train(DropSeed::default()))
            .expect("runs");
        held.insert(format!("{checkpointing:?}"), meter.held());
        drop(meter);
        logits.pow_tensor_scalar(2).sum(Kind::Float).backward();
        let gradients: Vec<Tensor> = model
            .parameters()
            .iter()
            .map(|parameter| {
                let mut live = parameter.tensor.grad();
                assert!(live.defined(), "{checkpointing:?}: {}", parameter.name);
                let gradient = live.copy();
                let _ = live.zero_();
                gradient
            })
            .collect();
        for (own, expected) in gradients.iter().zip(&expected) {
            assert!(own.allclose(expected, 1e-4, 1e-5, false), "{checkpointing:?}");
        }
        if expected.is_empty() {
            expected = gradients;
        }
    }
    let [none, selective, block] = ["None", "Selective", "Block"].map(|name| held[name] as f64);
    assert!(selective < 0.75 * none, "{held:?}");
    assert!(block < 0.35 * none, "{held:?}");
}

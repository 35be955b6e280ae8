//! Files written and read again, compared with those of timm and torchvision.

use contract::{ModelConfig, Pooling};
use tch::{Device, Kind, Tensor};

use super::*;
use crate::model::VisionTransformer;
use crate::model::fixtures::small;
use crate::tensor_file::{Existing, Metadata};

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/peers/goldens")
        .join(case)
        .join("model.safetensors")
}

fn config(case: &str) -> ModelConfig {
    let text = fs::read_to_string(golden(case).with_file_name("model.json")).expect("a golden");
    serde_json::from_str(&text).expect("a model")
}

/// Names and shapes of a file.
fn layout(path: &Path) -> BTreeMap<String, Vec<usize>> {
    let bytes = fs::read(path).expect("a file");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let shapes = file.iter().map(|(name, view)| (name.into(), view.shape().into()));
    shapes.collect()
}

/// The weights of a golden, written under the names of `naming`.
fn written(case: &str, naming: Naming) -> tempfile::TempPath {
    let weights = Weights::read(&golden(case)).expect("reads");
    let file = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
    let tensors = weights.named(naming, &config(case)).expect("names");
    tensor_file::save(&file, &tensors, &Metadata::new(), Existing::Replace).expect("writes");
    file
}

#[test]
fn what_is_written_is_what_the_library_writes_and_reads_back_bit_by_bit() {
    for (case, naming, like) in [
        ("class_token", Naming::Timm, "class_token"),
        ("class_token", Naming::Torchvision, "torchvision"),
        ("torchvision", Naming::Torchvision, "torchvision"),
        ("torchvision", Naming::Timm, "class_token"),
        ("pooled", Naming::Timm, "pooled"),
        ("registers", Naming::Timm, "registers"),
        ("registers_pooled", Naming::Timm, "registers_pooled"),
        ("layer_scale", Naming::Timm, "layer_scale"),
        ("channels_5", Naming::Timm, "channels_5"),
        ("clip", Naming::Timm, "clip"),
        ("deit_distilled", Naming::Timm, "deit_distilled"),
        ("siglip", Naming::Timm, "siglip"),
        ("dinov3_plus", Naming::Timm, "dinov3_plus"),
        ("dinov3_qkvb", Naming::Timm, "dinov3_qkvb"),
    ] {
        let file = written(case, naming);
        assert_eq!(layout(&file), layout(&golden(like)), "{case} for {naming}");
        let before = Weights::read(&golden(case)).expect("reads").tensors;
        let after = Weights::read(&file).expect("reads").tensors;
        assert_eq!(before.len(), after.len(), "{case} for {naming}");
        for (name, tensor) in before {
            assert!(tensor.equal(&after[&name]), "{case} for {naming}: {name}");
        }
    }
}

#[test]
fn heads_that_a_file_tells_must_be_the_models() {
    let config = small(Pooling::Token);
    let model = VisionTransformer::new(&config, 0, Device::Cpu);
    let tensors: Vec<_> = model
        .parameters()
        .iter()
        .map(|own| (own.name.clone(), own.tensor.detach()))
        .collect();
    let load = |producer: &str, heads: u32| {
        let file = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
        let metadata = Metadata::from([("producer", producer.to_owned()), ("heads", heads.to_string())]);
        tensor_file::save(&file, &tensors, &metadata, Existing::Replace).expect("writes");
        Weights::read(&file).expect("reads").load_into(&model, Fit::Exact)
    };
    load("vit-trainer 0.1.0", config.heads).expect("its own");
    load("another program", 4).expect("may mean anything");
    let message = load("vit-trainer 0.1.0", 4).expect_err("refused").to_string();
    assert!(
        message.ends_with("is for 4 attention heads according to its metadata, but model.heads is 3: set it to 4, or use another file"),
        "{message}"
    );
}

/// Weights of other libraries and programs, by tensor names.
#[test]
fn what_a_file_is_of_is_told_where_it_does_not_fit() {
    let config = small(Pooling::Token);
    let model = VisionTransformer::new(&config, 0, Device::Cpu);
    let own: Vec<(String, Tensor)> = model
        .parameters()
        .iter()
        .map(|own| (own.name.clone(), own.tensor.detach()))
        .collect();
    let message = |tensors: &[(String, Tensor)], model: &VisionTransformer| {
        let file = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
        tensor_file::save(&file, tensors, &Metadata::new(), Existing::Replace).expect("writes");
        let weights = Weights::read(&file).expect("reads");
        weights
            .load_into(model, Fit::Adapted)
            .expect_err("refused")
            .to_string()
    };
    for prefix in ["module.", "_orig_mod.", "model."] {
        let tensors: Vec<_> = own
            .iter()
            .map(|(name, tensor)| (format!("{prefix}{name}"), tensor.shallow_clone()))
            .collect();
        let file = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
        tensor_file::save(&file, &tensors, &Metadata::new(), Existing::Replace).expect("writes");
        let weights = Weights::read(&file).expect("reads");
        weights.load_into(&model, Fit::Exact).expect(prefix);
        // Not if other tensors are beside them.
        let mut tensors = tensors;
        tensors.push(("epoch".to_owned(), Tensor::zeros([1], (Kind::Float, Device::Cpu))));
        let told = message(&tensors, &model);
        assert!(told.contains(&format!(" has {prefix}")), "{told}");
        assert!(!told.contains("model.pooling"), "{told}");
    }
    let zeros = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
    let unknown = [("swin.embeddings.norm.weight".to_owned(), zeros(&[4]))];
    let told = message(&unknown, &model);
    assert!(
        told.contains(
            "has swin.embeddings.norm.weight, but no patch embedding under a known name: known are"
        ),
        "{told}"
    );
    // A norm of queries, which this model does not have.
    let mut with_norms = own;
    with_norms.push(("blocks.0.attn.q_norm.weight".to_owned(), zeros(&[4])));
    let told = message(&with_norms, &model);
    assert!(
        told.contains("norms of queries and keys (timm's qk_norm) are not supported"),
        "{told}"
    );
    // A class token for a model that averages.
    let averaging = VisionTransformer::new(&small(Pooling::Average), 0, Device::Cpu);
    let mut tensors: Vec<(String, Tensor)> = averaging
        .parameters()
        .iter()
        .map(|own| (own.name.clone(), own.tensor.detach()))
        .collect();
    for (name, tensor) in &mut tensors {
        if name == "pos_embed" {
            let [one, tokens, width] = tensor.size()[..] else {
                panic!("three dimensions");
            };
            *tensor = zeros(&[one, tokens + 1, width]);
        }
    }
    let told = message(&tensors, &averaging);
    assert!(
        told.contains("it covers the class token too, except with register tokens"),
        "{told}"
    );
}

#[test]
fn what_torchvision_does_not_have_is_refused_by_name() {
    let model = small(Pooling::Token);
    assert_eq!(Naming::Torchvision.lacks(&model), [] as [&str; 0]);
    let other = ModelConfig {
        channels: 5,
        pooling: Pooling::Average,
        register_tokens: 4,
        layer_scale: Some(0.1),
        ..model
    };
    assert_eq!(
        Naming::Torchvision.lacks(&other),
        [
            "average pooling (model.pooling)",
            "register tokens (model.registerTokens)",
            "layer scale (model.layerScale)",
            "images of 5 channels (model.channels)",
        ]
    );
    assert_eq!(Naming::Timm.lacks(&other), [] as [&str; 0]);
    for (case, name) in [
        ("registers", "reg_token"),
        ("layer_scale", "blocks.0.ls1.gamma"),
        ("pooled", "fc_norm.bias"),
    ] {
        let weights = Weights::read(&golden(case)).expect("reads");
        let message = weights
            .named(Naming::Torchvision, &config(case))
            .expect_err("refused")
            .to_string();
        let expected = format!("has a tensor {name}, for which torchvision has no name");
        assert!(message.contains(&expected), "{message}");
    }
}

//! The Vision Transformer of "An Image is Worth 16x16 Words" (arXiv 2010.11929), equal to timm's
//! `timm/models/vision_transformer.py` in structure, initial distribution and parameter names: pre-norm blocks, one
//! fused projection for query, key and value, layer norms with epsilon 1e-6, exact GELU.
//!
//! Suffixes name the dimensions of a tensor: B images, C channels, H height, W width (pixels), N tokens, D width of
//! the residual stream, h heads, d width of a head, P values of a patch, K classes.

use contract::{ModelConfig, Pooling};
use tch::{Device, Kind, Tensor};

use super::parameters::{Parameters, truncated_normal, uniform_fan_in};

const NORM_EPSILON: f64 = 1e-6;

/// A Vision Transformer that classifies square images.
#[derive(Debug)]
pub(crate) struct VisionTransformer {
    config: ModelConfig,
    parameters: Parameters,
    patch_weight: Tensor,
    patch_bias: Tensor,
    class_token: Option<Tensor>,
    position: Tensor,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

#[derive(Debug)]
struct Linear {
    weight: Tensor,
    bias: Tensor,
}

#[derive(Debug)]
struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
}

#[derive(Debug)]
struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    projection: Linear,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    heads: i64,
}

/// Makes layers and registers their parameters, all on one device.
struct Builder {
    parameters: Parameters,
    device: Device,
}

impl Builder {
    fn linear(&mut self, name: &str, input: i64, output: i64) -> Linear {
        let weight = truncated_normal(&[output, input], self.device);
        let bias = Tensor::zeros([output], (Kind::Float, self.device));
        Linear {
            weight: self.parameters.add(format!("{name}.weight"), weight),
            bias: self.parameters.add(format!("{name}.bias"), bias),
        }
    }

    fn layer_norm(&mut self, name: &str, size: i64) -> LayerNorm {
        let options = (Kind::Float, self.device);
        LayerNorm {
            weight: self
                .parameters
                .add(format!("{name}.weight"), Tensor::ones([size], options)),
            bias: self
                .parameters
                .add(format!("{name}.bias"), Tensor::zeros([size], options)),
        }
    }

    fn block(&mut self, index: u32, config: &ModelConfig) -> Block {
        let (hidden, mlp) = (i64::from(config.hidden_size), i64::from(config.mlp_size));
        let name = |part: &str| format!("blocks.{index}.{part}");
        Block {
            norm1: self.layer_norm(&name("norm1"), hidden),
            qkv: self.linear(&name("attn.qkv"), hidden, 3 * hidden),
            projection: self.linear(&name("attn.proj"), hidden, hidden),
            norm2: self.layer_norm(&name("norm2"), hidden),
            fc1: self.linear(&name("mlp.fc1"), hidden, mlp),
            fc2: self.linear(&name("mlp.fc2"), mlp, hidden),
            heads: i64::from(config.heads),
        }
    }
}

impl VisionTransformer {
    /// A model with random weights, which `seed` determines.
    pub(crate) fn new(config: &ModelConfig, seed: u64, device: Device) -> Self {
        tch::manual_seed(seed.cast_signed());
        let hidden = i64::from(config.hidden_size);
        let (channels, patch) = (i64::from(config.channels), i64::from(config.patch_size));
        let patches = i64::from(config.image_size / config.patch_size).pow(2);
        let fan_in = channels * patch * patch;
        let mut builder = Builder {
            parameters: Parameters::default(),
            device,
        };
        let class_token = match config.pooling {
            Pooling::Token => {
                let values = Tensor::randn([1, 1, hidden], (Kind::Float, device)) * 1e-6;
                Some(builder.parameters.add("cls_token".into(), values))
            }
            Pooling::Average => None,
        };
        let tokens = patches + i64::from(class_token.is_some());
        let position = builder
            .parameters
            .add("pos_embed".into(), truncated_normal(&[1, tokens, hidden], device));
        // Shaped as the convolution it equals, which is how checkpoints hold it.
        let patch_weight = builder.parameters.add(
            "patch_embed.proj.weight".into(),
            uniform_fan_in(&[hidden, channels, patch, patch], fan_in, device),
        );
        let patch_bias = builder.parameters.add(
            "patch_embed.proj.bias".into(),
            uniform_fan_in(&[hidden], fan_in, device),
        );
        let blocks = (0..config.depth)
            .map(|index| builder.block(index, config))
            .collect();
        let norm = match config.pooling {
            Pooling::Token => builder.layer_norm("norm", hidden),
            Pooling::Average => builder.layer_norm("fc_norm", hidden),
        };
        let head = builder.linear("head", hidden, i64::from(config.num_classes));
        Self {
            config: config.clone(),
            parameters: builder.parameters,
            patch_weight,
            patch_bias,
            class_token,
            position,
            blocks,
            norm,
            head,
        }
    }

    /// The trained tensors.
    pub(crate) fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Logits BK of normalised images BCHW of the configured size.
    pub(crate) fn forward(&self, images_bchw: &Tensor) -> Tensor {
        let mut x_bnd = self.embed(images_bchw);
        for block in &self.blocks {
            x_bnd = block.forward(&x_bnd);
        }
        // timm norms before taking the class token and after averaging; norming a token alone is the same.
        let pooled_bd = match self.config.pooling {
            Pooling::Token => x_bnd.select(1, 0),
            Pooling::Average => x_bnd.mean_dim([1].as_slice(), false, Kind::Float),
        };
        self.head.forward(&self.norm.forward(&pooled_bd))
    }

    /// Tokens BND of images: each patch through one linear map (equal to timm's strided convolution, but one matrix
    /// product), the class token in front, the position embedding added.
    fn embed(&self, images_bchw: &Tensor) -> Tensor {
        let (batch, channels, patch) = (
            images_bchw.size()[0],
            i64::from(self.config.channels),
            i64::from(self.config.patch_size),
        );
        let side = i64::from(self.config.image_size / self.config.patch_size);
        let patches_bnp = images_bchw
            .reshape([batch, channels, side, patch, side, patch])
            .permute([0, 2, 4, 1, 3, 5])
            .reshape([batch, side * side, channels * patch * patch]);
        let x_bnd = patches_bnp.linear(&self.patch_weight.flatten(1, -1), Some(&self.patch_bias));
        let x_bnd = match &self.class_token {
            Some(token) => Tensor::cat(&[token.expand([batch, -1, -1], false), x_bnd], 1),
            None => x_bnd,
        };
        x_bnd + &self.position
    }
}

impl Linear {
    fn forward(&self, x: &Tensor) -> Tensor {
        x.linear(&self.weight, Some(&self.bias))
    }
}

impl LayerNorm {
    fn forward(&self, x: &Tensor) -> Tensor {
        let shape = self.weight.size();
        x.layer_norm(shape, Some(&self.weight), Some(&self.bias), NORM_EPSILON, true)
    }
}

impl Block {
    fn forward(&self, x_bnd: &Tensor) -> Tensor {
        let x_bnd = x_bnd + self.attention(&self.norm1.forward(x_bnd));
        let hidden = self.fc1.forward(&self.norm2.forward(&x_bnd)).gelu("none");
        x_bnd + self.fc2.forward(&hidden)
    }

    fn attention(&self, x_bnd: &Tensor) -> Tensor {
        let (batch, tokens, width) = x_bnd.size3().expect("tokens are BND");
        let mut qkv_bhnd = self
            .qkv
            .forward(x_bnd)
            .reshape([batch, tokens, 3, self.heads, width / self.heads])
            .permute([2, 0, 3, 1, 4])
            .unbind(0)
            .into_iter();
        let mut next = || qkv_bhnd.next().expect("three of them");
        let (query, key, value) = (next(), next(), next());
        let mixed_bhnd = Tensor::scaled_dot_product_attention(
            &query,
            &key,
            &value,
            None::<&Tensor>,
            0.0,
            false,
            None,
            false,
        );
        self.projection
            .forward(&mixed_bhnd.transpose(1, 2).reshape([batch, tokens, width]))
    }
}

#[cfg(test)]
mod tests {
    use contract::ModelPreset;

    use super::*;

    pub(crate) fn small(pooling: Pooling) -> ModelConfig {
        ModelConfig {
            image_size: 8,
            patch_size: 4,
            hidden_size: 12,
            depth: 2,
            heads: 3,
            mlp_size: 24,
            num_classes: 5,
            channels: 3,
            pooling,
        }
    }

    fn preset(name: &str) -> ModelConfig {
        let ModelPreset {
            image_size,
            patch_size,
            hidden_size,
            depth,
            heads,
            mlp_size,
            ..
        } = ModelPreset::by_name(name).expect("a preset");
        ModelConfig {
            image_size,
            patch_size,
            hidden_size,
            depth,
            heads,
            mlp_size,
            num_classes: 1000,
            channels: 3,
            pooling: Pooling::Token,
        }
    }

    #[test]
    fn presets_have_as_many_parameters_as_timm_publishes() {
        // timm's results tables: 5.72 M, 22.05 M and 86.57 M.
        for (name, expected) in [
            ("vit_tiny_patch16_224", 5_717_416),
            ("vit_small_patch16_224", 22_050_664),
            ("vit_base_patch16_224", 86_567_656),
        ] {
            let model = VisionTransformer::new(&preset(name), 0, Device::Cpu);
            let count: usize = model
                .parameters()
                .iter()
                .map(|parameter| parameter.tensor.numel())
                .sum();
            assert_eq!(count, expected, "{name}");
        }
    }

    #[test]
    fn parameters_carry_timms_names_and_decay_as_there() {
        let model = VisionTransformer::new(&small(Pooling::Token), 0, Device::Cpu);
        let names: Vec<&str> = model
            .parameters()
            .iter()
            .map(|parameter| parameter.name.as_str())
            .collect();
        assert_eq!(
            names[..6],
            [
                "cls_token",
                "pos_embed",
                "patch_embed.proj.weight",
                "patch_embed.proj.bias",
                "blocks.0.norm1.weight",
                "blocks.0.norm1.bias"
            ]
        );
        assert_eq!(
            names[names.len() - 4..],
            ["norm.weight", "norm.bias", "head.weight", "head.bias"]
        );
        for parameter in model.parameters().iter() {
            let plain_weight = parameter.name.ends_with(".weight") && !parameter.name.contains("norm");
            assert_eq!(parameter.decays, plain_weight, "{}", parameter.name);
        }
        let pooled = VisionTransformer::new(&small(Pooling::Average), 0, Device::Cpu);
        let names: Vec<&str> = pooled
            .parameters()
            .iter()
            .map(|parameter| parameter.name.as_str())
            .collect();
        assert!(
            names.contains(&"fc_norm.weight") && !names.contains(&"cls_token"),
            "{names:?}"
        );
    }

    #[test]
    fn embedding_a_patch_is_timms_convolution() {
        let model = VisionTransformer::new(&small(Pooling::Average), 1, Device::Cpu);
        let images = Tensor::randn([2, 3, 8, 8], (Kind::Float, Device::Cpu));
        let convolved = images.conv2d(
            &model.patch_weight,
            Some(&model.patch_bias),
            [4, 4],
            [0, 0],
            [1, 1],
            1,
        );
        let expected = convolved.flatten(2, -1).transpose(1, 2) + &model.position;
        assert!(model.embed(&images).allclose(&expected, 1e-5, 1e-6, false));
    }

    #[test]
    fn the_seed_determines_the_weights_and_every_parameter_gets_a_gradient() {
        for pooling in [Pooling::Token, Pooling::Average] {
            let [first, second] =
                [7, 7].map(|seed| VisionTransformer::new(&small(pooling), seed, Device::Cpu));
            let images = Tensor::randn([2, 3, 8, 8], (Kind::Float, Device::Cpu));
            let logits = first.forward(&images);
            assert_eq!(logits.size(), [2, 5]);
            assert!(logits.equal(&second.forward(&images)));
            logits.pow_tensor_scalar(2).sum(Kind::Float).backward();
            for parameter in first.parameters().iter() {
                assert!(parameter.tensor.grad().defined(), "{}", parameter.name);
            }
        }
    }
}

//! The network as a description: each layer with its parameters, once for all who ask.
//!
//! ```text
//!   ModelConfig -> VitSpec -> parameters: the trainer's tensors, splits, decay; footprint's bytes
//!                          -> multiplications: FLOPs per image
//! ```

mod layers;

use crate::{ModelConfig, Pooling};
pub use layers::{Initial, LinearSpec, NormSpec, ParameterSpec, Split};

/// A Vision Transformer. Its units, in the order of the forward pass, are the embedding, each block, and
/// the head.
#[derive(Clone, Debug, PartialEq)]
pub struct VitSpec {
    /// The first unit.
    pub embedding: EmbeddingSpec,
    /// A unit each.
    pub blocks: Vec<BlockSpec>,
    /// The last unit.
    pub head: HeadSpec,
}

/// Tokens of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingSpec {
    /// What the classifier reads, or `None` if it reads the mean over all patches.
    pub class_token: Option<ParameterSpec>,
    /// Further learned tokens, after the class token.
    pub registers: Option<ParameterSpec>,
    /// Of the patches; without registers also of the class token, as in timm.
    pub position: ParameterSpec,
    /// From the pixels of a patch to a token.
    pub patch: LinearSpec,
    /// Patches of an image.
    pub patches: i64,
}

/// A pre-norm transformer block.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockSpec {
    /// Before attention.
    pub norm1: NormSpec,
    /// Queries, keys and values, each of all heads.
    pub qkv: LinearSpec,
    /// Of the heads' outputs.
    pub projection: LinearSpec,
    /// Layer scale of the attention branch.
    pub scale1: Option<ParameterSpec>,
    /// Before the MLP.
    pub norm2: NormSpec,
    /// To the MLP's hidden values.
    pub fc1: LinearSpec,
    /// From the MLP's hidden values.
    pub fc2: LinearSpec,
    /// Layer scale of the MLP branch.
    pub scale2: Option<ParameterSpec>,
}

/// From the pooled tokens to logits.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadSpec {
    /// Of the pooled token.
    pub norm: NormSpec,
    /// To the logits.
    pub classifier: LinearSpec,
}

impl VitSpec {
    /// The network of this configuration.
    pub fn of(model: &ModelConfig) -> Self {
        Self {
            embedding: EmbeddingSpec::of(model),
            blocks: (0..model.depth)
                .map(|index| BlockSpec::of(model, index))
                .collect(),
            head: HeadSpec::of(model),
        }
    }
}

impl EmbeddingSpec {
    /// The first unit of the network.
    pub fn of(model: &ModelConfig) -> Self {
        let width = i64::from(model.hidden_size);
        let token = |name, count: i64| {
            (count > 0).then(|| ParameterSpec::tokens(name, [count, width], Initial::Token))
        };
        let class_token = token("cls_token", i64::from(model.pooling == Pooling::Token));
        let registers = token("reg_token", i64::from(model.register_tokens));
        let patches = i64::from(model.image_size / model.patch_size).pow(2);
        let positions = patches + i64::from(class_token.is_some() && registers.is_none());
        let of_patch = [i64::from(model.channels), i64::from(model.patch_size), width];
        Self {
            class_token,
            registers,
            position: ParameterSpec::tokens("pos_embed", [positions, width], Initial::TruncatedNormal),
            patch: LinearSpec::of_patches("patch_embed.proj", of_patch),
            patches,
        }
    }

    /// In the order of checkpoints.
    pub fn parameters(&self) -> impl Iterator<Item = &ParameterSpec> {
        let tokens = self.class_token.iter().chain(&self.registers);
        tokens.chain([&self.position]).chain(self.patch.parameters())
    }

    /// Tokens before the patches: the class token and registers.
    pub fn prefix(&self) -> i64 {
        let tokens = [&self.class_token, &self.registers].into_iter().flatten();
        tokens.map(|token| token.shape[1]).sum()
    }

    /// Tokens of each image.
    pub fn tokens(&self) -> i64 {
        self.prefix() + self.patches
    }

    /// Values of all patches of an image.
    pub fn pixels(&self) -> f64 {
        let of_patch = &self.patch.weight.shape[1..];
        (self.patches * of_patch.iter().product::<i64>()) as f64
    }

    /// Positions before those of the patches.
    pub fn position_prefix(&self) -> i64 {
        self.position.shape[1] - self.patches
    }
}

impl BlockSpec {
    /// The block at a position.
    pub fn of(model: &ModelConfig, index: u32) -> Self {
        let [width, mlp] = [model.hidden_size, model.mlp_size].map(i64::from);
        let name = |part: &str| format!("blocks.{index}.{part}");
        let linear = |part, sizes, split| LinearSpec::new(&name(part), sizes, split);
        let scale = |part| {
            let value = model.layer_scale?;
            Some(ParameterSpec::scale(name(part), width, value))
        };
        Self {
            norm1: NormSpec::new(&name("norm1"), width),
            qkv: linear("attn.qkv", [width, 3 * width], Split::Rows { blocks: 3 }),
            projection: linear("attn.proj", [width, width], Split::Columns),
            scale1: scale("ls1.gamma"),
            norm2: NormSpec::new(&name("norm2"), width),
            fc1: linear("mlp.fc1", [width, mlp], Split::Rows { blocks: 1 }),
            fc2: linear("mlp.fc2", [mlp, width], Split::Columns),
            scale2: scale("ls2.gamma"),
        }
    }

    /// In the order of checkpoints.
    pub fn parameters(&self) -> impl Iterator<Item = &ParameterSpec> {
        let attention = self.qkv.parameters().chain(self.projection.parameters());
        let mlp = self.fc1.parameters().chain(self.fc2.parameters());
        let first = self.norm1.parameters().chain(attention).chain(&self.scale1);
        first
            .chain(self.norm2.parameters())
            .chain(mlp)
            .chain(&self.scale2)
    }
}

impl HeadSpec {
    /// The last unit of the network.
    pub fn of(model: &ModelConfig) -> Self {
        let width = i64::from(model.hidden_size);
        let norm = match model.pooling {
            Pooling::Token => "norm",
            Pooling::Average => "fc_norm",
        };
        let classes = i64::from(model.num_classes);
        Self {
            norm: NormSpec::new(norm, width),
            classifier: LinearSpec::new("head", [width, classes], Split::Whole),
        }
    }

    /// In the order of checkpoints.
    pub fn parameters(&self) -> impl Iterator<Item = &ParameterSpec> {
        self.norm.parameters().chain(self.classifier.parameters())
    }
}

impl ModelConfig {
    /// Floating-point operations for one image in the forward and backward passes: six times the
    /// multiplications of the forward pass's matrix products, attention included. Recomputation does not
    /// count, nor does skipped work: with class-token pooling the last block computes only that token's
    /// output.
    pub fn flops_per_image(&self) -> f64 {
        let (embedding, head) = (EmbeddingSpec::of(self), HeadSpec::of(self));
        let block = BlockSpec::of(self, 0);
        let (tokens, width) = (embedding.tokens() as f64, f64::from(self.hidden_size));
        let after_attention = [&block.projection, &block.fc1, &block.fc2];
        let after_attention: f64 = after_attention.map(LinearSpec::multiplications).iter().sum();
        let linear = tokens * (block.qkv.multiplications() + after_attention);
        let attention = 2.0 * tokens * tokens * width;
        let left_out = match self.pooling {
            Pooling::Token => (tokens - 1.0) * (after_attention + 2.0 * tokens * width),
            Pooling::Average => 0.0,
        };
        let embedding = embedding.patches as f64 * embedding.patch.multiplications();
        let blocks = f64::from(self.depth) * (linear + attention) - left_out;
        6.0 * (embedding + blocks + head.classifier.multiplications())
    }
}

//! The network as a description: each layer with its parameters, once for all who ask.
//!
//! ```text
//!   ModelConfig -> VitSpec -> parameters: the trainer's tensors, splits, decay; footprint's bytes
//!                          -> multiplications: FLOPs per image
//! ```

mod family;
mod layers;

use crate::{ModelConfig, Pooling};
pub use family::{Architecture, Mlp, Position, QkvBias};
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

/// Tokens of an image: the class token, the distillation token, registers, then the patches.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingSpec {
    /// The first token, for the classifier.
    pub class_token: Option<ParameterSpec>,
    /// For the classifier of distillation.
    pub distillation_token: Option<ParameterSpec>,
    /// Learned tokens that no classifier reads.
    pub registers: Option<ParameterSpec>,
    /// Of the patches, and perhaps of the tokens before them; `None` if blocks rotate queries and keys.
    pub position: Option<ParameterSpec>,
    /// From the pixels of a patch to a token.
    pub patch: LinearSpec,
    /// Of all tokens.
    pub norm: Option<NormSpec>,
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
    /// Biases of queries and of values, if keys have none.
    pub query_value_biases: Option<[ParameterSpec; 2]>,
    /// Of the heads' outputs.
    pub projection: LinearSpec,
    /// Layer scale of the attention branch.
    pub scale1: Option<ParameterSpec>,
    /// Before the MLP.
    pub norm2: NormSpec,
    /// The MLP.
    pub mlp: MlpSpec,
    /// Layer scale of the MLP branch.
    pub scale2: Option<ParameterSpec>,
}

/// A multilayer perceptron.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpSpec {
    /// What lies between the layers.
    pub kind: Mlp,
    /// To the gates of hidden values.
    pub gate: Option<LinearSpec>,
    /// To hidden values.
    pub fc1: LinearSpec,
    /// From hidden values.
    pub fc2: LinearSpec,
}

/// From the last block's tokens to logits.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadSpec {
    /// Of the pooled token, or of all before.
    pub norm: NormSpec,
    /// Whether the norm is of all tokens.
    pub is_normed_first: bool,
    /// Pools by attention.
    pub pool: Option<AttentionPoolSpec>,
    /// To the logits.
    pub classifier: LinearSpec,
    /// To the logits, from the distillation token.
    pub distillation_classifier: Option<LinearSpec>,
}

/// A learned query attends to all tokens, then an MLP (SigLIP, arXiv 2303.15343).
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionPoolSpec {
    /// The query.
    pub latent: ParameterSpec,
    /// Of the query.
    pub query: LinearSpec,
    /// To keys and values.
    pub key_value: LinearSpec,
    /// Of the heads' outputs.
    pub projection: LinearSpec,
    /// Before the MLP.
    pub norm: NormSpec,
    /// The MLP.
    pub mlp: MlpSpec,
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
        let (parts, width) = (&model.architecture, i64::from(model.hidden_size));
        let token = |name, count: u32| {
            (count > 0).then(|| ParameterSpec::tokens(name, [count.into(), width], Initial::Token))
        };
        let has_class_token = model.pooling == Pooling::Token || parts.unread_class_token;
        let tokens = [
            u32::from(has_class_token),
            u32::from(parts.distillation_token),
            model.register_tokens,
        ];
        let patches = i64::from(model.image_size / model.patch_size).pow(2);
        let before = if model.register_tokens == 0 {
            tokens.iter().sum()
        } else {
            0
        };
        let positions = match parts.position {
            Position::Learned => Some(patches + i64::from(before)),
            Position::LearnedOfPatches => Some(patches),
            Position::Rotary => None,
        };
        let position = |count| ParameterSpec::tokens("pos_embed", [count, width], Initial::TruncatedNormal);
        let of_patch = [i64::from(model.channels), i64::from(model.patch_size), width];
        Self {
            class_token: token("cls_token", tokens[0]),
            distillation_token: token("dist_token", tokens[1]),
            registers: token("reg_token", tokens[2]),
            position: positions.map(position),
            patch: LinearSpec::of_patches("patch_embed.proj", of_patch).with_bias(!parts.input_norm),
            norm: parts
                .input_norm
                .then(|| NormSpec::new("norm_pre", width, parts.norm_epsilon)),
            patches,
        }
    }

    /// In the order of checkpoints.
    pub fn parameters(&self) -> impl Iterator<Item = &ParameterSpec> {
        let tokens = [&self.class_token, &self.distillation_token, &self.registers];
        let norm = self.norm.iter().flat_map(NormSpec::parameters);
        let tokens = tokens.into_iter().flatten().chain(&self.position);
        tokens.chain(self.patch.parameters()).chain(norm)
    }

    /// Tokens before the patches.
    pub fn prefix(&self) -> i64 {
        let tokens = [&self.class_token, &self.distillation_token, &self.registers];
        tokens.into_iter().flatten().map(|token| token.shape[1]).sum()
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
        let positions = self.position.as_ref().map(|position| position.shape[1]);
        positions.map_or(0, |positions| positions - self.patches)
    }
}

impl BlockSpec {
    /// The block at a position.
    pub fn of(model: &ModelConfig, index: u32) -> Self {
        let (parts, width) = (&model.architecture, i64::from(model.hidden_size));
        let name = |part: &str| format!("blocks.{index}.{part}");
        let norm = |part| NormSpec::new(&name(part), width, parts.norm_epsilon);
        let scale = |part| {
            let value = model.layer_scale?;
            Some(ParameterSpec::scale(name(part), width, value))
        };
        let qkv = LinearSpec::new(&name("attn.qkv"), [width, 3 * width], Split::Rows { blocks: 3 });
        let bias = |part| ParameterSpec {
            split: Split::Rows { blocks: 1 },
            ..ParameterSpec::scale(name(part), width, 0.0)
        };
        let has_own = parts.qkv_bias == QkvBias::QueriesAndValues;
        Self {
            norm1: norm("norm1"),
            qkv: qkv.with_bias(parts.qkv_bias == QkvBias::All),
            query_value_biases: has_own.then(|| ["attn.q_bias", "attn.v_bias"].map(bias)),
            projection: LinearSpec::new(&name("attn.proj"), [width, width], Split::Columns),
            scale1: scale("ls1.gamma"),
            norm2: norm("norm2"),
            mlp: MlpSpec::new(&name("mlp"), [width, model.mlp_size.into()], parts.mlp),
            scale2: scale("ls2.gamma"),
        }
    }

    /// In the order of checkpoints.
    pub fn parameters(&self) -> impl Iterator<Item = &ParameterSpec> {
        let biases = self.query_value_biases.iter().flatten();
        let attention = self
            .qkv
            .parameters()
            .chain(biases)
            .chain(self.projection.parameters());
        let first = self.norm1.parameters().chain(attention).chain(&self.scale1);
        let second = self.norm2.parameters().chain(self.mlp.parameters());
        first.chain(second).chain(&self.scale2)
    }

    /// Multiplications for one token after attention.
    fn after_attention(&self) -> f64 {
        self.projection.multiplications() + self.mlp.multiplications()
    }
}

impl MlpSpec {
    fn new(name: &str, [width, hidden]: [i64; 2], kind: Mlp) -> Self {
        let layer = |part: &str, sizes, split| LinearSpec::new(&format!("{name}.{part}"), sizes, split);
        let rows = Split::Rows { blocks: 1 };
        let (gate, fc1) = match kind {
            Mlp::SwiGlu => (Some(layer("fc1_g", [width, hidden], rows)), "fc1_x"),
            Mlp::Gelu | Mlp::GeluTanh | Mlp::QuickGelu => (None, "fc1"),
        };
        Self {
            kind,
            gate,
            fc1: layer(fc1, [width, hidden], rows),
            fc2: layer("fc2", [hidden, width], Split::Columns),
        }
    }

    /// Every rank has all of it.
    fn whole(mut self) -> Self {
        for layer in self.gate.iter_mut().chain([&mut self.fc1, &mut self.fc2]) {
            layer.weight.split = Split::Whole;
            layer.bias.iter_mut().for_each(|bias| bias.split = Split::Whole);
        }
        self
    }

    /// In the order of checkpoints.
    pub fn parameters(&self) -> impl Iterator<Item = &ParameterSpec> {
        let layers = self.gate.iter().chain([&self.fc1, &self.fc2]);
        layers.flat_map(LinearSpec::parameters)
    }

    /// Multiplications for one token.
    fn multiplications(&self) -> f64 {
        let layers = self.gate.iter().chain([&self.fc1, &self.fc2]);
        layers.map(LinearSpec::multiplications).sum()
    }
}

impl HeadSpec {
    /// The last unit of the network.
    pub fn of(model: &ModelConfig) -> Self {
        let (parts, width) = (&model.architecture, i64::from(model.hidden_size));
        let is_normed_first = parts.norm_before_pooling || model.pooling == Pooling::Attention;
        let norm = match model.pooling {
            Pooling::Average if !is_normed_first => "fc_norm",
            Pooling::Average | Pooling::Attention | Pooling::Token => "norm",
        };
        let classifier = |name| LinearSpec::new(name, [width, model.num_classes.into()], Split::Whole);
        Self {
            norm: NormSpec::new(norm, width, parts.norm_epsilon),
            is_normed_first,
            pool: (model.pooling == Pooling::Attention).then(|| AttentionPoolSpec::of(model)),
            classifier: classifier("head"),
            distillation_classifier: parts.distillation_token.then(|| classifier("head_dist")),
        }
    }

    /// In the order of checkpoints.
    pub fn parameters(&self) -> impl Iterator<Item = &ParameterSpec> {
        let pool = self.pool.iter().flat_map(AttentionPoolSpec::parameters);
        let classifiers = [&self.classifier]
            .into_iter()
            .chain(&self.distillation_classifier);
        let classifiers = classifiers.flat_map(LinearSpec::parameters);
        self.norm.parameters().chain(pool).chain(classifiers)
    }
}

impl AttentionPoolSpec {
    fn of(model: &ModelConfig) -> Self {
        let (parts, width) = (&model.architecture, i64::from(model.hidden_size));
        let layer = |part: &str, outputs| {
            LinearSpec::new(&format!("attn_pool.{part}"), [width, outputs], Split::Whole)
        };
        let mlp = MlpSpec::new("attn_pool.mlp", [width, model.mlp_size.into()], parts.mlp);
        Self {
            latent: ParameterSpec {
                // As in timm.
                decays: true,
                ..ParameterSpec::tokens("attn_pool.latent", [1, width], Initial::TruncatedNormal)
            },
            query: layer("q", width),
            key_value: layer("kv", 2 * width),
            projection: layer("proj", width),
            norm: NormSpec::new("attn_pool.norm", width, parts.norm_epsilon),
            mlp: mlp.whole(),
        }
    }

    /// In the order of checkpoints.
    pub fn parameters(&self) -> impl Iterator<Item = &ParameterSpec> {
        let layers = [&self.query, &self.key_value, &self.projection];
        let attention = layers.into_iter().flat_map(LinearSpec::parameters);
        let mlp = self.norm.parameters().chain(self.mlp.parameters());
        [&self.latent].into_iter().chain(attention).chain(mlp)
    }

    /// Multiplications for one image.
    fn multiplications(&self, tokens: f64) -> f64 {
        let width = self.latent.values(1);
        let of_query = self.query.multiplications() + self.projection.multiplications();
        tokens * (self.key_value.multiplications() + 2.0 * width) + of_query + self.mlp.multiplications()
    }
}

impl ModelConfig {
    /// The first unit with trained parameters, in the order of the forward pass: 0 is the embedding, then the
    /// blocks follow, then the head.
    pub fn first_trained_unit(&self) -> u32 {
        self.train_last_blocks
            .map_or(0, |blocks| self.depth - blocks.min(self.depth) + 1)
    }

    /// The number of trained blocks.
    pub fn trained_blocks(&self) -> u32 {
        self.train_last_blocks.unwrap_or(self.depth).min(self.depth)
    }

    /// Whether a parameter of a unit is trained.
    pub fn is_trained(&self, unit: u32, name: &str) -> bool {
        let is_probe = self.train_last_blocks == Some(0);
        unit >= self.first_trained_unit() && (!is_probe || name.starts_with("head"))
    }

    /// Tokens that classifiers read, which come first.
    pub fn read_tokens(&self) -> i64 {
        1 + i64::from(self.architecture.distillation_token)
    }

    /// Floating-point operations for one image in the forward and backward passes: six times the
    /// multiplications of the forward pass's matrix products, attention included, or two times where
    /// nothing is trained. Recomputation does not
    /// count, nor does skipped work: with class-token pooling the last block computes only the output of
    /// the tokens that classifiers read.
    pub fn flops_per_image(&self) -> f64 {
        let (embedding, head) = (EmbeddingSpec::of(self), HeadSpec::of(self));
        let block = BlockSpec::of(self, 0);
        let (tokens, width) = (embedding.tokens() as f64, f64::from(self.hidden_size));
        let linear = tokens * (block.qkv.multiplications() + block.after_attention());
        let attention = 2.0 * tokens * tokens * width;
        let unread = tokens - self.read_tokens() as f64;
        let left_out = match self.pooling {
            Pooling::Token => unread * (block.after_attention() + 2.0 * tokens * width),
            Pooling::Average | Pooling::Attention => 0.0,
        };
        let pooled = head
            .pool
            .as_ref()
            .map_or(0.0, |pool| pool.multiplications(tokens));
        let classifiers = [&head.classifier]
            .into_iter()
            .chain(&head.distillation_classifier);
        let classified: f64 = classifiers.map(LinearSpec::multiplications).sum();
        let embedded = embedding.patches as f64 * embedding.patch.multiplications();
        let of_block = linear + attention;
        let after_embedding = |blocks: u32| f64::from(blocks) * of_block - left_out + pooled + classified;
        let forward = embedded + after_embedding(self.depth);
        let trained = match self.train_last_blocks {
            None => forward,
            Some(0) => classified,
            Some(_) => after_embedding(self.trained_blocks()),
        };
        2.0 * forward + 4.0 * trained
    }
}

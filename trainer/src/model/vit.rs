//! The Vision Transformer (arXiv 2010.11929) and its families, as `contract::architecture` describes them. It
//! equals timm's `timm/models/vision_transformer.py`, `deit.py` and `eva.py` (DINOv3) in structure, initial
//! distribution and parameter names.
//!
//! Suffixes name the dimensions of a tensor: B images, C channels, H height, W width (pixels), N tokens, D width of
//! the residual stream, h heads, d width of a head, P values of a patch, K classes.

use std::rc::Rc;

use contract::architecture::{EmbeddingSpec, NormSpec, ParameterSpec, Position, VitSpec};
use contract::{ActivationCheckpointing, ModelConfig, Pooling};
use tch::{Device, Tensor};
use torch_ext::{Collectives, Member, Sharded};

use super::attention_pool::AttentionPool;
use super::block::{Block, BlockRanks, OutputTokens};
use super::drop_path::{self, DropSeed};
use super::layers::{LayerNorm, Linear};
use super::parameters::{Parameters, seed_values};
use super::rotary::Rotary;
use super::sequence::Sequence;
use crate::error::TrainError;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    /// Images drop branches; the seed decides which.
    Train(DropSeed),
    /// Every branch of every block for every image.
    Evaluate,
}

#[derive(Debug)]
pub(crate) struct VisionTransformer {
    config: ModelConfig,
    embedding: EmbeddingSpec,
    parameters: Parameters,
    patch: Linear,
    /// Before the patches.
    tokens: Vec<Tensor>,
    position: Option<Tensor>,
    input_norm: Option<LayerNorm>,
    blocks: Vec<Block>,
    drop_rates: Vec<f64>,
    /// Whether the norm is of all tokens, before they are pooled.
    is_normed_first: bool,
    norm: LayerNorm,
    pool: Option<AttentionPool>,
    head: Linear,
    distillation_head: Option<Linear>,
    checkpointing: ActivationCheckpointing,
    /// If weights are sharded: gathers them for use.
    sharded: Option<Rc<Sharded>>,
    /// If ranks divide tokens: those of this rank.
    sequence: Option<Sequence>,
    /// If ranks divide heads and the MLP's hidden values.
    tensor: Option<Collectives>,
}

impl VisionTransformer {
    /// A model with random weights from `seed`.
    pub(crate) fn new(config: &ModelConfig, seed: u64, device: Device) -> Self {
        let model = Self::without_values(config, device);
        seed_values(seed);
        for unit in 0..model.parameters.units() {
            model.parameters.draw(unit);
        }
        model
    }

    /// A model whose parameters have no values yet.
    pub(crate) fn without_values(config: &ModelConfig, device: Device) -> Self {
        let spec = VitSpec::of(config);
        let head_width = i64::from(config.hidden_size / config.heads);
        let mut parameters = Parameters::new(config, device);
        let mut add = |parameter: &Option<ParameterSpec>| parameter.as_ref().map(|spec| parameters.add(spec));
        let EmbeddingSpec {
            class_token,
            distillation_token,
            registers,
            position,
            ..
        } = &spec.embedding;
        let tokens = [class_token, distillation_token, registers];
        let tokens = tokens.into_iter().filter_map(&mut add).collect();
        let position = add(position);
        let patch = Linear::new(&mut parameters, &spec.embedding.patch);
        let norm_of = |parameters: &mut Parameters, spec: &NormSpec| LayerNorm::new(parameters, spec);
        let input_norm = spec
            .embedding
            .norm
            .as_ref()
            .map(|norm| norm_of(&mut parameters, norm));
        let is_rotary = config.architecture.position == Position::Rotary;
        let side = i64::from(config.image_size / config.patch_size);
        let rotary = is_rotary.then(|| Rotary::new([side, spec.embedding.prefix(), head_width], device));
        let blocks = spec.blocks.iter().map(|block| {
            parameters.begin_unit();
            let rotary = rotary.as_ref().map(Rotary::shallow_clone);
            Block::new(&mut parameters, block, head_width, rotary)
        });
        let blocks = blocks.collect();
        parameters.begin_unit();
        let norm = norm_of(&mut parameters, &spec.head.norm);
        let pool = spec
            .head
            .pool
            .as_ref()
            .map(|pool| AttentionPool::new(&mut parameters, pool, head_width));
        let head = Linear::new(&mut parameters, &spec.head.classifier);
        let distillation_head = spec
            .head
            .distillation_classifier
            .as_ref()
            .map(|head| Linear::new(&mut parameters, head));
        Self {
            config: config.clone(),
            embedding: spec.embedding,
            parameters,
            patch,
            tokens,
            position,
            input_norm,
            blocks,
            drop_rates: drop_path::rates(config.drop_path, config.depth),
            is_normed_first: spec.head.is_normed_first,
            norm,
            pool,
            head,
            distillation_head,
            checkpointing: ActivationCheckpointing::None,
            sharded: None,
            sequence: None,
            tensor: None,
        }
    }

    /// Gathers weights through `sharded` from now on, unit by unit.
    pub(crate) fn shard(&mut self, sharded: Rc<Sharded>) {
        self.sharded = Some(sharded);
    }

    /// Computes only this rank's tokens from now on. All ranks that divide them get the logits.
    pub(crate) fn divide_tokens(&mut self, ranks: Collectives, member: Member) {
        self.sequence = Some(Sequence::new(ranks, member, self.embedding.tokens()));
    }

    /// Computes only this rank's heads and hidden values of the MLP from now on; the parameters
    /// must be split. All ranks that divide them get the logits.
    pub(crate) fn divide_heads(&mut self, ranks: Collectives) {
        self.tensor = Some(ranks);
    }

    /// Runs `compute` with the weights of a unit.
    fn in_unit(
        &self,
        unit: usize,
        compute: impl FnOnce() -> Result<Tensor, TrainError>,
    ) -> Result<Tensor, TrainError> {
        let first = self.parameters.first_trained_unit();
        if unit < first {
            return tch::no_grad(compute);
        }
        let Some(sharded) = &self.sharded else {
            return compute();
        };
        // Frozen units are whole on every rank.
        sharded.enter(unit - first)?;
        let output = compute()?;
        sharded.leave(unit - first, &output)?;
        Ok(output)
    }

    /// Sets what the backward pass recomputes.
    pub(crate) fn checkpoint_activations(&mut self, checkpointing: ActivationCheckpointing) {
        self.checkpointing = checkpointing;
    }

    pub(crate) fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    pub(crate) fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    pub(crate) fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub(super) fn embedding(&self) -> &EmbeddingSpec {
        &self.embedding
    }

    /// Logits BK of normalized images BCHW of the configured size.
    pub(crate) fn forward(&self, images_bchw: &Tensor, mode: Mode) -> Result<Tensor, TrainError> {
        let mut x_bnd = self.in_unit(0, || self.embed(images_bchw))?;
        // Drawn before the blocks run, so that recomputation drops the same images.
        let (kept, checkpointing) = match mode {
            Mode::Train(seed) => (
                drop_path::draw(&self.drop_rates, seed, &x_bnd)?,
                self.checkpointing,
            ),
            Mode::Evaluate => (
                self.blocks.iter().map(|_| Default::default()).collect(),
                ActivationCheckpointing::None,
            ),
        };
        for (index, (block, kept)) in self.blocks.iter().zip(kept).enumerate() {
            let is_last = index + 1 == self.blocks.len();
            // If ranks divide tokens, every rank takes part in the attention of all.
            let wanted = if is_last && self.config.pooling == Pooling::Token && self.sequence.is_none() {
                OutputTokens::First(self.config.read_tokens())
            } else {
                OutputTokens::All
            };
            let ranks = BlockRanks {
                sequence: self.sequence.as_ref(),
                tensor: self.tensor.as_ref(),
            };
            // What is frozen drops nothing and keeps nothing for a backward pass.
            let is_frozen = index + 1 < self.parameters.first_trained_unit();
            let (kept, checkpointing) = if is_frozen {
                (Default::default(), ActivationCheckpointing::None)
            } else {
                (kept, checkpointing)
            };
            x_bnd = self.in_unit(index + 1, || {
                block.forward(&x_bnd, kept, wanted, checkpointing, ranks)
            })?;
        }
        self.in_unit(self.blocks.len() + 1, || self.classify(&x_bnd))
    }

    /// Logits BK of the last block's tokens.
    fn classify(&self, x_bnd: &Tensor) -> Result<Tensor, TrainError> {
        let x_bnd = &if self.is_normed_first {
            self.norm.forward(x_bnd)?
        } else {
            x_bnd.shallow_clone()
        };
        let logits_bk = self.head.forward(&self.pooled(x_bnd)?)?;
        let Some(head) = &self.distillation_head else {
            return Ok(logits_bk);
        };
        let distilled_bk = head.forward(&self.normed(self.token(x_bnd, 1)?)?)?;
        Ok(logits_bk.f_add(&distilled_bk)?.f_mul_scalar(0.5)?)
    }

    /// What the classifier reads: a value BD of each image.
    fn pooled(&self, x_bnd: &Tensor) -> Result<Tensor, TrainError> {
        if let Some(pool) = &self.pool {
            return match &self.sequence {
                Some(sequence) => pool.forward(&sequence.all(x_bnd)?),
                None => pool.forward(x_bnd),
            };
        }
        if self.config.pooling == Pooling::Token {
            return self.normed(self.token(x_bnd, 0)?);
        }
        let prefix = self.embedding.prefix();
        let mean_bd = if let Some(sequence) = &self.sequence {
            sequence.mean_after(x_bnd, prefix)?
        } else {
            let patches_bnd = x_bnd.f_slice(1, prefix, None, 1)?;
            patches_bnd.f_mean_dim([1].as_slice(), false, x_bnd.kind())?
        };
        self.normed(mean_bd)
    }

    /// A token BD of each image, on every rank.
    fn token(&self, x_bnd: &Tensor, index: i64) -> Result<Tensor, TrainError> {
        match &self.sequence {
            Some(sequence) => sequence.token(x_bnd, index),
            None => Ok(x_bnd.f_select(1, index)?),
        }
    }

    /// The norm of pooled values, unless all tokens had it before.
    fn normed(&self, pooled_bd: Tensor) -> Result<Tensor, TrainError> {
        if self.is_normed_first {
            Ok(pooled_bd)
        } else {
            self.norm.forward(&pooled_bd)
        }
    }

    /// Tokens BND of images, this rank's part: class token, registers, and patches through one
    /// linear map (timm's strided convolution as one matrix product), plus the position embedding.
    /// As in timm, that covers the class token only without registers (`no_embed_class`).
    fn embed(&self, images_bchw: &Tensor) -> Result<Tensor, TrainError> {
        let (batch, channels, patch) = (
            images_bchw.size()[0],
            i64::from(self.config.channels),
            i64::from(self.config.patch_size),
        );
        let side = i64::from(self.config.image_size / self.config.patch_size);
        let patches_bnp = images_bchw
            .f_to_kind(self.patch.kind())?
            .f_reshape([batch, channels, side, patch, side, patch])?
            .f_permute([0, 2, 4, 1, 3, 5])?
            .f_reshape([batch, side * side, channels * patch * patch])?;
        let Some(sequence) = &self.sequence else {
            return self.tokens_of(&patches_bnp, self.position.as_ref());
        };
        let (own, before) = (sequence.own(), self.embedding.prefix());
        let [start, end] = [own.start, own.end].map(|token| (token - before).max(0));
        let patches_bnp = patches_bnp.f_narrow(1, start, end - start)?;
        // Every rank computes the tokens before the patches, so that each has a gradient for them.
        let of_prefix = self.embedding.position_prefix();
        let position = self.position.as_ref().map(|position| {
            let parts = [
                position.f_narrow(1, 0, of_prefix)?,
                position.f_narrow(1, of_prefix + start, end - start)?,
            ];
            Tensor::f_cat(&parts, 1)
        });
        let x_bnd = self.tokens_of(&patches_bnp, position.transpose()?.as_ref())?;
        sequence.pad(&x_bnd.f_narrow(1, own.start.min(before), own.end - own.start)?)
    }

    /// Learned tokens and these patches; `position` covers patches, maybe also the tokens before them.
    fn tokens_of(&self, patches_bnp: &Tensor, position: Option<&Tensor>) -> Result<Tensor, TrainError> {
        let batch = patches_bnp.size()[0];
        let covers_all = self.embedding.position_prefix() > 0;
        let placed = |x_bnd: Tensor, is_wanted: bool| match position.filter(|_| is_wanted) {
            Some(position) => x_bnd.f_add(position),
            None => Ok(x_bnd),
        };
        let mut x_bnd = placed(self.patch.forward_patches(patches_bnp)?, !covers_all)?;
        if !self.tokens.is_empty() {
            let tokens = self
                .tokens
                .iter()
                .map(|token| token.f_expand([batch, -1, -1], false));
            let all = tokens.chain([Ok(x_bnd)]).collect::<Result<Vec<_>, _>>()?;
            x_bnd = Tensor::f_cat(&all, 1)?;
        }
        x_bnd = placed(x_bnd, covers_all)?;
        match &self.input_norm {
            Some(norm) => norm.forward(&x_bnd),
            None => Ok(x_bnd),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tch::Kind;

    use super::*;
    use crate::model::fixtures::{preset, small};

    #[test]
    fn presets_have_as_many_parameters_as_timm_publishes() {
        // timm's `sum(p.numel() for p in create_model(name, num_classes=1000).parameters())`.
        for (name, expected) in [
            ("vit_tiny_patch16_224", 5_717_416),
            ("vit_small_patch16_224", 22_050_664),
            ("vit_base_patch16_224", 86_567_656),
            ("vit_medium_patch16_reg4_gap_256", 38_881_768),
            ("vit_small_patch14_reg4_dinov2", 22_442_344),
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
        let patch: Vec<&Tensor> = model.patch.tensors().collect();
        let [weight, bias] = patch[..] else {
            panic!("a bias")
        };
        let convolved = images.conv2d(weight, Some(bias), [4, 4], [0, 0], [1, 1], 1);
        let expected = convolved.flatten(2, -1).transpose(1, 2) + model.position.as_ref().expect("learned");
        assert!(
            model
                .embed(&images)
                .expect("runs")
                .allclose(&expected, 1e-5, 1e-6, false)
        );
    }

    #[test]
    fn the_seed_determines_the_weights_and_every_parameter_gets_a_gradient() {
        for pooling in [Pooling::Token, Pooling::Average] {
            let images = Tensor::randn([2, 3, 8, 8], (Kind::Float, Device::Cpu));
            let made = || VisionTransformer::new(&small(pooling), 7, Device::Cpu);
            let logits = |model: &VisionTransformer| model.forward(&images, Mode::Evaluate).expect("runs");
            // Parallel tests share the generator and may draw between the seed and the weights.
            let began = Instant::now();
            while !logits(&made()).equal(&logits(&made())) {
                assert!(
                    began.elapsed() < Duration::from_secs(60),
                    "the seed does not determine the weights"
                );
            }
            let first = made();
            let logits = logits(&first);
            assert_eq!(logits.size(), [2, 5]);
            logits.pow_tensor_scalar(2).sum(Kind::Float).backward();
            for parameter in first.parameters().iter() {
                assert!(parameter.tensor.grad().defined(), "{}", parameter.name);
            }
        }
    }
}

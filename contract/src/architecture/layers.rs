//! Layers and the parameters that they train.

/// A trained tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterSpec {
    /// timm's name, for example `blocks.0.attn.qkv.weight`.
    pub name: String,
    /// Shape over all ranks.
    pub shape: Vec<i64>,
    /// Where the values come from.
    pub initial: Initial,
    /// How ranks that divide the model's heads divide it.
    pub split: Split,
    /// Whether weight decay applies. As in timm, not to vectors, learned tokens and the position
    /// embedding (`no_weight_decay` of timm's `VisionTransformer`).
    pub decays: bool,
}

/// The distribution of a parameter's initial values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// This value everywhere.
    Constant(f64),
    /// A normal distribution of deviation 0.02, cut off at ±2 like timm's `trunc_normal_(std=.02)`.
    TruncatedNormal,
    /// PyTorch's uniform distribution for weights and biases of a convolution with this fan-in.
    UniformFanIn(i64),
    /// Almost zero, as in timm for learned tokens.
    Token,
}

/// The values of a parameter on a rank in tensor parallelism (Megatron-LM, arXiv 1909.08053).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Split {
    /// All, on every rank.
    #[default]
    Whole,
    /// Rows, which make outputs, or elements of a bias.
    Rows {
        /// Ranks have a share of each of these equal blocks of rows.
        blocks: i64,
    },
    /// Columns, which use inputs.
    Columns,
}

impl Split {
    /// The shape of the part on one of `ranks` ranks of a parameter of this shape.
    pub fn local_shape(self, shape: &[i64], ranks: u32) -> Vec<i64> {
        let mut local = shape.to_vec();
        let dimension = match self {
            Self::Whole => return local,
            Self::Rows { .. } => 0,
            Self::Columns => 1,
        };
        local[dimension] /= i64::from(ranks);
        local
    }
}

impl ParameterSpec {
    /// A matrix, to which weight decay applies, or a vector.
    fn plain(name: String, shape: &[i64], initial: Initial, split: Split) -> Self {
        Self {
            name,
            shape: shape.to_vec(),
            initial,
            split,
            decays: shape.len() > 1,
        }
    }

    /// Learned tokens or positions, shaped (1, tokens, width).
    pub(super) fn tokens(name: &str, [tokens, width]: [i64; 2], initial: Initial) -> Self {
        Self {
            decays: false,
            ..Self::plain(name.into(), &[1, tokens, width], initial, Split::Whole)
        }
    }

    /// A factor per channel.
    pub(super) fn scale(name: String, width: i64, value: f64) -> Self {
        Self::plain(name, &[width], Initial::Constant(value), Split::Whole)
    }

    /// Number of values on one of `ranks` ranks that divide heads.
    pub fn values(&self, ranks: u32) -> f64 {
        let shape = self.split.local_shape(&self.shape, ranks);
        shape.into_iter().map(|size| size as f64).product()
    }
}

/// A linear map.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearSpec {
    /// Shaped (outputs, inputs), or like the equivalent convolution's.
    pub weight: ParameterSpec,
    /// Added to outputs.
    pub bias: Option<ParameterSpec>,
}

impl LinearSpec {
    pub(super) fn new(name: &str, [input, output]: [i64; 2], split: Split) -> Self {
        // If ranks divide the inputs of a layer, every rank sums all outputs.
        let split_of_bias = match split {
            Split::Columns => Split::Whole,
            other => other,
        };
        let part = |part: &str, shape: &[i64], initial, split| {
            ParameterSpec::plain(format!("{name}.{part}"), shape, initial, split)
        };
        let zero = Initial::Constant(0.0);
        Self {
            weight: part("weight", &[output, input], Initial::TruncatedNormal, split),
            bias: Some(part("bias", &[output], zero, split_of_bias)),
        }
    }

    /// The same, with a bias or without.
    pub(super) fn with_bias(self, has_bias: bool) -> Self {
        Self {
            bias: self.bias.filter(|_| has_bias),
            ..self
        }
    }

    /// Square patches of an image, shaped like the equivalent convolution, as in checkpoints.
    pub(super) fn of_patches(name: &str, [channels, patch, width]: [i64; 3]) -> Self {
        let initial = Initial::UniformFanIn(channels * patch * patch);
        let part = |part: &str, shape: &[i64]| {
            ParameterSpec::plain(format!("{name}.{part}"), shape, initial, Split::Whole)
        };
        Self {
            weight: part("weight", &[width, channels, patch, patch]),
            bias: Some(part("bias", &[width])),
        }
    }

    /// In the order of checkpoints.
    pub fn parameters(&self) -> impl Iterator<Item = &ParameterSpec> {
        std::iter::once(&self.weight).chain(&self.bias)
    }

    /// Multiplications for one token.
    pub(super) fn multiplications(&self) -> f64 {
        self.weight.values(1)
    }
}

/// A layer norm.
#[derive(Clone, Debug, PartialEq)]
pub struct NormSpec {
    /// A factor per channel.
    pub weight: ParameterSpec,
    /// A summand per channel.
    pub bias: ParameterSpec,
    /// Added to the variance.
    pub epsilon: f64,
}

impl NormSpec {
    pub(super) fn new(name: &str, width: i64, epsilon: f64) -> Self {
        let part = |part: &str, value| ParameterSpec::scale(format!("{name}.{part}"), width, value);
        Self {
            weight: part("weight", 1.0),
            bias: part("bias", 0.0),
            epsilon,
        }
    }

    /// In the order of checkpoints.
    pub fn parameters(&self) -> impl Iterator<Item = &ParameterSpec> {
        [&self.weight, &self.bias].into_iter()
    }
}

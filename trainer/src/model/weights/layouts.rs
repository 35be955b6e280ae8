//! Names of tensors in files of other programs, as tables of theirs and timm's.
//!
//! A pair is of tensors, or of modules, whose `weight` and `bias` are called the same.

type Pair = (&'static str, &'static str);
type Tables = &'static [&'static [Pair]];

/// How a program names the tensors of a Vision Transformer.
#[derive(Debug)]
pub(super) struct Layout {
    /// A tensor, or the beginning of names, that only its files have.
    mark: &'static str,
    outside_blocks: Tables,
    /// Precedes a block's index.
    blocks: &'static str,
    in_blocks: Tables,
    /// How names begin or end of tensors that no image classifier needs, such as a text encoder's.
    unused: &'static [&'static str],
}

const TIMM_BLOCKS: &str = "blocks.";

/// Prefixes of all names but the classifier's.
pub(super) const BACKBONES: [&str; 5] = [
    "vit.",
    "deit.",
    "dinov2.",
    "dinov2_with_registers.",
    "dinov3_vit.",
];
/// Prefixes of the image encoder's names in models of images and texts.
pub(super) const IMAGE_ENCODERS: [&str; 3] = ["vision_model.", "visual.trunk.", "visual."];

/// torchvision's `VisionTransformer` (`torchvision/models/vision_transformer.py`).
pub(super) const TORCHVISION: Layout = Layout {
    mark: "conv_proj.weight",
    outside_blocks: &[&[
        ("class_token", "cls_token"),
        ("encoder.pos_embedding", "pos_embed"),
        ("conv_proj", "patch_embed.proj"),
        ("encoder.ln", "norm"),
        ("heads.head", "head"),
    ]],
    blocks: "encoder.layers.encoder_layer_",
    in_blocks: &[&[
        ("ln_1", "norm1"),
        ("self_attention.in_proj_weight", "attn.qkv.weight"),
        ("self_attention.in_proj_bias", "attn.qkv.bias"),
        ("self_attention.out_proj", "attn.proj"),
        ("ln_2", "norm2"),
        ("mlp.0", "mlp.fc1"),
        ("mlp.3", "mlp.fc2"),
    ]],
    unused: &[],
};

const EMBEDDINGS: &[Pair] = &[
    ("embeddings.cls_token", "cls_token"),
    ("embeddings.distillation_token", "dist_token"),
    ("embeddings.register_tokens", "reg_token"),
    ("embeddings.position_embeddings", "pos_embed"),
    ("embeddings.patch_embeddings.projection", "patch_embed.proj"),
    ("embeddings.patch_embeddings", "patch_embed.proj"),
];
const ATTENTION: &[Pair] = &[
    ("attention.attention.query", "attn.q_proj"),
    ("attention.attention.key", "attn.k_proj"),
    ("attention.attention.value", "attn.v_proj"),
    ("attention.output.dense", "attn.proj"),
];
const DINO_BLOCK: &[Pair] = &[
    ("norm1", "norm1"),
    ("norm2", "norm2"),
    ("layer_scale1.lambda1", "ls1.gamma"),
    ("layer_scale2.lambda1", "ls2.gamma"),
    ("mlp.fc1", "mlp.fc1"),
    ("mlp.fc2", "mlp.fc2"),
];

/// Layouts in the order in which they are tried.
pub(super) const LAYOUTS: [Layout; 7] = [
    TORCHVISION,
    // Hugging Face's ViT and DeiT.
    Layout {
        mark: "encoder.layer.0.layernorm_before.weight",
        outside_blocks: &[
            EMBEDDINGS,
            &[
                ("layernorm", "norm"),
                ("classifier", "head"),
                ("cls_classifier", "head"),
                ("distillation_classifier", "head_dist"),
            ],
        ],
        blocks: "encoder.layer.",
        in_blocks: &[
            ATTENTION,
            &[
                ("layernorm_before", "norm1"),
                ("layernorm_after", "norm2"),
                ("intermediate.dense", "mlp.fc1"),
                ("output.dense", "mlp.fc2"),
            ],
        ],
        unused: &["embeddings.mask_token", "pooler."],
    },
    // Hugging Face's DINOv2, with registers and without. Its classifier reads other values than timm's.
    Layout {
        mark: "encoder.layer.0.layer_scale1.lambda1",
        outside_blocks: &[EMBEDDINGS, &[("layernorm", "norm")]],
        blocks: "encoder.layer.",
        in_blocks: &[ATTENTION, DINO_BLOCK],
        unused: &["embeddings.mask_token", "classifier."],
    },
    // Hugging Face's DINOv3.
    Layout {
        mark: "layer.0.attention.q_proj.weight",
        outside_blocks: &[EMBEDDINGS],
        blocks: "layer.",
        in_blocks: &[
            DINO_BLOCK,
            &[
                ("attention.q_proj", "attn.q_proj"),
                ("attention.k_proj", "attn.k_proj"),
                ("attention.v_proj", "attn.v_proj"),
                ("attention.o_proj", "attn.proj"),
                ("mlp.gate_proj", "mlp.fc1_g"),
                ("mlp.up_proj", "mlp.fc1"),
                ("mlp.down_proj", "mlp.fc2"),
            ],
        ],
        unused: &["embeddings.mask_token", "rope_embeddings."],
    },
    // The image encoders of Hugging Face's CLIP and SigLIP.
    Layout {
        mark: "encoder.layers.0.self_attn.q_proj.weight",
        outside_blocks: &[&[
            ("embeddings.class_embedding", "cls_token"),
            ("embeddings.position_embedding.weight", "pos_embed"),
            ("embeddings.patch_embedding", "patch_embed.proj"),
            ("pre_layrnorm", "norm_pre"),
            ("post_layernorm", "norm"),
            ("head.probe", "attn_pool.latent"),
            ("head.attention.in_proj_weight", "attn_pool.in_proj.weight"),
            ("head.attention.in_proj_bias", "attn_pool.in_proj.bias"),
            ("head.attention.out_proj", "attn_pool.proj"),
            ("head.layernorm", "attn_pool.norm"),
            ("head.mlp.fc1", "attn_pool.mlp.fc1"),
            ("head.mlp.fc2", "attn_pool.mlp.fc2"),
        ]],
        blocks: "encoder.layers.",
        in_blocks: &[&[
            ("layer_norm1", "norm1"),
            ("self_attn.q_proj", "attn.q_proj"),
            ("self_attn.k_proj", "attn.k_proj"),
            ("self_attn.v_proj", "attn.v_proj"),
            ("self_attn.out_proj", "attn.proj"),
            ("layer_norm2", "norm2"),
            ("mlp.fc1", "mlp.fc1"),
            ("mlp.fc2", "mlp.fc2"),
        ]],
        unused: &["embeddings.position_ids"],
    },
    // The image encoder of OpenAI's and open_clip's CLIP. The projection into the space shared with text is not a classifier.
    Layout {
        mark: "transformer.resblocks.0.attn.in_proj_weight",
        outside_blocks: &[&[
            ("class_embedding", "cls_token"),
            ("positional_embedding", "pos_embed"),
            ("conv1", "patch_embed.proj"),
            ("ln_pre", "norm_pre"),
            ("ln_post", "norm"),
        ]],
        blocks: "transformer.resblocks.",
        in_blocks: &[&[
            ("ln_1", "norm1"),
            ("attn.in_proj_weight", "attn.qkv.weight"),
            ("attn.in_proj_bias", "attn.qkv.bias"),
            ("attn.out_proj", "attn.proj"),
            ("ln_2", "norm2"),
            ("mlp.c_fc", "mlp.fc1"),
            ("mlp.c_proj", "mlp.fc2"),
        ]],
        unused: &["proj"],
    },
    // Meta's DINOv2 and DINOv3, else like timm's.
    Layout {
        mark: "mask_token",
        outside_blocks: &[&[("register_tokens", "reg_token"), ("storage_tokens", "reg_token")]],
        blocks: TIMM_BLOCKS,
        in_blocks: &[&[
            ("mlp.w1", "mlp.fc1_g"),
            ("mlp.w2", "mlp.fc1_x"),
            ("mlp.w3", "mlp.fc2"),
        ]],
        unused: &["mask_token", "rope_embed.", "local_cls_norm."],
    },
];

/// The other name in pairs ordered as from, to.
fn other(tables: Tables, name: &str, direction: fn(Pair) -> Pair) -> Option<String> {
    let find = |name: &str| {
        let pairs = tables.iter().copied().flatten().copied();
        pairs
            .map(direction)
            .find(|(from, _)| *from == name)
            .map(|(_, to)| to)
    };
    if let Some(to) = find(name) {
        return Some(to.to_owned());
    }
    let (module, part) = name.rsplit_once('.')?;
    let to = find(module).filter(|_| ["weight", "bias"].contains(&part))?;
    Some(format!("{to}.{part}"))
}

impl Layout {
    /// Whether a file with these names has this layout.
    pub(super) fn is_of<'a>(&self, mut names: impl Iterator<Item = &'a String>) -> bool {
        names.any(|name| name == self.mark)
    }

    pub(super) fn leaves_out(&self, name: &str) -> bool {
        self.unused.iter().any(|unused| match unused.strip_suffix('.') {
            Some(_) => name.starts_with(unused),
            None => name == *unused,
        })
    }

    /// timm's name of its tensor.
    pub(super) fn timm_name(&self, name: &str) -> Option<String> {
        self.translate(name, [self.blocks, TIMM_BLOCKS], |pair| pair)
    }

    /// Its name of timm's tensor.
    pub(super) fn own_name(&self, name: &str) -> Option<String> {
        self.translate(name, [TIMM_BLOCKS, self.blocks], |(theirs, timm)| (timm, theirs))
    }

    fn translate(&self, name: &str, [from, to]: [&str; 2], direction: fn(Pair) -> Pair) -> Option<String> {
        match name.strip_prefix(from) {
            Some(rest) => {
                let (index, part) = rest.split_once('.')?;
                Some(format!("{to}{index}.{}", other(self.in_blocks, part, direction)?))
            }
            None => other(self.outside_blocks, name, direction),
        }
    }
}

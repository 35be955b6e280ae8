//! docs/reference/models.md: the models that a name stands for.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use contract::architecture::EmbeddingSpec;
use contract::preset::TIMM_NAMES;
use contract::{DataConfig, DataFormat, ModelConfig, RunConfig};
use serde_json::json;

const GIBIBYTE: f64 = 1_073_741_824.0;

const HEAD: &str = "\
# Models

<!-- Made by `make generate` from contract/src/preset.rs; do not edit. -->

`model.name` is a name of timm below, of torchvision (`vit_b_16`, `vit_b_32`, `vit_l_16`, `vit_l_32`, `vit_h_14`), or
`vit_SIZE_patchP_PIXELS` with any of these sizes, P 8, 14, 16 or 32, and PIXELS a multiple of P up to 1024.
[Other fields](vittrainingjob.md) of `model` override parts of it.

## Families

Small models of every family are compared with timm 1.0.31: logits, all gradients and the losses of ten steps are within
1e-4 (`tests/peers/make_goldens.py`). Of every name below, the number of parameters and of tensors, heads, activation, norm,
pooling, layer scale and weight decay are timm's.

| family | names | what differs from the Vision Transformer of [arXiv 2010.11929](https://arxiv.org/abs/2010.11929) |
| --- | --- | --- |
| ViT | `vit_SIZE_patchP_PIXELS` | |
| average pooling | `..._gap_PIXELS` | mean over patches after the norm; timm's have layer scale and no bias of queries, keys and values; the others are of I-JEPA ([2301.08243](https://arxiv.org/abs/2301.08243)) |
| registers | `..._reg1_gap_PIXELS`, `..._reg4_gap_PIXELS` | register tokens ([2309.16588](https://arxiv.org/abs/2309.16588)), mean over patches |
| DeiT | `deit_...` | a `distilled` one has a second token and classifier ([2012.12877](https://arxiv.org/abs/2012.12877)); logits are the mean of both |
| DeiT III | `deit3_...` | layer scale, positions of patches alone ([2204.07118](https://arxiv.org/abs/2204.07118)) |
| CLIP | `..._clip_PIXELS`, `..._clip_quickgelu_PIXELS` | a norm before the blocks ([2103.00020](https://arxiv.org/abs/2103.00020)); OpenAI's have the approximate GELU |
| SigLIP, SigLIP 2 | `..._siglip_PIXELS`, `..._siglip_gap_PIXELS` | pooling by attention of a learned query ([2303.15343](https://arxiv.org/abs/2303.15343), [2502.14786](https://arxiv.org/abs/2502.14786)), or the mean |
| DINOv2 | `..._dinov2`, `..._reg4_dinov2` | layer scale, registers ([2304.07193](https://arxiv.org/abs/2304.07193)) |
| DINOv3 | `..._dinov3`, `..._dinov3_qkvb` | rotary positions, registers, a class token that the mean ignores; `plus` has gated MLPs, `qkvb` biases of queries and values ([2508.10104](https://arxiv.org/abs/2508.10104)). `pooling: token` reads the class token, as in the paper |

Not supported: EVA and EVA-02, BEiT, DINOv2's giant and DINOv3's 7B, FlexiViT, timm's rotary models (`rope`), Perception
Encoder, models with parallel branches. DINOv3's jitter of positions in pretraining is absent, as in timm.

## Weights

`model.pretrained` reads safetensors files with the names of:

| names | of | compared with |
| --- | --- | --- |
| timm | all families | timm |
| torchvision | ViT | torchvision |
| Hugging Face transformers | ViT, DeiT, DINOv2, DINOv3, and the image encoders of CLIP and SigLIP, also in files of both encoders | transformers 5.24.0 |
| OpenAI, open_clip | the image encoder of CLIP | timm's conversion |
| Meta | DINOv2, DINOv3 | timm's conversion |

Prefixes of all names (`module.`, `_orig_mod.`, `model.`) are understood. Tensors that no image classifier needs, such as
a text encoder's, are left out and counted in the log. Hugging Face's classifier of DINOv2 reads other values than timm's
and is left out too. Convert other formats, such as pickles, to safetensors first.

## All names

Parameters with 1,000 classes; FLOPs of an image in forward and backward pass; memory of a step of 32 images on one GPU in
`bf16` with AdamW, as the planner estimates it.

| name | parameters, millions | tokens | GFLOPs | memory, GiB |
| --- | --- | --- | --- | --- |
";

/// The page.
pub(crate) fn page() -> Result<String> {
    let mut page = HEAD.to_owned();
    for name in TIMM_NAMES {
        let model = ModelConfig::preset(name, 1000, 3).with_context(|| format!("no preset {name}"))?;
        let parameters = footprint::parameters(&model) / 1e6;
        let tokens = EmbeddingSpec::of(&model).tokens();
        let flops = model.flops_per_image() / 1e9;
        let memory = footprint::footprint(&config(model)?).total() / GIBIBYTE;
        writeln!(
            page,
            "| `{name}` | {parameters:.1} | {tokens} | {flops:.1} | {memory:.1} |"
        )?;
    }
    Ok(page)
}

/// A job on one GPU.
fn config(model: ModelConfig) -> Result<RunConfig> {
    Ok(serde_json::from_value(json!({
        "job": {"namespace": "default", "name": "job", "uid": "1"},
        "model": model,
        "data": DataConfig { synthetic_images: Some(64), ..DataConfig::plain(DataFormat::Synthetic) },
        "training": {
            "epochs": 1, "microBatchSize": 32, "precision": "bf16", "schedule": {"warmupEpochs": 1.0},
            "labelSmoothing": 0.0,
        },
        "parallelism": {"bucketMegabytes": 25, "compressGradients": "none"},
        "nodes": 1, "ranksPerNode": 1, "device": "auto",
        "checkpoint": {"path": "/checkpoints", "keep": 1, "everySteps": 500, "resume": "Auto"},
    }))?)
}

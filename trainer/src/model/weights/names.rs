//! From the names and shapes of any known layout to timm's.

use std::collections::BTreeMap;

use tch::{Kind, Tensor};

use super::fit::side;
use super::layouts::{BACKBONES, IMAGE_ENCODERS, LAYOUTS};

type Tensors = BTreeMap<String, Tensor>;

/// Prefixes of all names of a model within DDP, torch.compile, or a trainer's module.
const WRAPPERS: [&str; 3] = ["module.", "_orig_mod.", "model."];

/// Tensors under timm's names, and the names of those that were left out. Unknown names stay, for the error
/// message.
pub(super) fn to_timm(tensors: Tensors) -> (Tensors, Vec<String>) {
    let (tensors, mut left_out) = of_image_encoder(unwrapped(tensors));
    let layout = LAYOUTS.iter().find(|layout| layout.is_of(tensors.keys()));
    let mut own = Tensors::new();
    for (name, tensor) in tensors {
        if layout.is_some_and(|layout| layout.leaves_out(&name)) {
            left_out.push(name);
            continue;
        }
        let timm = layout.and_then(|layout| layout.timm_name(&name));
        own.insert(timm.unwrap_or_else(|| of_eva(name)), tensor);
    }
    left_out.extend(join_queries_keys_and_values(&mut own));
    split_pool(&mut own);
    name_gated(&mut own);
    shape_tokens(&mut own);
    (own, left_out)
}

fn renamed(tensors: Tensors, rename: impl Fn(String) -> String) -> Tensors {
    let tensors = tensors.into_iter();
    tensors.map(|(name, tensor)| (rename(name), tensor)).collect()
}

fn without(name: String, prefix: &str) -> String {
    name.strip_prefix(prefix).map(str::to_owned).unwrap_or(name)
}

fn unwrapped(mut tensors: Tensors) -> Tensors {
    let is_of_all = |tensors: &Tensors, prefix: &str| {
        !tensors.is_empty() && tensors.keys().all(|name| name.starts_with(prefix))
    };
    while let Some(prefix) = WRAPPERS.iter().find(|prefix| is_of_all(&tensors, prefix)) {
        tensors = renamed(tensors, |name| without(name, prefix));
    }
    tensors
}

/// Without the other parts of a model of images and texts, which are named second.
fn of_image_encoder(tensors: Tensors) -> (Tensors, Vec<String>) {
    let has = |tensors: &Tensors, prefix: &str| tensors.keys().any(|name| name.starts_with(prefix));
    if let Some(prefix) = IMAGE_ENCODERS.iter().find(|prefix| has(&tensors, prefix)) {
        let (own, others): (Tensors, Tensors) = tensors
            .into_iter()
            .partition(|(name, _)| name.starts_with(prefix));
        return (
            renamed(own, |name| without(name, prefix)),
            others.into_keys().collect(),
        );
    }
    let backbone = BACKBONES.iter().find(|prefix| has(&tensors, prefix));
    let own = match backbone {
        Some(prefix) => renamed(tensors, |name| without(name, prefix)),
        None => tensors,
    };
    (own, Vec::new())
}

/// Names of timm's `Eva` (DINOv3), and of DeiT III, that differ from those of its `VisionTransformer`.
fn of_eva(name: String) -> String {
    match name.rsplit_once('.') {
        Some((block, "gamma_1")) => format!("{block}.ls1.gamma"),
        Some((block, "gamma_2")) => format!("{block}.ls2.gamma"),
        _ => name,
    }
}

/// The name in timm's `Eva` of a tensor of its `VisionTransformer`.
pub(super) fn in_eva(name: &str) -> String {
    name.replace(".ls1.gamma", ".gamma_1")
        .replace(".ls2.gamma", ".gamma_2")
}

/// Fuses separate projections of queries, keys and values, as timm does. Where keys have no bias, those of queries and
/// values become `q_bias` and `v_bias`. Returns the names of dropped masks.
fn join_queries_keys_and_values(tensors: &mut Tensors) -> Vec<String> {
    let queries = tensors
        .keys()
        .filter_map(|name| name.strip_suffix("attn.q_proj.weight"));
    let apart: Vec<String> = queries.map(str::to_owned).collect();
    for block in apart {
        for part in ["weight", "bias"] {
            let names = ["q", "k", "v"].map(|which| format!("{block}attn.{which}_proj.{part}"));
            match names.each_ref().map(|name| tensors.remove(name)) {
                [Some(queries), Some(keys), Some(values)] => {
                    let joined = Tensor::cat(&[queries, keys, values], 0);
                    tensors.insert(format!("{block}attn.qkv.{part}"), joined);
                }
                [Some(queries), None, Some(values)] => {
                    tensors.insert(format!("{block}attn.q_bias"), queries);
                    tensors.insert(format!("{block}attn.v_bias"), values);
                }
                // For the error message.
                some => {
                    let some = names.into_iter().zip(some);
                    tensors.extend(some.filter_map(|(name, tensor)| Some((name, tensor?))));
                }
            }
        }
    }
    let masks: Vec<String> = tensors
        .keys()
        .filter(|name| name.ends_with("attn.qkv.bias_mask"))
        .cloned()
        .collect();
    for mask in &masks {
        let name = mask.replace("_mask", "");
        tensors.remove(mask);
        if let Some(bias) = tensors.remove(&name) {
            let parts = bias.chunk(3, 0);
            tensors.insert(name.replace("qkv.bias", "q_bias"), parts[0].shallow_clone());
            tensors.insert(name.replace("qkv.bias", "v_bias"), parts[2].shallow_clone());
        }
    }
    masks
}

/// PyTorch's attention has one projection for the query, keys and values; timm's pooling has two.
fn split_pool(tensors: &mut Tensors) {
    for part in ["weight", "bias"] {
        if let Some(joined) = tensors.remove(&format!("attn_pool.in_proj.{part}")) {
            let width = joined.size()[0] / 3;
            tensors.insert(format!("attn_pool.q.{part}"), joined.narrow(0, 0, width));
            tensors.insert(format!("attn_pool.kv.{part}"), joined.narrow(0, width, 2 * width));
        }
    }
}

/// Hidden values are called otherwise beside gates.
fn name_gated(tensors: &mut Tensors) {
    if tensors.keys().any(|name| name.contains(".mlp.fc1_g.")) {
        *tensors = renamed(std::mem::take(tensors), |name| {
            name.replace(".mlp.fc1.", ".mlp.fc1_x.")
        });
    }
}

/// Tokens and positions are shaped (1, tokens, width). With registers, positions are of patches alone: that of the
/// class token is added to it, as in timm's `_convert_dinov2`.
fn shape_tokens(tensors: &mut Tensors) {
    for name in ["cls_token", "pos_embed", "attn_pool.latent"] {
        if let Some(tensor) = tensors.get_mut(name).filter(|tensor| tensor.dim() < 3) {
            let width = tensor.size().last().copied().unwrap_or(1);
            *tensor = tensor.reshape([1, -1, width]);
        }
    }
    let [Some(token), Some(positions), Some(_)] =
        ["cls_token", "pos_embed", "reg_token"].map(|name| tensors.get(name))
    else {
        return;
    };
    let count = positions.size()[1];
    if count > 1 && side(count - 1).is_some() && token.size()[2] == positions.size()[2] {
        let token = (token + positions.narrow(1, 0, 1)).to_kind(Kind::Float);
        let positions = positions.narrow(1, 1, count - 1);
        tensors.insert("cls_token".to_owned(), token);
        tensors.insert("pos_embed".to_owned(), positions);
    }
}

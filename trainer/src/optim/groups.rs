//! Parameters that share a weight decay and a learning rate, as timm's `param_groups_weight_decay` and
//! `param_groups_layer_decay` group them.

use std::collections::BTreeMap;
use std::rc::Rc;

use contract::Training;
use tch::Tensor;
use torch_ext::optim::Sizes;

use crate::model::Parameters;
use crate::parallel::{Division, StateTensor, TrainedWeights};

/// The parameters of a group, and their common settings.
#[derive(Debug, PartialEq)]
pub(super) struct Members {
    pub(super) weight_decay: f64,
    /// Factor on the learning rate.
    pub(super) learning_rate_scale: f64,
    names: Vec<String>,
    /// Indices of the group's parameters among those that are trained.
    indices: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) members: Members,
    /// In 32 bits: this rank's part of the model's own weights, or of masters.
    pub(super) weights: Vec<Tensor>,
    pub(super) sizes: Sizes,
    divisions: Vec<Rc<Division>>,
    /// One list per kind of state, with a tensor per weight.
    pub(super) state: Vec<Vec<Tensor>>,
}

impl Group {
    /// A group whose state is zero.
    pub(super) fn new(members: Members, all: &TrainedWeights, state_names: &[&str]) -> Self {
        let weights: Vec<Tensor> = members
            .indices
            .iter()
            .map(|index| all.masters()[*index].shallow_clone())
            .collect();
        let divisions: Vec<Rc<Division>> = members
            .indices
            .iter()
            .map(|index| Rc::clone(&all.divisions()[*index]))
            .collect();
        let whole = divisions.iter().map(|division| division.numel()).collect();
        let zeros = || {
            weights
                .iter()
                .map(|weight| weight.detach().zeros_like())
                .collect()
        };
        Self {
            sizes: Sizes::new(&weights, whole),
            divisions,
            state: state_names.iter().map(|_| zeros()).collect(),
            weights,
            members,
        }
    }

    pub(super) fn own(&self, gradients: &[Tensor]) -> Vec<Tensor> {
        self.members
            .indices
            .iter()
            .map(|index| gradients[*index].shallow_clone())
            .collect()
    }

    /// The state's tensors.
    pub(super) fn state(&self, state_names: &[&str]) -> Vec<StateTensor> {
        let mut state = Vec::new();
        for (kind, tensors) in state_names.iter().zip(&self.state) {
            let named = self.members.names.iter().zip(tensors).zip(&self.divisions);
            state.extend(named.map(|((name, tensor), division)| StateTensor {
                name: format!("{kind}.{name}"),
                local: tensor.shallow_clone(),
                division: Rc::clone(division),
            }));
        }
        state
    }
}

/// Groups the parameters by weight decay alone or, with layer decay, by layer and weight decay.
pub(super) fn split(training: &Training, parameters: &Parameters) -> Vec<Members> {
    let layer_decay = training.layer_decay.unwrap_or(1.0);
    let names: Vec<&str> = parameters
        .iter()
        .map(|parameter| parameter.name.as_str())
        .collect();
    let layers = Layers::from_names(&names);
    let mut groups: BTreeMap<(u32, bool), Members> = BTreeMap::new();
    for (index, parameter) in parameters.trained().enumerate() {
        let layer = if layer_decay < 1.0 {
            layers.id(&parameter.name)
        } else {
            layers.last
        };
        let group = groups
            .entry((layer, parameter.decays))
            .or_insert_with(|| Members {
                weight_decay: if parameter.decays {
                    training.optimizer.weight_decay
                } else {
                    0.0
                },
                learning_rate_scale: layer_decay.powf(f64::from(layers.last - layer)),
                names: Vec::new(),
                indices: Vec::new(),
            });
        group.names.push(parameter.name.clone());
        group.indices.push(index);
    }
    groups.into_values().collect()
}

/// timm's layers of a Vision Transformer (its `group_matcher`): the embedding is layer 0, each
/// block is one more. The last norm belongs to the last block; the classifier with its norm is
/// last.
struct Layers {
    last: u32,
}

impl Layers {
    fn from_names(names: &[&str]) -> Self {
        let blocks = names
            .iter()
            .filter_map(|name| block_of(name))
            .map(|block| block + 1)
            .max()
            .unwrap_or(0);
        Self { last: blocks + 1 }
    }

    fn id(&self, name: &str) -> u32 {
        const STEM: [&str; 5] = ["cls_token", "reg_token", "pos_embed", "patch_embed", "norm_pre"];
        if STEM.iter().any(|prefix| name.starts_with(prefix)) {
            0
        } else if let Some(block) = block_of(name) {
            block + 1
        } else if name.starts_with("norm") {
            self.last - 1
        } else {
            self.last
        }
    }
}

fn block_of(name: &str) -> Option<u32> {
    let (number, _) = name.strip_prefix("blocks.")?.split_once('.')?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_timms() {
        // From timm 1.0.31: group_parameters(model, model.group_matcher(coarse=False), reverse=True) of a model with
        // three blocks, once with a class token and once with a pooled classifier.
        let layers = Layers::from_names(&["blocks.0.norm1.weight", "blocks.2.mlp.fc2.bias"]);
        for (name, expected) in [
            ("cls_token", 0),
            ("reg_token", 0),
            ("pos_embed", 0),
            ("patch_embed.proj.weight", 0),
            ("blocks.0.attn.qkv.weight", 1),
            ("blocks.2.ls1.gamma", 3),
            ("norm.weight", 3),
            ("fc_norm.weight", 4),
            ("head.weight", 4),
        ] {
            assert_eq!(layers.id(name), expected, "{name}");
        }
    }
}

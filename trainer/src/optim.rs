//! AdamW (arXiv 1711.05101) over all parameters in two fused calls: those that decay and those that do not.

use contract::AdamW as Settings;
use tch::{Kind, Tensor};
use torch_ext::Error;
use torch_ext::optim::{AdamWStep, fused_adamw};

use crate::model::Parameters;

/// The optimizer and its state.
#[derive(Debug)]
pub(crate) struct AdamW {
    settings: Settings,
    groups: [Group; 2],
    /// Steps taken.
    step: u64,
}

/// Parameters that share a weight decay, with their moments.
#[derive(Debug)]
struct Group {
    weight_decay: f64,
    names: Vec<String>,
    parameters: Vec<Tensor>,
    first_moments: Vec<Tensor>,
    second_moments: Vec<Tensor>,
}

impl AdamW {
    pub(crate) fn new(settings: &Settings, parameters: &Parameters) -> Self {
        let group = |decays: bool| {
            let of_group = || {
                parameters
                    .iter()
                    .filter(move |parameter| parameter.decays == decays)
            };
            let zeros = || {
                of_group()
                    .map(|parameter| parameter.tensor.detach().zeros_like())
                    .collect()
            };
            Group {
                weight_decay: if decays { settings.weight_decay } else { 0.0 },
                names: of_group().map(|parameter| parameter.name.clone()).collect(),
                parameters: of_group()
                    .map(|parameter| parameter.tensor.shallow_clone())
                    .collect(),
                first_moments: zeros(),
                second_moments: zeros(),
            }
        };
        Self {
            settings: settings.clone(),
            groups: [group(true), group(false)],
            step: 0,
        }
    }

    /// One step with the gradients that the parameters hold.
    pub(crate) fn step(&mut self, learning_rate: f64) -> Result<(), Error> {
        self.step += 1;
        let [beta1, beta2] = self.settings.betas;
        for group in self.groups.iter().filter(|group| !group.parameters.is_empty()) {
            let gradients: Vec<Tensor> = group.parameters.iter().map(Tensor::grad).collect();
            let step = Tensor::full([], self.step as f64, (Kind::Float, group.parameters[0].device()));
            let numbers = AdamWStep {
                learning_rate,
                beta1,
                beta2,
                weight_decay: group.weight_decay,
                epsilon: self.settings.epsilon,
            };
            fused_adamw(
                &group.parameters,
                &gradients,
                &group.first_moments,
                &group.second_moments,
                &step,
                numbers,
            )?;
        }
        Ok(())
    }

    /// The state under the names that `torch.optim.AdamW` gives to it: `exp_avg.<parameter>` and
    /// `exp_avg_sq.<parameter>`, with handles to the live tensors.
    pub(crate) fn state(&self) -> Vec<(String, Tensor)> {
        self.groups
            .iter()
            .flat_map(|group| {
                let moments = [
                    ("exp_avg", &group.first_moments),
                    ("exp_avg_sq", &group.second_moments),
                ];
                moments.into_iter().flat_map(|(kind, tensors)| {
                    group
                        .names
                        .iter()
                        .zip(tensors)
                        .map(move |(name, tensor)| (format!("{kind}.{name}"), tensor.shallow_clone()))
                })
            })
            .collect()
    }

    /// Continues after `step` steps; the moments are loaded through [`AdamW::state`].
    pub(crate) fn continue_after(&mut self, step: u64) {
        self.step = step;
    }
}

//! Training losses equal to those of PyTorch and timm. `tests/peers/optimizer_losses.py` makes the
//! goldens from the same weights and images, by the same formula.

use contract::{Ema, OffloadTo, Optimizer as Settings, Pooling, Training};
use serde::Deserialize;
use serde_json::json;
use tch::{Device, Kind, Reduction, Tensor};
use torch_ext::Error;
use torch_ext::memory::Meter;
use torch_ext::optim::global_norm;

use super::{Average, Optimizer};
use crate::data::fixtures::config;
use crate::model::fixtures::small;
use crate::model::{DropSeed, Mode, VisionTransformer};
use crate::parallel::TrainedWeights;
use crate::precision::Precision;

const LEARNING_RATE: f64 = 0.02;
const WEIGHT_DECAY: f64 = 0.1;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Golden {
    optimizer: String,
    layer_decay: f64,
    clip_grad_norm: Option<f64>,
    losses: Vec<f64>,
    loss_of_average: f64,
}

fn goldens() -> Vec<Golden> {
    let text = include_str!("../../../tests/peers/goldens/optimizer_losses.json");
    serde_json::from_str(text).expect("the goldens parse")
}

fn settings(name: &str) -> Settings {
    let json = match name {
        "adamw" => json!({"name": "adamw", "betas": [0.9, 0.95]}),
        "sgd" => json!({"name": "sgd"}),
        "sgdNesterov" => json!({"name": "sgd", "nesterov": true}),
        "sgdPlain" => json!({"name": "sgd", "momentum": 0.0}),
        "lamb" => json!({"name": "lamb"}),
        other => panic!("no optimizer {other}"),
    };
    Settings {
        learning_rate: LEARNING_RATE,
        weight_decay: WEIGHT_DECAY,
        ..serde_json::from_value(json).expect("an optimizer")
    }
}

fn training(optimizer: Settings, layer_decay: f64) -> Training {
    Training {
        optimizer,
        layer_decay: Some(layer_decay),
        ..config("{format: synthetic, syntheticImages: 8}").training
    }
}

fn wave(shape: &[i64], frequency: f64) -> Tensor {
    let count = shape.iter().product::<i64>();
    let places = Tensor::arange(count, (Kind::Double, Device::Cpu));
    (places * frequency).cos().reshape(shape).to_kind(Kind::Float)
}

fn model() -> VisionTransformer {
    let model = VisionTransformer::new(&small(Pooling::Token), 0, Device::Cpu);
    tch::no_grad(|| {
        for (index, parameter) in model.parameters().iter().enumerate() {
            let values = wave(&parameter.tensor.size(), 0.37 * (index + 1) as f64) * 0.2;
            let is_norm_weight = parameter.name.contains("norm") && parameter.name.ends_with("weight");
            let shift = if is_norm_weight { 1.0 } else { 0.0 };
            parameter.tensor.shallow_clone().copy_(&(values + shift));
        }
    });
    model
}

fn loss(model: &VisionTransformer, precision: Precision) -> Tensor {
    let images = wave(&[4, 3, 8, 8], 0.7);
    let labels = Tensor::from_slice(&[0_i64, 1, 2, 3]);
    let logits = precision
        .forward(model, &images, Mode::Train(DropSeed::default()))
        .expect("logits");
    logits.cross_entropy_loss(&labels, None::<&Tensor>, Reduction::Mean, -100, 0.1)
}

/// Ten losses, and that of the averaged weights.
fn losses(golden: &Golden, precision: Precision, offload: OffloadTo) -> (Vec<f64>, f64) {
    let model = model();
    let weights = TrainedWeights::whole(model.parameters(), precision, offload).expect("weights");
    let training = training(settings(&golden.optimizer), golden.layer_decay);
    let optimizer = Optimizer::new(&training, model.parameters(), &weights).expect("an optimizer");
    let ema = Ema {
        decay: 0.9,
        warmup: false,
    };
    let average = Average::new(ema, &weights);
    let mut found = Vec::new();
    for update in 1..=golden.losses.len() as u64 {
        let loss = loss(&model, precision);
        found.push(loss.double_value(&[]));
        for mut parameter in model.parameters().tensors() {
            parameter.zero_grad();
        }
        loss.backward();
        let gradients = weights.gradients().expect("gradients");
        let norm = global_norm(&gradients).expect("a norm");
        let limits = [golden.clip_grad_norm, optimizer.gradient_norm_limit()];
        let gate = super::gate(&norm, &norm.isfinite(), limits, None);
        let count = Tensor::from(update as f32);
        optimizer
            .step(&gradients, LEARNING_RATE, (&count, &gate), None)
            .expect("steps");
        weights.publish().expect("publishes");
        average.update(&weights, update).expect("averages");
    }
    let of_average = weights
        .with_values(average.weights(), || {
            Ok::<_, Error>(loss(&model, precision).double_value(&[]))
        })
        .expect("swaps");
    (found, of_average)
}

#[test]
fn ten_losses_and_the_average_are_those_of_pytorch_and_timm() {
    let goldens = goldens();
    assert_eq!(goldens.len(), 8);
    for golden in &goldens {
        for offload in [OffloadTo::None, OffloadTo::Cpu] {
            let (found, of_average) = losses(golden, Precision::Full, offload);
            let expected = golden.losses.iter().chain([&golden.loss_of_average]);
            for (found, expected) in found.iter().chain([&of_average]).zip(expected) {
                assert!(
                    (found - expected).abs() < 2e-5,
                    "{} with layer decay {}, offloaded to {offload:?}: {found} is not {expected}",
                    golden.optimizer,
                    golden.layer_decay
                );
            }
        }
    }
}

#[test]
fn an_offloaded_optimizer_takes_the_host_memory_that_is_calculated() {
    let mut config = config("{format: synthetic, syntheticImages: 8}");
    config.model = small(Pooling::Token);
    config.device = contract::Device::Cuda;
    config.training.ema = Some(Ema {
        decay: 0.9,
        warmup: false,
    });
    config.parallelism.offload.optimizer = OffloadTo::Cpu;
    let model = model();
    let meter = Meter::start().expect("counts");
    let weights =
        TrainedWeights::whole(model.parameters(), Precision::Full, OffloadTo::Cpu).expect("weights");
    let _optimizer = Optimizer::new(&config.training, model.parameters(), &weights).expect("an optimizer");
    let average = Average::new(config.training.ema.expect("given"), &weights);
    weights
        .with_values(average.weights(), || Ok::<_, Error>(()))
        .expect("swaps");
    // Without the sizes of weights for LAMB, and a tensor copied between weights and average.
    let sizes = 4 * model.parameters().iter().count() as i64;
    let largest = weights
        .masters()
        .iter()
        .map(|tensor| 4 * tensor.numel() as i64)
        .max();
    let beside = sizes + largest.expect("weights");
    assert_eq!(meter.peak() - beside, footprint::footprint(&config).host as i64);
}

#[test]
fn half_precision_with_masters_follows_the_losses_of_32_bits() {
    for golden in goldens().iter().filter(|golden| golden.optimizer == "adamw") {
        for kind in [Kind::BFloat16, Kind::Half] {
            for precision in [Precision::Autocast(kind), Precision::Half(kind)] {
                let (found, _) = losses(golden, precision, OffloadTo::None);
                let off = |found: &[f64], expected: &[f64]| -> f64 {
                    let pairs = found.iter().zip(expected);
                    pairs.map(|(found, expected)| (found - expected).abs()).sum()
                };
                let rounding = off(&found, &golden.losses);
                let one_step = off(&golden.losses, &golden.losses[1..]);
                assert!(
                    rounding > 0.0 && rounding < 0.5 * one_step,
                    "with layer decay {} in {precision:?}: losses are off by {rounding}, a step by {one_step}",
                    golden.layer_decay
                );
            }
        }
    }
}

#[test]
fn the_decay_of_an_average_warms_up_as_in_timm() {
    let average = |warmup| {
        let ema = Ema { decay: 0.99, warmup };
        let model = model();
        let weights = TrainedWeights::whole(model.parameters(), Precision::Full, OffloadTo::None);
        Average::new(ema, &weights.expect("weights"))
    };
    // From timm 1.0.31: ModelEmaV3(model, decay=0.99, use_warmup=...).get_decay(step).
    for (update, plain, warm) in [
        (1, 0.0, 0.0),
        (2, 0.99, 0.370_039_475_052_563_4),
        (11, 0.99, 0.797_819_991_766_425_8),
        (5000, 0.99, 0.99),
    ] {
        assert!((average(false).decay(update) - plain).abs() < 1e-12);
        assert!((average(true).decay(update) - warm).abs() < 1e-12);
    }
}

use clap::Parser;
use contract::OffloadTo;

use super::*;

/// Appendix B of arXiv 2602.21081.
const STUDY: &str = r#"{
  "train_batch_size": 32,
  "gradient_accumulation_steps": 1,
  "micro_batch_per_gpu": 16,
  "fp16": {"enabled": false},
  "zero_optimization": {
    "stage": 0,
    "offload_optimizer": {"device": "none"},
    "offload_param": {"device": "none"}
  },
  "wall_clock_breakdown": true,
  "prescale_gradients": false,
  "pipeline": {"pipe_partitioned": false},
  "pin_memory": true
}"#;

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    arguments: Arguments,
}

fn imported(text: &str, flags: &[&str]) -> Result<(String, Vec<String>), String> {
    let words = ["test", "ds_config.json"].iter().chain(flags);
    let arguments = CommandLine::parse_from(words).arguments;
    import(text, None, &arguments).map_err(|error| error.to_string())
}

fn job(text: &str, flags: &[&str]) -> ViTTrainingJob {
    let (yaml, _) = imported(text, flags).expect("a manifest");
    serde_saphyr::from_str(&yaml).expect("reads back")
}

fn errors(text: &str, flags: &[&str]) -> String {
    imported(text, flags).expect_err("refused")
}

#[test]
fn names_of_optimizers_are_compared_as_deepspeed_does() {
    let file =
        |name: &str| format!(r#"{{"train_batch_size": 32, "optimizer": {{"type": "{name}"}}}} // a job"#);
    for name in ["adamw", "ADAM", "Lamb", "SGD"] {
        imported(&file(name), &["--nodes", "2"]).expect(name);
    }
    let refused = errors(&file("sgd"), &["--nodes", "2"]);
    assert!(refused.contains("optimizer.type"), "{refused}");
}

#[test]
fn the_studys_configuration_names_its_one_wrong_key_and_is_taken_over_without_it() {
    assert_eq!(
        errors(STUDY, &["--nodes", "2"]),
        "ds_config.json cannot be converted:\n  micro_batch_per_gpu is 16: not a key of DeepSpeed, which silently ignores it; the key is train_micro_batch_size_per_gpu"
    );
    let right = STUDY.replace("micro_batch_per_gpu", "train_micro_batch_size_per_gpu");
    let (yaml, _) = imported(&right, &["--nodes", "2"]).expect("a manifest");
    let training = job(&right, &["--nodes", "2"]).spec.training;
    assert_eq!(
        (training.micro_batch_size, training.gradient_accumulation_steps),
        (16, 1)
    );
    assert!(training.wall_clock_breakdown);
    for line in [
        "    microBatchSize: 16 # train_micro_batch_size_per_gpu",
        "    wallClockBreakdown: true # wall_clock_breakdown",
        "#   pin_memory: DeepSpeed ignores it too at this level",
        "#   zero_optimization.offload_optimizer: is off",
        "#   pipeline: only DeepSpeed's pipeline engine reads it, and a ViTTrainingJob has no pipeline",
        "#   fp16: is off",
    ] {
        assert!(
            yaml.lines().any(|there| there == line),
            "{line:?} is not in\n{yaml}"
        );
    }
    assert!(yaml.contains("prescale_gradients: "), "{yaml}");
}

#[test]
fn batches_that_do_not_multiply_are_refused_with_the_numbers() {
    let right = STUDY.replace("micro_batch_per_gpu", "train_micro_batch_size_per_gpu");
    let message = errors(&right, &["--nodes", "3"]);
    assert!(
        message.contains("train_batch_size is 32: must be train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks, and 16 x 1 x 3 is 48"),
        "{message}"
    );
    for text in [
        "{}",
        r#"{"train_batch_size": 0}"#,
        r#"{"train_batch_size": 7.5}"#,
        r#"{"train_batch_size": 10, "gradient_accumulation_steps": 4}"#,
        r#"{"train_batch_size": "32"}"#,
    ] {
        assert!(errors(text, &[]).contains("train_batch_size"), "{text}");
    }
}

#[test]
fn sizes_that_are_left_out_follow_from_the_others() {
    let sizes = |text: &str| {
        let training = job(text, &["--nodes", "2", "--gpus-per-node", "2"]).spec.training;
        (training.micro_batch_size, training.gradient_accumulation_steps)
    };
    assert_eq!(sizes(r#"{"train_batch_size": 64}"#), (16, 1));
    assert_eq!(
        sizes(r#"{"train_batch_size": 64, "gradient_accumulation_steps": 2}"#),
        (8, 2)
    );
    assert_eq!(
        sizes(r#"{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}"#),
        (4, 4)
    );
    assert_eq!(sizes(r#"{"train_micro_batch_size_per_gpu": 4}"#), (4, 1));
}

#[test]
fn what_is_not_known_or_not_here_is_refused_by_path_and_all_at_once() {
    let message = errors(
        r#"{"train_batch_size": 8, "zero_optimisation": {}, "fp16": {"enabled": true, "loss_scale": 128, "fp16_master_weights_and_grads": true},
            "zero_optimization": {"stage": 4, "offload_optimizer": {"device": "nvme"}, "stage3_typo": 1},
            "sequence_parallel_size": 2, "tensor_parallel": {"autotp_size": 4},
            "optimizer": {"type": "OneBitAdam"}, "elasticity": {"enabled": true}, "sparse_gradients": true,
            "gradient_clipping": "auto"}"#,
        &[],
    );
    for part in [
        "zero_optimisation is {}: unknown key",
        "zero_optimization.stage is 4: must be between 0 and 3",
        "zero_optimization.offload_optimizer.device is nvme: must be cpu or none",
        "zero_optimization.stage3_typo is 1: unknown key",
        "sequence_parallel_size is 2: ",
        "tensor_parallel is {autotp_size: 4}: ",
        "optimizer.type is \"OneBitAdam\": ",
        "fp16.loss_scale is 128: must be 0",
        "fp16.fp16_master_weights_and_grads is true: ",
        "elasticity is {enabled: true}: ",
        "sparse_gradients is true: ",
        "gradient_clipping is \"auto\": it is not resolved here; set the value with --set gradient_clipping=VALUE",
    ] {
        assert!(message.contains(part), "{part} is not in\n{message}");
    }
}

#[test]
fn stages_of_zero_are_taken_over() {
    for stage in 1..=3 {
        let text = format!(
            r#"{{"train_batch_size": 8, "zero_optimization": {{"stage": {stage}, "stage3_prefetch_bucket_size": 5e7}}}}"#
        );
        assert_eq!(job(&text, &[]).spec.parallelism.zero_stage, stage);
    }
    let text = r#"{"train_batch_size": 8, "zero_optimization": {"stage": 0}}"#;
    assert_eq!(job(text, &[]).spec.parallelism.zero_stage, 0);
}

#[test]
fn what_is_offloaded_to_the_cpu_is_taken_over() {
    let offload = |keys: &str| {
        let text = format!(r#"{{"train_batch_size": 8, "zero_optimization": {{"stage": 3, {keys}}}}}"#);
        let offload = job(&text, &["--nodes", "2"]).spec.parallelism.offload;
        (offload.optimizer, offload.parameters)
    };
    let only_optimizer = (OffloadTo::Cpu, OffloadTo::None);
    assert_eq!(
        offload(r#""offload_optimizer": {"device": "cpu", "pin_memory": true}"#),
        only_optimizer
    );
    assert_eq!(offload(r#""cpu_offload": true"#), only_optimizer);
    assert_eq!(
        offload(r#""offload_optimizer": {"device": "none"}"#),
        (OffloadTo::None, OffloadTo::None)
    );
    let both =
        r#""offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu", "max_in_cpu": 1e9}"#;
    assert_eq!(offload(both), (OffloadTo::Cpu, OffloadTo::Cpu));
}

#[test]
fn set_fills_in_what_is_automatic() {
    let text = r#"{"train_batch_size": "auto", "gradient_clipping": "auto",
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}}}"#;
    let flags = [
        "--set",
        "train_batch_size=24",
        "--set",
        "optimizer.params.lr=3e-4",
        "--set",
        "gradient_clipping=1.0",
    ];
    let training = job(text, &flags).spec.training;
    assert_eq!(
        (training.micro_batch_size, training.clip_grad_norm),
        (24, Some(1.0))
    );
    assert_eq!(
        (
            training.optimizer.learning_rate,
            training.optimizer.betas,
            training.optimizer.weight_decay
        ),
        (3e-4, Some([0.9, 0.95]), 0.0)
    );
    assert!(errors(text, &["--set", "lr"]).contains("must be KEY=VALUE"));
}

#[test]
fn steps_of_a_schedule_become_epochs() {
    let text = r#"{"train_batch_size": 500, "gradient_clipping": 0, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
        "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 2000, "warmup_num_steps": 150, "warmup_type": "linear", "cos_min_ratio": 0.01}}}"#;
    let (_, different) = imported(text, &[]).expect("a manifest");
    assert_eq!(different, Vec::<String>::new());
    let training = job(text, &[]).spec.training;
    // 50,000 images of CIFAR-10 are 100 steps of 500.
    assert_eq!((training.epochs, training.schedule.warmup_epochs), (20, 1.5));
    assert_eq!(training.schedule.name, crds::spec::ScheduleName::Cosine);
    assert!((training.schedule.min_learning_rate - 1e-5).abs() < 1e-12);

    let constant = r#"{"train_batch_size": 500, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.02, "warmup_num_steps": 50}}}"#;
    let training = job(constant, &["--train-images", "5000"]).spec.training;
    assert_eq!(
        (training.schedule.warmup_epochs, training.optimizer.learning_rate),
        (5.0, 0.02)
    );
    let (_, different) = imported(constant, &[]).expect("a manifest");
    assert!(
        different
            .iter()
            .any(|note| note.starts_with("scheduler.params.warmup_type")),
        "{different:?}"
    );
    let linear = constant.replace("WarmupLR", "WarmupDecayLR");
    assert!(errors(&linear, &[]).contains("scheduler.type is WarmupDecayLR: linear decay is not supported"));
}

#[test]
fn gradients_that_only_newer_versions_clip_are_told() {
    let clipped = |text: &str, more: &[&str]| job(text, more).spec.training.clip_grad_norm;
    let told = |text: &str| {
        let (_, different) = imported(text, &[]).expect("a manifest");
        different
            .iter()
            .any(|note| note.starts_with("gradient_clipping: "))
    };
    let silent = r#"{"train_batch_size": 8}"#;
    assert_eq!((clipped(silent, &[]), told(silent)), (None, true));
    assert_eq!(clipped(silent, &["--set", "gradient_clipping=1"]), Some(1.0));
    for (norm, expected) in [("0", None), ("0.5", Some(0.5))] {
        let text = format!(r#"{{"train_batch_size": 8, "gradient_clipping": {norm}}}"#);
        assert_eq!((clipped(&text, &[]), told(&text)), (expected, false), "{norm}");
    }
}

#[test]
fn gradients_are_sent_in_the_format_that_is_asked_for() {
    let text = r#"{"train_batch_size": 8, "communication_data_type": "bf16"}"#;
    assert_eq!(
        job(text, &[]).spec.parallelism.compress_gradients,
        crds::spec::GradientCompression::Bf16
    );
    assert!(errors(&text.replace("bf16", "fp16"), &[]).contains("or fp32 ones in bf16"));
}

#[test]
fn half_precision_keeps_fp32_masters_as_deepspeed_does() {
    let text = r#"{"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 10,
        "loss_scale_window": 500, "hysteresis": 3, "min_loss_scale": 2}}"#;
    let training = job(text, &[]).spec.training;
    assert_eq!(
        (training.precision, training.master_weights),
        (crds::spec::Precision::Fp16, true)
    );
    let scale = training.loss_scale.expect("a loss scale");
    assert_eq!(
        (
            scale.initial_scale_power,
            scale.loss_scale_window,
            scale.hysteresis,
            scale.min_loss_scale
        ),
        (10, 500, 3, 2)
    );
    let training = job(
        r#"{"train_batch_size": 8, "torch_autocast": {"enabled": true, "dtype": "bfloat16"}}"#,
        &[],
    )
    .spec
    .training;
    assert_eq!(
        (training.precision, training.master_weights),
        (crds::spec::Precision::Bf16, false)
    );
    let both = r#"{"train_batch_size": 8, "fp16": {"enabled": true}, "bf16": {"enabled": true}}"#;
    assert!(errors(both, &[]).contains("fp16 and bf16 are both enabled"));
}

#[test]
fn every_optimizer_keeps_its_own_parameters() {
    let sgd = r#"{"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "nesterov": true, "weight_decay": 5e-4}}}"#;
    let optimizer = job(sgd, &[]).spec.training.optimizer;
    assert_eq!(
        (optimizer.name, optimizer.momentum, optimizer.nesterov),
        (crds::spec::OptimizerName::Sgd, Some(0.9), Some(true))
    );
    let lamb =
        r#"{"train_batch_size": 8, "optimizer": {"type": "Lamb", "params": {"lr": 0.002, "max_coeff": 10}}}"#;
    let (_, different) = imported(lamb, &[]).expect("a manifest");
    assert!(
        different
            .iter()
            .any(|note| note.contains("does not clamp the trust ratio")),
        "{different:?}"
    );
    let optimizer = job(lamb, &[]).spec.training.optimizer;
    assert_eq!(
        (optimizer.name, optimizer.epsilon),
        (crds::spec::OptimizerName::Lamb, Some(1e-8))
    );
    let l2 = r#"{"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}}"#;
    assert!(errors(l2, &[]).contains("optimizer.params.adam_w_mode is false"));
}

#[test]
fn a_base_manifest_keeps_what_the_file_does_not_say() {
    let base = BASE
        .replace("name: from-deepspeed", "name: mine")
        .replace("format: cifar10", "format: cifar100")
        .replace("numClasses: 10", "numClasses: 100");
    let arguments = CommandLine::parse_from(["test", "ds_config.json", "--base", "job.yaml"]).arguments;
    let (yaml, _) = import(r#"{"train_batch_size": 4}"#, Some(&base), &arguments).expect("a manifest");
    let job: ViTTrainingJob = serde_saphyr::from_str(&yaml).expect("reads back");
    assert_eq!(job.metadata.name.as_deref(), Some("mine"));
    assert_eq!(
        (job.spec.model.num_classes, job.spec.training.micro_batch_size),
        (100, 4)
    );
    let broken = base.replace("epochs: 5", "epochs: 0");
    let error = import(r#"{"train_batch_size": 4}"#, Some(&broken), &arguments).expect_err("refused");
    assert!(error.to_string().contains("spec.training.epochs is 0"), "{error}");
}

#[test]
fn every_known_key_is_named_once() {
    for table in [keys::TOP, keys::ZERO, keys::OPTIMIZER, keys::OPTIMIZER_PARAMS] {
        let keys: Vec<_> = table.iter().flat_map(|(keys, _)| keys.split(' ')).collect();
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[index + 1..].contains(key) && !key.is_empty(), "{key}");
        }
    }
}

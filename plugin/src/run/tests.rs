use clap::Parser as _;
use crds::ViTTrainingJob;

use super::defaults::Defaulted;
use super::*;

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

const LEAST: &str = "--image vit-trainer:dev --model vit_tiny_patch16_224 --format cifar10 --data pvc:cifar10 --epochs 5 \
                     --micro-batch-size 64 --checkpoints pvc:checkpoints/team-a";

fn asked(line: &str) -> Result<Job, clap::Error> {
    let words = ["run", "cifar10"].into_iter().chain(line.split_whitespace());
    Ok(Line::try_parse_from(words)?.arguments.job)
}

fn made(more: &str) -> Result<Made, Error> {
    make(
        &asked(&format!("{LEAST} {more}")).expect("parses"),
        Some("research"),
    )
}

fn refused(more: &str) -> String {
    let error = made(more).expect_err("refused");
    assert_eq!(error.exit(), Exit::Usage, "{error}");
    error.to_string()
}

#[test]
fn a_manifest_holds_what_was_given_and_tells_its_defaults() {
    let made = made("--nodes 4 --gpus-per-node 2 --precision bf16").expect("valid");
    let text = explained(&made).expect("YAML");
    // The defaults of one section are enough.
    let shown = text.split_once("# data.").expect("more defaults").0;
    insta::assert_snapshot!(shown);
}

#[test]
fn what_is_printed_is_the_job_that_is_made() {
    let made = made("--min-nodes 1 --gpu NVIDIA-H200 --queue team-a --suspend").expect("valid");
    let read: ViTTrainingJob = serde_saphyr::from_str(&explained(&made).expect("YAML")).expect("a job");
    assert_eq!(read, made.job);
    assert_eq!(read.spec.placement.gpu.products, ["NVIDIA-H200"]);
    assert_eq!(read.spec.scheduling.queue_name.as_deref(), Some("team-a"));
    assert!(read.spec.suspend && read.spec.elastic.is_some());
}

#[test]
fn fields_without_a_flag_can_be_set() {
    let settings = r#"--set training.schedule.warmupEpochs=1 --set spec.workers.nodeSelector={"pool":"gpu"}"#;
    let spec = made(settings).expect("valid").job.spec;
    assert!((spec.training.schedule.warmup_epochs - 1.0).abs() < f64::EPSILON);
    assert_eq!(spec.workers.node_selector["pool"], "gpu");
}

#[test]
fn what_is_wrong_is_refused_by_its_name_before_it_is_sent() {
    assert!(refused("--set training.epoch=3").starts_with("spec.training.epoch: unknown field `epoch`"));
    assert!(refused("--set training.epochs=many").starts_with("spec.training.epochs: invalid type"));
    assert!(refused("--image-size 100").contains("spec.model.imageSize is 100: must be a multiple"));
    assert!(refused("--nodes 0").contains("spec.workers.nodes is 0"));
    assert!(refused("--set training.epochs.more=1").contains("a plain value has no field more"));
    let words = |line: &str| asked(line).expect_err("refused").to_string();
    assert!(words(&LEAST.replace("pvc:cifar10", "cifar10")).contains("must be pvc:CLAIM"));
    assert!(words(&LEAST.replace("--epochs 5", "")).contains("--epochs"));
    assert!(words(&LEAST.replace("--format cifar10", "--format cifar11")).contains("imageFolder"));
}

#[test]
fn classes_are_required_where_the_data_set_does_not_define_them() {
    let line = LEAST.replace("--format cifar10", "--format imageFolder");
    let error = make(&asked(&line).expect("parses"), None).expect_err("refused");
    let words = error.to_string();
    assert!(
        words.starts_with("--classes must be given for format imageFolder"),
        "{words}"
    );
    let with = asked(&format!("{line} --classes 1000")).expect("parses");
    assert_eq!(make(&with, None).expect("valid").job.spec.model.num_classes, 1000);
}

#[test]
fn defaults_are_those_that_the_job_gets() {
    let made = made("").expect("valid");
    let defaults = defaults::of(&made.given);
    assert!(defaults.len() > 30, "{defaults:?}");
    for Defaulted {
        field,
        value,
        meaning,
    } in defaults
    {
        let mut given = made.given.clone();
        let place = field
            .split('.')
            .fold(&mut given["spec"], |place, name| &mut place[name]);
        *place = serde_json::from_str(&value).expect("JSON");
        let job: ViTTrainingJob = serde_json::from_value(given).expect("a job");
        assert_eq!(job.spec, made.job.spec, "{field}");
        assert!(!meaning.is_empty(), "{field}");
    }
}

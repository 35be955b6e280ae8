//! Checkpoints from their snapshot to their values in another run's tensors.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use contract::{ExitCode, JobIdentity, ModelConfig, Pooling, Resume};
use fs_err as fs;
use tch::{Device, Kind};

use super::*;
use crate::data::DataIdentity;
use crate::error::Failure as _;
use crate::model::fixtures::small;

fn model() -> ModelConfig {
    ModelConfig {
        depth: 1,
        heads: 2,
        ..small(Pooling::Average)
    }
}

fn job(namespace: &str, uid: Option<&str>) -> JobIdentity {
    JobIdentity {
        namespace: namespace.into(),
        name: "digits".into(),
        uid: uid.map(Into::into),
    }
}

fn state(step: u64) -> State {
    State::new(
        job("research", Some("first")),
        Position {
            epoch: 1,
            images_into_epoch: 64,
            step,
            updates: step,
            correct: 5,
            counted: 9,
            loss_scale: None,
        },
        model(),
        Validation {
            accuracy: Some(0.5),
            mean_average_precision: Some(0.25),
        },
        DataIdentity {
            images: 640,
            fingerprint: 1,
            seed: 0,
        },
    )
}

fn run<'a>(job: &'a JobIdentity, model: &'a ModelConfig, resume: Resume) -> Run<'a> {
    Run { job, model, resume }
}

fn named(value: f64) -> Named {
    vec![(
        "a".into(),
        Tensor::full([2, 3], value, (Kind::Float, Device::Cpu)),
    )]
}

/// The parts of every run.
fn expected() -> [Expected; 2] {
    [Part::Model, Part::Optimizer].map(|part| Expected {
        part,
        tensors: vec![("a".into(), vec![2, 3])],
    })
}

fn average() -> Expected {
    Expected {
        part: Part::Average,
        ..expected()[0].clone()
    }
}

/// A value from each loaded part.
fn values(loaded: &Loaded) -> Vec<f64> {
    let parts = loaded.values.iter();
    parts
        .map(|(_, tensors)| tensors[0].read().expect("reads").double_value(&[1, 2]))
        .collect()
}

fn snapshot_of(step: u64, weight: f64, moment: f64) -> Snapshot {
    let files = vec![(Part::Model, named(weight)), (Part::Optimizer, named(moment))];
    Snapshot::new(state(step), files, Duration::ZERO)
}

pub(super) fn snapshot(step: u64) -> Snapshot {
    snapshot_of(step, step as f64, step as f64 + 0.5)
}

/// The folder as an attempt of one job opens it.
pub(super) fn open(path: &Path, keep: u32, attempt: u32) -> CheckpointFolder {
    let (job, model) = (job("research", Some("first")), model());
    CheckpointFolder::open(path, keep, run(&job, &model, Resume::Auto), attempt).expect("opens")
}

/// A new folder that keeps `keep` checkpoints.
fn folder(keep: u32) -> (tempfile::TempDir, CheckpointFolder) {
    let place = tempfile::tempdir().expect("a folder");
    let folder = open(place.path(), keep, 1);
    (place, folder)
}

/// The contents of a checkpoint folder, except its owner's name.
fn contents(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("lists");
    let names = entries.map(|entry| {
        entry
            .expect("an entry")
            .file_name()
            .to_string_lossy()
            .into_owned()
    });
    names.filter(|name| name != "owner.json").collect()
}

fn save(folder: &CheckpointFolder, step: u64) -> PathBuf {
    folder.save(&snapshot(step)).expect("saves").0
}

pub(super) fn load_into(folder: &CheckpointFolder) -> Result<Option<(u64, f64, f64)>, CheckpointError> {
    let (job, model) = (job("research", Some("second")), model());
    let run = run(&job, &model, Resume::Auto);
    let found = folder.load_newest(run, &expected(), &mut || {})?;
    Ok(found.map(|found| {
        let values = values(&found);
        (found.state.position.step, values[0], values[1])
    }))
}

#[test]
fn the_newest_is_loaded_and_only_so_many_are_kept() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = open(&place.path().join("new"), 2, 1);
    assert!(load_into(&folder).expect("reads").is_none());
    for step in [5, 10, 100] {
        save(&folder, step);
    }
    assert_eq!(folder.steps().expect("lists"), [10, 100]);
    assert_eq!(load_into(&folder).expect("reads"), Some((100, 100.0, 100.5)));
}

#[test]
fn a_checkpoint_is_good_though_an_old_one_cannot_be_removed() {
    let (place, folder) = folder(1);
    save(&folder, 5);
    // Occupies the name to which the old checkpoint is renamed before its removal.
    fs::write(place.path().join(".partial-removed-00000005"), "").expect("writes");
    save(&folder, 10);
    assert_eq!(load_into(&folder).expect("reads"), Some((10, 10.0, 10.5)));
    assert_eq!(folder.steps().expect("lists"), [5, 10]);
}

#[test]
fn an_attempt_that_was_replaced_changes_nothing_of_its_successors() {
    let place = tempfile::tempdir().expect("a folder");
    let cut_off = open(place.path(), 1, 1);
    save(&cut_off, 5);
    let successor = open(place.path(), 1, 2);
    save(&successor, 8);
    let half_written = place.path().join(".partial-step-00000009");
    fs::create_dir(&half_written).expect("makes");
    let error = cut_off.save(&snapshot(9)).expect_err("is not its own any more");
    assert!(
        error.to_string().contains("attempt 2 of job research/digits"),
        "{error}"
    );
    assert!(half_written.exists(), "its successor is writing that");
    assert_eq!(successor.steps().expect("lists"), [8]);
    assert_eq!(load_into(&successor).expect("reads"), Some((8, 8.0, 8.5)));
}

const FILES: [&str; 4] = [
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
    "checksums.json",
];

#[test]
fn a_checkpoint_with_a_changed_bit_or_a_missing_end_is_passed_over() {
    let damages: [fn(&mut Vec<u8>); 3] = [
        |content| *content.last_mut().expect("a byte") ^= 1,
        |content| content.truncate(content.len() - 1),
        Vec::clear,
    ];
    for file in FILES {
        for damage in damages {
            let (_place, folder) = folder(3);
            save(&folder, 1);
            let path = save(&folder, 2).join(file);
            let mut content = fs::read(&path).expect("reads");
            damage(&mut content);
            fs::write(&path, content).expect("writes");
            assert_eq!(
                load_into(&folder).expect("falls back"),
                Some((1, 1.0, 1.5)),
                "{file}"
            );
            fs::remove_file(&path).expect("removes");
            assert_eq!(
                load_into(&folder).expect("falls back"),
                Some((1, 1.0, 1.5)),
                "{file}"
            );
        }
    }
}

#[test]
fn no_readable_checkpoint_left_is_an_error() {
    let (_place, folder) = folder(3);
    for step in [1, 2] {
        fs::write(save(&folder, step).join("state.json"), "{}").expect("writes");
    }
    let message = load_into(&folder).expect_err("nothing left").to_string();
    assert!(
        message.starts_with("none of the 2 checkpoints in ")
            && message.contains(
                "step-00000002/state.json is not a checkpoint file that this trainer can read: it has 2 bytes"
            ),
        "{message}"
    );
}

#[test]
fn another_model_is_told_by_its_tensors() {
    let (_place, folder) = folder(3);
    save(&folder, 1);
    let job = job("research", Some("first"));
    let [weights, moments] = expected();
    let mut deeper = moments.clone();
    deeper.tensors.push(("b".into(), vec![7]));
    let heads = ModelConfig { heads: 4, ..model() };
    let depth = ModelConfig { depth: 2, ..model() };
    let no_b = "it has no b [7]; use another checkpoint folder, or the model and the optimizer";
    for (model, moments, difference) in [
        (
            model(),
            &deeper,
            format!("optimizer.safetensors does not fit this run: {no_b}"),
        ),
        (
            depth,
            &deeper,
            format!(
                "optimizer.safetensors does not fit this run: its model's depth is 1 instead of 2; {no_b}"
            ),
        ),
        (
            heads,
            &moments,
            "state.json does not fit this run: its model's heads is 2 instead of 4; ".into(),
        ),
    ] {
        let run = run(&job, &model, Resume::Auto);
        let error = folder
            .load_newest(run, &[weights.clone(), moments.clone()], &mut || {})
            .expect_err("refused");
        assert!(error.is_refusal());
        assert!(error.to_string().contains(&difference), "{error}");
    }
}

#[test]
fn leftovers_of_an_interrupted_write_are_removed_at_the_start() {
    let (place, folder) = folder(3);
    let left = save(&folder, 7);
    fs::rename(&left, place.path().join(".partial-step-00000007")).expect("renames");
    let folder = open(place.path(), 3, 1);
    assert!(load_into(&folder).expect("reads").is_none());
    assert_eq!(contents(place.path()), [""; 0]);
}

#[test]
fn saving_a_step_again_loses_nothing_at_whatever_moment_it_is_killed() {
    const OLD: f64 = 7.0;
    const NEW: f64 = 8.0;
    let place = tempfile::tempdir().expect("a folder");
    let target = "step-00000007";
    let partial = ".partial-step-00000007";
    let complete = ".complete-step-00000007";
    let doomed = ".partial-removed-00000007";
    // The folder's contents at a kill, in the order of a save.
    let moments: [(&[(&str, f64)], f64); 5] = [
        (&[(target, OLD), (partial, NEW)], OLD),
        (&[(target, OLD), (complete, NEW)], NEW),
        (&[(doomed, OLD), (complete, NEW)], NEW),
        (&[(complete, NEW)], NEW),
        (&[(target, NEW)], NEW),
    ];
    for (number, (left, expected)) in moments.into_iter().enumerate() {
        let path = place.path().join(number.to_string());
        for (name, value) in left {
            let folder = open(&place.path().join("source"), 1, 1);
            let saved = folder
                .save(&snapshot_of(7, *value, *value))
                .expect("saves, over the one before too")
                .0;
            fs::create_dir_all(&path).expect("makes");
            fs::rename(saved, path.join(name)).expect("renames");
            if [partial, doomed].contains(name) {
                fs::remove_file(path.join(name).join("model.safetensors")).expect("removes");
            }
        }
        let folder = open(&path, 1, 1);
        assert_eq!(
            load_into(&folder).expect("reads"),
            Some((7, expected, expected)),
            "{left:?}"
        );
        assert_eq!(contents(&path), [target], "{left:?}");
    }
}

#[test]
fn a_step_saved_again_is_the_newer_one() {
    let (place, folder) = folder(1);
    save(&folder, 7);
    folder.save(&snapshot_of(7, 9.0, 9.5)).expect("saves again");
    assert_eq!(load_into(&folder).expect("reads"), Some((7, 9.0, 9.5)));
    assert_eq!(contents(place.path()), ["step-00000007"]);
}

#[test]
fn a_failed_write_names_the_path_and_leaves_the_earlier_checkpoint() {
    let (place, folder) = folder(3);
    save(&folder, 1);
    // A file where the folder should go fails for root too, unlike a permission.
    fs::write(place.path().join(".partial-step-00000002"), "").expect("writes");
    let message = folder.save(&snapshot(2)).expect_err("fails").to_string();
    assert!(message.contains(".partial-step-00000002"), "{message}");
    assert!(
        !message.contains("bytes"),
        "space is not what it lacks: {message}"
    );
    assert_eq!(load_into(&folder).expect("reads"), Some((1, 1.0, 1.5)));
}

/// The result of continuing from a checkpoint of job `research/digits` with uid `first`.
fn continued(job: JobIdentity, resume: Resume) -> Result<u64, String> {
    let (_place, folder) = folder(3);
    save(&folder, 3);
    let model = model();
    let run = run(&job, &model, resume);
    let found = folder.load_newest(run, &expected(), &mut || {});
    found
        .map(|found| found.expect("a checkpoint").state.position.step)
        .map_err(|error| error.to_string())
}

#[test]
fn never_resuming_goes_by_the_jobs_uid() {
    assert_eq!(continued(job("research", Some("first")), Resume::Never), Ok(3));
    for other in [Some("second"), None] {
        let message = continued(job("research", other), Resume::Never).expect_err("refused");
        for part in [
            "checkpoint.resume is Never",
            "step-00000003",
            "job research/digits (uid first)",
        ] {
            assert!(message.contains(part), "no {part} in: {message}");
        }
        assert_eq!(continued(job("research", other), Resume::Auto), Ok(3));
    }
    let (_place, folder) = folder(3);
    let (job, model) = (job("research", None), model());
    let run = run(&job, &model, Resume::Never);
    let found = folder.load_newest(run, &expected(), &mut || {}).expect("empty");
    assert!(found.is_none());
}

#[test]
fn a_checkpoint_of_another_namespace_is_refused_and_a_local_one_is_not() {
    for resume in [Resume::Auto, Resume::Never] {
        let message = continued(job("production", Some("second")), resume).expect_err("refused");
        assert!(
            message.contains("of job research/digits (uid first), but this is a job of namespace production"),
            "{message}"
        );
    }
    assert_eq!(continued(job("local", None), Resume::Auto), Ok(3));
}

#[test]
fn a_job_that_is_refused_changes_nothing() {
    let (place, folder) = folder(3);
    save(&folder, 3);
    fs::create_dir(place.path().join(".partial-step-00000004")).expect("makes");
    let open = |job: &JobIdentity, resume| {
        let refused = CheckpointFolder::open(place.path(), 3, run(job, &model(), resume), 1);
        refused.expect_err("refused").to_string()
    };
    for (job, resume, told) in [
        (
            job("production", Some("second")),
            Resume::Auto,
            "namespace production",
        ),
        (job("research", Some("second")), Resume::Never, "resume is Never"),
    ] {
        let message = open(&job, resume);
        assert!(message.contains(told), "{message}");
        let mut left = contents(place.path());
        left.sort();
        assert_eq!(left, [".partial-step-00000004", "step-00000003"]);
        save(&folder, 3);
    }
    // Also before the owner has saved anything.
    fs::remove_dir_all(place.path().join("step-00000003")).expect("removes");
    let message = open(&job("production", Some("second")), Resume::Auto);
    assert!(
        message.contains("the folder belongs to attempt 1 of job research/digits (uid first)"),
        "{message}"
    );
    save(&folder, 5);
}

#[test]
fn an_average_that_was_never_saved_is_no_damage_and_one_that_is_lost_is() {
    let (_place, folder) = folder(3);
    save(&folder, 1);
    let without = expected();
    let all = [without[0].clone(), without[1].clone(), average()];
    let load = |parts: &[Expected]| {
        let (job, model) = (job("research", Some("first")), model());
        let run = run(&job, &model, Resume::Auto);
        let loaded = folder
            .load_newest(run, parts, &mut || {})
            .expect("loads")
            .expect("a checkpoint");
        (loaded.state.position.step, loaded.average, values(&loaded))
    };
    assert_eq!(load(&all), (1, SavedAverage::Missing, vec![1.0, 1.5]));

    let files = [Part::Model, Part::Optimizer, Part::Average].map(|part| (part, named(7.0)));
    let snapshot = Snapshot::new(state(2), files.into(), Duration::ZERO);
    let path = folder.save(&snapshot).expect("saves").0;
    assert_eq!(load(&without), (2, SavedAverage::Unused, vec![7.0; 2]));
    assert_eq!(load(&all), (2, SavedAverage::Fits, vec![7.0; 3]));

    fs::remove_file(path.join("ema.safetensors")).expect("removes");
    assert_eq!(load(&all).0, 1, "the one before is taken");
}

/// A rank's share of a checkpoint with the weights `a` of rank 0 and `b` of rank 1.
fn share_of(rank: u32, step: u64) -> Snapshot {
    let tensor = |name: &str, value| (name.into(), Tensor::full([2], value, (Kind::Float, Device::Cpu)));
    let files = match rank {
        0 => vec![(Part::Model, vec![tensor("a", 1.0)])],
        _ => vec![
            (Part::Model, vec![tensor("b", 2.0)]),
            (Part::Optimizer, vec![tensor("m", 3.0)]),
        ],
    };
    Snapshot::new(state(step), files, Duration::ZERO)
}

fn shared_parts() -> [Expected; 2] {
    let part = |part, names: &[&str]| Expected {
        part,
        tensors: names.iter().map(|name| ((*name).into(), vec![2])).collect(),
    };
    [part(Part::Model, &["a", "b"]), part(Part::Optimizer, &["m"])]
}

/// The folder of two writing ranks, for each of them; rank 1 is lost if `lost` is set.
fn shared(path: &Path, lost: bool) -> [CheckpointFolder; 2] {
    let lost = Lost(Arc::new(move || lost.then_some(1)));
    let first = open(path, 9, 1).shared_by(2, lost);
    let member = Member { rank: 1, size: 2 };
    let other = CheckpointFolder::join(path, first.owner().clone(), member).expect("joins");
    [first, other]
}

#[test]
fn ranks_write_a_checkpoint_together_and_one_rank_reads_it() {
    let place = tempfile::tempdir().expect("a folder");
    let [first, other] = shared(place.path(), false);
    std::thread::scope(|scope| {
        let rank = scope.spawn(|| other.save(&share_of(1, 7)));
        first.save(&share_of(0, 7)).expect("writes");
        rank.join().expect("no panic").expect("writes");
    });
    let mut names = contents(&place.path().join("step-00000007"));
    names.sort();
    assert_eq!(
        names,
        [
            "checksums.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "optimizer-00002-of-00002.safetensors",
            "optimizer.safetensors.index.json",
            "state.json",
        ]
    );
    let job = job("research", Some("first"));
    let model = model();
    let alone = open(place.path(), 9, 2);
    let load = || alone.load_newest(run(&job, &model, Resume::Auto), &shared_parts(), &mut || {});
    let loaded = load().expect("reads").expect("there");
    let values: Vec<Vec<f64>> = loaded
        .values
        .iter()
        .map(|(_, tensors)| {
            let values = tensors.iter().map(|tensor| tensor.read().expect("reads"));
            values.map(|value| value.double_value(&[1])).collect()
        })
        .collect();
    assert_eq!(values, [vec![1.0, 2.0], vec![3.0]]);
    let index = fs::read(place.path().join("step-00000007/model.safetensors.index.json")).expect("an index");
    let index: serde_json::Value = serde_json::from_slice(&index).expect("JSON");
    assert_eq!(
        index,
        serde_json::json!({
            "metadata": {"total_size": 16},
            "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
        })
    );

    // One file of several is damaged.
    fs::write(
        place
            .path()
            .join("step-00000007/model-00002-of-00002.safetensors"),
        "short",
    )
    .expect("writes");
    let message = load().expect_err("damaged").to_string();
    assert!(message.contains("model-00002-of-00002.safetensors"), "{message}");
}

#[test]
fn a_checkpoint_of_which_a_share_is_missing_is_not_published() {
    let place = tempfile::tempdir().expect("a folder");
    let [first, other] = shared(place.path(), true);
    let error = first.save(&share_of(0, 7)).expect_err("rank 1 is lost");
    let message = error.to_string();
    assert!(
        message.contains("rank 1 was lost before its share of the checkpoint of step 7 was written"),
        "{message}"
    );
    assert_eq!(error.exit_code(), ExitCode::PeerLost, "storage is not to blame");
    assert_eq!(contents(place.path()), [] as [&str; 0], "the space is free");

    // It wrote its share before it was lost.
    other.save(&share_of(1, 8)).expect("writes");
    first.save(&share_of(0, 8)).expect("is complete");
    assert_eq!(contents(place.path()), ["step-00000008"]);
}

#[test]
fn a_share_that_cannot_be_written_ends_the_wait_for_it() {
    let place = tempfile::tempdir().expect("a folder");
    let [first, other] = shared(place.path(), false);
    let partial = place
        .path()
        .join(format!(".partial-{}-step-00000009", first.owner().tag()));
    fs::create_dir_all(partial.join("model-00002-of-00002.safetensors")).expect("a folder in the way");
    other.save(&share_of(1, 9)).expect_err("cannot be written");
    let message = first
        .save(&share_of(0, 9))
        .expect_err("rank 1 failed")
        .to_string();
    assert!(
        message.contains("rank 1: ") && message.contains("model-00002-of-00002.safetensors"),
        "{message}"
    );
}

#[test]
fn a_rank_of_an_earlier_attempt_writes_nothing_into_a_checkpoint_of_its_successor() {
    let place = tempfile::tempdir().expect("a folder");
    let [_, late] = shared(place.path(), true);
    let first = open(place.path(), 9, 2);
    let first = first.shared_by(2, Lost(Arc::new(|| Some(1))));
    let message = late
        .save(&share_of(1, 7))
        .expect_err("its time is over")
        .to_string();
    assert!(message.contains("now belongs to another run"), "{message}");
    // As if it had checked earlier and wrote only now.
    let own = place
        .path()
        .join(format!(".partial-{}-step-00000007", late.owner().tag()));
    let member = Member { rank: 1, size: 2 };
    fs::create_dir_all(&own).expect("makes");
    super::shares::tell(&own, member, &Ok(super::shares::Share::default())).expect("writes");
    let message = first
        .save(&share_of(0, 7))
        .expect_err("its own rank 1 is lost")
        .to_string();
    assert!(message.contains("rank 1 was lost"), "{message}");
}

#[test]
fn a_rank_that_does_not_see_the_folder_of_the_first_says_so_at_the_start() {
    let (place, elsewhere) = (
        tempfile::tempdir().expect("a folder"),
        tempfile::tempdir().expect("another"),
    );
    let first = open(place.path(), 9, 1);
    let member = Member { rank: 1, size: 2 };
    let error =
        CheckpointFolder::join(elsewhere.path(), first.owner().clone(), member).expect_err("not shared");
    assert!(error.is_refusal(), "{error}");
    assert!(
        error.to_string().contains("set checkpoint.writers to FirstRank"),
        "{error}"
    );
}

//! Data sets in files, from the files to the weights.

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::agent::{free_port, run_config};
use crate::common::{Job, TRAINER, assert_same_files, distance, jpeg};
use crate::rank::Rank;
use image::{ImageFormat, Rgb, RgbImage};
use serde_json::{Value, json};

const CLASSES: u8 = 5;

/// A picture from which classes and images can be told apart.
fn picture(class: u8, image: u8) -> RgbImage {
    RgbImage::from_fn(40 + u32::from(image % 7), 36, |x, y| {
        Rgb([class * 50, (x * 5) as u8 ^ image, (y * 6) as u8])
    })
}

fn png(class: u8, image: u8) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    picture(class, image)
        .write_to(&mut bytes, ImageFormat::Png)
        .expect("encodes");
    bytes.into_inner()
}

/// `images` to train on per class, in JPEG and PNG files, and two to evaluate.
fn image_folder(folder: &Path, images: u8) {
    for class in 0..CLASSES {
        for (split, count) in [("train", images), ("val", 2)] {
            let folder = folder.join(split).join(format!("class-{class}"));
            fs_err::create_dir_all(&folder).expect("a folder");
            for image in 0..count {
                let (bytes, extension) = if image % 2 == 0 {
                    (jpeg(&picture(class, image)), "jpg")
                } else {
                    (png(class, image), "png")
                };
                let path = folder.join(format!("{image:03}.{extension}"));
                fs_err::write(path, bytes).expect("writes");
            }
        }
    }
}

/// Shards of 20 images.
pub(crate) fn web_dataset(folder: &Path, shards: u8) {
    for shard in 0..shards {
        let path = folder.join(format!("train-{shard:03}.tar"));
        let mut builder = tar::Builder::new(fs_err::File::create(path).expect("creates"));
        for image in 0..20 {
            let class = image % CLASSES;
            for (extension, bytes) in [
                ("png", png(class, shard.wrapping_mul(20).wrapping_add(image))),
                ("cls", class.to_string().into_bytes()),
            ] {
                let mut header = tar::Header::new_gnu();
                header.set_size(bytes.len() as u64);
                header.set_mode(0o644);
                builder
                    .append_data(&mut header, format!("{image:03}.{extension}"), bytes.as_slice())
                    .expect("appends");
            }
        }
        builder.finish().expect("finishes");
    }
}

/// Files from `tests/peers/parquet_files.py`. Those in "hub/data" are by Hugging Face's `datasets`:
/// 90 images to train on, 9 to evaluate.
pub(crate) fn parquet(goldens: &str, folder: &Path) {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/peers/goldens/parquet");
    for file in fs_err::read_dir(all.join(goldens)).expect("a folder") {
        let file = file.expect("a file");
        fs_err::copy(file.path(), folder.join(file.file_name())).expect("copies");
    }
}

const AUGMENTATION: &str = "augmentation: {randomResizedCrop: {}, horizontalFlip: 0.5, threeAugment: true, \
    colorJitter: 0.3, mixup: 0.8, cutmix: 1.0, randomErasing: 0.25, repeatedAugmentation: 2}";

#[test]
fn neither_ranks_nor_threads_change_what_is_learned_from_files() {
    let train = |nodes: u32, threads: u32| {
        let mut job = Job::new(5);
        image_folder(&job.data(), 8);
        // Classes of different size, which have different weights.
        for image in 0..8 {
            let path = job.data().join(format!("train/class-0/more-{image}.png"));
            fs_err::write(path, png(0, 50 + image)).expect("writes");
        }
        job.data_fields = format!("format: imageFolder, decodeThreads: {threads}, {AUGMENTATION}");
        job.training = "classWeights: {balanced: true}";
        (job.nodes, job.micro_batch) = (nodes, 8 / nodes);
        job.run_well();
        let evaluation = job.log("evaluation").last().cloned().expect("an evaluation");
        assert_eq!(evaluation["images"], u64::from(CLASSES) * 2);
        // 48 images are 6 steps of 8 per epoch.
        assert_eq!(job.log("train").last().expect("a line")["step"], 12);
        job.weights()
    };
    let distance = distance(&train(1, 1), &train(2, 3));
    assert!(distance < 1e-4, "weights differ by {distance}");
}

#[test]
fn a_run_over_shards_that_was_stopped_continues_bit_by_bit() {
    let job = || {
        let mut job = Job::new(5);
        web_dataset(&job.data(), 10);
        job.data_fields =
            format!("format: webDataset, trainShards: 'train-{{000..009}}.tar', {AUGMENTATION}");
        job.epochs = 12;
        job
    };
    let whole = job();
    whole.run_well();
    let parts = job();
    parts.stop_and_continue();
    let files = ["model.safetensors", "optimizer.safetensors"];
    assert_same_files(&whole, &parts, &files, "a run that was stopped");
}

#[test]
fn an_unreadable_image_is_named_and_ends_training_where_it_is_not_allowed() {
    let mut job = Job::new(5);
    image_folder(&job.data(), 8);
    let broken = job.data().join("train/class-3/004.jpg");
    let whole = fs_err::read(&broken).expect("reads");
    fs_err::write(&broken, &whole[..whole.len() - 10]).expect("writes");
    (job.nodes, job.micro_batch) = (1, 8);
    job.data_fields = "format: imageFolder".into();
    job.ends(
        3,
        &[
            "class-3/004.jpg cannot be read: the JPEG file is truncated after",
            "data.maxCorruptFraction of 0 allows 0",
        ],
    );

    job.data_fields = "format: imageFolder, maxCorruptFraction: 0.05".into();
    job.ends(0, &["class-3/004.jpg cannot be read and is left out"]);
}

#[test]
fn unreadable_images_are_counted_over_all_ranks() {
    let mut job = Job::new(5);
    image_folder(&job.data(), 8);
    job.data_fields = "format: imageFolder, maxCorruptFraction: 0.05".into();
    let damage = |file: &str| fs_err::write(job.data().join(file), "no image").expect("writes");
    damage("train/class-0/000.jpg");
    damage("train/class-1/001.png");
    // 2 of 40 are allowed, whichever rank reads them.
    job.run_well();

    fs_err::remove_dir_all(job.runs()).expect("removes");
    damage("train/class-2/002.jpg");
    let parts = [
        "3 of 40 images cannot be read, over all ranks; data.maxCorruptFraction of 0.05 allows 2",
        "class-0/000.jpg cannot be read and is left out: it is not a JPEG",
        "class-1/001.png cannot be read and is left out: it is not a JPEG",
        "class-2/002.jpg cannot be read and is left out: it is not a JPEG",
    ];
    job.ends(3, &parts);
}

/// Two ranks with separate folders, which a test may damage: their exit codes and messages.
fn ranks_with(change: impl Fn(&mut Value), damage: impl Fn([&Path; 2])) -> [(Option<i32>, String); 2] {
    let folders = [0, 1].map(|_| tempfile::tempdir().expect("a folder"));
    for folder in &folders {
        image_folder(&folder.path().join("data"), 8);
    }
    damage(folders.each_ref().map(tempfile::TempDir::path));
    let port = free_port();
    let ranks = folders.each_ref().map(|folder| {
        let folder = folder.path();
        let mut config = run_config(folder, 2);
        config["model"]["channels"] = json!(3);
        config["model"]["numClasses"] = json!(CLASSES);
        config["data"]["format"] = json!("imageFolder");
        config["data"]["path"] = json!(folder.join("data"));
        config["data"]["maxCorruptFraction"] = json!(0.1);
        change(&mut config);
        fs_err::write(folder.join("run.json"), config.to_string()).expect("writes");
        let rank = u32::from(folder == folders[1].path());
        Rank::start(folder, 1, rank, 2, port)
    });
    let readers = ranks.map(|mut rank| {
        std::thread::spawn(move || {
            let mut message = String::new();
            while let Some(report) = rank.report() {
                if report["kind"] == "failed" {
                    report["message"]
                        .as_str()
                        .unwrap_or_default()
                        .clone_into(&mut message);
                }
            }
            (rank.child.wait().expect("ends").code(), message)
        })
    });
    readers.map(|reader| reader.join().expect("a rank that ends"))
}

#[test]
fn ranks_with_other_data_than_rank_0_do_not_train() {
    let ends = ranks_with(
        |_| {},
        |[_, second]| fs_err::remove_file(second.join("data/train/class-2/003.png")).expect("removes"),
    );
    let message = "rank 1 has different data from rank 0 (39 training images, rank 0 has 40)";
    for (code, found) in ends {
        assert_eq!(code, Some(79), "{found}");
        assert!(found.starts_with(message), "{found}");
    }
}

#[test]
fn ranks_that_compute_on_the_same_images_do_not_go_on_with_different_ones() {
    // Of all images, so that the first batch has some; the names do not change.
    let damage = |split: &str, count: u8| {
        let split = split.to_owned();
        move |[_, second]: [&Path; 2]| {
            for class in 0..count {
                let file = second.join(format!("data/{split}/class-{class}/000.jpg"));
                fs_err::write(file, "no image").expect("writes");
            }
        }
    };
    let together = |config: &mut Value| config["parallelism"]["sequence"] = json!(2);
    for split in ["train", "val"] {
        for (code, message) in ranks_with(together, damage(split, if split == "train" { 4 } else { 1 })) {
            assert_eq!(code, Some(79), "{split}: {message}");
            assert!(
                message.starts_with("ranks that compute on the same images have read different ones"),
                "{split}: {message}"
            );
        }
    }
    // Ranks with different images may each leave some out.
    for (code, message) in ranks_with(|_| {}, damage("train", 1)) {
        assert_eq!(code, Some(0), "{message}");
    }
}

#[test]
fn continuing_with_other_data_is_told() {
    let mut job = Job::new(5);
    image_folder(&job.data(), 8);
    job.data_fields = "format: imageFolder".into();
    job.run_well();
    let state = fs_err::read_to_string(job.newest().join("state.json")).expect("a state");
    let state: Value = serde_json::from_str(&state).expect("JSON");
    assert_eq!(
        (&state["data"]["images"], &state["data"]["seed"]),
        (&json!(40), &json!(0))
    );

    job.epochs += 1;
    let printed = job.ends(0, &[]);
    assert!(!printed.contains("other data"), "{printed}");
    fs_err::remove_file(job.data().join("train/class-2/003.png")).expect("removes");
    job.epochs += 1;
    job.ends(
        0,
        &["the checkpoint was made with different data: the number of training images was 40 and is 39"],
    );
    job.epochs += 1;
    job.training = "seed: 3";
    job.ends(
        0,
        &["the checkpoint was made with different data: training.seed was 0 and is 3"],
    );
}

#[test]
fn inspecting_tells_what_is_there_and_what_is_broken() {
    let folder = tempfile::tempdir().expect("a folder");
    image_folder(folder.path(), 4);
    let inspect = |more: &[&str]| {
        let output = Command::new(TRAINER)
            .args(["data", "inspect", "--format", "imageFolder", "--path"])
            .arg(folder.path())
            .args(more)
            .output()
            .expect("runs");
        let text = String::from_utf8(output.stdout).expect("text");
        (output.status.code(), text)
    };
    let (code, text) = inspect(&[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("train: 20 images of 5 classes"), "{text}");
    assert!(text.contains("0 class-0: 4, 1 class-1: 4"), "{text}");

    fs_err::write(folder.path().join("val/class-0/000.jpg"), "no image").expect("writes");
    let (code, text) = inspect(&["--json"]);
    assert_eq!(code, Some(3), "{text}");
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["train"]["images"], 20);
    assert_eq!(report["train"]["height"]["median"], 36);
    assert_eq!(report["validation"]["unreadableImages"], 1);
    assert_eq!(
        report["validation"]["unreadable"][0]["reason"],
        "it is not a JPEG, PNG, WebP or TIFF file"
    );

    let output = Command::new(TRAINER)
        .args(["data", "inspect", "--format", "jpeg", "--path", "/nowhere"])
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(2));
    let output = Command::new(TRAINER)
        .args(["data", "inspect", "--format", "numpy", "--path", "/nowhere"])
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(3));
}

/// Builds a library that makes storage fail.
fn failing_storage(folder: &Path) -> PathBuf {
    let library = folder.join("libfailing_storage.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/failing_storage.c");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(source)
        .status();
    assert!(status.expect("starts").success());
    library
}

#[test]
fn storage_that_fails_for_a_moment_on_one_rank_changes_nothing() {
    let place = tempfile::tempdir().expect("a folder");
    let library = failing_storage(place.path());
    let failing = |reads: &str| {
        let mut command = Command::new(TRAINER);
        command.env("LD_PRELOAD", &library).envs([
            ("FAILING_RANK", "1"),
            ("FAILING_PATH", "/data/train"),
            ("FAILING_READS", reads),
        ]);
        command
    };
    for (format, parallelism) in [
        ("imageFolder", "{}"),
        // Both ranks compute on the same images.
        ("imageFolder", "{sequence: 2, acrossNodes: true}"),
        ("webDataset, trainShards: 'train-{000..001}.tar'", "{}"),
        ("parquet", "{}"),
    ] {
        let job = || {
            let mut job = Job::new(5);
            image_folder(&job.data(), 8);
            web_dataset(&job.data(), 2);
            parquet("hub/data", &job.data());
            job.data_fields = format!("format: {format}, decodeThreads: 2, maxCorruptFraction: 0.5");
            (job.epochs, job.parallelism) = (1, parallelism);
            job
        };
        let (sound, failed) = (job(), job());
        sound.run_well();
        let printed = failed
            .start_through(failing("6"))
            .ends(0, &["the storage failed"]);
        assert!(!printed.contains("is left out"), "{printed}");
        assert_same_files(&sound, &failed, &["model.safetensors"], format);

        let mut given_up = job();
        given_up.data_fields += ", retrySeconds: 0";
        given_up
            .start_through(failing("1000000"))
            .ends(79, &["Input/output error (os error 5)"]);
    }
}

#[test]
fn what_would_end_a_run_is_found_before_it() {
    let mut job = Job::new(5);
    web_dataset(&job.data(), 1);
    job.data_fields = "format: webDataset".into();
    (job.nodes, job.epochs) = (1, 1);
    let label = |image: usize, text: &str| {
        let mut shard = tar::Builder::new(Vec::new());
        for number in 0..40 {
            let class = if number == image { text } else { "1" };
            for (extension, bytes) in [("png", png(1, number as u8)), ("cls", class.as_bytes().to_vec())] {
                let mut header = tar::Header::new_gnu();
                header.set_size(bytes.len() as u64);
                header.set_mode(0o644);
                shard
                    .append_data(&mut header, format!("{number:03}.{extension}"), bytes.as_slice())
                    .expect("appends");
            }
        }
        let bytes = shard.into_inner().expect("a tar file");
        fs_err::write(job.data().join("train-000.tar"), bytes).expect("writes");
    };
    let command = |words: &[&str]| {
        let mut command = Command::new(TRAINER);
        let output = command
            .args(words)
            .arg("-f")
            .arg(job.write_manifest())
            .arg("--data")
            .arg(job.data())
            .output()
            .expect("starts");
        let printed = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&printed).into_owned(),
        )
    };
    // Image 37 is not among those whose pixels are checked.
    for (image, text, told) in [
        (37, "cat", "its .cls is \"cat\", not a class number"),
        (
            37,
            "10",
            "has label 10, but model.numClasses is 10 (labels 0 to 9)",
        ),
    ] {
        label(image, text);
        for words in [&["data", "inspect", "--sample", "2"][..], &["preflight"]] {
            let (code, printed) = command(words);
            assert_eq!(code, Some(3), "{words:?}: {printed}");
            assert!(printed.contains(told), "{words:?}: {printed}");
        }
        job.ends(3, &[told]);
    }
    // Some images' pixels are checked, too.
    label(0, "1");
    let shard = job.data().join("train-000.tar");
    let mut bytes = fs_err::read(&shard).expect("reads");
    let places: Vec<usize> = bytes
        .windows(4)
        .enumerate()
        .filter(|(_, word)| *word == b"\x89PNG")
        .map(|(place, _)| place)
        .collect();
    for place in places {
        bytes[place] = b'?';
    }
    fs_err::write(&shard, bytes).expect("writes");
    let (code, printed) = command(&["preflight"]);
    assert_eq!(code, Some(3), "{printed}");
    assert!(
        printed.contains("it is not a JPEG, PNG, WebP or TIFF file"),
        "{printed}"
    );
}

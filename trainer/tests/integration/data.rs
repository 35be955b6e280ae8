//! Data sets of files, from the files to the weights.

use std::io::Cursor;
use std::path::Path;
use std::process::Command;

use crate::common::{Job, TRAINER, assert_same_files, distance};
use image::{ImageFormat, Rgb, RgbImage};

const CLASSES: u8 = 5;

/// A picture with something to tell classes and images apart by.
fn picture(class: u8, image: u8) -> RgbImage {
    RgbImage::from_fn(40 + u32::from(image % 7), 36, |x, y| {
        Rgb([class * 50, (x * 5) as u8 ^ image, (y * 6) as u8])
    })
}

fn file(format: ImageFormat, class: u8, image: u8) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    picture(class, image)
        .write_to(&mut bytes, format)
        .expect("encodes");
    bytes.into_inner()
}

/// `images` to train on in each class, in JPEG and PNG files, and two to evaluate.
fn image_folder(folder: &Path, images: u8) {
    for class in 0..CLASSES {
        for (split, count) in [("train", images), ("val", 2)] {
            let folder = folder.join(split).join(format!("class-{class}"));
            fs_err::create_dir_all(&folder).expect("a folder");
            for image in 0..count {
                let (format, extension) = if image % 2 == 0 {
                    (ImageFormat::Jpeg, "jpg")
                } else {
                    (ImageFormat::Png, "png")
                };
                let path = folder.join(format!("{image:03}.{extension}"));
                fs_err::write(path, file(format, class, image)).expect("writes");
            }
        }
    }
}

/// Shards of 20 images.
fn web_dataset(folder: &Path, shards: u8) {
    for shard in 0..shards {
        let path = folder.join(format!("train-{shard:03}.tar"));
        let mut builder = tar::Builder::new(fs_err::File::create(path).expect("creates"));
        for image in 0..20 {
            let class = image % CLASSES;
            for (extension, bytes) in [
                ("png", file(ImageFormat::Png, class, shard * 20 + image)),
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

const AUGMENTATION: &str = "augmentation: {randomResizedCrop: {}, horizontalFlip: 0.5, threeAugment: true, \
    colorJitter: 0.3, mixup: 0.8, cutmix: 1.0, randomErasing: 0.25, repeatedAugmentation: 2}";

#[test]
fn neither_ranks_nor_threads_change_what_is_learned_from_files() {
    let train = |nodes: u32, threads: u32| {
        let mut job = Job::new(5);
        image_folder(&job.data(), 8);
        job.data_fields = format!("format: imageFolder, decodeThreads: {threads}, {AUGMENTATION}");
        (job.nodes, job.micro_batch) = (nodes, 8 / nodes);
        job.run_well();
        let evaluation = job.log("evaluation").last().cloned().expect("an evaluation");
        assert_eq!(evaluation["images"], u64::from(CLASSES) * 2);
        // 40 images are 5 steps of 8 an epoch.
        assert_eq!(job.log("train").last().expect("a line")["step"], 10);
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
        "3 of 40 images cannot be read, by the count of all ranks; data.maxCorruptFraction of 0.05 allows 2",
        "class-0/000.jpg cannot be read and is left out: it is neither",
        "class-1/001.png cannot be read and is left out: it is neither",
        "class-2/002.jpg cannot be read and is left out: it is neither",
    ];
    job.ends(3, &parts);
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
        "it is neither JPEG nor PNG"
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

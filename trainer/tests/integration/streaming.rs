//! Data sets streamed from an S3 server during training.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

use crate::common::{Job, TRAINER, assert_same_files};
use crate::data::{parquet, web_dataset};
use crate::fetch::Server;

/// The manifest's part for a bucket, and a cache of one mebibyte.
const STREAMED: &str = ", from: {locations: ['s3://images/set']}, cache: {sizeLimit: 1Mi}";

/// The trainer with the key of a server's bucket and a cache in this folder.
fn with_key(server: &Server, cache: &Path) -> Command {
    let mut command = Command::new(TRAINER);
    command.env("XDG_CACHE_HOME", cache).envs([
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", &server.address),
    ]);
    command
}

/// A server, and the folder in its bucket.
fn serve() -> (Server, PathBuf) {
    let server = Server::s3();
    let set = server.files.path().join("images/set");
    fs_err::create_dir(&set).expect("a folder");
    (server, set)
}

/// Bytes of all files in a folder and below.
fn size(folder: &Path) -> u64 {
    let Ok(entries) = fs_err::read_dir(folder) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| {
        let about = entry.metadata();
        about.map_or(0, |about| {
            if about.is_dir() {
                size(&entry.path())
            } else {
                about.len()
            }
        })
    });
    sizes.sum()
}

#[test]
fn what_is_streamed_is_learned_as_from_a_folder() {
    for (format, shards) in [
        ("format: webDataset, trainShards: 'train-{000..007}.tar'", 8),
        // More than fits into the cache.
        ("format: webDataset", 40),
        ("format: parquet", 0),
        // With or without an index of pages.
        ("format: parquet, imageColumn: image", 0),
    ] {
        let job = || {
            let mut job = Job::new(5);
            job.data_fields = format.into();
            job
        };
        let fill = |folder: &Path| {
            web_dataset(folder, shards);
            if format.contains("imageColumn") {
                parquet("pages/train", folder);
            } else {
                parquet("hub/data", folder);
            }
        };
        let sound = job();
        fill(&sound.data());
        sound.run_well();

        let (server, bucket) = serve();
        fill(&bucket);
        server.faults.refused.store(3, Ordering::SeqCst);
        server.faults.cut.store(3, Ordering::SeqCst);
        let cache = tempfile::tempdir().expect("a folder");
        let mut streamed = job();
        streamed.data_fields += STREAMED;
        let command = with_key(&server, cache.path());
        streamed.start_through(command).ends(0, &[]);
        assert_same_files(&sound, &streamed, &["model.safetensors", "state.json"], format);

        let kept = size(cache.path());
        assert!((1..=1 << 20).contains(&kept), "{format}: {kept} bytes are kept");
        let mut asked = BTreeMap::<String, u32>::new();
        for part in server
            .asked()
            .into_iter()
            .filter(|asked| asked.contains("bytes="))
        {
            *asked.entry(part).or_default() += 1;
        }
        let twice = asked.values().filter(|times| **times > 1).count();
        // Two ranks and two epochs.
        assert!(
            if shards == 40 { twice > 50 } else { twice <= 6 },
            "{format}: {twice} of {} parts were read more than once",
            asked.len()
        );
    }
}

#[test]
fn a_store_that_goes_away_is_not_the_data_set_s_fault() {
    let (server, bucket) = serve();
    web_dataset(&bucket, 40);
    let cache = tempfile::tempdir().expect("a folder");
    let mut job = Job::new(5);
    job.epochs = 1000;
    job.data_fields = format!("format: webDataset, retrySeconds: 1{STREAMED}");
    let mut running = job.start_through(with_key(&server, cache.path()));
    running.await_progress(1);
    drop(server);
    running.ends(79, &["s3://images/set/train-", "could not be read"]);
}

#[test]
fn a_shard_that_is_cut_short_is_the_data_set_s_fault() {
    let (server, bucket) = serve();
    web_dataset(&bucket, 1);
    let shard = bucket.join("train-000.tar");
    let whole = fs_err::read(&shard).expect("reads");
    let cache = tempfile::tempdir().expect("a folder");
    let mut job = Job::new(5);
    job.data_fields = format!("format: webDataset{STREAMED}");
    // Within the padding after the last file, and after that.
    for missing in [1024 + 100, 1024] {
        fs_err::write(&shard, &whole[..whole.len() - missing]).expect("writes");
        let command = with_key(&server, cache.path());
        job.start_through(command)
            .ends(3, &["s3://images/set/train-000.tar", "it has no end marker"]);
    }
}

#[test]
fn a_streamed_job_is_checked_before_it_runs() {
    let (server, bucket) = serve();
    web_dataset(&bucket, 2);
    let cache = tempfile::tempdir().expect("a folder");
    let mut job = Job::new(5);
    job.data_fields = format!("format: webDataset{STREAMED}");
    let manifest = job.write_manifest();
    let output = with_key(&server, cache.path())
        .arg("preflight")
        .arg("-f")
        .arg(&manifest)
        .arg("--checkpoints")
        .arg(job.runs())
        .output()
        .expect("starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("40 training and 0 held-out images"),
        "{printed}"
    );
}

#[test]
fn what_cannot_be_streamed_is_refused_before_a_step() {
    let server = Server::s3();
    let cache = tempfile::tempdir().expect("a folder");
    let mut job = Job::new(5);
    job.data_fields = format!("format: parquet{STREAMED}");
    let command = || with_key(&server, cache.path());
    job.start_through(command())
        .ends(2, &["s3://images/set does not exist"]);
    let mut stranger = command();
    stranger.env("AWS_SECRET_ACCESS_KEY", "other");
    job.start_through(stranger)
        .ends(2, &["access to s3://images/set was denied"]);
    let bucket = server.files.path().join("images/set");
    fs_err::create_dir(&bucket).expect("a folder");
    fs_err::write(bucket.join("notes.txt"), "none").expect("writes");
    job.start_through(command()).ends(
        3,
        &["s3://images/set holds no images", "files ending in .parquet"],
    );
    job.data_fields = format!("format: webDataset{STREAMED}");
    job.start_through(command())
        .ends(3, &["s3://images/set/train-*.tar"]);
}

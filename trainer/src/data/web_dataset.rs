//! `WebDataset`: tar files (shards) in which `key.jpg` or `key.png` and `key.cls` or `key.json` follow one another.
//!
//! The files are listed once, from their headers alone; then every image is read from its place, by whichever rank's
//! turn it is. So no rank reads another's images, and a run continues at any place of an epoch with any number of ranks.

use std::collections::VecDeque;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use contract::Shards;
use serde::Deserialize;

use super::DataError;
use super::part;
use super::source::{Source, Stored, fingerprint};

/// Shards that are kept open.
const OPEN_SHARDS: usize = 32;
const PATTERN: &str =
    "must be a file name with at most one * or one range such as {000000..000012}, which goes up";

/// Images of one split.
#[derive(Debug)]
pub(super) struct WebDataset {
    shards: Vec<PathBuf>,
    /// Images of each shard.
    lengths: Vec<u32>,
    samples: Vec<Sample>,
    open: Mutex<VecDeque<(u32, Arc<std::fs::File>)>>,
}

/// Where an image and its label are.
#[derive(Debug)]
struct Sample {
    shard: u32,
    key: Box<str>,
    image: Option<Span>,
    label: Option<Label>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    offset: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
enum Label {
    /// A number in digits.
    Class(Span),
    /// An object with `cls` or `label`.
    Json(Span),
}

type Listed = Result<Vec<Sample>, DataError>;

#[derive(Deserialize)]
struct JsonLabel {
    #[serde(alias = "cls")]
    label: i64,
}

/// The images to train on, the first `fraction` of them, and those to evaluate.
pub(super) fn open(
    folder: &Path,
    shards: &Shards,
    fraction: f64,
    threads: usize,
) -> Result<(WebDataset, Option<WebDataset>), DataError> {
    let train = files(folder, "trainShards", &shards.train)?;
    if train.is_empty() {
        return Err(DataError::NoImages {
            path: folder.join(&shards.train),
            expected: "no file has such a name (data.trainShards)",
        });
    }
    let mut train = WebDataset::list(train, threads)?;
    train.keep_first(fraction);
    let validation = files(folder, "validationShards", &shards.validation)?;
    let validation = if validation.is_empty() {
        None
    } else {
        Some(WebDataset::list(validation, threads)?)
    };
    Ok((train, validation))
}

/// The files that a pattern names, in order. Those of a `*` may be none; those of a range must be there.
fn files(folder: &Path, field: &'static str, pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    let refused = || DataError::Pattern {
        field,
        pattern: pattern.into(),
        expected: PATTERN,
    };
    let paths: Vec<PathBuf> = if let Some((before, rest)) = pattern.split_once('{') {
        let (range, after) = rest.split_once('}').ok_or_else(refused)?;
        let (first, last) = range.split_once("..").ok_or_else(refused)?;
        let number = |digits: &str| digits.parse::<u32>().map_err(|_| refused());
        let (from, to) = (number(first)?, number(last)?);
        if from > to || after.contains(['{', '*']) || before.contains('*') {
            return Err(refused());
        }
        let digits = first.len();
        (from..=to)
            .map(|number| folder.join(format!("{before}{number:0digits$}{after}")))
            .collect()
    } else if let Some((before, after)) = pattern.split_once('*') {
        if after.contains('*') {
            return Err(refused());
        }
        return matching(folder, before, after);
    } else {
        vec![folder.join(pattern)]
    };
    match paths.iter().find(|path| !path.is_file()) {
        Some(missing) => Err(DataError::Missing {
            path: missing.clone(),
            expected: "every file that data.trainShards and data.validationShards name must be there",
        }),
        None => Ok(paths),
    }
}

fn matching(folder: &Path, before: &str, after: &str) -> Result<Vec<PathBuf>, DataError> {
    let (inner, before) = before.rsplit_once('/').unwrap_or(("", before));
    let folder = folder.join(inner);
    let mut paths = Vec::new();
    let entries = fs_err::read_dir(&folder).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => DataError::Missing {
            path: folder.clone(),
            expected: "a webDataset is a folder of tar files",
        },
        _ => DataError::Read(error),
    })?;
    for entry in entries {
        let entry = entry.map_err(DataError::Read)?;
        let name = entry.file_name();
        if let Some(name) = name.to_str()
            && name.len() >= before.len() + after.len()
            && name.starts_with(before)
            && name.ends_with(after)
        {
            paths.push(entry.path());
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

impl WebDataset {
    /// Lists what the shards hold, several at a time.
    fn list(shards: Vec<PathBuf>, threads: usize) -> Result<Self, DataError> {
        let indexed: Vec<(usize, &PathBuf)> = shards.iter().enumerate().collect();
        let lists: Vec<Listed> = std::thread::scope(|scope| {
            let parts = indexed.chunks(shards.len().div_ceil(threads).max(1));
            let list = |(index, path): &(usize, &PathBuf)| list_shard(path, *index as u32);
            let running: Vec<_> = parts
                .map(|part| scope.spawn(move || part.iter().map(list).collect::<Vec<_>>()))
                .collect();
            let lists = running.into_iter().map(|part| part.join().expect("no panic"));
            lists.flatten().collect()
        });
        let mut samples = Vec::new();
        let mut lengths = Vec::with_capacity(shards.len());
        for list in lists {
            let list = list?;
            lengths.push(list.len() as u32);
            samples.extend(list);
        }
        if samples.is_empty() {
            return Err(DataError::NoImages {
                path: shards[0].clone(),
                expected: "a shard holds key.jpg or key.png with key.cls or key.json",
            });
        }
        Ok(Self {
            shards,
            lengths,
            samples,
            open: Mutex::default(),
        })
    }

    fn keep_first(&mut self, fraction: f64) {
        let mut rest = (part::whole(self.samples.len() as u64, fraction) as usize).max(1);
        self.samples.truncate(rest);
        for length in &mut self.lengths {
            *length = (*length).min(rest as u32);
            rest -= *length as usize;
        }
    }

    fn read_span(&self, shard: u32, span: Span) -> Result<Vec<u8>, String> {
        let file = self.file(shard).map_err(|error| error.to_string())?;
        let mut bytes = vec![0; span.bytes as usize];
        file.read_exact_at(&mut bytes, span.offset)
            .map_err(|error| error.to_string())?;
        Ok(bytes)
    }

    fn file(&self, shard: u32) -> std::io::Result<Arc<std::fs::File>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, file)) = open.iter().find(|(number, _)| *number == shard) {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(std::fs::File::open(&self.shards[shard as usize])?);
        if open.len() == OPEN_SHARDS {
            open.pop_front();
        }
        open.push_back((shard, Arc::clone(&file)));
        Ok(file)
    }

    fn label_of(&self, sample: &Sample) -> Result<i64, String> {
        match sample.label.ok_or("there is neither key.cls nor key.json")? {
            Label::Class(span) => {
                let bytes = self.read_span(sample.shard, span)?;
                let text = String::from_utf8_lossy(&bytes);
                text.trim()
                    .parse()
                    .map_err(|_| format!("its .cls is {:?}, no class number", text.trim()))
            }
            Label::Json(span) => {
                let bytes = self.read_span(sample.shard, span)?;
                serde_json::from_slice::<JsonLabel>(&bytes)
                    .map(|json| json.label)
                    .map_err(|error| {
                        format!("its .json has no class number in \"label\" or \"cls\": {error}")
                    })
            }
        }
    }
}

/// Samples of one shard: files with the same name up to its first dot that follow one another.
fn list_shard(path: &Path, shard: u32) -> Listed {
    let refused = |message: String| DataError::Shard {
        path: path.into(),
        message,
    };
    let file = fs_err::File::open(path).map_err(DataError::Read)?;
    let file_bytes = file.metadata().map_err(DataError::Read)?.len();
    let mut archive = tar::Archive::new(std::io::BufReader::new(file));
    let mut samples: Vec<Sample> = Vec::new();
    for entry in archive
        .entries_with_seek()
        .map_err(|error| refused(error.to_string()))?
    {
        let entry = entry.map_err(|error| refused(error.to_string()))?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let name = entry.path_bytes();
        let name = String::from_utf8_lossy(&name);
        let span = Span {
            offset: entry.raw_file_position(),
            bytes: entry.size(),
        };
        if span.offset + span.bytes > file_bytes {
            return Err(refused(format!(
                "it is truncated within {name} (file of {file_bytes} bytes)"
            )));
        }
        let base = name.rfind('/').map_or(0, |slash| slash + 1);
        let Some(dot) = name[base..].find('.') else {
            continue;
        };
        let (key, extension) = (&name[..base + dot], &name[base + dot + 1..]);
        if samples.last().is_none_or(|sample| *sample.key != *key) {
            samples.push(Sample {
                shard,
                key: key.into(),
                image: None,
                label: None,
            });
        }
        let sample = samples.last_mut().expect("one was pushed");
        match extension.to_ascii_lowercase().as_str() {
            "jpg" | "jpeg" | "png" => sample.image = Some(span),
            "cls" => sample.label = Some(Label::Class(span)),
            // A .cls is the plainer word.
            "json" if sample.label.is_none() => sample.label = Some(Label::Json(span)),
            _ => {}
        }
    }
    Ok(samples)
}

impl Source for WebDataset {
    fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    fn read(&self, image: u64) -> Result<Stored, String> {
        let sample = &self.samples[image as usize];
        let label = self.label_of(sample)?;
        let span = sample.image.ok_or("there is neither key.jpg nor key.png")?;
        Ok(Stored {
            file: self.read_span(sample.shard, span)?,
            label,
        })
    }

    fn label(&self, image: u64) -> Result<i64, String> {
        self.label_of(&self.samples[image as usize])
    }

    fn fingerprint(&self) -> u32 {
        let shards = self.shards.iter().map(|shard| {
            let name = shard.file_name().unwrap_or_default();
            name.as_encoded_bytes().to_vec()
        });
        let samples = self
            .samples
            .iter()
            .map(|sample| [&sample.shard.to_le_bytes()[..], sample.key.as_bytes()].concat());
        fingerprint(shards.chain(samples))
    }

    fn name(&self, image: u64) -> String {
        let sample = &self.samples[image as usize];
        format!(
            "{} of {}",
            sample.key,
            self.shards[sample.shard as usize].display()
        )
    }

    fn shards(&self) -> Option<&[u32]> {
        Some(&self.lengths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::fixtures::folder;

    fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, name, *bytes).expect("appends");
        }
        builder.into_inner().expect("a tar file")
    }

    fn shards(train: &str) -> Shards {
        Shards {
            train: train.into(),
            validation: "val-*.tar".into(),
        }
    }

    fn two_shards() -> [(&'static str, Vec<u8>); 3] {
        [
            (
                "train-000.tar",
                tar(&[
                    ("a.jpg", b"image a"),
                    ("a.cls", b"3\n"),
                    ("dir.x/b.seg.png", b"no image"),
                    ("dir.x/b.png", b"image b"),
                    ("dir.x/b.json", br#"{"label": 4, "more": true}"#),
                    ("README", b"skipped"),
                ]),
            ),
            (
                "train-001.tar",
                tar(&[("c.cls", b"cat"), ("c.jpg", b"image c"), ("d.jpg", b"image d")]),
            ),
            (
                "val-0.tar",
                tar(&[("e.jpeg", b"image e"), ("e.json", br#"{"cls": 1}"#)]),
            ),
        ]
    }

    #[test]
    fn samples_are_found_by_key_and_read_from_their_place() {
        let folder = folder(&two_shards());
        for pattern in ["train-{000..001}.tar", "train-*.tar"] {
            let (train, validation) = open(folder.path(), &shards(pattern), 1.0, 2).expect("opens");
            assert_eq!((train.len(), train.shards()), (4, Some([2, 2].as_slice())));
            let stored = |file: &[u8], label| Stored {
                file: file.to_vec(),
                label,
            };
            assert_eq!(train.read(0), Ok(stored(b"image a", 3)));
            assert_eq!(train.read(1), Ok(stored(b"image b", 4)));
            assert_eq!(validation.expect("val").read(0), Ok(stored(b"image e", 1)));
        }
    }

    #[test]
    fn a_sample_that_lacks_something_is_named_when_it_is_read() {
        let folder = folder(&two_shards());
        let (train, _) = open(folder.path(), &shards("train-*.tar"), 1.0, 1).expect("opens");
        assert_eq!(
            train.read(2).expect_err("refused"),
            "its .cls is \"cat\", no class number"
        );
        assert_eq!(
            train.read(3).expect_err("refused"),
            "there is neither key.cls nor key.json"
        );
        assert!(train.name(3).starts_with("d of ") && train.name(3).ends_with("train-001.tar"));
    }

    #[test]
    fn a_fraction_is_the_first_samples() {
        let folder = folder(&two_shards());
        let (train, _) = open(folder.path(), &shards("train-*.tar"), 0.75, 1).expect("opens");
        assert_eq!((train.len(), train.shards()), (3, Some([2, 1].as_slice())));
    }

    #[test]
    fn shards_that_are_missing_or_broken_are_named() {
        let mut files = two_shards();
        let length = files[0].1.len();
        files[0].1.truncate(512 + 3);
        let folder = folder(&files);
        let message = |pattern: &str| {
            let error = open(folder.path(), &shards(pattern), 1.0, 1).expect_err("refused");
            error
                .to_string()
                .replace(folder.path().to_str().expect("a name"), "DIR")
        };
        assert!(length > 2048);
        assert_eq!(
            message("train-*.tar"),
            "DIR/train-000.tar is no tar file of images: it is truncated within a.jpg (file of 515 bytes)"
        );
        assert!(message("train-{001..002}.tar").starts_with("DIR/train-002.tar does not exist"));
        assert!(message("other-*.tar").starts_with("DIR/other-*.tar holds no images"));
        for pattern in ["train-{3..1}.tar", "train-{a..b}.tar", "{0..1}*", "*-*"] {
            assert!(
                message(pattern).starts_with(&format!("data.trainShards is {pattern}: must be a file name")),
                "{pattern}: {}",
                message(pattern)
            );
        }
        fs_err::write(folder.path().join("train-000.tar"), [7_u8; 2000]).expect("writes");
        assert!(message("train-*.tar").starts_with("DIR/train-000.tar is no tar file of images: "));
    }
}

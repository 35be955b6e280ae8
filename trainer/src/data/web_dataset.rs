//! `WebDataset`: tar files (shards) with adjacent `key.jpg` (or another) and `key.cls` or `.json`.
//!
//! Files are listed once, by their headers alone; then the rank that needs an image reads it from
//! its offset. So a run continues at any place of an epoch on any number of ranks.

use std::ffi::OsStr;
use std::io::{Read as _, Seek as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytesize::ByteSize;
use contract::FileNames;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::DataError;
use super::decode::ENDINGS;
use super::error::{at_first_read, is_of_system};

use super::files::{Files, Root};
use super::labels::Label;
use super::part;
use super::source::{ReadError, Shards, Source, Stored, fingerprint, list_each, shown_name};

/// The unit of tar files; a block of zeros marks the end.
const BLOCK: u64 = 512;
/// Shards whose images are shuffled together.
const SHARDS_AT_ONCE: usize = 8;
const EXPECTED: &str = "a shard holds key.jpg, key.png, key.webp or key.tif with key.cls or key.json";
const UNPACK: &str = "decompress it, because images are read from their offsets";
/// Extra extensions of compressed shards.
const PACKED: [&str; 5] = [".gz", ".zst", ".bz2", ".xz", ".lz4"];
const PATTERN: &str =
    "must be a file name with at most one * or one ascending range such as {000000..000012}";

/// Images of one split.
#[derive(Debug)]
pub(super) struct WebDataset {
    shards: Arc<Files>,
    /// Images of each shard.
    lengths: Vec<u32>,
    samples: Vec<Sample>,
}

/// The place of an image and its label.
#[derive(Debug, Deserialize, Serialize)]
struct Sample {
    #[serde(skip)]
    shard: u32,
    /// Bytes as in the archive, in any encoding.
    #[serde(with = "bytes_as_text")]
    key: Box<[u8]>,
    content: Content,
}

#[derive(Debug, Deserialize, Serialize)]
enum Content {
    Whole {
        image: Span,
        label: LabelFile,
    },
    /// What is missing, and what is there instead.
    Lacking(Box<str>),
}

/// Bytes as characters of the same numbers: most keys are ASCII.
mod bytes_as_text {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&bytes.iter().map(|byte| char::from(*byte)).collect::<String>())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<[u8]>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes: Result<Vec<u8>, _> = text.chars().map(u8::try_from).collect();
        Ok(bytes.map_err(D::Error::custom)?.into())
    }
}

/// The files of a sample.
#[derive(Default)]
struct Parts {
    key: Box<[u8]>,
    image: Option<Span>,
    label: Option<LabelFile>,
    /// A second image of the same key.
    more: Option<String>,
    /// Extensions of all files.
    endings: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Span {
    offset: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
enum LabelFile {
    /// Decimal numbers.
    Class(Span),
    /// An object with `cls` or `label`.
    Json(Span),
}

type Listed = Result<Vec<Sample>, DataError>;

#[derive(Deserialize)]
struct JsonLabel {
    cls: Option<Value>,
    label: Option<Value>,
}

impl JsonLabel {
    /// The label under either name; both must agree.
    fn label(&self) -> Result<Label, String> {
        let found = match (&self.cls, &self.label) {
            (Some(cls), Some(label)) if cls != label => {
                return Err(format!(
                    "it has the labels {cls} in \"cls\" and {label} in \"label\""
                ));
            }
            (cls, label) => cls.as_ref().or(label.as_ref()).ok_or("it has neither")?,
        };
        json_label(found).ok_or_else(|| format!("it has {found}"))
    }
}

/// A class number, or a list of them.
fn json_label(value: &Value) -> Option<Label> {
    match value {
        Value::Array(classes) => {
            let classes: Option<Vec<i64>> = classes.iter().map(Value::as_i64).collect();
            classes.map(Label::Classes)
        }
        value => value.as_i64().map(Label::Class),
    }
}

/// The label in a .cls: a class number, or several with commas or spaces; in brackets any number.
fn text_label(text: &str) -> Option<Label> {
    let text = text.trim_start_matches('\u{feff}').trim();
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let numbers = inner.unwrap_or(text).split([',', ' ', '\t', '\n', '\r']);
    let classes: Result<Vec<i64>, _> = numbers
        .filter(|number| !number.is_empty())
        .map(str::parse)
        .collect();
    match (classes.ok()?, inner) {
        (classes, None) if classes.len() == 1 => Some(Label::Class(classes[0])),
        (classes, None) if classes.is_empty() => None,
        (classes, _) => Some(Label::Classes(classes)),
    }
}

/// The images to train on, the first `fraction` of them, and those to evaluate.
pub(super) fn open(
    root: impl Into<Root>,
    shards: &contract::Shards,
    fraction: f64,
    threads: usize,
) -> Result<(WebDataset, Option<WebDataset>), DataError> {
    let root = root.into();
    let train = files(&root, "trainShards", &shards.train)?;
    if train.is_empty() {
        return Err(DataError::NoImages {
            path: root.path().join(&shards.train),
            expected: "no file matches (data.trainShards)",
        });
    }
    let mut train = WebDataset::list(&root, train, threads)?;
    train.keep_first(fraction);
    let validation = files(&root, "validationShards", &shards.validation)?;
    let validation = if validation.is_empty() {
        None
    } else {
        Some(WebDataset::list(&root, validation, threads)?)
    };
    Ok((train, validation))
}

/// The files that a pattern names, in order. A `*` may match none; the files of a range must exist.
fn files(root: &Root, field: &'static str, pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    let names = match FileNames::parse(pattern) {
        Some(FileNames::One(name)) => vec![name],
        Some(FileNames::Range(names)) => names,
        Some(FileNames::Between(before, after)) => return matching(root, &before, &after),
        None => {
            return Err(DataError::Pattern {
                field,
                pattern: pattern.into(),
                expected: PATTERN,
            });
        }
    };
    let paths: Vec<PathBuf> = names.into_iter().map(|name| root.path().join(name)).collect();
    match paths.iter().find(|path| !root.has(path)) {
        Some(missing) => Err(DataError::Missing {
            path: missing.clone(),
            expected: "every file that data.trainShards and data.validationShards name must exist",
        }),
        None => Ok(paths),
    }
}

fn matching(root: &Root, before: &str, after: &str) -> Result<Vec<PathBuf>, DataError> {
    let (inner, before) = before.rsplit_once('/').unwrap_or(("", before));
    let folder = root.path().join(inner);
    let mut paths = Vec::new();
    let mut compressed = None;
    let names = root
        .names_in(Path::new(inner))
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => DataError::Missing {
                path: folder.clone(),
                expected: "a webDataset is a folder of tar files",
            },
            _ => DataError::Read(error),
        })?;
    for name in names {
        let path = folder.join(&name);
        let name = name.as_encoded_bytes();
        if name.len() >= before.len() + after.len()
            && name.starts_with(before.as_bytes())
            && name.ends_with(after.as_bytes())
        {
            paths.push(path);
        } else if name.starts_with(before.as_bytes())
            && PACKED.iter().any(|ending| {
                name.strip_suffix(ending.as_bytes())
                    .is_some_and(|name| name.ends_with(after.as_bytes()))
            })
        {
            compressed = Some(path);
        }
    }
    paths.sort_unstable();
    if let (true, Some(path)) = (paths.is_empty(), compressed) {
        return Err(DataError::Shard {
            path,
            message: format!("it is the only one, and compressed: {UNPACK}"),
        });
    }
    Ok(paths)
}

impl WebDataset {
    /// Lists the contents of the shards, several at a time.
    fn list(root: &Root, shards: Vec<PathBuf>, threads: usize) -> Result<Self, DataError> {
        let shards = Arc::new(root.files(shards));
        warn_of_a_small_cache(root, &shards)?;
        let lists = list_each(shards.paths(), threads, |number, _| {
            shards.listed(number, "samples-1", || list_shard(&shards, number))
        });
        let mut samples = Vec::new();
        let mut lengths = Vec::with_capacity(shards.paths().len());
        for ((number, path), list) in (0..).zip(shards.paths()).zip(lists) {
            let mut list = list?;
            // It may have been listed by another run, with another number.
            for sample in &mut list {
                sample.shard = number;
            }
            if list.is_empty() {
                return Err(DataError::NoImages {
                    path: path.clone(),
                    expected: EXPECTED,
                });
            }
            lengths.push(list.len() as u32);
            samples.extend(list);
        }
        Ok(Self {
            shards,
            lengths,
            samples,
        })
    }

    fn keep_first(&mut self, fraction: f64) {
        let mut rest = (part::whole(self.samples.len() as u64, fraction) as usize).max(1);
        self.samples.truncate(rest);
        for length in &mut self.lengths {
            *length = (*length).min(rest as u32);
            rest -= *length as usize;
        }
        // Shards without images would reduce the mixing of the others.
        let used = self.lengths.iter().rposition(|length| *length > 0);
        self.lengths.truncate(used.map_or(0, |last| last + 1));
    }

    fn read_span(&self, shard: u32, span: Span) -> Result<Vec<u8>, ReadError> {
        let bytes = self.shards.read(shard, span.offset, span.bytes as usize);
        bytes.map_err(ReadError::from_error)
    }

    fn label_of(&self, sample: &Sample) -> Result<Label, ReadError> {
        match sample.parts()?.1 {
            LabelFile::Class(span) => {
                let bytes = self.read_span(sample.shard, span)?;
                let text = String::from_utf8_lossy(&bytes);
                text_label(&text).ok_or_else(|| {
                    let text = text.trim_start_matches('\u{feff}').trim();
                    format!("its .cls is {text:?}, not a class number").into()
                })
            }
            LabelFile::Json(span) => {
                let bytes = self.read_span(sample.shard, span)?;
                serde_json::from_slice::<JsonLabel>(&bytes)
                    .map_err(|error| error.to_string())
                    .and_then(|json| json.label())
                    .map_err(|error| {
                        format!("its .json has no class number in \"label\" or \"cls\": {error}").into()
                    })
            }
        }
    }
}

/// The shards read at the same time must fit, together with the next ones.
fn warn_of_a_small_cache(root: &Root, shards: &Files) -> Result<(), DataError> {
    let Root::Store { cache, .. } = root else {
        return Ok(());
    };
    let count = shards.paths().len() as u64;
    let sizes = (0..count as u32).map(|number| shards.bytes(number));
    let bytes = sizes.sum::<Result<u64, _>>().map_err(DataError::Read)?;
    let needed = bytes.min(bytes / count.max(1) * 2 * SHARDS_AT_ONCE as u64);
    if needed > cache.limit() {
        tracing::warn!(
            "data.cache.sizeLimit leaves {} for shards, and those that are read at the same time need {}: parts of them are read several times",
            ByteSize(cache.limit()),
            ByteSize(needed)
        );
    }
    Ok(())
}

impl Sample {
    fn parts(&self) -> Result<(Span, LabelFile), ReadError> {
        match &self.content {
            Content::Whole { image, label } => Ok((*image, *label)),
            Content::Lacking(what) => Err(ReadError::Bad(what.to_string())),
        }
    }
}

impl Parts {
    /// Adds a file of the sample: its place, or what it is instead of a file.
    fn add(&mut self, extension: &[u8], span: Result<Span, &'static str>) {
        let extension = shown_name(OsStr::from_bytes(extension)).to_ascii_lowercase();
        match (extension.as_str(), span) {
            (_, Err(what)) => {
                self.endings.push(format!("{extension} ({what})"));
                return;
            }
            (image, Ok(span)) if ENDINGS.contains(&image) => {
                let earlier = self.image.replace(span);
                if earlier.is_some() {
                    self.more.get_or_insert_with(|| extension.clone());
                }
            }
            ("cls", Ok(span)) => self.label = Some(LabelFile::Class(span)),
            // A .cls takes precedence.
            ("json", Ok(span)) if self.label.is_none() => self.label = Some(LabelFile::Json(span)),
            _ => {}
        }
        self.endings.push(extension);
    }

    fn end(self, shard: u32) -> Sample {
        let content = match (self.image, self.label, self.more) {
            (Some(image), Some(label), None) => Content::Whole { image, label },
            (image, _, more) => {
                let lacking = match (more, image) {
                    (Some(ending), _) => format!("it has a second image, .{ending}"),
                    (None, Some(_)) => "there is neither key.cls nor key.json".into(),
                    (None, None) => "there is no key.jpg, key.png, key.webp or key.tif".into(),
                };
                let found = self.endings.join(", ");
                Content::Lacking(format!("{lacking}; this key has: {found}").into())
            }
        };
        Sample {
            shard,
            key: self.key,
            content,
        }
    }
}

/// Samples of one shard: adjacent files with the same name up to the first dot, as webdataset's
/// `base_plus_ext` splits names. Other files belong to no sample.
fn list_shard(shards: &Arc<Files>, shard: u32) -> Listed {
    let path = shards.path(shard);
    let refused = |message: String| DataError::Shard {
        path: path.into(),
        message,
    };
    // The archive's own errors do not come from storage.
    let unreadable = |error: std::io::Error| {
        if is_of_system(&error) {
            at_first_read(path, &error)
        } else {
            refused(error.to_string().escape_debug().to_string())
        }
    };
    let file_bytes = shards.bytes(shard).map_err(DataError::Read)?;
    let mut file = shards.reader(shard).map_err(DataError::Read)?;
    let mut begin = Vec::new();
    let read = (&mut file).take(6).read_to_end(&mut begin);
    read.map_err(unreadable)?;
    if let Some(compression) = compression_of(&begin) {
        return Err(refused(format!("it is compressed ({compression}): {UNPACK}")));
    }
    file.rewind().map_err(DataError::Read)?;
    let mut archive = tar::Archive::new(std::io::BufReader::new(file));
    let mut samples: Vec<Sample> = Vec::new();
    let mut parts: Option<Parts> = None;
    let mut end = 0;
    for entry in archive.entries_with_seek().map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let kind = entry.header().entry_type();
        end = (entry.raw_file_position() + entry.size()).next_multiple_of(BLOCK);
        if kind.is_dir() {
            continue;
        }
        let name = entry.path_bytes();
        let Some((key, extension)) = divide(&name) else {
            continue;
        };
        let span = Span {
            offset: entry.raw_file_position(),
            bytes: entry.size(),
        };
        let span = match kind {
            _ if kind.is_hard_link() => Err("a hard link"),
            _ if kind.is_symlink() => Err("a link"),
            _ if kind.is_gnu_sparse() => Err("a sparse file"),
            _ if kind.is_file() => Ok(span),
            _ => Err("not a file"),
        };
        if span.is_ok_and(|span| span.offset.saturating_add(span.bytes) > file_bytes) {
            let name = shown_name(OsStr::from_bytes(&name));
            return Err(refused(format!(
                "it is truncated within {name} (file of {file_bytes} bytes)"
            )));
        }
        if parts.as_ref().is_none_or(|parts| *parts.key != *key) {
            samples.extend(parts.take().map(|parts| parts.end(shard)));
        }
        let parts = parts.get_or_insert_with(|| Parts {
            key: key.into(),
            ..Parts::default()
        });
        parts.add(extension, span);
    }
    samples.extend(parts.map(|parts| parts.end(shard)));
    if !samples.is_empty() && file_bytes < end + BLOCK {
        return Err(refused(format!(
            "it has no end marker (file of {file_bytes} bytes): a part is missing, or its writer did not close it"
        )));
    }
    Ok(samples)
}

/// Key and rest of a file's name, around its first dot; `None` without a key, as in `._name`.
fn divide(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let base = name
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |slash| slash + 1);
    let dot = name[base..].iter().position(|byte| *byte == b'.')?;
    (dot > 0).then(|| (&name[..base + dot], &name[base + dot + 1..]))
}

/// The compression of a file, from its first bytes.
fn compression_of(begin: &[u8]) -> Option<&'static str> {
    let known: [(&[u8], &str); 4] = [
        (b"\x1f\x8b", "gzip"),
        (b"BZh", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
    ];
    let found = known.iter().find(|(magic, _)| begin.starts_with(magic));
    found.map(|(_, name)| *name)
}

impl Source for WebDataset {
    fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    fn read(&self, image: u64) -> Result<Stored, ReadError> {
        let sample = &self.samples[image as usize];
        let label = self.label_of(sample)?;
        let (image, _) = sample.parts()?;
        Ok(Stored {
            file: self.read_span(sample.shard, image)?,
            label,
        })
    }

    fn label(&self, image: u64) -> Result<Label, ReadError> {
        self.label_of(&self.samples[image as usize])
    }

    fn fingerprint(&self) -> u32 {
        let shards = self.shards.paths().iter().map(|shard| {
            let name = shard.file_name().unwrap_or_default();
            name.as_encoded_bytes().to_vec()
        });
        let samples = self
            .samples
            .iter()
            .map(|sample| [&sample.shard.to_le_bytes()[..], &sample.key].concat());
        fingerprint(shards.chain(samples))
    }

    fn name(&self, image: u64) -> String {
        let sample = &self.samples[image as usize];
        format!(
            "{} of {}",
            shown_name(OsStr::from_bytes(&sample.key)),
            self.shards.path(sample.shard).display()
        )
    }

    fn shards(&self) -> Option<Shards<'_>> {
        Some(Shards {
            lengths: &self.lengths,
            at_once: SHARDS_AT_ONCE,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::fixtures::folder;

    fn tar<Name: AsRef<[u8]>>(files: &[(Name, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            let name = Path::new(OsStr::from_bytes(name.as_ref()));
            builder.append_data(&mut header, name, *bytes).expect("appends");
        }
        builder.into_inner().expect("a tar file")
    }

    fn shards(train: &str) -> contract::Shards {
        contract::Shards {
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
            assert_eq!(
                (train.len(), train.shards().map(|shards| shards.lengths)),
                (4, Some([2, 2].as_slice()))
            );
            let stored = |file: &[u8], label| Stored {
                file: file.to_vec(),
                label: Label::Class(label),
            };
            assert_eq!(train.read(0).expect("reads"), stored(b"image a", 3));
            assert_eq!(train.read(1).expect("reads"), stored(b"image b", 4));
            let evaluated = validation.expect("val").read(0);
            assert_eq!(evaluated.expect("reads"), stored(b"image e", 1));
        }
    }

    #[test]
    fn a_sample_that_lacks_something_is_named_when_it_is_read() {
        let folder = folder(&two_shards());
        let (train, _) = open(folder.path(), &shards("train-*.tar"), 1.0, 1).expect("opens");
        assert_eq!(bad(train.read(2)), "its .cls is \"cat\", not a class number");
        assert_eq!(
            bad(train.read(3)),
            "there is neither key.cls nor key.json; this key has: jpg"
        );
        assert!(train.name(3).starts_with("d of ") && train.name(3).ends_with("train-001.tar"));
    }

    /// The error of a bad sample.
    fn bad<T: std::fmt::Debug>(read: Result<T, ReadError>) -> String {
        match read.expect_err("refused") {
            ReadError::Bad(reason) => reason,
            ReadError::Storage(error) => panic!("the storage is sound: {error}"),
        }
    }

    /// One shard with these files.
    fn opened(files: &[(&[u8], &[u8])]) -> WebDataset {
        let folder = folder(&[("train-0.tar", tar(files))]);
        let (train, _) = open(folder.path(), &shards("train-0.tar"), 1.0, 1).expect("opens");
        for image in 0..train.len() {
            // The file is open from now on.
            let _ = train.read(image);
        }
        train
    }

    #[test]
    fn keys_are_bytes_and_what_has_no_key_is_no_sample() {
        // Of one length in GBK; lossy conversion would merge these keys.
        let train = opened(&[
            (b"\xc3\xa8.jpg", b"cat"),
            (b"\xc3\xa8.cls", b"0"),
            (b"\xb9\xb7.jpg", b"dog"),
            (b"\xb9\xb7.cls", b"1"),
            (b"._a.cls", b"of a Mac"),
            (b"./.DS_Store", b"of a Mac, too"),
            (b"__MACOSX/._a.jpg", b"and this"),
            (b"a.cls", b"\xef\xbb\xbf2"),
            (b"._a.jpg", b"of a Mac"),
            (b"a.jpg", b"bird"),
        ]);
        let found: Vec<(Vec<u8>, i64)> = (0..train.len())
            .map(|image| train.read(image).expect("reads"))
            .map(|stored| (stored.file, stored.label.classes()[0]))
            .collect();
        assert_eq!(
            found,
            [(b"cat".to_vec(), 0), (b"dog".to_vec(), 1), (b"bird".to_vec(), 2)]
        );
        assert!(train.name(1).starts_with("\\xb9\\xb7 of "), "{}", train.name(1));
    }

    #[test]
    fn a_label_stands_in_json_by_either_name() {
        let train = opened(&[
            (b"0.jpg", b"image"),
            (b"0.json", br#"{"cls": 4, "label": 4}"#),
            (b"1.jpg", b"image"),
            (b"1.json", br#"{"cls": 4, "label": 5}"#),
            (b"2.jpg", b"image"),
            (b"2.json", br#"{"class": 4}"#),
        ]);
        assert_eq!(train.label(0).expect("a label"), Label::Class(4));
        let none = "its .json has no class number in \"label\" or \"cls\": ";
        assert_eq!(
            bad(train.label(1)),
            format!("{none}it has the labels 4 in \"cls\" and 5 in \"label\"")
        );
        assert_eq!(bad(train.label(2)), format!("{none}it has neither"));
    }

    #[test]
    fn a_sample_may_have_any_number_of_classes() {
        let texts: [(&[u8], &[u8]); 8] = [
            (b"0.cls", b"3\n"),
            (b"1.cls", b"3 0"),
            (b"2.cls", b"[3, 0]"),
            (b"3.cls", b"[]"),
            (b"4.cls", b" "),
            (b"5.cls", b"3, cat"),
            (b"6.json", br#"{"label": [1, 2]}"#),
            (b"7.json", br#"{"label": [1, "cat"]}"#),
        ];
        let images: Vec<String> = (0..8).map(|image| format!("{image}.jpg")).collect();
        let files: Vec<(&[u8], &[u8])> = images
            .iter()
            .zip(texts)
            .flat_map(|(image, text)| [(image.as_bytes(), &b"image"[..]), text])
            .collect();
        let train = opened(&files);
        let several = |classes: &[i64]| Label::Classes(classes.to_vec());
        for (image, expected) in [
            (0, Label::Class(3)),
            (1, several(&[3, 0])),
            (2, several(&[3, 0])),
            (3, several(&[])),
            (6, several(&[1, 2])),
        ] {
            assert_eq!(train.label(image).expect("a label"), expected, "{image}");
        }
        assert_eq!(bad(train.label(4)), "its .cls is \"\", not a class number");
        assert_eq!(bad(train.label(5)), "its .cls is \"3, cat\", not a class number");
        assert_eq!(
            bad(train.label(7)),
            "its .json has no class number in \"label\" or \"cls\": it has [1,\"cat\"]"
        );
    }

    #[test]
    fn what_a_sample_has_instead_is_told() {
        let train = opened(&[
            (b"0.input.jpg", b"image"),
            (b"0.output.cls", b"1"),
            (b"1.jpg", b"one"),
            (b"1.png", b"another"),
            (b"1.cls", b"1"),
        ]);
        let told = [
            "there is no key.jpg, key.png, key.webp or key.tif; this key has: input.jpg, output.cls",
            "it has a second image, .png; this key has: jpg, png, cls",
        ];
        for (image, told) in (0..).zip(told) {
            assert_eq!(bad(train.read(image)), told);
            assert_eq!(bad(train.label(image)), told);
        }

        let mut builder = tar::Builder::new(Vec::new());
        let mut link = tar::Header::new_gnu();
        link.set_entry_type(tar::EntryType::hard_link());
        link.set_size(0);
        builder.append_link(&mut link, "2.jpg", "1.jpg").expect("appends");
        let folder = folder(&[("train-0.tar", builder.into_inner().expect("a tar file"))]);
        let (train, _) = open(folder.path(), &shards("train-0.tar"), 1.0, 1).expect("opens");
        assert_eq!(
            bad(train.read(0)),
            "there is no key.jpg, key.png, key.webp or key.tif; this key has: jpg (a hard link)"
        );
    }

    #[test]
    fn shards_that_are_empty_or_compressed_are_named() {
        let message = |bytes: Vec<u8>| {
            let folder = folder(&[("train-0.tar", two_shards()[0].1.clone()), ("train-1.tar", bytes)]);
            let error = open(folder.path(), &shards("train-*.tar"), 1.0, 1).expect_err("refused");
            error
                .to_string()
                .replace(folder.path().to_str().expect("a name"), "DIR")
        };
        assert_eq!(
            message(tar::<&str>(&[])),
            "DIR/train-1.tar holds no images: a shard holds key.jpg, key.png, key.webp or key.tif with key.cls or key.json"
        );
        assert!(message(Vec::new()).starts_with("DIR/train-1.tar holds no images"));
        let whole = two_shards()[0].1.clone();
        let torn = whole[..whole.len() - 1024].to_vec();
        assert!(message(torn).contains("it has no end marker"));
        assert_eq!(
            message(b"\x1f\x8b\x08 and so on".to_vec()),
            "DIR/train-1.tar is not a valid tar file of images: it is compressed (gzip): decompress it, because images are read from their offsets"
        );
    }

    #[test]
    fn a_fraction_is_the_first_samples() {
        let folder = folder(&two_shards());
        let (train, _) = open(folder.path(), &shards("train-*.tar"), 0.75, 1).expect("opens");
        assert_eq!(
            (train.len(), train.shards().map(|shards| shards.lengths)),
            (3, Some([2, 1].as_slice()))
        );
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
            "DIR/train-000.tar is not a valid tar file of images: it is truncated within a.jpg (file of 515 bytes)"
        );
        assert!(message("train-{001..002}.tar").starts_with("DIR/train-002.tar does not exist"));
        assert!(message("other-*.tar").starts_with("DIR/other-*.tar holds no images"));
        fs_err::write(folder.path().join("more-0.tar.gz"), b"\x1f\x8b").expect("writes");
        assert_eq!(
            message("more-*.tar"),
            "DIR/more-0.tar.gz is not a valid tar file of images: it is the only one, and compressed: \
             decompress it, because images are read from their offsets"
        );
        for pattern in ["train-{3..1}.tar", "train-{a..b}.tar", "{0..1}*", "*-*"] {
            assert!(
                message(pattern).starts_with(&format!("data.trainShards is {pattern}: must be a file name")),
                "{pattern}: {}",
                message(pattern)
            );
        }
        fs_err::write(folder.path().join("train-000.tar"), [7_u8; 2000]).expect("writes");
        assert!(message("train-*.tar").starts_with("DIR/train-000.tar is not a valid tar file of images: "));
    }
}

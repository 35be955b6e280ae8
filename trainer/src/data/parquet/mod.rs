//! Parquet files as Hugging Face's `datasets` writes them: a column with image files and one with class numbers.
//!
//! Files are read by page, of about a megabyte in `datasets`. Pages are found once, by an index or
//! headers. An epoch reads each page once, in random order, and mixes the images of the kept pages.

mod file;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytesize::ByteSize;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use serde::{Deserialize, Serialize};

use super::DataError;
use super::error::{at_first_read, is_of_storage};
use super::files::{Files, Root};
use super::labels::{Label, Labels};
use super::part;
use super::source::{PassedOver, ReadError, Shards, Source, Stored, fingerprint, list_each, shown_name};
pub(super) use file::Named;
use file::{Chunk, Columns, NO_LABEL, ParquetFile, Place};

const EXPECTED: &str =
    "a parquet data set has files ending in .parquet with the word train in their names or folders";
const SAVED: &str = "save_to_disk of Hugging Face's datasets writes Arrow files, which are not supported: write the set with to_parquet";
/// Approximate bytes of images that are mixed with one another; twice as many are kept.
const MIXED_BYTES: u64 = 128 << 20;
/// A warning is logged if pages are larger on average.
const LARGE_PAGE_BYTES: u64 = 32 << 20;
const DAMAGED: &str = "it is damaged: its metadata contradicts itself";
/// The name of each split, as a word in the name of a file or its folder, as in `datasets`.
const SPLITS: [(Split, &[&str]); 3] = [
    (Split::Train, &["train", "training"]),
    (Split::Validation, &["validation", "valid", "val", "dev"]),
    (Split::Test, &["test", "testing", "eval", "evaluation"]),
];

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Split {
    Train,
    Validation,
    Test,
}

/// Images of one split.
#[derive(Debug)]
pub(super) struct Parquet {
    folder: PathBuf,
    chunks: Vec<Chunk>,
    pages: Vec<Page>,
    /// Used rows of each page: the first ones.
    lengths: Vec<u32>,
    /// [`NO_LABEL`] if a row has none.
    labels: Labels,
    classes: Vec<String>,
    /// Whether a row has a list of classes.
    has_lists: bool,
    mixed_pages: usize,
    kept: Mutex<PageCache>,
    passed_over: PassedOver,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    chunk: u32,
    /// Within the chunk.
    number: u32,
    /// The image in its first row.
    first: u32,
}

/// The contents of a file.
struct Listed {
    columns: Columns,
    chunks: Vec<Chunk>,
    /// [`NO_LABEL`] if a row has none.
    labels: Labels,
}

/// The contents of a file except its metadata.
#[derive(Deserialize, Serialize)]
struct Scanned {
    /// Of each row group.
    pages: Vec<Vec<Place>>,
    labels: Labels,
}

type Images = Arc<Vec<Option<ByteArray>>>;

/// A page, once it has been read.
type PageSlot = Arc<Mutex<Option<Images>>>;

/// The pages used last.
#[derive(Debug, Default)]
struct PageCache {
    pages: VecDeque<(usize, u64, PageSlot)>,
    bytes: u64,
}

/// The images to train on, the first `fraction` of them, and those to evaluate.
pub(super) fn open(
    root: impl Into<Root>,
    named: Named<'_>,
    fraction: f64,
    threads: usize,
) -> Result<(Parquet, Option<Parquet>), DataError> {
    let root = root.into();
    let folder = root.path();
    let mut splits = BTreeMap::<Option<Split>, Vec<PathBuf>>::new();
    let mut configurations = BTreeSet::new();
    for path in parquet_files(&root)? {
        let inner = path.strip_prefix(folder).unwrap_or(&path);
        let (split, before) = split_of(inner).unzip();
        if split == Some(Split::Train) {
            configurations.extend(before);
        }
        splits.entry(split).or_default().push(path);
    }
    if configurations.len() > 1 {
        let names = configurations.iter().map(|name| shown_name(name.as_os_str()));
        return Err(DataError::Parquet {
            path: folder.into(),
            message: format!(
                "its files are of several sets, in the folders {}: give the folder of one",
                names
                    .map(|name| format!("{name}/"))
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        });
    }
    let unnamed = splits.remove(&None);
    let mut passed_over = PassedOver::new();
    if splits.is_empty() {
        // As in `datasets`: files that name no split are for training.
        splits.extend(unnamed.map(|paths| (Some(Split::Train), paths)));
    } else if let Some(paths) = unnamed {
        passed_over.insert("Parquet files that name no split".into(), paths.len() as u64);
    }
    let mut take = |split| splits.remove(&Some(split));
    let Some(train) = take(Split::Train) else {
        let names = root.names_in(Path::new("")).map_err(DataError::Read)?;
        let is_arrow = |path: &Path| {
            path.extension().is_some_and(|ending| ending == "arrow")
                || root.has(&folder.join(path).join("dataset_info.json"))
        };
        let is_saved = names.iter().any(|name| is_arrow(Path::new(name)));
        return Err(DataError::NoImages {
            path: folder.into(),
            expected: if is_saved { SAVED } else { EXPECTED },
        });
    };
    let list = |paths| Parquet::list(&root, paths, named, threads);
    let mut train = list(train)?;
    train.keep_first(fraction);
    let test = take(Split::Test);
    let mut not_used = |paths: &[PathBuf], why: &str| {
        passed_over.insert(format!("Parquet files of split test{why}"), paths.len() as u64);
    };
    let validation = match (take(Split::Validation), test) {
        (Some(paths), test) => {
            if let Some(test) = test {
                not_used(&test, "");
            }
            Some(list(paths)?)
        }
        // A contest's have no labels, or -1.
        (None, Some(paths)) => {
            let count = paths.clone();
            match list(paths) {
                // If some have labels, missing ones are reported.
                Ok(test) if test.labels.classes().iter().any(|class| *class >= 0) => Some(test),
                Ok(_) | Err(DataError::Parquet { .. }) => {
                    not_used(&count, ", which have no labels");
                    None
                }
                Err(error) => return Err(error),
            }
        }
        (None, None) => None,
    };
    train.passed_over.append(&mut passed_over);
    if let Some(validation) = &validation
        && validation.classes != train.classes
    {
        return Err(DataError::Parquet {
            path: folder.into(),
            message: "its files to evaluate have other class names than its training files".into(),
        });
    }
    Ok((train, validation))
}

/// The split named by a file's name, or else by its folders, and the folders before those.
fn split_of(path: &Path) -> Option<(Split, PathBuf)> {
    let split_of_name = |name: &OsStr| {
        let name = shown_name(name).to_ascii_lowercase();
        let words: Vec<&str> = name.split(|letter: char| !letter.is_ascii_alphabetic()).collect();
        let mut known = SPLITS
            .iter()
            .filter(|(_, called)| called.iter().any(|word| words.contains(word)));
        known.next().map(|(split, _)| *split)
    };
    path.ancestors().find_map(|part| {
        let split = split_of_name(part.file_name()?)?;
        Some((split, part.parent().unwrap_or(Path::new("")).to_owned()))
    })
}

/// All files that end in `.parquet`, sorted.
fn parquet_files(root: &Root) -> Result<Vec<PathBuf>, DataError> {
    let mut files = Vec::new();
    match root {
        Root::Folder(folder) => find_files(folder, &mut Vec::new(), &mut files)?,
        Root::Store { cache, .. } => {
            let names = cache.files().map(|file| file.name.as_str());
            let shown = names.filter(|name| !name.split('/').any(|part| part.starts_with('.')));
            let named = shown.filter(|name| name.ends_with(".parquet"));
            files.extend(named.map(|name| root.path().join(name)));
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// No folder on the path may occur twice, because links can form a cycle.
fn find_files(folder: &Path, way: &mut Vec<(u64, u64)>, files: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let missing = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => DataError::Missing {
            path: folder.into(),
            expected: EXPECTED,
        },
        _ => DataError::Read(error),
    };
    let about = fs_err::metadata(folder).map_err(missing)?;
    let place = (about.dev(), about.ino());
    if way.contains(&place) {
        return Ok(());
    }
    way.push(place);
    for entry in fs_err::read_dir(folder).map_err(DataError::Read)? {
        let entry = entry.map_err(DataError::Read)?;
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let kind = fs_err::metadata(&path).map_err(DataError::Read)?;
        if kind.is_dir() {
            find_files(&path, way, files)?;
        } else if path.extension().is_some_and(|ending| ending == "parquet") {
            files.push(path);
        }
    }
    way.pop();
    Ok(())
}

impl Parquet {
    /// Lists the contents of the files, several at a time.
    fn list(root: &Root, paths: Vec<PathBuf>, named: Named<'_>, threads: usize) -> Result<Self, DataError> {
        let folder = root.path();
        let files = Arc::new(root.files(paths));
        let lists = list_each(files.paths(), threads, |number, _| {
            list_file(&files, number, named)
        });
        let mut set = Self {
            folder: folder.into(),
            chunks: Vec::new(),
            pages: Vec::new(),
            lengths: Vec::new(),
            labels: Labels::default(),
            classes: Vec::new(),
            has_lists: false,
            mixed_pages: 1,
            kept: Mutex::default(),
            passed_over: PassedOver::new(),
        };
        let (mut bytes, mut first) = (0, 0);
        for (list, path) in lists.into_iter().zip(files.paths()) {
            let Listed {
                columns,
                chunks,
                labels,
            } = list?;
            if set.labels.len() == 0 {
                set.classes = columns.classes;
                set.has_lists = columns.has_lists;
            } else if set.classes != columns.classes {
                return Err(DataError::Parquet {
                    path: path.clone(),
                    message: format!("it has other class names than {}", files.path(0).display()),
                });
            } else if set.has_lists != columns.has_lists {
                return Err(DataError::Parquet {
                    path: path.clone(),
                    message: format!(
                        "its rows and those of {} differ: one has class numbers, the other lists of them",
                        files.path(0).display()
                    ),
                });
            }
            if labels.len() == 0 {
                *set.passed_over
                    .entry("Parquet files without rows".into())
                    .or_default() += 1;
            }
            set.labels.append(labels);
            for chunk in chunks {
                bytes += chunk.column.uncompressed_size().unsigned_abs();
                for number in 0..chunk.pages.len() {
                    let rows = chunk.rows_of(number) as u32;
                    set.pages.push(Page {
                        chunk: set.chunks.len() as u32,
                        number: number as u32,
                        first,
                    });
                    set.lengths.push(rows);
                    first += rows;
                }
                set.chunks.push(chunk);
            }
        }
        if set.labels.len() == 0 {
            return Err(DataError::Parquet {
                path: files.path(0).into(),
                message: "it has no rows".into(),
            });
        }
        if let Some(missing) = missing_shards(files.paths()) {
            set.passed_over
                .insert("Parquet files missing by the names of the others".into(), missing);
        }
        let page_bytes = (bytes / set.pages.len().max(1) as u64).max(1);
        set.mixed_pages = (MIXED_BYTES / page_bytes).max(1) as usize;
        if page_bytes > LARGE_PAGE_BYTES {
            tracing::warn!(
                "pages of {} have {} on average, and are read as a whole: smaller row groups mix images better and need less memory",
                folder.display(),
                ByteSize(page_bytes)
            );
        }
        Ok(set)
    }

    fn keep_first(&mut self, fraction: f64) {
        let kept = (part::whole(self.labels.len() as u64, fraction) as usize).max(1);
        self.labels.truncate(kept);
        let mut rest = kept as u32;
        for length in &mut self.lengths {
            *length = (*length).min(rest);
            rest -= *length;
        }
        // Pages without images would reduce the mixing of the others.
        let used = self.lengths.iter().rposition(|length| *length > 0);
        self.lengths.truncate(used.map_or(0, |last| last + 1));
        self.pages.truncate(self.lengths.len());
    }

    /// The page of an image.
    fn page_of(&self, image: u64) -> usize {
        self.pages.partition_point(|page| u64::from(page.first) <= image) - 1
    }

    /// One thread reads a page, and others wait for it.
    fn images_of(&self, number: usize) -> Result<Images, ParquetError> {
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = kept().slot(number);
        let mut content = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(images) = &*content {
            return Ok(Arc::clone(images));
        }
        let page = self.pages[number];
        let images = Arc::new(self.chunks[page.chunk as usize].images(page.number as usize)?);
        *content = Some(Arc::clone(&images));
        drop(content);
        kept().fill(
            number,
            images.iter().flatten().map(|image| image.len() as u64).sum(),
        );
        Ok(images)
    }
}

impl PageCache {
    fn slot(&mut self, number: usize) -> PageSlot {
        let place = self.pages.iter().position(|(known, _, _)| *known == number);
        let known = place.and_then(|place| self.pages.remove(place));
        let page = known.unwrap_or_else(|| (number, 0, PageSlot::default()));
        let slot = Arc::clone(&page.2);
        self.pages.push_back(page);
        slot
    }

    /// Counts the bytes of a page that was read, and drops those used longest ago.
    fn fill(&mut self, number: usize, bytes: u64) {
        if let Some(page) = self.pages.iter_mut().find(|(known, _, _)| *known == number) {
            self.bytes += bytes - page.1;
            page.1 = bytes;
        }
        while self.bytes > 2 * MIXED_BYTES && self.pages.len() > 1 {
            self.bytes -= self.pages.pop_front().map_or(0, |(_, bytes, _)| bytes);
        }
    }
}

/// Number of missing files in a series such as `train-00000-of-00003.parquet`.
fn missing_shards(paths: &[PathBuf]) -> Option<u64> {
    let mut sets = BTreeMap::<(PathBuf, u64), u64>::new();
    for path in paths {
        let stem = path.file_stem()?.to_str()?;
        let Some((before, total)) = stem.rsplit_once("-of-") else {
            continue;
        };
        let Some((name, _)) = before.rsplit_once('-') else {
            continue;
        };
        let Ok(total) = total.parse() else { continue };
        *sets.entry((path.with_file_name(name), total)).or_default() += 1;
    }
    let missing: u64 = sets
        .into_iter()
        .map(|((_, total), found)| total.saturating_sub(found))
        .sum();
    (missing > 0).then_some(missing)
}

fn list_file(files: &Arc<Files>, number: u32, named: Named<'_>) -> Result<Listed, DataError> {
    let path = files.path(number);
    let file = ParquetFile {
        files: Arc::clone(files),
        number,
        bytes: files.bytes(number).map_err(DataError::Read)?,
    };
    let refused = |message: String| DataError::Parquet {
        path: path.into(),
        message,
    };
    let unreadable = |error| match read_error(error) {
        ReadError::Storage(error) => at_first_read(path, &error),
        ReadError::Bad(message) => refused(message),
    };
    // The library trusts some values of a damaged file.
    let listed = catch_unwind(AssertUnwindSafe(|| {
        let metadata = file.metadata().map_err(unreadable)?;
        let columns = Columns::find(&metadata, named).map_err(refused)?;
        let kind = format!("pages-2-{}-{}", columns.image, columns.label);
        let Scanned { pages, labels } = files.listed(number, &kind, || {
            Ok::<_, DataError>(Scanned {
                pages: file.pages(&metadata, &columns).map_err(unreadable)?,
                labels: file.labels(&metadata, &columns).map_err(unreadable)?,
            })
        })?;
        let chunks = file.chunks(&metadata, &columns, pages);
        let chunk_rows: u64 = chunks.iter().map(|chunk| chunk.rows() as u64).sum();
        if chunk_rows != labels.len() as u64 {
            return Err(refused(format!(
                "it has {chunk_rows} images and {} labels",
                labels.len()
            )));
        }
        Ok(Listed {
            columns,
            chunks,
            labels,
        })
    }));
    listed.unwrap_or_else(|_| Err(refused(DAMAGED.to_owned())))
}

/// Whether the storage failed or the file is invalid.
fn read_error(error: ParquetError) -> ReadError {
    match error {
        ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
            Ok(error) if is_of_storage(&error) => ReadError::Storage(*error),
            Ok(error) => ReadError::Bad(error.to_string()),
            Err(error) => ReadError::Bad(error.to_string()),
        },
        error => {
            let text = error.to_string();
            let codec = text.rsplit_once("Disabled feature at compile time: ");
            ReadError::Bad(codec.map_or(text.clone(), |(_, codec)| {
                format!(
                    "it is compressed with {codec}, which is not supported: write it with snappy, zstd or none"
                )
            }))
        }
    }
}

impl Source for Parquet {
    fn len(&self) -> u64 {
        self.labels.len() as u64
    }

    fn read(&self, image: u64) -> Result<Stored, ReadError> {
        let label = self.label(image)?;
        let page = self.page_of(image);
        let images = catch_unwind(AssertUnwindSafe(|| self.images_of(page)));
        let images = images.map_err(|_| DAMAGED.to_owned())?.map_err(read_error)?;
        let row = image - u64::from(self.pages[page].first);
        let file = images.get(row as usize).and_then(Option::as_ref);
        let file = file.ok_or_else(|| {
            "its row has no image bytes; files must be embedded, not only their paths".to_owned()
        })?;
        Ok(Stored {
            file: file.data().to_vec(),
            label,
        })
    }

    fn label(&self, image: u64) -> Result<Label, ReadError> {
        let label = self.labels.of(image as usize);
        if label.classes().contains(&NO_LABEL.into()) {
            return Err("its row has no label".to_owned().into());
        }
        Ok(label)
    }

    fn fingerprint(&self) -> u32 {
        let files = self.chunks.iter().map(|chunk| {
            let path = chunk.file.path();
            let path = path.strip_prefix(&self.folder).unwrap_or(path);
            path.as_os_str().as_encoded_bytes().to_vec()
        });
        // The order depends on pages.
        let pages = self.lengths.iter().map(|length| length.to_le_bytes().to_vec());
        fingerprint(files.chain(self.labels.parts()).chain(pages))
    }

    fn name(&self, image: u64) -> String {
        let page = self.pages[self.page_of(image)];
        let chunk = &self.chunks[page.chunk as usize];
        // Rows count from the start of the file.
        let number = chunk.file.number;
        let first = self
            .pages
            .iter()
            .find(|page| self.chunks[page.chunk as usize].file.number == number);
        let row = image - first.map_or(0, |page| u64::from(page.first));
        format!("row {row} of {}", chunk.file.path().display())
    }

    fn shards(&self) -> Option<Shards<'_>> {
        Some(Shards {
            lengths: &self.lengths,
            at_once: self.mixed_pages,
        })
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn passed_over(&self) -> PassedOver {
        self.passed_over.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::decode::decode;
    use crate::data::fixtures;

    /// Files from `tests/peers/parquet_files.py`.
    fn goldens(folder: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/peers/goldens/parquet")
            .join(folder)
    }

    fn opened(folder: &str) -> (Parquet, Option<Parquet>) {
        open(&goldens(folder), Named::default(), 1.0, 2).expect("opens")
    }

    fn refused(folder: &Path, columns: Named<'_>) -> String {
        let error = open(folder, columns, 1.0, 1).expect_err("refused").to_string();
        error.replace(folder.to_str().expect("a name"), "DIR")
    }

    /// Color and class of each image, as the files were made.
    fn made(rows: u64, file: u8) -> Vec<([u8; 3], i64)> {
        (0..rows)
            .map(|row| {
                (
                    [(5 * row % 256) as u8, 40 * (row % 3) as u8, file],
                    (row % 3).cast_signed(),
                )
            })
            .collect()
    }

    fn seen(set: &Parquet, image: u64) -> ([u8; 3], i64) {
        let stored = set.read(image).expect("reads");
        let pixels = decode(&stored.file, 3, contract::PixelType::Uint8)
            .expect("an image")
            .pixels;
        assert_eq!(pixels.len(), 8 * 8 * 3);
        ([pixels[0], pixels[1], pixels[2]], stored.label.classes()[0])
    }

    #[test]
    fn files_of_the_hub_are_read_by_split() {
        let (train, validation) = opened("hub");
        let found: Vec<_> = (0..train.len()).map(|image| seen(&train, image)).collect();
        assert_eq!(found, [made(60, 0), made(30, 1)].concat());
        assert_eq!(train.classes(), ["cat", "dog", "bird"]);
        assert_eq!(
            train.passed_over().into_iter().collect::<Vec<_>>(),
            [("Parquet files of split test".to_owned(), 1)]
        );
        assert!(
            train.name(61).starts_with("row 1 of ")
                && train.name(61).ends_with("train-00001-of-00002.parquet")
        );
        let validation = validation.expect("some are evaluated");
        assert_eq!((validation.len(), seen(&validation, 4)), (9, made(5, 2)[4]));
    }

    #[test]
    fn a_row_may_have_any_number_of_classes() {
        let lists = |name: &str| {
            let (train, _) = opened(name);
            let labels =
                (0..train.len()).map(|image| train.label(image).map_err(|error| format!("{error:?}")));
            (labels.collect::<Vec<_>>(), train.classes().to_vec())
        };
        let expected =
            [vec![2, 0], vec![], vec![1], vec![0, 1, 2]].map(|classes| Ok(Label::Classes(classes)));
        let (labels, classes) = lists("lists");
        assert_eq!(labels, expected);
        assert_eq!(classes, ["cat", "dog", "bird"]);
        assert_eq!(lists("lists-always").0, expected);
        let lacking = lists("lists-lacking").0;
        let none = || Err("Bad(\"its row has no label\")".to_owned());
        let expected = [
            Ok(Label::Classes(vec![2])),
            none(),
            none(),
            Ok(Label::Classes(vec![])),
        ];
        assert_eq!(lacking, expected);
    }

    #[test]
    fn pages_of_every_kind_are_read_in_any_order() {
        let (train, _) = opened("pages");
        let expected = [made(40, 0), made(40, 0), made(40, 0)].concat();
        let pages = train.shards().expect("pages").lengths;
        assert!(pages.len() > 10, "several to a column chunk: {pages:?}");
        // Backwards, so that earlier pages do not help.
        for image in (0..120).rev() {
            *train.kept.lock().expect("no panic") = PageCache::default();
            assert_eq!(seen(&train, image), expected[image as usize], "image {image}");
        }
    }

    #[test]
    fn what_is_kept_of_the_files_is_bounded() {
        let mut kept = PageCache::default();
        for (number, bytes) in [(0, MIXED_BYTES), (1, MIXED_BYTES)] {
            kept.slot(number);
            kept.fill(number, bytes);
        }
        // The last used one is 0 now.
        kept.slot(0);
        kept.slot(2);
        kept.fill(2, 1);
        let held: Vec<usize> = kept.pages.iter().map(|(number, _, _)| *number).collect();
        assert_eq!((held, kept.bytes), (vec![0, 2], MIXED_BYTES + 1));
    }

    #[test]
    fn a_page_is_read_by_one_thread_for_all() {
        let (train, _) = opened("hub");
        let pages: Vec<Images> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| train.images_of(0).expect("reads")))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        assert!(pages.iter().all(|page| Arc::ptr_eq(page, &pages[0])));
        assert_eq!(train.kept.lock().expect("no panic").pages.len(), 1);
    }

    #[test]
    fn a_fraction_is_the_first_rows() {
        let (train, _) = open(&goldens("hub"), Named::default(), 0.5, 1).expect("opens");
        assert_eq!(train.len(), 45);
        let lengths = train.shards().expect("pages").lengths;
        assert_eq!(lengths.iter().sum::<u32>(), 45);
        assert!(lengths.iter().all(|length| *length > 0), "{lengths:?}");
    }

    #[test]
    fn splits_are_told_by_words_of_names_and_of_folders() {
        for (path, split) in [
            ("data/train-00000-of-00002.parquet", Some(Split::Train)),
            ("default/validation/0000.parquet", Some(Split::Validation)),
            ("val.parquet", Some(Split::Validation)),
            ("train/test_0.parquet", Some(Split::Test)),
            ("constrain.parquet", None),
            ("0000.parquet", None),
        ] {
            let found = split_of(Path::new(path)).map(|(split, _)| split);
            assert_eq!(found, split, "{path}");
        }
    }

    #[test]
    fn a_row_without_image_or_label_is_named_when_it_is_read() {
        let (set, _) = opened("train-null");
        let reason = |error| match error {
            ReadError::Bad(reason) => reason,
            ReadError::Storage(error) => panic!("the storage is sound: {error}"),
        };
        assert_eq!(reason(set.read(0).expect_err("no label")), "its row has no label");
        assert_eq!(
            reason(set.read(1).expect_err("no image")),
            "its row has no image bytes; files must be embedded, not only their paths"
        );
    }

    #[test]
    fn of_several_sets_none_is_taken_and_links_in_a_circle_end() {
        let whole = fs_err::read(goldens("pages/train/0000.parquet")).expect("a file");
        let folder = fixtures::folder(&[
            ("160px/train/0.parquet", &whole),
            ("320px/train/0.parquet", &whole),
        ]);
        assert_eq!(
            refused(folder.path(), Named::default()),
            "DIR is not a Parquet file of images: its files are of several sets, in the folders 160px/, 320px/: give the folder of one"
        );
        let one = folder.path().join("160px");
        std::os::unix::fs::symlink("..", one.join("train/loop")).expect("links");
        let (train, _) = open(&one, Named::default(), 1.0, 1).expect("opens");
        assert_eq!(train.len(), 40);
    }

    #[test]
    fn a_test_split_without_labels_is_passed_over() {
        let train = fs_err::read(goldens("pages/train/0000.parquet")).expect("a file");
        for test in ["train-text/train-text.parquet", "train-empty/train-empty.parquet"] {
            let test = fs_err::read(goldens(test)).expect("a file");
            let folder = fixtures::folder(&[("train.parquet", &train), ("test.parquet", &test)]);
            let (train, validation) = open(folder.path(), Named::default(), 1.0, 1).expect("opens");
            assert!(validation.is_none());
            let told: Vec<String> = train.passed_over().into_keys().collect();
            assert_eq!(told, ["Parquet files of split test, which have no labels"]);
        }
    }

    #[test]
    fn files_that_are_missing_or_have_no_rows_are_told() {
        let whole = fs_err::read(goldens("pages/train/0000.parquet")).expect("a file");
        let empty = fs_err::read(goldens("train-empty/train-empty.parquet")).expect("a file");
        let folder = fixtures::folder(&[
            ("train-00000-of-00005.parquet", &whole),
            ("train-00003-of-00005.parquet", &whole),
            ("train-00004-of-00005.parquet", &empty),
        ]);
        let (train, _) = open(folder.path(), Named::default(), 1.0, 1).expect("opens");
        let told: Vec<(String, u64)> = train.passed_over().into_iter().collect();
        assert_eq!(
            told,
            [
                ("Parquet files missing by the names of the others".to_owned(), 2),
                ("Parquet files without rows".to_owned(), 1)
            ]
        );
        assert_eq!(train.len(), 80);
    }

    #[test]
    fn columns_of_another_kind_are_named() {
        let message = |folder, columns| refused(&goldens(folder), columns);
        let of = |image, label| Named {
            image: Some(image),
            label: Some(label),
        };
        for (folder, columns, told) in [
            (
                "train-text",
                Named::default(),
                "column label must have a class number or a list of them in each row, but is text",
            ),
            (
                "train-path",
                Named::default(),
                "column image has no image files: it must have bytes, or a struct with bytes in a field `bytes`",
            ),
            (
                "train-names",
                Named::default(),
                "no column is named image or img or jpg: set data.imageColumn; it has picture, class",
            ),
            (
                "train-names",
                of("picture", "kind"),
                "it has no column kind (data.labelColumn), but picture, class",
            ),
            ("train-empty", Named::default(), "it has no rows"),
            (
                "train-thumb",
                Named::default(),
                "column image has no image files: it must have bytes, or a struct with bytes in a field `bytes`",
            ),
            (
                "train-struct",
                Named::default(),
                "column label must have a class number or a list of them in each row, but is a struct with conf of INT64",
            ),
            (
                "train-time",
                Named::default(),
                "column label must have a class number or a list of them in each row, but is a time",
            ),
            (
                "train-gzip",
                Named::default(),
                "it is compressed with flate2, which is not supported: write it with snappy, zstd or none",
            ),
        ] {
            assert_eq!(
                message(folder, columns),
                format!("DIR/{folder}.parquet is not a Parquet file of images: {told}")
            );
        }
        let (dotted, _) = opened("train-dotted");
        assert_eq!(seen(&dotted, 0), made(1, 0)[0]);
        let (set, _) = open(&goldens("train-names"), of("picture", "class"), 1.0, 1).expect("opens");
        assert_eq!(seen(&set, 0), made(1, 0)[0]);
    }

    #[test]
    fn what_is_torn_is_an_error_with_its_name() {
        let whole = fs_err::read(goldens("pages/train/0000.parquet")).expect("a file");
        let torn = |name: &str, bytes: &[u8]| fixtures::folder(&[(name, bytes)]);
        for length in [0, 3, whole.len() / 2, whole.len() - 1] {
            let folder = torn("train.parquet", &whole[..length]);
            let message = refused(folder.path(), Named::default());
            assert!(
                message.starts_with("DIR/train.parquet is not a Parquet file of images: "),
                "{message}"
            );
        }
        let folder = torn("notes.txt", b"text");
        assert!(
            refused(folder.path(), Named::default()).starts_with("DIR holds no images: a parquet data set")
        );
        assert!(refused(&folder.path().join("none"), Named::default()).contains("does not exist"));

        // A file that has become shorter, briefly or for good, is a storage failure.
        let folder = torn("train.parquet", &whole);
        let (set, _) = open(folder.path(), Named::default(), 1.0, 1).expect("opens");
        fs_err::write(folder.path().join("train.parquet"), &whole[..100]).expect("writes");
        assert!(matches!(set.read(39), Err(ReadError::Storage(_))));
        // Changed pixels are found by Snappy or the decoder, or not at all; none end the process.
        for place in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[place] ^= 0x55;
            let folder = torn("train.parquet", &bytes);
            if let Ok((set, _)) = open(folder.path(), Named::default(), 1.0, 1) {
                for image in 0..set.len() {
                    let _ = set.read(image);
                }
            }
        }
    }
}

//! `train/<class>/*.jpg` and `val/<class>/*.jpg`, as torchvision's `ImageFolder` reads them.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use contract::ClassOrder;

use super::DataError;
use super::decode::ENDINGS;
use super::labels::Label;
use super::part;
use super::source::{PassedOver, ReadError, Source, Stored, fingerprint, shown_name};

const EXPECTED: &str =
    "an imageFolder has train/<class>/ with JPEG, PNG, WebP or TIFF files, and val/<class>/ to evaluate";
/// Folders of images to evaluate: the first that exists.
const EVALUATED: [&str; 3] = ["val", "valid", "validation"];
/// Otherwise this one, if it has the same classes.
const TEST: &str = "test";
/// How many class names an error lists.
const LISTED_CLASSES: usize = 5;

/// Names are bytes, as in the file system, in any encoding.
#[derive(Debug)]
pub(super) struct ImageFolder {
    folder: PathBuf,
    /// Folder names; their index is the class.
    classes: Arc<[OsString]>,
    /// The same, for display.
    shown: Arc<[String]>,
    /// Class, and path below its folder, class by class.
    images: Vec<(u32, Box<OsStr>)>,
    passed_over: PassedOver,
}

/// The images to train on, the first `fraction` of every class, and those to evaluate.
pub(super) fn open(
    folder: &Path,
    classes: u32,
    fraction: f64,
    order: ClassOrder,
) -> Result<(ImageFolder, Option<ImageFolder>), DataError> {
    let train = folder.join("train");
    let mut names = folder_names(&train)?;
    if order == ClassOrder::Natural {
        names.sort_by_cached_key(|name| natural(name));
    }
    let names: Arc<[OsString]> = names.into();
    if names.len() > classes as usize {
        return Err(DataError::Classes {
            path: train,
            found: names.len(),
            first: shown(&names[..names.len().min(LISTED_CLASSES)]).join(", "),
            classes,
        });
    }
    let beside = folder_names(folder)?;
    let known: HashSet<&OsString> = names.iter().collect();
    let is_there = |name: &str| beside.iter().any(|found| found == name);
    let mut evaluated = EVALUATED.into_iter().find(|name| is_there(name));
    if evaluated.is_none() && is_there(TEST) {
        // A contest's test images have no classes.
        let found = folder_names(&folder.join(TEST))?;
        let is_labelled = !found.is_empty() && found.iter().all(|name| known.contains(name));
        evaluated = is_labelled.then_some(TEST);
    }
    let validation = match evaluated.map(|name| folder.join(name)) {
        Some(path) => {
            let mut found = folder_names(&path)?;
            found.retain(|name| !known.contains(name));
            if let Some(name) = found.pop() {
                return Err(DataError::UnknownClass {
                    path: path.join(name),
                    classes: names.len(),
                });
            }
            Some(list(path, &names, 1.0)?)
        }
        None => None,
    };
    let mut set = list(train.clone(), &names, fraction)?;
    let empty: Vec<String> = (0_u32..)
        .zip(set.shown.iter())
        .filter(|(class, _)| set.images.binary_search_by_key(class, |(of, _)| *of).is_err())
        .map(|(_, name)| name.clone())
        .collect();
    if !empty.is_empty() {
        return Err(DataError::EmptyClasses {
            path: train,
            classes: empty,
        });
    }
    let evaluated = evaluated.unwrap_or("val");
    for name in shown(&beside) {
        if name != "train" && name != evaluated {
            set.passed_over
                .insert(format!("folder {name} beside train/ and {evaluated}/"), 1);
        }
    }
    Ok((set, validation))
}

fn list(folder: PathBuf, classes: &Arc<[OsString]>, fraction: f64) -> Result<ImageFolder, DataError> {
    let mut images = Vec::new();
    let mut files = Files::default();
    for (class, name) in (0_u32..).zip(classes.iter()) {
        let path = folder.join(name);
        if !path.is_dir() {
            continue;
        }
        files.find(&path, Path::new(""))?;
        let mut found = std::mem::take(&mut files.images);
        found.sort_unstable();
        found.truncate(part::around(found.len() as u64, fraction) as usize);
        images.extend(found.into_iter().map(|(inner, file)| {
            let path = Path::new(&inner).join(file);
            (class, path.into_os_string().into())
        }));
    }
    if images.is_empty() {
        return Err(DataError::NoImages {
            path: folder,
            expected: EXPECTED,
        });
    }
    Ok(ImageFolder {
        folder,
        shown: shown(classes).into(),
        classes: Arc::clone(classes),
        images,
        passed_over: files.passed_over,
    })
}

/// The files in a class's folder and those below it, in the order of torchvision's `make_dataset`.
#[derive(Default)]
struct Files {
    /// Folder below the class's, and file: sorted as bytes, as Python sorts both.
    images: Vec<(OsString, OsString)>,
    passed_over: PassedOver,
    /// Folders on the path to here. None may occur twice, because links can form a cycle.
    way: Vec<(u64, u64)>,
}

impl Files {
    fn find(&mut self, class: &Path, inner: &Path) -> Result<(), DataError> {
        let folder = class.join(inner);
        let about = fs_err::metadata(&folder).map_err(DataError::Read)?;
        let place = (about.dev(), about.ino());
        if self.way.contains(&place) {
            return Ok(());
        }
        self.way.push(place);
        for entry in fs_err::read_dir(&folder).map_err(DataError::Read)? {
            let entry = entry.map_err(DataError::Read)?;
            let name = entry.file_name();
            if is_hidden(&name) {
                self.pass_over("hidden files and folders".into());
                continue;
            }
            let kind = entry.file_type().map_err(DataError::Read)?;
            // The target of a link; a dangling one is read like a file, and fails there.
            let kind = if kind.is_symlink() {
                fs_err::metadata(entry.path()).map_or(kind, |about| about.file_type())
            } else {
                kind
            };
            if kind.is_dir() {
                self.find(class, &inner.join(name))?;
            } else if !kind.is_file() && !kind.is_symlink() {
                self.pass_over("pipes, sockets and devices".into());
            } else if is_image(&name) {
                self.images.push((inner.into(), name));
            } else {
                let ending = Path::new(&name).extension();
                let ending = ending.map(|ending| shown_name(ending).to_lowercase());
                self.pass_over(ending.map_or("files without an extension".into(), |ending| {
                    format!("files that end in .{ending}")
                }));
            }
        }
        self.way.pop();
        Ok(())
    }

    fn pass_over(&mut self, why: String) {
        *self.passed_over.entry(why).or_default() += 1;
    }
}

/// A sort key by which numbers in names count: lowercase text, then each number as its length
/// without leading zeros and its digits. As timm's `natural_key`: "a2" is before "a10".
fn natural(name: &OsStr) -> Vec<(Vec<u8>, usize, Vec<u8>)> {
    let bytes = name.as_encoded_bytes().to_ascii_lowercase();
    let mut rest = bytes.as_slice();
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let count = |is_digit: bool, bytes: &[u8]| {
            bytes
                .iter()
                .take_while(|byte| byte.is_ascii_digit() == is_digit)
                .count()
        };
        let (text, after) = rest.split_at(count(false, rest));
        let (digits, after) = after.split_at(count(true, after));
        let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
        parts.push((text.to_vec(), digits.len() - zeros, digits[zeros..].to_vec()));
        rest = after;
    }
    parts
}

/// Sorted names of the folders in a folder.
fn folder_names(folder: &Path) -> Result<Vec<OsString>, DataError> {
    let entries = fs_err::read_dir(folder).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => DataError::Missing {
            path: folder.into(),
            expected: EXPECTED,
        },
        _ => DataError::Read(error),
    })?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(DataError::Read)?;
        let name = entry.file_name();
        if !is_hidden(&name) && entry.path().is_dir() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

fn is_image(name: &OsStr) -> bool {
    let extension = Path::new(name).extension();
    extension.is_some_and(|extension| ENDINGS.iter().any(|known| extension.eq_ignore_ascii_case(known)))
}

/// Names for display: bytes that are not UTF-8 are in hexadecimal, as in "caf\xe9".
fn shown(names: &[OsString]) -> Vec<String> {
    names.iter().map(|name| shown_name(name)).collect()
}

impl ImageFolder {
    fn path(&self, image: u64) -> PathBuf {
        let (class, file) = &self.images[image as usize];
        self.folder.join(&self.classes[*class as usize]).join(&**file)
    }
}

impl Source for ImageFolder {
    fn len(&self) -> u64 {
        self.images.len() as u64
    }

    fn read(&self, image: u64) -> Result<Stored, ReadError> {
        Ok(Stored {
            file: std::fs::read(self.path(image)).map_err(ReadError::from_error)?,
            label: self.label(image)?,
        })
    }

    fn label(&self, image: u64) -> Result<Label, ReadError> {
        Ok(Label::Class(self.images[image as usize].0.into()))
    }

    fn fingerprint(&self) -> u32 {
        let classes = self.classes.iter().map(|name| name.as_encoded_bytes().to_vec());
        let images = self.images.iter().map(|(class, name)| {
            // The class precedes the name.
            [&class.to_le_bytes()[..], name.as_encoded_bytes()].concat()
        });
        fingerprint(classes.chain(images))
    }

    fn name(&self, image: u64) -> String {
        shown_name(self.path(image).as_os_str())
    }

    fn classes(&self) -> &[String] {
        &self.shown
    }

    fn passed_over(&self) -> PassedOver {
        self.passed_over.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;
    use crate::data::fixtures;

    /// Files whose content is their name.
    fn folder(files: &[&str]) -> tempfile::TempDir {
        let files: Vec<_> = files.iter().map(|name| (*name, name)).collect();
        fixtures::folder(&files)
    }

    fn message(files: &[&str], classes: u32) -> String {
        let folder = folder(files);
        let error = open(folder.path(), classes, 1.0, ClassOrder::Name)
            .expect_err("refused")
            .to_string();
        error.replace(folder.path().to_str().expect("a name"), "DIR")
    }

    const FILES: [&str; 8] = [
        "train/dog/b.jpg",
        "train/dog/a.JPEG",
        "train/dog/notes.txt",
        "train/cat/c.png",
        "train/cat/.hidden.png",
        "train/cat/d.jpg",
        "train/cat/e.jpg",
        "val/dog/x.jpg",
    ];

    #[test]
    fn classes_are_numbered_by_their_sorted_names() {
        let folder = folder(&FILES);
        let (train, validation) = open(folder.path(), 2, 1.0, ClassOrder::Name).expect("opens");
        let list = |split: &ImageFolder| -> Vec<(String, i64)> {
            (0..split.len())
                .map(|image| split.read(image).expect("reads"))
                .map(|stored| {
                    (
                        String::from_utf8(stored.file).expect("a name"),
                        stored.label.classes()[0],
                    )
                })
                .collect()
        };
        let named = |name: &str, label| (name.to_owned(), label);
        assert_eq!(
            list(&train),
            [
                named("train/cat/c.png", 0),
                named("train/cat/d.jpg", 0),
                named("train/cat/e.jpg", 0),
                named("train/dog/a.JPEG", 1),
                named("train/dog/b.jpg", 1),
            ]
        );
        assert_eq!(list(&validation.expect("val")), [named("val/dog/x.jpg", 1)]);
        assert_eq!(train.classes(), ["cat", "dog"]);
    }

    #[test]
    fn names_are_bytes_and_folders_may_lie_in_folders() {
        let folder = folder(&[
            "train/a/1.jpg",
            "train/a/z/0.jfif",
            "train/a/b-c/2.png",
            "train/a/b/x/3.jpg",
        ]);
        let odd = |bytes: &[u8]| folder.path().join("train").join(OsStr::from_bytes(bytes));
        fs_err::create_dir(odd(b"caf\xe9")).expect("makes");
        fs_err::write(odd(b"caf\xe9/4.jpg"), "4").expect("writes");
        fs_err::write(odd(b"a/ni\xf1o.jpg"), "5").expect("writes");
        // A link to its own parent.
        std::os::unix::fs::symlink("..", odd(b"a/z/up")).expect("links");
        let (train, _) = open(folder.path(), 2, 1.0, ClassOrder::Name).expect("opens");
        let names: Vec<String> = (0..train.len())
            .map(|image| train.name(image))
            .map(|name| name.rsplit_once("train/").expect("below train").1.to_owned())
            .collect();
        // Python's order of (folder, file).
        let expected = [
            "a/1.jpg",
            "a/ni\\xf1o.jpg",
            "a/b-c/2.png",
            "a/b/x/3.jpg",
            "a/z/0.jfif",
            "caf\\xe9/4.jpg",
        ];
        assert_eq!(names, expected);
        assert_eq!(train.classes(), ["a", "caf\\xe9"]);
        assert_eq!(train.read(1).expect("reads").file, b"5");
    }

    #[test]
    fn what_is_passed_over_is_counted() {
        let folder = folder(&[
            "train/a/1.jpg",
            "train/a/1.bmp",
            "train/a/2.BMP",
            "train/b/3.png",
            "train/b/README",
            "train/b/.hidden.tif",
            "val/a/1.jpg",
            "test/a/1.jpg",
        ]);
        let status = std::process::Command::new("mkfifo")
            .arg(folder.path().join("train/b/pipe.jpg"))
            .status();
        assert!(status.expect("starts").success());
        let (train, _) = open(folder.path(), 2, 1.0, ClassOrder::Name).expect("opens");
        let told: Vec<(String, u64)> = train.passed_over().into_iter().collect();
        let expected = [
            ("files that end in .bmp", 2),
            ("files without an extension", 1),
            ("folder test beside train/ and val/", 1),
            ("hidden files and folders", 1),
            ("pipes, sockets and devices", 1),
        ];
        assert_eq!(told, expected.map(|(why, count)| (why.to_owned(), count)));
        assert_eq!(train.len(), 2);
    }

    #[test]
    fn other_names_for_what_is_evaluated_are_known() {
        for (name, beside) in [("valid", "tests"), ("validation", "eval"), ("test", "other")] {
            let evaluated = format!("{name}/a/2.jpg");
            let folder = folder(&["train/a/1.jpg", &evaluated, &format!("{beside}/a/3.jpg")]);
            let (train, validation) = open(folder.path(), 1, 1.0, ClassOrder::Name).expect("opens");
            assert_eq!(
                validation
                    .expect("some are evaluated")
                    .read(0)
                    .expect("reads")
                    .file,
                evaluated.as_bytes()
            );
            let told: Vec<String> = train.passed_over().into_keys().collect();
            assert_eq!(told, [format!("folder {beside} beside train/ and {name}/")]);
        }
    }

    #[test]
    fn a_test_folder_without_classes_is_passed_over() {
        for test in ["test/1.jpg", "test/images/1.jpg"] {
            let folder = folder(&["train/a/1.jpg", test]);
            let (train, validation) = open(folder.path(), 1, 1.0, ClassOrder::Name).expect("opens");
            assert!(validation.is_none());
            let told: Vec<String> = train.passed_over().into_keys().collect();
            assert_eq!(told, ["folder test beside train/ and val/"]);
        }
    }

    #[test]
    fn numbers_in_names_of_classes_count_where_that_is_asked_for() {
        let folder = folder(&["train/10/a.jpg", "train/9/b.jpg", "train/1/c.jpg", "val/10/d.jpg"]);
        for (order, classes, label) in [
            (ClassOrder::Name, ["1", "10", "9"], 1),
            (ClassOrder::Natural, ["1", "9", "10"], 2),
        ] {
            let (train, validation) = open(folder.path(), 3, 1.0, order).expect("opens");
            assert_eq!(train.classes(), classes);
            assert_eq!(
                validation.expect("val").label(0).expect("a label"),
                Label::Class(label)
            );
        }
        let mut names = ["b", "a10b2", "A2", "a10b10", "a", "a02c"].map(OsString::from);
        names.sort_by_cached_key(|name| natural(name));
        assert_eq!(
            names,
            ["a", "A2", "a02c", "a10b2", "a10b10", "b"].map(OsString::from)
        );
    }

    #[test]
    fn a_fraction_keeps_the_first_images_of_every_class() {
        let folder = folder(&FILES);
        let (train, validation) = open(folder.path(), 2, 0.4, ClassOrder::Name).expect("opens");
        let labels: Vec<i64> = (0..train.len())
            .map(|image| train.read(image).expect("reads").label.classes()[0])
            .collect();
        assert_eq!(labels, [0, 0, 1]);
        assert_eq!(validation.expect("val").len(), 1);
    }

    #[test]
    fn a_folder_of_another_shape_is_named() {
        assert!(message(&["cat/a.jpg"], 2).starts_with("DIR/train does not exist: an imageFolder has"));
        assert!(message(&["train/cat/a.txt"], 2).starts_with("DIR/train holds no images"));
        assert_eq!(
            message(&["train/@eaDir/a.txt", "train/cat/a.jpg"], 2),
            "DIR/train has folders without images: @eaDir; each folder is a class: remove them, or put images there"
        );
        assert_eq!(
            message(&["train/a/1.png", "train/b/1.png", "train/c/1.png"], 2),
            "DIR/train has 3 classes, more than model.numClasses (2): a, b, c"
        );
        assert_eq!(
            message(&["train/a/1.png", "val/b/1.png"], 2),
            "DIR/val/b has no folder of the same name among the 1 classes to train on"
        );
    }
}

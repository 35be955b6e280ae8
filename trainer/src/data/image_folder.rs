//! `train/<class>/*.jpg` and `val/<class>/*.jpg`, as torchvision's `ImageFolder` reads them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::DataError;
use super::part;
use super::source::{Source, Stored, fingerprint};

const EXPECTED: &str =
    "an imageFolder has train/<class>/ with JPEG or PNG files, and val/<class>/ to evaluate";

#[derive(Debug)]
pub(super) struct ImageFolder {
    folder: PathBuf,
    /// Folder names; their place is the class.
    classes: Arc<[String]>,
    /// Class and file name, class by class.
    images: Vec<(u32, Box<str>)>,
}

/// The images to train on, the first `fraction` of every class, and those to evaluate.
pub(super) fn open(
    folder: &Path,
    classes: u32,
    fraction: f64,
) -> Result<(ImageFolder, Option<ImageFolder>), DataError> {
    let train = folder.join("train");
    let names: Arc<[String]> = folder_names(&train)?.into();
    if names.len() > classes as usize {
        return Err(DataError::Classes {
            path: train,
            found: names.len(),
            classes,
        });
    }
    let validation = folder.join("val");
    let validation = if validation.is_dir() {
        for name in folder_names(&validation)? {
            if names.binary_search(&name).is_err() {
                return Err(DataError::UnknownClass {
                    path: validation.join(name),
                    classes: names.len(),
                });
            }
        }
        Some(list(validation, &names, 1.0)?)
    } else {
        None
    };
    Ok((list(train, &names, fraction)?, validation))
}

fn list(folder: PathBuf, classes: &Arc<[String]>, fraction: f64) -> Result<ImageFolder, DataError> {
    let mut images = Vec::new();
    for (class, name) in (0_u32..).zip(classes.iter()) {
        let path = folder.join(name);
        if !path.is_dir() {
            continue;
        }
        let mut files: Vec<Box<str>> = Vec::new();
        for entry in fs_err::read_dir(&path).map_err(DataError::Read)? {
            let file = entry.map_err(DataError::Read)?.file_name();
            if let Some(file) = file.to_str().filter(|file| is_image(file)) {
                files.push(file.into());
            }
        }
        files.sort_unstable();
        files.truncate(part::around(files.len() as u64, fraction) as usize);
        images.extend(files.into_iter().map(|file| (class, file)));
    }
    if images.is_empty() {
        return Err(DataError::NoImages {
            path: folder,
            expected: EXPECTED,
        });
    }
    Ok(ImageFolder {
        folder,
        classes: Arc::clone(classes),
        images,
    })
}

/// Names of the folders in a folder, sorted.
fn folder_names(folder: &Path) -> Result<Vec<String>, DataError> {
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
        if let Some(name) = entry.file_name().to_str()
            && !name.starts_with('.')
            && entry.path().is_dir()
        {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn is_image(name: &str) -> bool {
    let extension = Path::new(name)
        .extension()
        .and_then(|extension| extension.to_str());
    !name.starts_with('.')
        && extension.is_some_and(|extension| {
            ["jpg", "jpeg", "png"]
                .iter()
                .any(|known| extension.eq_ignore_ascii_case(known))
        })
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

    fn read(&self, image: u64) -> Result<Stored, String> {
        Ok(Stored {
            // The name is told beside the error.
            file: std::fs::read(self.path(image)).map_err(|error| error.to_string())?,
            label: self.label(image)?,
        })
    }

    fn label(&self, image: u64) -> Result<i64, String> {
        Ok(i64::from(self.images[image as usize].0))
    }

    fn fingerprint(&self) -> u32 {
        let classes = self.classes.iter().map(String::as_bytes);
        let images = self.images.iter().map(|(class, name)| {
            // The class stands before the name.
            [&class.to_le_bytes()[..], name.as_bytes()].concat()
        });
        fingerprint(classes.map(<[u8]>::to_vec).chain(images))
    }

    fn name(&self, image: u64) -> String {
        self.path(image).display().to_string()
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::fixtures;

    /// Files whose content is their name.
    fn folder(files: &[&str]) -> tempfile::TempDir {
        let files: Vec<_> = files.iter().map(|name| (*name, name)).collect();
        fixtures::folder(&files)
    }

    fn message(files: &[&str], classes: u32) -> String {
        let folder = folder(files);
        let error = open(folder.path(), classes, 1.0)
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
        let (train, validation) = open(folder.path(), 2, 1.0).expect("opens");
        let list = |split: &ImageFolder| -> Vec<(String, i64)> {
            (0..split.len())
                .map(|image| split.read(image).expect("reads"))
                .map(|stored| (String::from_utf8(stored.file).expect("a name"), stored.label))
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
    fn a_fraction_keeps_the_first_images_of_every_class() {
        let folder = folder(&FILES);
        let (train, validation) = open(folder.path(), 2, 0.4).expect("opens");
        let labels: Vec<i64> = (0..train.len())
            .map(|image| train.read(image).expect("reads").label)
            .collect();
        assert_eq!(labels, [0, 0, 1]);
        assert_eq!(validation.expect("val").len(), 1);
    }

    #[test]
    fn a_folder_of_another_shape_is_named() {
        assert!(message(&["cat/a.jpg"], 2).starts_with("DIR/train does not exist: an imageFolder has"));
        assert!(message(&["train/cat/a.txt"], 2).starts_with("DIR/train holds no images"));
        assert_eq!(
            message(&["train/a/1.png", "train/b/1.png", "train/c/1.png"], 2),
            "DIR/train has 3 classes, more than model.numClasses (2)"
        );
        assert_eq!(
            message(&["train/a/1.png", "val/b/1.png"], 2),
            "DIR/val/b has no folder of the same name among the 1 classes to train on"
        );
    }
}

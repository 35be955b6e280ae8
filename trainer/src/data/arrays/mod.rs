//! Images in arrays: `train.npz` or `train.h5` with `images` and `labels`, or each array in its own
//! file, such as `train_images.npy`. Images are uint8 or float32, with the channels first or last.

mod hdf5;
mod numpy;

use std::fmt::Display;
use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::labels::Labels;
use super::resident::Resident;
use super::{Classes, DataError, Expected};
use hdf5::Hdf5;
use numpy::Npz;

/// Maximum bytes of a part, unless a row is longer.
const PART_BYTES: usize = 8 << 20;

/// An array whose header was read.
struct Array<'a> {
    kind: Kind,
    shape: Vec<i64>,
    /// The rows (along the first dimension) in order, several per tensor, so that whoever joins the
    /// parts holds the values once.
    parts: Box<dyn Iterator<Item = Result<Tensor, String>> + 'a>,
}

impl Array<'_> {
    /// How many rows of this size make a part, of `rows` at most.
    fn rows_of_part(rows: usize, row_bytes: usize) -> usize {
        rows.min((PART_BYTES / row_bytes.max(1)).max(1))
    }
}

/// The kind of files that hold the arrays.
#[derive(Clone, Copy, Debug)]
pub(super) enum Files {
    Numpy,
    Hdf5,
}

impl Files {
    /// Extensions of a file with both arrays, and of one with a single array.
    fn endings(self) -> [&'static str; 2] {
        match self {
            Self::Numpy => ["npz", "npy"],
            Self::Hdf5 => ["h5", "h5"],
        }
    }

    fn expected(self) -> &'static str {
        match self {
            Self::Numpy => {
                "a numpy data set has train.npz with images and labels, or train_images.npy and train_labels.npy"
            }
            Self::Hdf5 => {
                "an hdf5 data set has train.h5 with images and labels, or train_images.h5 and train_labels.h5 with one dataset each"
            }
        }
    }

    fn open(self, path: &Path) -> Result<Opened, DataError> {
        Ok(match self {
            Self::Numpy => Opened::Npz(Npz::open(path)?),
            Self::Hdf5 => Opened::Hdf5(Hdf5::open(path)?),
        })
    }

    /// The only array of a file.
    fn single(self, path: &Path) -> Result<Array<'static>, DataError> {
        match self {
            Self::Numpy => numpy::single(path),
            Self::Hdf5 => Hdf5::open(path)?.single().map_err(|error| refused(path, error)),
        }
    }
}

/// A file with several arrays.
enum Opened {
    Npz(Npz),
    Hdf5(Hdf5),
}

impl Opened {
    fn array(&mut self, path: &Path, name: &str) -> Result<Array<'_>, DataError> {
        let array = match self {
            Self::Npz(file) => file.array(name),
            Self::Hdf5(file) => file.array(name),
        };
        array.map_err(|error| refused(path, error))
    }
}

/// The images to train on and those to evaluate.
pub(super) fn load(
    folder: &Path,
    files: Files,
    expected: Expected,
) -> Result<(Resident, Option<Resident>), DataError> {
    let train = split(folder, files, "train", expected)?.ok_or_else(|| DataError::Missing {
        path: folder.join(format!("train.{}", files.endings()[0])),
        expected: files.expected(),
    })?;
    let validation = split(folder, files, "val", expected)?;
    if let Some(validation) = &validation
        && validation.pixel_type() != train.pixel_type()
    {
        return Err(refused(
            folder,
            format!(
                "training images are {}, but images to evaluate are {}: store both in one type, because only uint8 is scaled to 0..1",
                train.pixel_type().name(),
                validation.pixel_type().name()
            ),
        ));
    }
    Ok((train, validation))
}

fn split(folder: &Path, files: Files, name: &str, expected: Expected) -> Result<Option<Resident>, DataError> {
    let [both, single] = files.endings();
    let file = folder.join(format!("{name}.{both}"));
    let [images_file, labels_file] =
        ["images", "labels"].map(|array| folder.join(format!("{name}_{array}.{single}")));
    let (images, labels) = if file.is_file() {
        let mut arrays = files.open(&file)?;
        let images = images(&file, arrays.array(&file, "images")?, expected.channels)?;
        let array = arrays.array(&file, "labels")?;
        let labels = labels(&file, array, images.size()[0], expected.classes)?;
        (images, labels)
    } else if images_file.is_file() {
        if !labels_file.is_file() {
            return Err(DataError::Missing {
                path: labels_file,
                expected: files.expected(),
            });
        }
        let images = images(&images_file, files.single(&images_file)?, expected.channels)?;
        let array = files.single(&labels_file)?;
        let labels = labels(&labels_file, array, images.size()[0], expected.classes)?;
        (images, labels)
    } else {
        return Ok(None);
    };
    let count = images.size()[0].cast_unsigned();
    Ok(Some(Resident::new(images, labels, count)))
}

fn refused(path: &Path, message: impl Display) -> DataError {
    DataError::Array {
        path: path.into(),
        message: message.to_string(),
    }
}

/// The images as [images, channels, height, width].
fn images(path: &Path, array: Array<'_>, channels: u32) -> Result<Tensor, DataError> {
    let kind = array.kind;
    if !matches!(kind, Kind::Uint8 | Kind::Float) {
        return Err(refused(
            path,
            format!(
                "images are {kind:?}, but must be uint8 or float32: convert them with .astype(numpy.float32)"
            ),
        ));
    }
    let stored = array.shape.clone();
    let expected = i64::from(channels);
    let (shape, channels_last) = match stored[..] {
        [images, height, width] if expected == 1 => ([images, 1, height, width], false),
        [images, first, height, width] if first == expected => ([images, first, height, width], false),
        [images, height, width, last] if last == expected => ([images, last, height, width], true),
        _ => {
            return Err(refused(
                path,
                format!(
                    "images have shape {stored:?}, but must be [images, {channels}, height, width] or [images, height, width, {channels}] for model.channels {channels} (with one channel also [images, height, width])"
                ),
            ));
        }
    };
    if shape.contains(&0) {
        return Err(refused(
            path,
            format!("images have shape {stored:?}, which is empty"),
        ));
    }
    together(path, array, &shape, |part| {
        if kind == Kind::Float && part.isfinite().all().int64_value(&[]) == 0 {
            return Err(refused(path, "images have values that are not finite"));
        }
        Ok(if channels_last {
            part.permute([0, 3, 1, 2])
        } else {
            part.reshape([-1, shape[1], shape[2], shape[3]])
        })
    })
}

/// One class per image, or a column per class with 1 for the images that show it.
fn labels(path: &Path, array: Array<'_>, images: i64, classes: Classes) -> Result<Labels, DataError> {
    let count = i64::from(classes.count);
    let is_for_classes = |columns: i64| columns > 1 && (columns == count || classes == Classes::ANY);
    if matches!(array.shape[..], [rows, columns] if rows == images && is_for_classes(columns)) {
        if !classes.several {
            return Err(refused(
                path,
                format!(
                    "labels have shape {:?}, a column for each class, but training.loss crossEntropy allows one class per image: use binaryCrossEntropy for several",
                    array.shape
                ),
            ));
        }
        if matches!(array.kind, Kind::Float | Kind::Double | Kind::Half) {
            return Err(refused(
                path,
                format!("labels are {:?}, but must be bool or whole numbers", array.kind),
            ));
        }
        return columns_of_classes(path, array);
    }
    if !matches!(
        array.kind,
        Kind::Uint8 | Kind::Int8 | Kind::Int16 | Kind::Int | Kind::Int64
    ) {
        return Err(refused(
            path,
            format!("labels are {:?}, but must be whole numbers", array.kind),
        ));
    }
    // PatchCamelyon's have three more dimensions, all of size one.
    if array.shape.first() != Some(&images) || array.shape[1..].iter().any(|size| *size != 1) {
        return Err(refused(
            path,
            format!(
                "labels have shape {:?}, but must be one for each of {images} images{}",
                array.shape,
                if classes.several {
                    format!(", or [{images}, {count}] for model.numClasses {count}")
                } else {
                    String::new()
                }
            ),
        ));
    }
    let labels = together(path, array, &[images], |part| Ok(part.flatten(0, -1)))?.to_kind(Kind::Int64);
    for label in [labels.min().int64_value(&[]), labels.max().int64_value(&[])] {
        if !(0..count).contains(&label) {
            return Err(refused(
                path,
                format!(
                    "a label is {label}, but model.numClasses is {count} (labels 0 to {})",
                    count - 1
                ),
            ));
        }
    }
    let numbers = Vec::try_from(labels.to_kind(Kind::Int)).expect("whole numbers in one row");
    Ok(Labels::from_classes(numbers))
}

fn columns_of_classes(path: &Path, array: Array<'_>) -> Result<Labels, DataError> {
    let columns = array.shape[1] as usize;
    let shown = |row: &[i64]| -> Vec<i32> {
        let classes = (0..).zip(row).filter(|(_, number)| **number == 1);
        classes.map(|(class, _)| class).collect()
    };
    let mut labels = Labels::default();
    for part in array.parts {
        let part = part.map_err(|error| refused(path, error))?.to_kind(Kind::Int64);
        let numbers: Vec<i64> = Vec::try_from(part.contiguous().view(-1)).expect("whole numbers in one row");
        if let Some(number) = numbers.iter().find(|number| !matches!(number, 0 | 1)) {
            return Err(refused(
                path,
                format!(
                    "labels have a column for each class, but {number} in one: they must be 1 for images that show the class, else 0"
                ),
            ));
        }
        labels.append(Labels::from_lists(numbers.chunks(columns).map(shown)));
    }
    Ok(labels)
}

/// The whole array in `shape`; `arrange` brings its rows into that shape.
fn together(
    path: &Path,
    array: Array<'_>,
    shape: &[i64],
    arrange: impl Fn(Tensor) -> Result<Tensor, DataError>,
) -> Result<Tensor, DataError> {
    let whole = Tensor::f_empty(shape, (array.kind, Device::Cpu)).map_err(|error| refused(path, error))?;
    let mut row = 0;
    for part in array.parts {
        let part = arrange(part.map_err(|error| refused(path, error))?)?;
        let rows = part.size()[0];
        whole.narrow(0, row, rows).copy_(&part);
        row += rows;
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(channels: u32) -> Expected {
        Expected {
            channels,
            classes: Classes {
                count: 10,
                several: false,
            },
            side: 8,
        }
    }

    fn array(kind: Kind, shape: &[i64]) -> Tensor {
        Tensor::randint(10, shape, (kind, Device::Cpu))
    }

    fn files(arrays: &[(&str, Tensor)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, tensor) in arrays {
            tensor.write_npy(folder.path().join(name)).expect("writes");
        }
        folder
    }

    fn message(channels: u32, images: Tensor, labels: Tensor) -> String {
        let folder = files(&[("train_images.npy", images), ("train_labels.npy", labels)]);
        let error = load(folder.path(), Files::Numpy, expected(channels))
            .expect_err("refused")
            .to_string();
        error.replace(folder.path().to_str().expect("a name"), "DIR")
    }

    #[test]
    fn channels_may_be_first_or_last_and_of_any_number() {
        let folder = tempfile::tempdir().expect("a folder");
        let (images, labels) = (array(Kind::Float, &[4, 6, 7, 5]), array(Kind::Int, &[4]));
        let arrays = [("labels", &labels), ("images", &images)];
        Tensor::write_npz(&arrays, folder.path().join("train.npz")).expect("writes");
        images
            .narrow(0, 0, 2)
            .permute([0, 3, 1, 2])
            .contiguous()
            .write_npy(folder.path().join("val_images.npy"))
            .expect("writes");
        labels
            .narrow(0, 0, 2)
            .write_npy(folder.path().join("val_labels.npy"))
            .expect("writes");
        let (train, validation) = load(folder.path(), Files::Numpy, expected(5)).expect("loads");
        let validation = validation.expect("val");
        assert_eq!(train.stored().0.size(), [4, 5, 6, 7]);
        assert!(validation.stored().0.equal(&train.stored().0.narrow(0, 0, 2)));
        let labels = Vec::<i32>::try_from(labels).expect("numbers");
        assert_eq!(train.stored().1.classes(), labels);

        let grey = files(&[
            ("train_images.npy", array(Kind::Uint8, &[3, 8, 9])),
            ("train_labels.npy", array(Kind::Uint8, &[3])),
        ]);
        let (train, validation) = load(grey.path(), Files::Numpy, expected(1)).expect("loads");
        assert_eq!(train.stored().0.size(), [3, 1, 8, 9]);
        assert!(validation.is_none());
    }

    #[test]
    fn both_parts_hold_bytes_or_both_floats() {
        let split = |name: &str, kind| {
            [
                (format!("{name}_images.npy"), array(kind, &[4, 3, 8, 8])),
                (format!("{name}_labels.npy"), array(Kind::Int64, &[4])),
            ]
        };
        let [train, validation] = [split("train", Kind::Uint8), split("val", Kind::Float)];
        let arrays: Vec<(&str, Tensor)> = train
            .iter()
            .chain(&validation)
            .map(|(name, array)| (name.as_str(), array.shallow_clone()))
            .collect();
        let error = load(files(&arrays).path(), Files::Numpy, expected(3)).expect_err("refused");
        assert!(
            error
                .to_string()
                .contains("training images are uint8, but images to evaluate are float32"),
            "{error}"
        );
    }

    #[test]
    fn a_file_with_other_names_tells_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let arrays = [("train_images", &array(Kind::Uint8, &[4, 3, 8, 8]))];
        Tensor::write_npz(&arrays, folder.path().join("train.npz")).expect("writes");
        let error = load(folder.path(), Files::Numpy, expected(3)).expect_err("refused");
        assert!(
            error
                .to_string()
                .ends_with("train.npz: it has no array images, but train_images"),
            "{error}"
        );
    }

    #[test]
    fn arrays_that_do_not_fit_are_named_with_what_would() {
        let labels = || array(Kind::Int64, &[4]);
        assert_eq!(
            message(5, array(Kind::Uint8, &[4, 3, 8, 8]), labels()),
            "DIR/train_images.npy: images have shape [4, 3, 8, 8], but must be [images, 5, height, width] or [images, height, width, 5] for model.channels 5 (with one channel also [images, height, width])"
        );
        assert_eq!(
            message(3, array(Kind::Double, &[4, 3, 8, 8]), labels()),
            "DIR/train_images.npy: images are Double, but must be uint8 or float32: convert them with .astype(numpy.float32)"
        );
        assert_eq!(
            message(3, array(Kind::Uint8, &[5, 3, 8, 8]), labels()),
            "DIR/train_labels.npy: labels have shape [4], but must be one for each of 5 images"
        );
        assert_eq!(
            message(3, array(Kind::Uint8, &[4, 3, 8, 8]), labels() + 20).replace(char::is_numeric, "9"),
            "DIR/train_labels.npy: a label is 99, but model.numClasses is 99 (labels 9 to 9)"
        );
        assert_eq!(
            message(
                3,
                array(Kind::Uint8, &[4, 3, 8, 8]),
                labels().to_kind(Kind::Float)
            ),
            "DIR/train_labels.npy: labels are Float, but must be whole numbers"
        );
        assert_eq!(
            message(3, array(Kind::Float, &[4, 3, 8, 8]) / 0.0, labels()),
            "DIR/train_images.npy: images have values that are not finite"
        );
        let folder = tempfile::tempdir().expect("a folder");
        let missing = load(folder.path(), Files::Numpy, expected(3))
            .expect_err("refused")
            .to_string();
        assert!(
            missing.contains("train.npz does not exist: a numpy data set has"),
            "{missing}"
        );
        fs_err::write(folder.path().join("train.npz"), "no archive").expect("writes");
        let broken = load(folder.path(), Files::Numpy, expected(3))
            .expect_err("refused")
            .to_string();
        assert!(broken.contains("train.npz: "), "{broken}");
    }

    #[test]
    fn a_column_for_each_class_lets_images_show_several() {
        let several = |several| Expected {
            classes: Classes { count: 4, several },
            ..expected(1)
        };
        let rows: [[u8; 4]; 3] = [[1, 0, 0, 1], [0; 4], [0, 1, 0, 0]];
        let message = |rows: &[[u8; 4]], expected: Expected| {
            let folder = files(&[
                ("train_images.npy", array(Kind::Uint8, &[3, 8, 8])),
                ("train_labels.npy", Tensor::from_slice2(rows)),
            ]);
            let loaded = load(folder.path(), Files::Numpy, expected);
            let loaded = loaded.map(|(train, _)| train.stored().1.clone());
            loaded.map_err(|error| {
                error
                    .to_string()
                    .replace(folder.path().to_str().expect("a name"), "DIR")
            })
        };
        let shown = Labels::from_lists([vec![0, 3], vec![], vec![1]]);
        assert_eq!(message(&rows, several(true)), Ok(shown.clone()));
        let any = Expected {
            classes: Classes::ANY,
            ..expected(1)
        };
        assert_eq!(message(&rows, any), Ok(shown));
        assert_eq!(
            message(&rows, several(false)),
            Err("DIR/train_labels.npy: labels have shape [3, 4], a column for each class, but training.loss crossEntropy allows one class per image: use binaryCrossEntropy for several".into())
        );
        assert_eq!(
            message(&[[1, 0, 0, 2], [0; 4], [0; 4]], several(true)),
            Err("DIR/train_labels.npy: labels have a column for each class, but 2 in one: they must be 1 for images that show the class, else 0".into())
        );
        let five = Expected {
            classes: Classes {
                count: 5,
                several: true,
            },
            ..expected(1)
        };
        assert_eq!(
            message(&rows, five),
            Err("DIR/train_labels.npy: labels have shape [3, 4], but must be one for each of 3 images, or [3, 5] for model.numClasses 5".into())
        );
    }
}

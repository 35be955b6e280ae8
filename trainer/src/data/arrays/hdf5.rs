//! HDF5 files, read by a pure Rust library.

use std::path::Path;

use hdf5_reader::error::Error;
use hdf5_reader::{Dataset, Datatype, H5Type, Hdf5File, OpenOptions, SliceInfo, SliceInfoElem};
use tch::kind::Element;
use tch::{Kind, Tensor};

use super::{Array, DataError, refused};

/// Maximum bytes of a row or of a chunk.
const LARGEST_BYTES: usize = 1 << 30;
/// Maximum bytes to which one byte of a file decompresses: deflate's bound.
const MOST_COMPRESSION: u64 = 1032;
/// Bit in the consistency flags of a file being written (superblock version 3 and later).
const WRITING: u32 = 1;

/// A file with several datasets.
pub(super) struct Hdf5(Hdf5File);

impl Hdf5 {
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        // The library's error does not name the file.
        fs_err::File::open(path).map_err(DataError::Read)?;
        let options = OpenOptions::default()
            .with_max_chunk_bytes(LARGEST_BYTES)
            .with_max_read_bytes(LARGEST_BYTES);
        let file = Hdf5File::open_with_options(path, options)
            .map_err(|error| refused(path, format!("it is not a valid HDF5 file: {error}")))?;
        let superblock = file.superblock();
        // The storage starts after a user block, if any; the end counts from the start of the file.
        let found = superblock.base_address.saturating_add(file.storage().len());
        let expected = superblock.eof_address;
        if found < expected {
            let message = format!("it is truncated: it has {found} of {expected} bytes");
            return Err(refused(path, message));
        }
        if superblock.version >= 3 && superblock.consistency_flags & WRITING != 0 {
            return Err(refused(
                path,
                "its writer has not closed it: wait, or repair the file with h5clear -s",
            ));
        }
        Ok(Self(file))
    }

    pub(super) fn array(&self, name: &str) -> Result<Array<'static>, String> {
        let (groups, names) = self.names()?;
        if !names.iter().any(|known| known == name) {
            let groups = groups.into_iter().map(|group| format!("group {group}"));
            let found: Vec<String> = names.into_iter().chain(groups).collect();
            return Err(format!(
                "it has no dataset {name} (a link to another file does not count), but {}",
                listed(&found)
            ));
        }
        self.dataset(name)
    }

    /// The only dataset.
    pub(super) fn single(&self) -> Result<Array<'static>, String> {
        match &self.names()?.1[..] {
            [name] => self.dataset(name),
            names => Err(format!("it must have one dataset, but has {}", listed(names))),
        }
    }

    /// Names of groups and of datasets.
    fn names(&self) -> Result<(Vec<String>, Vec<String>), String> {
        let names = self.0.root_group().and_then(|root| root.member_names());
        names.map_err(|error| {
            let text = error.to_string();
            if text.contains("unsupported layout class 3") {
                format!("virtual datasets are not supported: copy the values into this file ({text})")
            } else {
                text
            }
        })
    }

    fn dataset(&self, name: &str) -> Result<Array<'static>, String> {
        let told = |error: String| format!("{name}: {error}");
        let dataset = self.0.dataset(name).map_err(|error| told(error.to_string()))?;
        array(dataset, self.0.storage().len()).map_err(told)
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() {
        "none".into()
    } else {
        names.join(", ")
    }
}

type ReadRows = fn(&Dataset, u64, u64) -> Result<Tensor, String>;

/// The dataset of a file of this many bytes.
fn array(dataset: Dataset, file_bytes: u64) -> Result<Array<'static>, String> {
    let (kind, read) = numbers(dataset.dtype())?;
    let sizes = dataset.shape().to_vec();
    let value_bytes = kind.elt_size_in_bytes() as u64;
    let bytes = |sizes: &[u64]| {
        sizes
            .iter()
            .try_fold(value_bytes, |bytes, size| bytes.checked_mul(*size))
    };
    let most = file_bytes.saturating_mul(MOST_COMPRESSION);
    // The extent is only a number in the file; chunks that were never written use no space.
    if bytes(&sizes).is_none_or(|bytes| bytes > most) {
        return Err(format!(
            "its shape {sizes:?} needs more bytes than a file of {file_bytes} bytes can hold"
        ));
    }
    let (rows, row) = sizes.split_first().ok_or("it is a single value, not an array")?;
    let (rows, row_bytes) = (*rows, bytes(row).unwrap_or(u64::MAX));
    let chunk_rows = dataset
        .chunks()
        .and_then(|sizes| sizes.first().copied())
        .map_or(1, u64::from)
        .max(1);
    let mut next = 0;
    let parts = std::iter::from_fn(move || {
        let count = rows_of_part(rows - next, row_bytes, chunk_rows);
        if count == 0 {
            return None;
        }
        let part = read(&dataset, next, next + count);
        next += count;
        Some(part)
    });
    Ok(Array {
        kind,
        shape: sizes.iter().map(|size| size.cast_signed()).collect(),
        parts: Box::new(parts),
    })
}

/// How many of these rows make a part. A chunk is only split if it is too large for a part.
fn rows_of_part(rest: u64, row_bytes: u64, chunk_rows: u64) -> u64 {
    let count = Array::rows_of_part(rest as usize, row_bytes as usize) as u64;
    if count == rest {
        return count;
    }
    let whole = (count / chunk_rows).max(1).saturating_mul(chunk_rows).min(rest);
    let is_small = whole.saturating_mul(row_bytes) <= LARGEST_BYTES as u64;
    if is_small { whole } else { count }
}

/// The kind of a dataset's numbers, and the function that reads them.
fn numbers(found: &Datatype) -> Result<(Kind, ReadRows), String> {
    Ok(match found {
        Datatype::FixedPoint {
            size: 1,
            signed: false,
            ..
        } => (Kind::Uint8, rows::<u8>),
        Datatype::FixedPoint {
            size: 1,
            signed: true,
            ..
        } => (Kind::Int8, rows::<i8>),
        Datatype::FixedPoint {
            size: 2,
            signed: true,
            ..
        } => (Kind::Int16, rows::<i16>),
        Datatype::FixedPoint {
            size: 4,
            signed: true,
            ..
        } => (Kind::Int, rows::<i32>),
        Datatype::FixedPoint {
            size: 8,
            signed: true,
            ..
        } => (Kind::Int64, rows::<i64>),
        Datatype::FloatingPoint { size: 4, .. } => (Kind::Float, rows::<f32>),
        Datatype::FloatingPoint { size: 8, .. } => (Kind::Double, rows::<f64>),
        other => {
            return Err(format!(
                "its numbers are of type {}, but must be uint8, int8, int16, int32, int64, float32 or float64",
                named(other)
            ));
        }
    })
}

fn named(found: &Datatype) -> String {
    match found {
        Datatype::FixedPoint { size, signed, .. } => {
            format!("{}int{}", if *signed { "" } else { "u" }, u32::from(*size) * 8)
        }
        Datatype::FloatingPoint { size, .. } => format!("float{}", u32::from(*size) * 8),
        Datatype::Compound { fields, .. } => {
            let fields: Vec<&str> = fields.iter().map(|field| &*field.name).collect();
            format!("compound of {}", fields.join(", "))
        }
        Datatype::Enum { .. } => "bool or another enum (write them with .astype(int))".into(),
        Datatype::String { .. } => "string".into(),
        Datatype::VarLen { .. } => "variable length".into(),
        _ => "another class".into(),
    }
}

fn rows<T: H5Type + Element>(dataset: &Dataset, first: u64, end: u64) -> Result<Tensor, String> {
    let mut selection = SliceInfo::all(dataset.ndim());
    selection.selections[0] = SliceInfoElem::Slice {
        start: first,
        end,
        step: 1,
    };
    let values = dataset.read_slice::<T>(&selection).map_err(|error| match error {
        Error::UnsupportedFilter(_) => {
            format!("its compression is not supported ({error}): write it with compression=\"gzip\"")
        }
        other => other.to_string(),
    })?;
    let shape: Vec<i64> = values.shape().iter().map(|size| *size as i64).collect();
    let values = values.as_slice().ok_or("its values are not in order")?;
    Ok(Tensor::from_slice(values).reshape(shape))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::{Files, load};
    use super::*;
    use crate::data::Expected;
    use crate::data::fixtures::folder;

    fn written(name: &str) -> Vec<u8> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/peers/goldens/hdf5");
        fs_err::read(folder.join(name)).expect("reads")
    }

    /// Images and labels of a data set with these files.
    fn loaded(channels: u32, files: &[(&str, Vec<u8>)]) -> Result<(Tensor, Vec<i32>), String> {
        let folder = folder(files);
        let expected = Expected {
            channels,
            classes: crate::data::Classes {
                count: 4,
                several: false,
            },
            side: 8,
        };
        match load(folder.path(), Files::Hdf5, expected) {
            Ok((train, _)) => Ok((
                train.stored().0.shallow_clone(),
                train.stored().1.classes().to_vec(),
            )),
            Err(error) => Err(error
                .to_string()
                .replace(folder.path().to_str().expect("a name"), "DIR")),
        }
    }

    /// The values with which `tests/peers/hdf5_files.py` fills arrays.
    fn places(shape: &[i64]) -> Tensor {
        let count = shape.iter().product::<i64>();
        Tensor::arange(count, (Kind::Int64, tch::Device::Cpu)).reshape(shape)
    }

    fn labels(rows: i32) -> Vec<i32> {
        (0..rows).map(|row| row % 4).collect()
    }

    #[test]
    fn files_of_each_form_are_read_as_they_were_written() {
        let (images, found) = loaded(1, &[("train.h5", written("slices.h5"))]).expect("slices");
        assert!(images.equal(&(places(&[5, 1, 12, 10]).to_kind(Kind::Float) / 8)));
        assert_eq!(found, labels(5));

        let patches = [
            ("train_images.h5", written("patches_x.h5")),
            ("train_labels.h5", written("patches_y.h5")),
        ];
        let (images, found) = loaded(3, &patches).expect("patches");
        let expected = (places(&[10, 8, 8, 3]) * 7).remainder(251).to_kind(Kind::Uint8);
        assert!(images.equal(&expected.permute([0, 3, 1, 2])));
        assert_eq!(found, labels(10));

        for name in ["fixed.h5", "growing.h5", "growing_twice.h5", "user_block.h5"] {
            let (images, found) = loaded(3, &[("train.h5", written(name))]).expect(name);
            assert!(
                images.equal(&(places(&[6, 3, 8, 8]).to_kind(Kind::Float) / 8)),
                "{name}"
            );
            assert_eq!(found, labels(6), "{name}");
        }
    }

    #[test]
    fn rows_come_in_parts() {
        let folder = folder(&[("x.h5", written("patches_x.h5"))]);
        let path: PathBuf = folder.path().join("x.h5");
        let file = Hdf5::open(&path).expect("opens");
        let array = file.single().expect("one dataset");
        let part = super::super::PART_BYTES as u64;
        for (rest, row_bytes, chunk_rows, expected) in [
            (10, 192, 4, 10),
            (10, part / 3, 1, 3),
            (100, part / 10, 4, 8),
            (100, part / 10, 40, 40),
            (30, part / 10, 40, 30),
            (100, part, 1000, 100),
            (100_000, part, 1000, 1),
            (0, 192, 4, 0),
        ] {
            let found = rows_of_part(rest, row_bytes, chunk_rows);
            assert_eq!(
                found, expected,
                "{rest} rows of {row_bytes} bytes in chunks of {chunk_rows}"
            );
        }
        let whole = array.parts.map(Result::unwrap).next().expect("a part");
        let dataset = file.0.dataset("x").expect("a dataset");
        for (first, end) in [(0, 3), (3, 5), (9, 10)] {
            let part = rows::<u8>(&dataset, first, end).expect("reads");
            let expected = whole.narrow(0, first.cast_signed(), (end - first).cast_signed());
            assert!(part.equal(&expected), "{first} to {end}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let train = |name: &str| loaded(3, &[("train.h5", written(name))]).expect_err("refused");
        assert_eq!(
            train("open.h5"),
            "DIR/train.h5: its writer has not closed it: wait, or repair the file with h5clear -s"
        );
        assert_eq!(
            train("complex.h5"),
            "DIR/train.h5: images: its numbers are of type compound of r, i, but must be uint8, int8, int16, int32, int64, float32 or float64"
        );
        assert_eq!(
            train("huge.h5"),
            "DIR/train.h5: images: its shape [1099511627776, 3, 64, 64] needs more bytes than a file of 2080 bytes can hold"
        );
        assert_eq!(
            train("patches_x.h5"),
            "DIR/train.h5: it has no dataset images (a link to another file does not count), but x"
        );
        for (name, told) in [
            (
                "group.h5",
                "it has no dataset images (a link to another file does not count), but group train",
            ),
            (
                "link.h5",
                "it has no dataset images (a link to another file does not count), but labels",
            ),
            (
                "virtual.h5",
                "virtual datasets are not supported: copy the values into this file (child 'images' at 0x320: unsupported layout class 3)",
            ),
            (
                "bool.h5",
                "labels: its numbers are of type bool or another enum (write them with .astype(int)), but must be uint8, int8, \
                 int16, int32, int64, float32 or float64",
            ),
            (
                "variable.h5",
                "images: its numbers are of type variable length, but must be uint8, int8, int16, int32, int64, float32 or float64",
            ),
        ] {
            assert_eq!(train(name), format!("DIR/train.h5: {told}"));
        }
        assert_eq!(
            train("lzf.h5"),
            "DIR/train.h5: its compression is not supported (unsupported filter: filter id 32000): write it with compression=\"gzip\""
        );
        let both = [
            ("train_images.h5", written("slices.h5")),
            ("train_labels.h5", written("patches_y.h5")),
        ];
        assert_eq!(
            loaded(1, &both).expect_err("refused"),
            "DIR/train_images.h5: it must have one dataset, but has images, labels"
        );
        let missing = loaded(3, &[]).expect_err("refused");
        assert!(
            missing.starts_with("DIR/train.h5 does not exist: an hdf5 data set has"),
            "{missing}"
        );
    }

    #[test]
    fn a_broken_file_is_refused_wherever_it_ends_or_is_overwritten() {
        for name in ["slices.h5", "fixed.h5", "growing.h5"] {
            let bytes = written(name);
            for length in (0..bytes.len()).step_by(97) {
                let error = loaded(1, &[("train.h5", bytes[..length].to_vec())]).expect_err("refused");
                assert!(
                    error.contains("it is not a valid HDF5 file") || error.contains("it is truncated"),
                    "{name} of {length} bytes: {error}"
                );
            }
        }
        // Deflate and Fletcher's checksum detect a changed chunk.
        let mut bytes = written("patches_x.h5");
        let middle = bytes.len() - 300;
        bytes[middle] ^= 0xff;
        let patches = [
            ("train_images.h5", bytes),
            ("train_labels.h5", written("patches_y.h5")),
        ];
        let error = loaded(3, &patches).expect_err("refused");
        assert!(error.starts_with("DIR/train_images.h5: "), "{error}");
    }
}

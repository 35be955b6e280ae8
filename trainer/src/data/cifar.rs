//! The binary CIFAR-10 and CIFAR-100 (<https://www.cs.toronto.edu/~kriz/cifar.html>): files of
//! records, each one or two label bytes and three planes of 32 x 32 bytes (red, green, blue).

use std::path::Path;

use tch::Tensor;

use super::DataError;
use super::labels::Labels;
use super::resident::Resident;

const CHANNELS: usize = 3;
const SIDE: usize = 32;
const PIXEL_BYTES: usize = CHANNELS * SIDE * SIDE;

/// The files of a variant.
pub(super) struct Layout {
    train: &'static [&'static str],
    test: &'static str,
    /// Bytes before the pixels; the last of them is the label.
    label_bytes: usize,
    classes: usize,
    expected: &'static str,
}

pub(super) const CIFAR_10: Layout = Layout {
    train: &[
        "data_batch_1.bin",
        "data_batch_2.bin",
        "data_batch_3.bin",
        "data_batch_4.bin",
        "data_batch_5.bin",
    ],
    test: "test_batch.bin",
    label_bytes: 1,
    classes: 10,
    expected: "the binary version of CIFAR-10 has data_batch_1.bin to data_batch_5.bin, and test_batch.bin to evaluate",
};

pub(super) const CIFAR_100: Layout = Layout {
    train: &["train.bin"],
    test: "test.bin",
    label_bytes: 2,
    classes: 100,
    expected: "the binary version of CIFAR-100 has train.bin, and test.bin to evaluate",
};

/// The images to train on and those to evaluate.
pub(super) fn load(folder: &Path, layout: &Layout) -> Result<(Resident, Option<Resident>), DataError> {
    if !folder.is_dir() {
        return Err(DataError::Missing {
            path: folder.into(),
            expected: layout.expected,
        });
    }
    let has_test = folder.join(layout.test).exists();
    let test = has_test
        .then(|| read(folder, &[layout.test], layout))
        .transpose()?;
    Ok((read(folder, layout.train, layout)?, test))
}

fn read(folder: &Path, files: &[&str], layout: &Layout) -> Result<Resident, DataError> {
    let mut images = Vec::new();
    let mut labels = Vec::new();
    for file in files {
        let path = folder.join(file);
        let bytes = fs_err::read(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => DataError::Missing {
                path: path.clone(),
                expected: layout.expected,
            },
            _ => DataError::Read(error),
        })?;
        split_records(&path, &bytes, layout, &mut images, &mut labels)?;
    }
    let count = labels.len();
    let shape = [count, CHANNELS, SIDE, SIDE].map(|size| size as i64);
    Ok(Resident::new(
        Tensor::from_slice(&images).reshape(shape),
        Labels::from_classes(labels),
        count as u64,
    ))
}

/// Appends the pixels and labels of every record.
fn split_records(
    path: &Path,
    bytes: &[u8],
    layout: &Layout,
    images: &mut Vec<u8>,
    labels: &mut Vec<i32>,
) -> Result<(), DataError> {
    let record_bytes = layout.label_bytes + PIXEL_BYTES;
    if bytes.is_empty() {
        return Err(DataError::Empty {
            path: path.into(),
            record_bytes,
        });
    }
    let rest = bytes.len() % record_bytes;
    if rest != 0 {
        return Err(DataError::Truncated {
            path: path.into(),
            offset: bytes.len() - rest,
            found_bytes: rest,
            record_bytes,
            file_bytes: bytes.len(),
        });
    }
    images.reserve(bytes.len());
    for (index, record) in bytes.chunks_exact(record_bytes).enumerate() {
        let (head, pixels) = record.split_at(layout.label_bytes);
        let label = head[layout.label_bytes - 1];
        if usize::from(label) >= layout.classes {
            return Err(DataError::Label {
                path: path.into(),
                offset: index * record_bytes + layout.label_bytes - 1,
                label,
                classes: layout.classes,
            });
        }
        labels.push(i32::from(label));
        images.extend_from_slice(pixels);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::fixtures::folder;

    fn record(label_bytes: usize, label: u8, value: u8) -> Vec<u8> {
        let mut record = vec![0; label_bytes];
        record[label_bytes - 1] = label;
        record.resize(label_bytes + PIXEL_BYTES, value);
        record
    }

    fn cifar_10() -> Vec<(&'static str, Vec<u8>)> {
        (1_u8..)
            .zip(CIFAR_10.train.iter().chain([&CIFAR_10.test]))
            .map(|(value, name)| (*name, [record(1, value, value), record(1, 9, 0)].concat()))
            .collect()
    }

    fn message(files: &[(&str, Vec<u8>)]) -> String {
        let folder = folder(files);
        let error = load(folder.path(), &CIFAR_10).expect_err("refused").to_string();
        error.replace(folder.path().to_str().expect("a name"), "DIR")
    }

    #[test]
    fn both_variants_are_read_whole_and_in_order() {
        let files = cifar_10();
        let (train, validation) = load(folder(&files).path(), &CIFAR_10).expect("reads");
        assert_eq!(train.len(), 10);
        assert_eq!(train.stored().1.classes(), [1, 9, 2, 9, 3, 9, 4, 9, 5, 9]);
        let validation = validation.expect("a test file");
        let (images, _) = validation.stored();
        assert_eq!((validation.len(), images.size()), (2, vec![2, 3, 32, 32]));
        assert_eq!(images.max().int64_value(&[]), 6);

        let files = [("train.bin", record(2, 99, 1)), ("test.bin", record(2, 0, 2))];
        let (train, _) = load(folder(&files).path(), &CIFAR_100).expect("reads");
        assert_eq!(train.stored().1.classes(), [99]);
        let (_, validation) = load(folder(&files[..1]).path(), &CIFAR_100).expect("reads");
        assert!(validation.is_none(), "without a test file there is no evaluation");
    }

    #[test]
    fn a_truncated_record_is_named_by_file_and_offset() {
        let mut files = cifar_10();
        files[2].1.truncate(3073 + 1000);
        assert_eq!(
            message(&files),
            "DIR/data_batch_3.bin is truncated: the record at byte 3073 has 1000 of 3073 bytes (file of 4073 bytes)"
        );
    }

    #[test]
    fn a_label_out_of_range_is_named_by_file_and_offset() {
        let mut files = cifar_10();
        files[0].1[3073] = 10;
        assert_eq!(
            message(&files),
            "DIR/data_batch_1.bin: label at byte 3073 is 10, but the data set has 10 classes (0 to 9)"
        );
    }

    #[test]
    fn what_is_missing_or_empty_is_named() {
        let mut files = cifar_10();
        files[4].1.clear();
        assert_eq!(
            message(&files),
            "DIR/data_batch_5.bin is empty: expected records of 3073 bytes"
        );
        files.remove(4);
        assert!(
            message(&files).starts_with("DIR/data_batch_5.bin does not exist: "),
            "{}",
            message(&files)
        );
        let error = load(Path::new("/nowhere"), &CIFAR_100).expect_err("refused");
        assert!(
            error.to_string().starts_with("/nowhere does not exist: "),
            "{error}"
        );
    }
}

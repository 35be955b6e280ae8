//! `NumPy` files: an array in `.npy`, several in `.npz`.

use std::io::{BufReader, Read};
use std::path::Path;

use fs_err::File;
use npyz::{NpyHeader, Order};
use tch::{Kind, Tensor};
use zip::ZipArchive;
use zip::result::ZipError;

use super::{Array, DataError, refused};

/// `NumPy`'s own limit.
const MOST_HEADER_BYTES: u64 = 10_000;

/// A file with several arrays.
pub(super) struct Npz(ZipArchive<BufReader<File>>);

impl Npz {
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let file = File::open(path).map_err(DataError::Read)?;
        let archive = ZipArchive::new(BufReader::new(file));
        archive.map(Self).map_err(|error| refused(path, error))
    }

    pub(super) fn array(&mut self, name: &str) -> Result<Array<'_>, String> {
        let names: Vec<String> = self
            .0
            .file_names()
            .filter_map(Result::ok)
            .map(|file| file.strip_suffix(".npy").unwrap_or(&file).to_owned())
            .collect();
        let missing = format!("it has no array {name}, but {}", names.join(", "));
        let file = self
            .0
            .by_name(&format!("{name}.npy"))
            .map_err(|error| match error {
                ZipError::FileNotFound => missing,
                other => other.to_string(),
            })?;
        let bytes = file.size();
        array(file, bytes).map_err(|error| format!("{name}: {error}"))
    }
}

/// The only array of a file.
pub(super) fn single(path: &Path) -> Result<Array<'static>, DataError> {
    let file = File::open(path).map_err(DataError::Read)?;
    let bytes = file.metadata().map_err(DataError::Read)?.len();
    array(file, bytes).map_err(|error| refused(path, error))
}

/// Errors in a file.
#[derive(Debug, thiserror::Error)]
enum ArrayError {
    #[error("{0}")]
    Read(#[from] std::io::Error),
    #[error(
        "it is not a valid NumPy array: {0} (it must start with \\x93NUMPY, a version from 1 to 3, and a header)"
    )]
    Header(std::io::Error),
    #[error(
        "its numbers are of type {0}, but must be f2, f4, f8, i1, i2, i4, i8, u1 or b1, with the low byte first"
    )]
    Type(String),
    #[error("it is in Fortran order: save it with numpy.ascontiguousarray")]
    FortranOrder,
    #[error("it has {found} bytes of values, fewer than its shape {shape:?} of {kind:?} needs")]
    TooShort { found: u64, shape: Vec<i64>, kind: Kind },
}

/// The array of a file of this many bytes.
fn array<'a>(mut file: impl Read + 'a, bytes: u64) -> Result<Array<'a>, ArrayError> {
    let mut head = file.by_ref().take(MOST_HEADER_BYTES);
    let header = NpyHeader::from_reader(&mut head).map_err(ArrayError::Header)?;
    let found = bytes.saturating_sub(MOST_HEADER_BYTES - head.limit());
    let kind = kind(&header.dtype().descr())?;
    let shape: Vec<i64> = header.shape().iter().map(|size| size.cast_signed()).collect();
    // With one dimension both orders are the same, and NumPy may write either.
    if header.order() == Order::Fortran && shape.len() > 1 {
        return Err(ArrayError::FortranOrder);
    }
    let mut sizes = header.shape().iter();
    let needed = sizes.try_fold(kind.elt_size_in_bytes() as u64, |bytes, size| {
        bytes.checked_mul(*size)
    });
    if needed.is_none_or(|needed| found < needed) {
        return Err(ArrayError::TooShort { found, shape, kind });
    }
    let parts = Box::new(parts(file, kind, &shape));
    Ok(Array { kind, shape, parts })
}

fn parts<R: Read>(
    mut values: R,
    kind: Kind,
    shape: &[i64],
) -> impl Iterator<Item = Result<Tensor, String>> + use<R> {
    let (rows, row) = shape.split_first().unwrap_or((&0, &[]));
    let (mut rest, mut shape) = (*rows as usize, shape.to_vec());
    let row_bytes = row.iter().product::<i64>() as usize * kind.elt_size_in_bytes();
    let mut bytes = Vec::new();
    std::iter::from_fn(move || {
        let rows = Array::rows_of_part(rest, row_bytes);
        if rows == 0 {
            return None;
        }
        rest -= rows;
        shape[0] = rows as i64;
        bytes.resize(rows * row_bytes, 0);
        let read = values.read_exact(&mut bytes);
        Some(match read {
            Ok(()) => Ok(Tensor::from_data_size(&bytes, &shape, kind)),
            Err(error) => Err(error.to_string()),
        })
    })
}

/// The kind of numbers that `NumPy` calls `descr`, in quotes.
fn kind(descr: &str) -> Result<Kind, ArrayError> {
    match descr.trim_matches('\'').trim_start_matches(['<', '|', '=']) {
        "f2" => Ok(Kind::Half),
        "f4" => Ok(Kind::Float),
        "f8" => Ok(Kind::Double),
        "i1" => Ok(Kind::Int8),
        "i2" => Ok(Kind::Int16),
        "i4" => Ok(Kind::Int),
        "i8" => Ok(Kind::Int64),
        "u1" => Ok(Kind::Uint8),
        "b1" => Ok(Kind::Bool),
        _ => Err(ArrayError::Type(descr.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use tch::Device;

    use super::super::PART_BYTES;
    use super::*;

    fn file(header: &str, values: &[u8]) -> Vec<u8> {
        let length = u16::try_from(header.len()).expect("short");
        let start = [b"\x93NUMPY\x01\x00".as_slice(), &length.to_le_bytes()];
        [start[0], start[1], header.as_bytes(), values].concat()
    }

    fn open(bytes: &[u8]) -> Result<Array<'_>, ArrayError> {
        array(Cursor::new(bytes), bytes.len() as u64)
    }

    #[test]
    fn a_large_array_comes_in_parts_that_are_the_array_together() {
        let rows = 3 * PART_BYTES as i64 / 1000;
        let array = Tensor::randint(100, [rows, 10, 100], (Kind::Uint8, Device::Cpu));
        let place = tempfile::NamedTempFile::new().expect("a file");
        array.write_npy(place.path()).expect("writes");
        let bytes = fs_err::read(place.path()).expect("reads");
        let opened = open(&bytes).expect("opens");
        assert_eq!((opened.kind, &opened.shape), (Kind::Uint8, &vec![rows, 10, 100]));
        let parts: Vec<Tensor> = opened.parts.collect::<Result<_, _>>().expect("reads");
        assert!(parts.len() >= 3);
        for part in &parts {
            assert!(part.numel() <= PART_BYTES, "a part of {} bytes", part.numel());
        }
        assert!(Tensor::cat(&parts, 0).equal(&array));
        let vector = "{'descr': '|u1', 'fortran_order': True, 'shape': (2,), }";
        assert!(open(&file(vector, &[1, 2])).is_ok(), "a vector has one order");
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let message = |bytes: &[u8]| open(bytes).err().expect("refused").to_string();
        let vector = "{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }";
        for bytes in [
            b"PK".as_slice(),
            &file(vector, &[])[..30],
            &file(&" ".repeat(20_000), &[]),
            &file("{}", &[]),
        ] {
            assert!(
                message(bytes).starts_with("it is not a valid NumPy array: "),
                "{}",
                message(bytes)
            );
        }
        for (descr, order, shape, expected) in [
            ("'>f4'", "False", "(1,)", "of type '>f4', but must be f2, f4"),
            (
                "[('x', '<f4')]",
                "False",
                "(1,)",
                "of type [('x', '<f4'), ], but must be f2",
            ),
            ("'<f4'", "True", "(1, 1)", "it is in Fortran order"),
            ("'<f4'", "False", "('a',)", "it is not a valid NumPy array"),
            (
                "'<f4'",
                "False",
                "(3, 4)",
                "it has 4 bytes of values, fewer than its shape [3, 4] of Float needs",
            ),
            ("'<f4'", "False", "(9223372036854775807,)", "fewer than its shape"),
            (
                "'<f4'",
                "False",
                "(18446744073709551615, 3)",
                "fewer than its shape",
            ),
        ] {
            let header = format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}");
            let message = message(&file(&header, &[0; 4]));
            assert!(message.contains(expected), "{header}: {message}");
        }
    }
}

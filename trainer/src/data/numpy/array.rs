//! The array of a `NumPy` file, read part by part: whoever puts the parts together holds the values once.
//!
//! The format is that of `numpy.lib.format`: `\x93NUMPY`, two bytes of version, the length of the header (two bytes, or
//! four from version 2 on), the header (a dictionary in Python's words), the values.

use std::io::Read;

use tch::{Kind, Tensor};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Most bytes of a part, but for a row that is longer.
const PART_BYTES: usize = 8 << 20;
/// `NumPy`'s own bound.
const MOST_HEADER_BYTES: usize = 10_000;

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArrayError {
    #[error("{0}")]
    Read(#[from] std::io::Error),
    #[error("it ends within its header")]
    CutHeader,
    #[error("its header has {0} bytes, more than NumPy's own bound of {MOST_HEADER_BYTES}")]
    LongHeader(usize),
    #[error("it is no NumPy array: it does not start with \\x93NUMPY and a version from 1 to 3")]
    NotAnArray,
    #[error("its header {header:?} has no {field}")]
    Header { header: String, field: &'static str },
    #[error(
        "its numbers are of type {0:?}, but must be f2, f4, f8, i1, i2, i4, i8, u1 or b1, with the low byte first"
    )]
    Type(String),
    #[error("it is in Fortran order: save it with numpy.ascontiguousarray")]
    FortranOrder,
    #[error("it has {found} bytes of values, fewer than its shape {shape:?} of {kind:?} takes")]
    TooShort { found: u64, shape: Vec<i64>, kind: Kind },
}

/// An array of which the header was read.
#[derive(Debug)]
pub(super) struct ArrayFile<R> {
    pub(super) kind: Kind,
    pub(super) shape: Vec<i64>,
    values: R,
}

impl<R: Read> ArrayFile<R> {
    /// Reads the header of a file of so many bytes.
    pub(super) fn open(mut file: R, bytes: u64) -> Result<Self, ArrayError> {
        let mut start = [0; MAGIC.len() + 2];
        file.read_exact(&mut start).map_err(|_| ArrayError::NotAnArray)?;
        let (magic, version) = start.split_at(MAGIC.len());
        let mut length = [0; 4];
        let length_bytes = match (magic, version[0]) {
            (MAGIC, 1) => 2,
            (MAGIC, 2 | 3) => 4,
            _ => return Err(ArrayError::NotAnArray),
        };
        let cut = |_| ArrayError::CutHeader;
        file.read_exact(&mut length[..length_bytes]).map_err(cut)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MOST_HEADER_BYTES {
            return Err(ArrayError::LongHeader(length));
        }
        let mut header = vec![0; length];
        file.read_exact(&mut header).map_err(cut)?;
        let (kind, shape) = parse(&String::from_utf8_lossy(&header))?;
        let found = bytes.saturating_sub((start.len() + length_bytes + length) as u64);
        let needed = shape
            .iter()
            .try_fold(kind.elt_size_in_bytes() as u64, |bytes, size| {
                bytes.checked_mul(u64::try_from(*size).ok()?)
            });
        if needed.is_none_or(|needed| found < needed) {
            return Err(ArrayError::TooShort { found, shape, kind });
        }
        Ok(Self {
            kind,
            shape,
            values: file,
        })
    }

    /// The rows (what the first dimension counts) in order, several in a tensor.
    pub(super) fn parts(mut self) -> impl Iterator<Item = Result<Tensor, ArrayError>> {
        let (rows, row) = self.shape.split_first().unwrap_or((&0, &[]));
        let (mut rest, mut shape) = (*rows as usize, self.shape.clone());
        let row_bytes = row.iter().product::<i64>() as usize * self.kind.elt_size_in_bytes();
        let mut bytes = Vec::new();
        std::iter::from_fn(move || {
            let rows = rest.min((PART_BYTES / row_bytes.max(1)).max(1));
            if rows == 0 {
                return None;
            }
            rest -= rows;
            shape[0] = rows as i64;
            bytes.resize(rows * row_bytes, 0);
            let read = self.values.read_exact(&mut bytes);
            Some(match read {
                Ok(()) => Ok(Tensor::from_data_size(&bytes, &shape, self.kind)),
                Err(error) => Err(error.into()),
            })
        })
    }
}

/// Type and shape out of `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
fn parse(header: &str) -> Result<(Kind, Vec<i64>), ArrayError> {
    let value = |field: &'static str| {
        let (_, rest) = header.split_once(&format!("'{field}':"))?;
        Some(rest.trim_start())
    };
    let missing = |field| ArrayError::Header {
        header: header.trim_end().into(),
        field,
    };
    let descr = value("descr")
        .and_then(|rest| rest.strip_prefix('\'')?.split_once('\''))
        .ok_or_else(|| missing("descr"))?
        .0;
    let kind = match descr.trim_start_matches(['<', '|', '=']) {
        "f2" => Kind::Half,
        "f4" => Kind::Float,
        "f8" => Kind::Double,
        "i1" => Kind::Int8,
        "i2" => Kind::Int16,
        "i4" => Kind::Int,
        "i8" => Kind::Int64,
        "u1" => Kind::Uint8,
        "b1" => Kind::Bool,
        _ => return Err(ArrayError::Type(descr.into())),
    };
    let order = value("fortran_order").ok_or_else(|| missing("fortran_order"))?;
    let shape: Option<Vec<i64>> = value("shape")
        .and_then(|rest| rest.strip_prefix('(')?.split_once(')'))
        .and_then(|(sizes, _)| {
            let sizes = sizes.split(',').map(str::trim).filter(|size| !size.is_empty());
            sizes.map(|size| size.parse().ok()).collect()
        });
    let shape = shape.ok_or_else(|| missing("shape"))?;
    // With one dimension both orders are the same, and NumPy may say either.
    if order.starts_with("True") && shape.len() > 1 {
        return Err(ArrayError::FortranOrder);
    }
    Ok((kind, shape))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use tch::Device;

    use super::*;

    fn file(header: &str, values: &[u8]) -> Vec<u8> {
        let length = u16::try_from(header.len()).expect("short");
        [MAGIC, &[1, 0], &length.to_le_bytes(), header.as_bytes(), values].concat()
    }

    fn open(bytes: &[u8]) -> Result<ArrayFile<Cursor<&[u8]>>, ArrayError> {
        ArrayFile::open(Cursor::new(bytes), bytes.len() as u64)
    }

    #[test]
    fn a_large_array_comes_in_parts_that_are_the_array_together() {
        let rows = 3 * PART_BYTES as i64 / 1000;
        let array = Tensor::randint(100, [rows, 10, 100], (Kind::Uint8, Device::Cpu));
        let place = tempfile::NamedTempFile::new().expect("a file");
        array.write_npy(place.path()).expect("writes");
        let bytes = fs_err::read(place.path()).expect("reads");
        let array_file = open(&bytes).expect("opens");
        assert_eq!(
            (array_file.kind, array_file.shape.as_slice()),
            (Kind::Uint8, [rows, 10, 100].as_slice())
        );
        let parts: Vec<Tensor> = array_file.parts().collect::<Result<_, _>>().expect("reads");
        assert!(parts.len() >= 3);
        for part in &parts {
            assert!(part.numel() <= PART_BYTES, "a part of {} bytes", part.numel());
        }
        assert!(Tensor::cat(&parts, 0).equal(&array));
    }

    #[test]
    fn headers_of_every_version_are_read() {
        let header = "{'descr': '<i2', 'fortran_order': False, 'shape': (3,), }";
        let values = [1, 0, 2, 0, 0xff, 0xff];
        let mut version_2 = file(header, &values);
        version_2[6] = 2;
        version_2.splice(10..10, [0, 0]);
        for bytes in [file(header, &values), version_2] {
            let parts: Vec<Tensor> = open(&bytes)
                .expect("opens")
                .parts()
                .collect::<Result<_, _>>()
                .expect("reads");
            assert_eq!(Vec::<i16>::try_from(&parts[0]).expect("numbers"), [1, 2, -1]);
        }
        let vector = "{'descr': '|u1', 'fortran_order': True, 'shape': (2,), }";
        assert!(open(&file(vector, &[1, 2])).is_ok(), "a vector has one order");
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let message = |bytes: &[u8]| open(bytes).expect_err("refused").to_string();
        assert!(message(b"PK").starts_with("it is no NumPy array"));
        let vector = "{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }";
        assert_eq!(message(&file(vector, &[])[..30]), "it ends within its header");
        assert!(message(&file(&" ".repeat(20_000), &[])).starts_with("its header has 20000 bytes"));
        assert!(message(&file("{}", &[])).ends_with(r#"header "{}" has no descr"#));
        for (descr, order, shape, expected) in [
            ("'>f4'", "False", "(1,)", r#"of type ">f4", but must be f2, f4"#),
            ("[('x', '<f4')]", "False", "(1,)", "has no descr"),
            ("'<f4'", "True", "(1, 1)", "it is in Fortran order"),
            ("'<f4'", "False", "(a,)", "has no shape"),
            (
                "'<f4'",
                "False",
                "(3, 4)",
                "it has 4 bytes of values, fewer than its shape [3, 4] of Float takes",
            ),
            (
                "'<f4'",
                "False",
                "(9223372036854775807, 9)",
                "fewer than its shape",
            ),
        ] {
            let header = format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}");
            let message = message(&file(&header, &[0; 4]));
            assert!(message.contains(expected), "{header}: {message}");
        }
    }
}

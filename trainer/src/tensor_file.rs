//! Named tensors in safetensors files: `<length of the header, 8 bytes><header, JSON><values>`.
//!
//! The header is written here because the reading crate writes whole files from memory, with
//! metadata in a random order.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use contract::ExitCode;
use fs_err as fs;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Map, Value, json};
use tch::{Kind, Tensor};

use crate::error::Failure;

/// Alignment of the values, by padding the header.
const ALIGNMENT: usize = 8;
const BUFFER_BYTES: usize = 1024 * 1024;
/// Read and write for everyone, subject to the process's umask, as other programs create files.
const MODE: u32 = 0o666;

/// The `producer` in this program's files.
pub(crate) const PRODUCER: &str = concat!("vit-trainer ", env!("CARGO_PKG_VERSION"));

pub(crate) type Metadata = BTreeMap<&'static str, String>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum SaveError {
    #[error("{path} already exists: choose another name, or remove it")]
    Exists { path: PathBuf },
    #[error("{path} cannot be written: {problem}")]
    Place { path: PathBuf, problem: String },
    #[error("failed to write {path}: {error}")]
    Write {
        path: PathBuf,
        #[source]
        error: std::io::Error,
    },
}

impl Failure for SaveError {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Exists { .. } | Self::Place { .. } => ExitCode::BadConfig,
            Self::Write { .. } => ExitCode::Storage,
        }
    }
}

/// What to do with an existing file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Existing {
    Keep,
    Replace,
}

impl Existing {
    /// Checks that `path` can be written, before its content is computed.
    pub(crate) fn allows(self, path: &Path) -> Result<(), SaveError> {
        let problem = |problem: String| {
            Err(SaveError::Place {
                path: path.into(),
                problem,
            })
        };
        let folder = folder_of(path);
        if path.is_dir() {
            return problem("it is a folder: name a file".into());
        }
        if !folder.is_dir() {
            return problem(format!("the folder {} does not exist", folder.display()));
        }
        if self == Self::Keep && path.symlink_metadata().is_ok() {
            return Err(SaveError::Exists { path: path.into() });
        }
        Ok(())
    }
}

/// Writes a file atomically. Returns its size in bytes.
pub(crate) fn save(
    path: &Path,
    tensors: &[(String, Tensor)],
    metadata: &Metadata,
    existing: Existing,
) -> Result<u64, SaveError> {
    existing.allows(path)?;
    let failed = |error: std::io::Error| SaveError::Write {
        path: path.into(),
        error,
    };
    let folder = folder_of(path);
    let mut file = tempfile::Builder::new()
        .prefix(".partial-")
        .permissions(Permissions::from_mode(MODE))
        .tempfile_in(folder)
        .map_err(failed)?;
    let mut buffered = BufWriter::with_capacity(BUFFER_BYTES, file.as_file_mut());
    write(&mut buffered, tensors, metadata).map_err(failed)?;
    buffered.flush().map_err(failed)?;
    drop(buffered);
    file.as_file().sync_all().map_err(failed)?;
    let bytes = file.as_file().metadata().map_err(failed)?.len();
    let put = match existing {
        Existing::Keep => file.persist_noclobber(path),
        Existing::Replace => file.persist(path),
    };
    put.map_err(|error| match error.error.kind() {
        // Another process created it meanwhile.
        ErrorKind::AlreadyExists => SaveError::Exists { path: path.into() },
        _ => failed(error.error),
    })?;
    let folder = fs::File::open(folder).map_err(failed)?;
    folder.sync_all().map_err(failed)?;
    Ok(bytes)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Writes tensors in the order of their names. They must be contiguous and on the CPU.
pub(crate) fn write(
    out: &mut dyn Write,
    tensors: &[(String, Tensor)],
    metadata: &Metadata,
) -> std::io::Result<()> {
    let sorted: BTreeMap<&str, &Tensor> = tensors
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor))
        .collect();
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!(metadata));
    let mut offset = 0;
    for (name, tensor) in &sorted {
        let end = offset + bytes_of(tensor);
        header.insert(
            (*name).into(),
            json!({"dtype": dtype(tensor.kind())?, "shape": tensor.size(), "data_offsets": [offset, end]}),
        );
        offset = end;
    }
    let mut header = serde_json::to_vec(&Value::Object(header))?;
    header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    let mut bytes = Vec::new();
    for tensor in sorted.values() {
        bytes.resize(bytes_of(tensor), 0);
        tensor
            .f_copy_data_u8(&mut bytes, tensor.numel())
            .map_err(std::io::Error::other)?;
        out.write_all(&bytes)?;
    }
    Ok(())
}

/// A tensor of a file; `None` if its number type is not supported.
pub(crate) fn tensor_of(view: &TensorView<'_>) -> Option<Tensor> {
    let kind = match view.dtype() {
        Dtype::F32 => Kind::Float,
        Dtype::F16 => Kind::Half,
        Dtype::BF16 => Kind::BFloat16,
        Dtype::F64 => Kind::Double,
        Dtype::I64 => Kind::Int64,
        _ => return None,
    };
    let shape: Vec<i64> = view.shape().iter().map(|size| *size as i64).collect();
    Some(Tensor::from_data_size(view.data(), &shape, kind))
}

/// Bytes of a tensor's values in a file.
pub(crate) fn bytes_of(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}

/// The format's name of a kind.
fn dtype(kind: Kind) -> std::io::Result<&'static str> {
    match kind {
        Kind::Float => Ok("F32"),
        Kind::Half => Ok("F16"),
        Kind::BFloat16 => Ok("BF16"),
        Kind::Int64 => Ok("I64"),
        other => Err(std::io::Error::other(format!(
            "values of {other:?} are not supported; F32, F16, BF16 and I64 are"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;
    use tch::Device;

    use super::*;

    fn metadata() -> Metadata {
        BTreeMap::from([("format", "pt".to_owned()), ("step", "7".to_owned())])
    }

    fn tensors() -> Vec<(String, Tensor)> {
        let random = |shape: &[i64]| Tensor::rand(shape, (Kind::Float, Device::Cpu));
        vec![
            ("norm.weight".into(), random(&[5])),
            ("head.weight".into(), random(&[3, 5]).to_kind(Kind::BFloat16)),
            ("scalar".into(), random(&[]).to_kind(Kind::Half)),
            ("labels".into(), Tensor::from_slice(&[3_i64, 1])),
        ]
    }

    #[test]
    fn another_reader_of_the_format_finds_values_shapes_and_metadata() {
        let tensors = tensors();
        let written = || {
            let mut bytes = Vec::new();
            write(&mut bytes, &tensors, &metadata()).expect("writes");
            bytes
        };
        let bytes = written();
        assert_eq!(bytes, written(), "the same bytes every time");
        let (header, found) = SafeTensors::read_metadata(&bytes).expect("a header");
        assert_eq!(header % ALIGNMENT, 0);
        assert_eq!(found.metadata().as_ref().expect("metadata")["step"], "7");
        let file = SafeTensors::deserialize(&bytes).expect("safetensors");
        let dtypes = [Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::I64];
        for ((name, tensor), dtype) in tensors.iter().zip(dtypes) {
            let view = file.tensor(name).expect("the tensor");
            let value = tensor_of(&view).expect("numbers of a known type");
            assert_eq!((view.dtype(), value.size()), (dtype, tensor.size()), "{name}");
            assert_eq!(value, *tensor, "{name}");
        }
        let double = vec![("loss".to_owned(), Tensor::zeros([1], (Kind::Double, Device::Cpu)))];
        let error = write(&mut Vec::new(), &double, &metadata()).expect_err("refused");
        assert!(error.to_string().contains("Double"), "{error}");
    }

    #[test]
    fn a_file_is_replaced_only_where_that_is_allowed_and_nothing_else_is_left() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("vit.safetensors");
        let save = |existing| save(&path, &tensors(), &metadata(), existing);
        let bytes = save(Existing::Keep).expect("writes");
        assert_eq!(bytes, fs::metadata(&path).expect("a file").len());

        fs::write(&path, "mine").expect("writes");
        let message = save(Existing::Keep).expect_err("refused").to_string();
        assert!(message.ends_with("already exists: choose another name, or remove it"));
        assert_eq!(fs::read(&path).expect("still there"), b"mine");
        save(Existing::Replace).expect("replaces");
        assert_eq!(fs::metadata(&path).expect("a file").len(), bytes);

        let modes = [&path, &place.path().join("other")].map(|path| {
            if !path.exists() {
                fs::write(path, "").expect("writes");
            }
            fs::metadata(path).expect("a file").permissions().mode()
        });
        assert_eq!(modes[0], modes[1], "as any other file");
        assert_eq!(fs::read_dir(place.path()).expect("lists").count(), 2);
    }

    #[test]
    fn a_place_where_no_file_can_be_is_named_with_its_reason() {
        let place = tempfile::tempdir().expect("a folder");
        let refused = |path: &Path| {
            let error = Existing::Replace.allows(path).expect_err("refused");
            error.to_string()
        };
        let folder = place.path().to_owned();
        assert!(refused(&folder).ends_with("cannot be written: it is a folder: name a file"));
        let below = folder.join("missing/vit.safetensors");
        assert!(
            refused(&below).ends_with(&format!("the folder {}/missing does not exist", folder.display()))
        );
        Existing::Keep
            .allows(Path::new("new.safetensors"))
            .expect("in the present folder");
    }
}

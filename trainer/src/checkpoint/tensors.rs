//! The tensors of a checkpoint's file put into live ones, exactly.

use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use tch::{Kind, Tensor};

use super::{CheckpointError, Named};

/// So many differences are told one by one.
const TOLD_DIFFERENCES: usize = 3;

/// A file that was read: its values, or how it differs from what was expected.
pub(super) enum Read {
    Values(Vec<Tensor>),
    Differs(String),
}

/// Reads the values of exactly the tensors in `expected` from the content of the file `path`.
pub(super) fn read(path: &Path, content: &[u8], expected: &Named) -> Result<Read, CheckpointError> {
    let file = SafeTensors::deserialize(content).map_err(|error| CheckpointError::Corrupt {
        path: path.into(),
        message: error.to_string(),
    })?;
    let mut differences = Vec::new();
    let mut values = Vec::new();
    for (name, target) in expected {
        let shape = target.size();
        match file.tensor(name) {
            Err(_) => differences.push(format!("it has no {name} {shape:?}")),
            Ok(view) if view.dtype() == Dtype::F32 && same_shape(view.shape(), &shape) => {
                values.push(Tensor::from_data_size(view.data(), &shape, Kind::Float));
            }
            Ok(view) => differences.push(format!(
                "{name} is {} {:?} instead of F32 {shape:?}",
                view.dtype(),
                view.shape()
            )),
        }
    }
    let mut unknown: Vec<String> = file
        .iter()
        .filter(|(name, _)| !expected.iter().any(|(known, _)| known == name))
        .map(|(name, view)| format!("it has {name} {:?}, which is not expected", view.shape()))
        .collect();
    unknown.sort();
    differences.extend(unknown);
    Ok(if differences.is_empty() {
        Read::Values(values)
    } else {
        Read::Differs(tell(&differences))
    })
}

fn same_shape(found: &[usize], expected: &[i64]) -> bool {
    found.len() == expected.len()
        && found
            .iter()
            .zip(expected)
            .all(|(found, expected)| *found as i64 == *expected)
}

/// The first few differences, and how many more there are.
fn tell(differences: &[String]) -> String {
    let told = differences[..differences.len().min(TOLD_DIFFERENCES)].join("; ");
    match differences.len().saturating_sub(TOLD_DIFFERENCES) {
        0 => told,
        more => format!("{told}; and {more} more"),
    }
}

/// Copies values into live tensors, in order.
pub(super) fn copy(values: &[Tensor], targets: &Named) {
    tch::no_grad(|| {
        for (value, (_, target)) in values.iter().zip(targets) {
            target.shallow_clone().copy_(value);
        }
    });
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::tensor_file::Metadata;

    fn named(shapes: &[(&str, &[i64])]) -> Vec<(String, Tensor)> {
        shapes
            .iter()
            .map(|(name, shape)| ((*name).into(), Tensor::rand(*shape, (Kind::Float, Device::Cpu))))
            .collect()
    }

    fn written(tensors: &Named) -> Vec<u8> {
        let mut bytes = Vec::new();
        crate::tensor_file::write(&mut bytes, tensors, &Metadata::new()).expect("writes");
        bytes
    }

    #[test]
    fn each_difference_is_named_with_both_shapes_and_the_list_is_short() {
        let found = named(&[("a", &[2, 3]), ("b", &[4]), ("old", &[1])]);
        let expected = named(&[("a", &[2, 4]), ("b", &[4]), ("c", &[]), ("d", &[9]), ("e", &[9])]);
        let Ok(Read::Differs(difference)) = read(Path::new("file"), &written(&found), &expected) else {
            panic!("it does not fit");
        };
        assert_eq!(
            difference,
            "a is F32 [2, 3] instead of F32 [2, 4]; it has no c []; it has no d [9]; and 2 more"
        );
        assert!(matches!(
            read(Path::new("file"), &written(&found), &found),
            Ok(Read::Values(values)) if values.len() == 3
        ));
    }
}

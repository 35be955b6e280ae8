//! `spec.data`.

use contract::{ConfigError, DataConfig, DataFormat};

use super::{Mount, Origin, count, refuse, volume};
use crate::spec;

/// Location of a data set's files in a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum DataFiles {
    /// In a mounted volume, read-only for the trainer.
    Mounted {
        /// The volume.
        mount: Mount,
        /// Files to fetch into it before the ranks start.
        origin: Option<Origin>,
    },
    /// Elsewhere, with a cache of recently read parts in the pod.
    Cached {
        /// Source of the files.
        origin: Origin,
        /// Limits of the cache.
        cache: spec::Cache,
        /// Folder of the cache.
        path: String,
    },
}

/// Location of the files; `None` without files or if rules are broken.
pub(super) fn files(data: &spec::Data) -> Option<DataFiles> {
    let path = data.path.clone();
    match (data.volume.clone(), data.from.clone(), data.cache.clone()) {
        (Some(volume), origin, None) => Some(DataFiles::Mounted {
            mount: Mount { volume, path },
            origin,
        }),
        (None, Some(origin), Some(cache)) => Some(DataFiles::Cached { origin, cache, path }),
        _ => None,
    }
}

/// Refuses data without a source or with two.
fn sources(data: &spec::Data, errors: &mut Vec<ConfigError>) {
    let (format, from) = (data.format, data.from.is_some());
    if !format.has_files() {
        let given = [
            ("data.volume", data.volume.is_some()),
            ("data.from", from),
            ("data.cache", data.cache.is_some()),
        ];
        for (field, _) in given.into_iter().filter(|(_, given)| *given) {
            let expected = "is not for format synthetic, which has no files";
            refuse(errors, field, "given", expected);
        }
        return;
    }
    match (&data.volume, &data.cache) {
        (None, None) => {
            let expected = "must be given for every format except synthetic, or data.cache with data.from";
            refuse(errors, "data.volume", "missing", expected);
        }
        (Some(_), Some(_)) => {
            let expected = "must not be given with data.volume";
            refuse(errors, "data.cache", "given", expected);
        }
        (Some(files), None) => volume("data.volume", files, errors),
        (None, Some(cache)) => {
            if !from {
                let expected = "needs data.from: it holds streamed files";
                refuse(errors, "data.cache", "given", expected);
            }
            if !format.can_stream() {
                let expected =
                    "is for the formats webDataset and parquet: other formats are fetched into data.volume";
                refuse(errors, "data.cache", "given", expected);
            }
            if cache.bytes() == 0 {
                let expected = "must be a number with Mi, Gi or Ti";
                refuse(errors, "data.cache.sizeLimit", &cache.size_limit, expected);
            }
        }
    }
}

pub(super) fn data(data: &spec::Data, errors: &mut Vec<ConfigError>) -> DataConfig {
    let format = data.format;
    sources(data, errors);
    if let Some(images) = data.synthetic_images.filter(|_| format.has_files()) {
        let expected = "is only for format synthetic";
        refuse(errors, "data.syntheticImages", images.to_string(), expected);
    }
    let others = [
        (DataFormat::WebDataset, "data.trainShards", &data.train_shards),
        (
            DataFormat::WebDataset,
            "data.validationShards",
            &data.validation_shards,
        ),
        (DataFormat::Parquet, "data.imageColumn", &data.image_column),
        (DataFormat::Parquet, "data.labelColumn", &data.label_column),
    ];
    for (needed, field, given) in others {
        if let Some(given) = given.as_ref().filter(|_| format != needed) {
            let name = if needed == DataFormat::Parquet {
                "parquet"
            } else {
                "webDataset"
            };
            refuse(errors, field, given, format!("is only for format {name}"));
        }
    }
    if data.class_order != contract::ClassOrder::Name && format != DataFormat::ImageFolder {
        refuse(
            errors,
            "data.classOrder",
            "natural",
            "is only for format imageFolder",
        );
    }
    DataConfig {
        format,
        path: format.has_files().then(|| data.path.clone().into()),
        from: data.from.as_ref().map(|origin| contract::Origin {
            locations: origin.locations.clone(),
            // An invalid cache was refused above.
            cache_bytes: match files(data) {
                Some(DataFiles::Cached { cache, .. }) if format.can_stream() => Some(cache.bytes()),
                _ => None,
            },
        }),
        synthetic_images: data.synthetic_images.map(|images| images.try_into().unwrap_or(0)),
        shards: shards(data, format),
        image_column: data.image_column.clone(),
        label_column: data.label_column.clone(),
        class_order: data.class_order,
        pixel_type: data.pixel_type,
        fraction: data.fraction,
        decode_threads: data.decode_threads.map(count),
        max_corrupt_fraction: data.max_corrupt_fraction,
        retry_seconds: count(data.retry_seconds),
        interpolation: data.interpolation,
        crop_fraction: data.crop_fraction,
        normalization: data.normalization.clone(),
        augmentation: augmentation(&data.augmentation, errors),
    }
}

fn shards(data: &spec::Data, format: DataFormat) -> Option<contract::Shards> {
    if format == DataFormat::WebDataset {
        let pattern = |given: &Option<String>, default: &str| given.clone().unwrap_or_else(|| default.into());
        return Some(contract::Shards {
            train: pattern(&data.train_shards, "train-*.tar"),
            validation: pattern(&data.validation_shards, "val-*.tar"),
        });
    }
    None
}

fn augmentation(augmentation: &spec::Augmentation, errors: &mut Vec<ConfigError>) -> contract::Augmentation {
    contract::Augmentation {
        random_resized_crop: augmentation.random_resized_crop.as_ref().map(|crop| {
            contract::RandomResizedCrop {
                scale: pair("data.augmentation.randomResizedCrop.scale", &crop.scale, errors),
                ratio: pair("data.augmentation.randomResizedCrop.ratio", &crop.ratio, errors),
                interpolation: crop.interpolation,
            }
        }),
        random_crop: augmentation.random_crop,
        horizontal_flip: augmentation.horizontal_flip,
        color_jitter: augmentation.color_jitter,
        rand_augment: augmentation.rand_augment.as_ref().and_then(|text| {
            let policy = text.parse::<contract::RandAugment>();
            if let Err(error) = &policy {
                refuse(errors, "data.augmentation.randAugment", text, error.to_string());
            }
            policy.ok()
        }),
        three_augment: augmentation.three_augment,
        mixup: augmentation.mixup,
        cutmix: augmentation.cutmix,
        mixup_probability: augmentation.mixup_probability,
        mixup_switch_probability: augmentation.mixup_switch_probability,
        random_erasing: augmentation.random_erasing,
        repeated_augmentation: count(augmentation.repeated_augmentation),
    }
}

fn pair(field: &'static str, values: &[f64], errors: &mut Vec<ConfigError>) -> [f64; 2] {
    <[f64; 2]>::try_from(values).unwrap_or_else(|_| {
        let expected = "must be two numbers, the smaller one first";
        refuse(errors, field, format!("a list of {}", values.len()), expected);
        [1.0, 1.0]
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::spec::schema;

    #[test]
    fn schema_manifest_and_wire_have_the_same_defaults_of_augmentation() {
        let wire = serde_json::to_value(contract::Augmentation::default()).expect("JSON");
        let not_given = serde_json::to_value(spec::Augmentation::default()).expect("JSON");
        assert_eq!(not_given, wire, "a manifest without augmentation");
        let empty: spec::Augmentation = serde_json::from_value(json!({})).expect("every field has a default");
        assert_eq!(
            serde_json::to_value(empty).expect("JSON"),
            wire,
            "augmentation: {{}}"
        );

        let properties =
            |schema: &k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps| {
                schema.properties.clone().unwrap_or_default()
            };
        let schema = properties(&properties(schema("spec"))["data"])["augmentation"].clone();
        assert_eq!(
            schema.default.as_ref().map(|default| &default.0),
            Some(&wire),
            "what an API server fills in without augmentation"
        );
        let filled_in: serde_json::Map<String, Value> = properties(&schema)
            .into_iter()
            .filter_map(|(name, field)| Some((name, field.default?.0)))
            .collect();
        assert_eq!(
            Value::Object(filled_in),
            wire,
            "what an API server fills in into augmentation"
        );
    }
}

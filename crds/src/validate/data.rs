//! `spec.data`.

use contract::{ConfigError, DataConfig, DataFormat};

use super::{count, refuse, volume};
use crate::spec;

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
    // A cache of another format was refused above.
    let cache = data.cache.as_ref().filter(|_| format.can_stream());
    DataConfig {
        format,
        path: format.has_files().then(|| data.path.clone().into()),
        from: data.from.as_ref().map(|origin| contract::Origin {
            locations: origin.locations.clone(),
            cache_bytes: cache.map(spec::Cache::bytes),
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
        augmentation: data.augmentation.clone(),
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

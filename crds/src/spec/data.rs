use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Augmentation, ClassOrder, DataFormat, Interpolation, PixelType, Volume};

/// Data is the data set.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("(self.format == 'synthetic') == (!has(self.volume) && !has(self.cache))").message("volume or, with from, cache must be given for every format but synthetic, which has no files"),
    validation = Rule::new("(self.format == 'synthetic') == has(self.syntheticImages)").message("syntheticImages must be given for format synthetic, and for no other"),
    validation = Rule::new("!has(self.volume) || !has(self.cache)").message("give either volume, into which files are fetched, or cache, for them to be streamed"),
    validation = Rule::new("!has(self.from) || self.format != 'synthetic'").message("from is not for format synthetic, which has no files"),
    validation = Rule::new("!has(self.cache) || has(self.from)").message("cache needs from: it keeps what is streamed"),
    validation = Rule::new("!has(self.cache) || self.format in ['webDataset', 'parquet']").message("cache is for the formats webDataset and parquet: files of others are fetched into a volume"),
    validation = Rule::new("self.format == 'webDataset' || (!has(self.trainShards) && !has(self.validationShards))").message("trainShards and validationShards are for format webDataset"),
    validation = Rule::new("self.format == 'parquet' || (!has(self.imageColumn) && !has(self.labelColumn))").message("imageColumn and labelColumn are for format parquet"),
    validation = Rule::new("self.format == 'imageFolder' || !has(self.classOrder) || self.classOrder == 'name'").message("classOrder is for format imageFolder"),
    validation = Rule::new("self.format in ['imageFolder', 'parquet', 'webDataset'] || !has(self.pixelType) || self.pixelType == 'uint8'").message("pixelType float32 is for the formats imageFolder, parquet and webDataset"),
    validation = Rule::new("!has(self.pixelType) || self.pixelType == 'uint8' || (!has(self.augmentation.randAugment) && !self.augmentation.threeAugment && self.augmentation.colorJitter == 0.0)").message("pixelType float32 is not for colorJitter, randAugment and threeAugment of augmentation")
)]
pub struct Data {
    /// format is the layout of the files: cifar10 or cifar100 (binary version); imageFolder (train/CLASS/*.jpg, png, webp or tif,
    /// and val/CLASS/..., classes numbered by their sorted names); webDataset (tar files of key.jpg, key.png, key.webp or key.tif with
    /// key.cls or key.json); parquet (as Hugging Face's datasets are: files with train, validation or test in their names); numpy (train.npz and val.npz with images and labels, or train_images.npy,
    /// train_labels.npy, val_images.npy and val_labels.npy; images of uint8 or float32, with channels first or last);
    /// hdf5 (the same in train.h5 and val.h5, or train_images.h5, train_labels.h5, val_images.h5 and val_labels.h5);
    /// or synthetic (random images made in memory: to measure, not to learn from).
    pub format: DataFormat,
    /// path is the folder at which the volume is mounted in the pod, read-only; the files lie in it. With cache it is that of the cache.
    #[serde(default = "default_path")]
    #[schemars(regex(pattern = "^/[^:]+$"), length(max = 256))]
    pub path: String,
    /// volume holds the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<Volume>,
    /// from is where the files are. With volume they are fetched into it before the ranks start: the first pod fetches, and the others
    /// wait; where the volume is a folder of each node, each fetches. What is there already is not fetched again. The time does not
    /// count towards scheduling.startTimeoutSeconds. With cache they are streamed while the job trains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Origin>,
    /// cache keeps what is streamed, in an emptyDir of each pod at path. It is for the formats webDataset and parquet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,
    /// syntheticImages is the number of training images of format synthetic.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub synthetic_images: Option<i64>,
    /// trainShards are the file names of format webDataset to train on, relative to path, with a range such as
    /// train-{000000..000012}.tar, or one *; train-*.tar if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub train_shards: Option<String>,
    /// validationShards are the file names of format webDataset to evaluate, relative to path; val-*.tar, as far as
    /// there are any, if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub validation_shards: Option<String>,
    /// imageColumn is the column of format parquet with image files, as bytes or as a struct with a field bytes. If not set, it is the
    /// only one that Hugging Face's metadata call an image, else image, img or jpg.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub image_column: Option<String>,
    /// labelColumn is the column of format parquet with class numbers. If not set, it is the only one that Hugging Face's metadata
    /// call a class label, else label, labels or cls.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub label_column: Option<String>,
    /// classOrder is how the folders of an imageFolder are sorted, and so classes numbered: name (as bytes, like torchvision: 1, 10,
    /// 2) or natural (numbers in names by their value, like timm: 1, 2, 10).
    #[serde(default)]
    pub class_order: ClassOrder,
    /// pixelType is what image files are decoded to: uint8 (grey, or red, green and blue, as Pillow converts them) or float32 (the
    /// numbers as a file holds them, of 8 bits or more and of as many channels as the model has: for TIFF and PNG of measurements).
    #[serde(default)]
    pub pixel_type: PixelType,
    /// fraction is the share of the training images that is used: the first ones in the order of the files; of an
    /// imageFolder the first ones of every class.
    #[serde(default = "default_fraction")]
    #[schemars(range(min = 0.000_001, max = 1.0))]
    pub fraction: f64,
    /// decodeThreads is the number of threads of each rank that decode files of imageFolder and webDataset; an equal
    /// share of the pod's processors if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 256))]
    pub decode_threads: Option<i32>,
    /// maxCorruptFraction is the share of the images that may be unreadable in an epoch, over all ranks. The first
    /// hundred of each rank and epoch are named in the log, and the next one takes its place in a training batch; with one more, training ends. 0 allows none.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.999))]
    pub max_corrupt_fraction: f64,
    /// retrySeconds is how long the reading of an image is tried again where the storage fails (an I/O error, a stale handle, a
    /// time-out, a short read); then the attempt ends as Storage, and the next one continues from the last checkpoint.
    #[serde(default = "default_retry_seconds")]
    #[schemars(range(min = 0, max = 86400))]
    pub retry_seconds: i32,
    /// interpolation is the filter with which images are resized to model.imageSize: bicubic or bilinear.
    #[serde(default)]
    pub interpolation: Interpolation,
    /// cropFraction is the side of the centre crop of validation images from files over their shorter side (crop_pct of
    /// timm): they are resized to model.imageSize / cropFraction, then cropped.
    #[serde(default = "default_crop_fraction")]
    #[schemars(range(min = 0.01, max = 1.0))]
    pub crop_fraction: f64,
    /// normalization of the channels.
    #[serde(default)]
    pub normalization: Normalization,
    /// augmentation of training images; none by default.
    #[serde(default)]
    pub augmentation: Augmentation,
}

/// Origin names files in object stores, on the Hugging Face Hub or on web servers.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Origin {
    /// locations are s3://BUCKET/PATH, gs://BUCKET/PATH, hf://datasets/OWNER/NAME[@REVISION][/PATH] or https://HOST/PATH: a folder
    /// or a file. The last part of a path may have a range such as {000..127} and, but for web servers, a *.
    #[schemars(
        length(min = 1, max = 16),
        inner(
            regex(pattern = "^((s3|gs|https?)://[^/]|hf://datasets/[^/])"),
            length(max = 1024)
        )
    )]
    pub locations: Vec<String>,
    /// credentialsSecret is the name of a Secret in the job's namespace. Its keys become environment variables of the container that
    /// reads the store (fetch, or with cache the trainer): AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL;
    /// GOOGLE_SERVICE_ACCOUNT_KEY; or HF_TOKEN. The operator does not read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub credentials_secret: Option<String>,
}

/// Cache is room on the pod's disk.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cache {
    /// sizeLimit is what the cache may take, such as 50Gi. What was used longest ago goes first. If the data set fits, it is read from
    /// its store once for each pod, else once for each epoch.
    #[schemars(regex(pattern = "^[1-9][0-9]{0,5}(Mi|Gi|Ti)$"))]
    pub size_limit: String,
}

impl Cache {
    /// The limit in bytes; 0 if the text is not a size, which the schema rejects.
    pub fn bytes(&self) -> u64 {
        let size = self.size_limit.len().saturating_sub(2);
        let (Some(number), Some(unit)) = (self.size_limit.get(..size), self.size_limit.get(size..)) else {
            return 0;
        };
        let unit = match unit {
            "Mi" => 20,
            "Gi" => 30,
            "Ti" => 40,
            _ => return 0,
        };
        number.parse::<u64>().map_or(0, |number| number << unit)
    }
}

fn default_path() -> String {
    "/data".into()
}

fn default_retry_seconds() -> i32 {
    60
}

fn default_fraction() -> f64 {
    1.0
}

fn default_crop_fraction() -> f64 {
    0.875
}

/// Normalization subtracts a mean and divides by a deviation, of pixels scaled to 0..1 (float32 values are taken as they
/// are). ImageNet's are mean [0.485, 0.456, 0.406] and std [0.229, 0.224, 0.225]; timm's ViT presets
/// have 0.5 for both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Normalization {
    /// mean is subtracted: one value, or one for each channel.
    #[schemars(length(min = 1, max = 64))]
    pub mean: Vec<f64>,
    /// std divides: one value, or one for each channel.
    #[schemars(length(min = 1, max = 64), inner(range(min = 1e-9)))]
    pub std: Vec<f64>,
}

impl Default for Normalization {
    fn default() -> Self {
        Self {
            mean: vec![0.5],
            std: vec![0.5],
        }
    }
}

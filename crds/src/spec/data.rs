use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Augmentation, ClassOrder, DataFormat, Interpolation, Normalization, PixelType, Volume};

/// Data is the data set.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("(self.format == 'synthetic') == (!has(self.volume) && !has(self.cache))").message("volume, or cache with from, must be given for every format except synthetic, which has no files"),
    validation = Rule::new("(self.format == 'synthetic') == has(self.syntheticImages)").message("syntheticImages must be given for format synthetic, and for no other"),
    validation = Rule::new("!has(self.volume) || !has(self.cache)").message("give either volume, to fetch files into, or cache, to stream them"),
    validation = Rule::new("!has(self.from) || self.format != 'synthetic'").message("from is not for format synthetic, which has no files"),
    validation = Rule::new("!has(self.cache) || has(self.from)").message("cache needs from: it holds streamed files"),
    validation = Rule::new("!has(self.cache) || self.format in ['webDataset', 'parquet']").message("cache is for the formats webDataset and parquet: other formats are fetched into a volume"),
    validation = Rule::new("self.format == 'webDataset' || (!has(self.trainShards) && !has(self.validationShards))").message("trainShards and validationShards are for format webDataset"),
    validation = Rule::new("self.format == 'parquet' || (!has(self.imageColumn) && !has(self.labelColumn))").message("imageColumn and labelColumn are for format parquet"),
    validation = Rule::new("self.format == 'imageFolder' || !has(self.classOrder) || self.classOrder == 'name'").message("classOrder is for format imageFolder"),
    validation = Rule::new("self.format in ['imageFolder', 'parquet', 'webDataset'] || !has(self.pixelType) || self.pixelType == 'uint8'").message("pixelType float32 is for the formats imageFolder, parquet and webDataset"),
    validation = Rule::new("!has(self.pixelType) || self.pixelType == 'uint8' || (!has(self.augmentation.randAugment) && !self.augmentation.threeAugment && self.augmentation.colorJitter == 0.0)").message("pixelType float32 is not for colorJitter, randAugment and threeAugment of augmentation")
)]
pub struct Data {
    /// format is the layout of the files. cifar10 and cifar100: the binary versions. imageFolder:
    /// train/CLASS/*.jpg, png, webp or tif, and val/CLASS/..., with classes numbered by sorted
    /// name. webDataset: tar files of key.jpg, key.png, key.webp or key.tif with key.cls or
    /// key.json. parquet: as in Hugging Face datasets, with train, validation or test in file
    /// names. numpy: train.npz and val.npz with images and labels, or train_images.npy,
    /// train_labels.npy, val_images.npy and val_labels.npy; uint8 or float32 images, channels first
    /// or last. hdf5: the same in train.h5 and val.h5, or train_images.h5, train_labels.h5,
    /// val_images.h5 and val_labels.h5. synthetic: random images in memory, to measure and not to
    /// learn from.
    pub format: DataFormat,
    /// path is the mount path of volume (read-only) or cache in the pod.
    #[serde(default = "default_path")]
    #[schemars(regex(pattern = "^/[^:]+$"), length(max = 256))]
    pub path: String,
    /// volume holds the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<Volume>,
    /// from is the source of the files. With volume, the first pod fetches them before the ranks
    /// start and the others wait; if the volume is a folder of each node, each pod fetches.
    /// Existing files are not fetched again. Fetching does not count towards
    /// scheduling.startTimeoutSeconds. With cache, files are streamed during training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Origin>,
    /// cache keeps streamed files in an emptyDir of each pod at path, for the formats webDataset
    /// and parquet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,
    /// syntheticImages is the number of training images of format synthetic.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub synthetic_images: Option<i64>,
    /// trainShards are the training files of format webDataset, relative to path, with a range such
    /// as train-{000000..000012}.tar, or one *; train-*.tar by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub train_shards: Option<String>,
    /// validationShards are the validation files of format webDataset, relative to path; val-*.tar
    /// by default, if any exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub validation_shards: Option<String>,
    /// imageColumn is the column of format parquet with image files, as bytes or as a struct with a
    /// field bytes. The default is the only image in Hugging Face's metadata, else image, img or
    /// jpg.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub image_column: Option<String>,
    /// labelColumn is the column of format parquet with class numbers. The default is the only
    /// class label in Hugging Face's metadata, else label, labels or cls.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub label_column: Option<String>,
    /// classOrder is the order of an imageFolder's class folders, which numbers the classes: name
    /// (by bytes, as in torchvision: 1, 10, 2) or natural (numbers by value, as in timm: 1, 2, 10).
    #[serde(default)]
    pub class_order: ClassOrder,
    /// pixelType is the type of decoded pixels: uint8 (gray or RGB, converted as by Pillow) or
    /// float32. float32 keeps the file's values, of 8 bits or more, and needs as many channels as
    /// the model has: for measurements in TIFF and PNG.
    #[serde(default)]
    pub pixel_type: PixelType,
    /// fraction is the share of the training images to use: the first ones in file order, or the
    /// first ones of every class of an imageFolder.
    #[serde(default = "default_fraction")]
    #[schemars(range(min = 0.000_001, max = 1.0))]
    pub fraction: f64,
    /// decodeThreads is the number of decoding threads per rank for imageFolder and webDataset; by
    /// default an equal share of the pod's CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 256))]
    pub decode_threads: Option<i32>,
    /// maxCorruptFraction is the share of unreadable images allowed in an epoch, over all ranks;
    /// with more, training fails. The log names the first hundred of each rank and epoch. In a
    /// training batch the next image replaces an unreadable one. 0 allows none.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.999))]
    pub max_corrupt_fraction: f64,
    /// retrySeconds is how long reading an image is retried after a storage error: an I/O error,
    /// stale handle, timeout or short read. Then the attempt fails as Storage, and the next one
    /// resumes from the last checkpoint.
    #[serde(default = "default_retry_seconds")]
    #[schemars(range(min = 0, max = 86400))]
    pub retry_seconds: i32,
    /// interpolation is the filter for resizing images to model.imageSize: bicubic or bilinear.
    #[serde(default)]
    pub interpolation: Interpolation,
    /// cropFraction is the side of the center crop over the shorter side of a validation image from
    /// a file (crop_pct of timm): images are resized to model.imageSize / cropFraction, then
    /// cropped.
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
    /// locations are s3://BUCKET/PATH, gs://BUCKET/PATH, hf://datasets/OWNER/NAME[@REVISION][/PATH],
    /// hf://OWNER/NAME[@REVISION][/PATH] of a model, or https://HOST/PATH: a folder or a file. The last
    /// part of a path may have a range such as {000..127} and, except on web servers, a *.
    #[schemars(
        length(min = 1, max = 16),
        inner(
            regex(pattern = "^((s3|gs|https?)://[^/]|hf://[^/]+/[^/])"),
            length(max = 1024)
        )
    )]
    pub locations: Vec<String>,
    /// credentialsSecret names a Secret in the job's namespace. Its keys become environment
    /// variables of the container that reads the store (fetch, or the trainer with cache):
    /// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL;
    /// GOOGLE_SERVICE_ACCOUNT_KEY; or HF_TOKEN. The operator does not read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub credentials_secret: Option<String>,
}

/// Cache is space on the pod's disk.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cache {
    /// sizeLimit is the size of the cache, such as 50Gi. The least recently used parts are evicted.
    /// A data set that fits is read from its store once per pod, otherwise once per epoch.
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

//! From flags to a manifest without defaults.

use std::str::FromStr;

use clap::builder::PossibleValuesParser;
use crds::spec::schema;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::kind::JobName;

/// The values that the schema allows for a field below `spec`.
fn choices(path: &[&str]) -> PossibleValuesParser {
    let field = |schema: &'static JSONSchemaProps, name: &&str| schema.properties.as_ref()?.get(*name);
    let field = path.iter().try_fold(schema("spec"), field);
    let values = field.and_then(|field| field.enum_.as_ref()).into_iter().flatten();
    values
        .filter_map(|value| value.0.as_str())
        .collect::<Vec<_>>()
        .into()
}

/// Flags that describe a job.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Job")]
pub(super) struct Job {
    /// Name of the job
    #[arg(value_name = "NAME", help_heading = None)]
    pub(super) name: JobName,
    /// Container image of the trainer
    #[arg(long, env = "VIT_TRAINER_IMAGE")]
    image: String,
    /// Model, by timm's or torchvision's name
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Side of the input image in pixels, instead of the model's
    #[arg(long, value_name = "PIXELS", allow_negative_numbers = true)]
    image_size: Option<i32>,
    /// Number of classes; optional for cifar10 and cifar100
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    classes: Option<i32>,
    /// Layout of the data set
    #[arg(long, value_parser = choices(&["data", "format"]))]
    format: String,
    #[arg(
        long,
        value_name = "VOLUME",
        help = "Volume of the data set: pvc:CLAIM, pvc:CLAIM/FOLDER or hostPath:/FOLDER"
    )]
    data: Option<VolumeSource>,
    /// Number of training images of format synthetic
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    synthetic_images: Option<i64>,
    /// Passes over the training images
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    epochs: i32,
    /// Images per rank in one forward pass
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    micro_batch_size: i32,
    /// Micro-batches accumulated by each rank per step
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    accumulate: Option<i32>,
    /// Number format of matrix products
    #[arg(long, value_parser = choices(&["training", "precision"]))]
    precision: Option<String>,
    /// Optimizer
    #[arg(long, value_parser = choices(&["training", "optimizer", "name"]))]
    optimizer: Option<String>,
    /// Learning rate at its peak
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    learning_rate: Option<f64>,
    /// Number of pods, each on a separate node
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    nodes: i32,
    /// GPUs of each pod, with one rank each
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    gpus_per_node: Option<i32>,
    /// Extended resource of the GPUs
    #[arg(long, value_name = "NAME")]
    gpu_resource: Option<String>,
    /// Acceptable GPU product, as in the node label; may be given several times
    #[arg(long = "gpu", value_name = "PRODUCT")]
    gpus: Vec<String>,
    /// Minimum GPU memory in MiB
    #[arg(long, value_name = "MIB", allow_negative_numbers = true)]
    min_gpu_memory: Option<i64>,
    /// Minimum number of nodes of an elastic job
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    min_nodes: Option<i32>,
    /// Maximum number of nodes of an elastic job
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_nodes: Option<i32>,
    /// LocalQueue of Kueue in which the job waits for quota
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// PriorityClass of the pods
    #[arg(long, value_name = "NAME")]
    priority_class: Option<String>,
    #[arg(
        long,
        value_name = "VOLUME",
        help = "Volume of checkpoints, writable by every node: pvc:CLAIM, pvc:CLAIM/FOLDER or hostPath:/FOLDER"
    )]
    checkpoints: VolumeSource,
    /// Create it suspended: it waits for kubectl vit resume
    #[arg(long)]
    suspend: bool,
    /// Any other field of the spec, with a value in YAML, such as training.schedule.warmupEpochs=1; may be given several times
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    settings: Vec<Setting>,
}

/// A volume by its source.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct VolumeSource(Value);

impl FromStr for VolumeSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let volume = match text.split_once(':') {
            Some(("pvc", claim)) => match claim.split_once('/') {
                Some((claim, folder)) if !claim.is_empty() && !folder.is_empty() => Some(json!({
                    "persistentVolumeClaim": {"claimName": claim}, "subPath": folder})),
                None if !claim.is_empty() => Some(json!({"persistentVolumeClaim": {"claimName": claim}})),
                _ => None,
            },
            Some(("hostPath", folder)) if folder.starts_with('/') => {
                Some(json!({"hostPath": {"path": folder}}))
            }
            _ => None,
        };
        let expected = "must be pvc:CLAIM, pvc:CLAIM/FOLDER or hostPath:/FOLDER";
        volume.map(Self).ok_or(expected.into())
    }
}

/// A field of the spec and its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    path: Vec<String>,
    value: Value,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (path, value) = text
            .split_once('=')
            .ok_or("must be FIELD=VALUE, such as training.seed=7")?;
        let path = path.strip_prefix("spec.").unwrap_or(path);
        let path: Vec<String> = path.split('.').map(Into::into).collect();
        if path.iter().any(String::is_empty) {
            return Err("must name a field of the spec, such as training.seed".into());
        }
        let value =
            serde_saphyr::from_str(value).map_err(|error| format!("the value is not valid YAML: {error}"))?;
        Ok(Self { path, value })
    }
}

/// The manifest with the given fields only.
pub(super) fn build(job: &Job, namespace: Option<&str>) -> Result<Value, Error> {
    let classes = job.classes.or(match job.format.as_str() {
        "cifar10" => Some(10),
        "cifar100" => Some(100),
        _ => None,
    });
    let elastic = (job.min_nodes.is_some() || job.max_nodes.is_some())
        .then(|| json!({"minNodes": job.min_nodes, "maxNodes": job.max_nodes}));
    let mut spec = json!({
        "image": job.image,
        "model": {"name": job.model, "imageSize": job.image_size, "numClasses": classes},
        "data": {
            "format": job.format,
            "volume": job.data.as_ref().map(|volume| &volume.0),
            "syntheticImages": job.synthetic_images,
        },
        "training": {
            "epochs": job.epochs,
            "microBatchSize": job.micro_batch_size,
            "gradientAccumulationSteps": job.accumulate,
            "precision": job.precision,
            "optimizer": {"name": job.optimizer, "learningRate": job.learning_rate},
        },
        "workers": {
            "nodes": job.nodes,
            "gpusPerNode": job.gpus_per_node,
            "gpuResource": job.gpu_resource,
            "priorityClassName": job.priority_class,
        },
        "elastic": elastic,
        "placement": {"gpu": {
            "products": Some(&job.gpus).filter(|products| !products.is_empty()),
            "minMemoryMebibytes": job.min_gpu_memory,
        }},
        "scheduling": {"queueName": job.queue},
        "checkpoint": {"volume": job.checkpoints.0},
        "suspend": job.suspend.then_some(true),
    });
    prune(&mut spec);
    for setting in &job.settings {
        set(&mut spec, &setting.path, &setting.value)?;
    }
    if spec["model"]["numClasses"].is_null() {
        return Err(Error::Usage(format!(
            "--classes must be given for format {}: only cifar10 and cifar100 have a default",
            job.format
        )));
    }
    let mut metadata = json!({"name": job.name.as_str()});
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    Ok(json!({
        "apiVersion": "vit-operator.dev/v1alpha1",
        "kind": "ViTTrainingJob",
        "metadata": metadata,
        "spec": spec,
    }))
}

/// Removes fields that were not given, and objects that become empty.
fn prune(value: &mut Value) {
    if let Value::Object(fields) = value {
        for field in fields.values_mut() {
            prune(field);
        }
        fields
            .retain(|_, field| !field.is_null() && field.as_object().is_none_or(|fields| !fields.is_empty()));
    }
}

fn set(spec: &mut Value, path: &[String], value: &Value) -> Result<(), Error> {
    let mut place = spec;
    for name in path {
        if place.is_null() {
            *place = Value::Object(Map::new());
        }
        let Value::Object(fields) = place else {
            return Err(Error::Usage(format!(
                "--set {}: a plain value has no field {name}",
                path.join(".")
            )));
        };
        place = fields.entry(name.clone()).or_insert(Value::Null);
    }
    *place = value.clone();
    Ok(())
}

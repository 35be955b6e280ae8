//! Standard output: text, or objects in the form that was asked for.

use std::io::Write as _;

use crds::ViTTrainingJob;
use kube::ResourceExt as _;
use serde::Serialize;
use serde_json::json;

use crate::cluster::qualified;
use crate::error::Error;

/// How objects are written.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum Format {
    /// More columns, or all there is to tell
    Wide,
    /// JSON
    Json,
    /// YAML
    Yaml,
    /// One name a line, as `vittrainingjob.vit-operator.dev/NAME`
    Name,
}

impl Format {
    /// Whether it is for programs.
    pub(crate) fn is_object(self) -> bool {
        self != Self::Wide
    }
}

/// Writes to standard output.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

/// Writes to standard error what is not the answer itself. A closed standard error is no failure.
pub(crate) fn report(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Writes a value as JSON or YAML; `names` are what is written for the names alone.
pub(crate) fn object(value: &impl Serialize, names: &[String], format: Format) -> Result<(), Error> {
    match format {
        Format::Name => print(&names.iter().map(|name| format!("{name}\n")).collect::<String>()),
        Format::Yaml => print(&serde_saphyr::to_string(value)?),
        Format::Json | Format::Wide => {
            let text = serde_json::to_string_pretty(value).map_err(Error::Unreadable)?;
            print(&format!("{text}\n"))
        }
    }
}

/// A job as kubectl prints it: without the notes of who set which field.
pub(crate) fn job(mut job: ViTTrainingJob, format: Format) -> Result<(), Error> {
    job.metadata.managed_fields = None;
    object(&job, &[name(&job)], format)
}

/// Jobs as kubectl prints them.
pub(crate) fn jobs(mut jobs: Vec<ViTTrainingJob>, format: Format) -> Result<(), Error> {
    for job in &mut jobs {
        job.metadata.managed_fields = None;
    }
    let names: Vec<String> = jobs.iter().map(name).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": jobs});
    object(&list, &names, format)
}

fn name(job: &ViTTrainingJob) -> String {
    qualified(&job.name_any())
}

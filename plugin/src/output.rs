//! Standard output: text, or objects in the requested format.

use std::io::Write as _;

use serde::Serialize;
use serde_json::json;

use crate::error::Error;
use crate::kind::{Kind, Name};

/// How objects are written.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum Format {
    /// More columns or all details
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
    print_bytes(text.as_bytes())
}

/// Writes bytes of any kind to standard output.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes)?;
    Ok(stdout.flush()?)
}

/// Writes notes and warnings to standard error. A closed standard error is not a failure.
pub(crate) fn report(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Writes a value as JSON or YAML; `names` are written for `-o name`.
pub(crate) fn object(value: &impl Serialize, names: &[String], format: Format) -> Result<(), Error> {
    match format {
        Format::Name => print(&names.iter().map(|name| format!("{name}\n")).collect::<String>()),
        Format::Yaml => print(&serde_saphyr::to_string(value)?),
        Format::Json | Format::Wide => {
            let text =
                serde_json::to_string_pretty(value).map_err(|error| Error::Unreadable(error.into()))?;
            print(&format!("{text}\n"))
        }
    }
}

/// An object as kubectl prints it: without managed fields.
pub(crate) fn one<K: Kind>(mut one: K, format: Format) -> Result<(), Error> {
    one.meta_mut().managed_fields = None;
    object(&one, &[Name::from_object(&one).qualified()], format)
}

/// Objects as kubectl prints them.
pub(crate) fn many<K: Kind>(mut objects: Vec<K>, format: Format) -> Result<(), Error> {
    for object in &mut objects {
        object.meta_mut().managed_fields = None;
    }
    let names = objects.iter().map(|object| Name::from_object(object).qualified());
    let names: Vec<String> = names.collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": objects});
    object(&list, &names, format)
}

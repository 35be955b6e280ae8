//! Results as a table, and as a key of `target/bench/operator.json`.

use std::fmt;

use anyhow::Result;
use fs_err as fs;
use serde_json::{Value, json};
use vit_tests::root;

/// The measurements of one part.
pub(crate) struct Report {
    title: String,
    rows: Vec<Row>,
    details: Value,
}

/// A required limit of a number.
struct Bar {
    name: &'static str,
    sign: &'static str,
    value: f64,
    is_met: bool,
}

/// A number of the table.
pub(crate) struct Row {
    key: &'static str,
    what: String,
    value: f64,
    unit: &'static str,
    bar: Option<Bar>,
}

impl Row {
    pub(crate) fn at_least(&mut self, value: f64) {
        let is_met = self.value >= value;
        self.bar = Some(Bar {
            name: "at_least",
            sign: ">=",
            value,
            is_met,
        });
    }

    pub(crate) fn at_most(&mut self, value: f64) {
        let is_met = self.value <= value;
        self.bar = Some(Bar {
            name: "at_most",
            sign: "<=",
            value,
            is_met,
        });
    }
}

impl Report {
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            rows: Vec::new(),
            details: json!({}),
        }
    }

    /// Adds a number.
    pub(crate) fn add(
        &mut self,
        key: &'static str,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
    ) -> &mut Row {
        let what = what.into();
        self.rows.push(Row {
            key,
            what,
            value,
            unit,
            bar: None,
        });
        self.rows.last_mut().expect("one was added")
    }

    /// Adds a value to the file only.
    pub(crate) fn detail(&mut self, key: &str, value: impl Into<Value>) {
        self.details[key] = value.into();
    }

    /// Writes a key of the file; other keys stay.
    pub(crate) fn save(&self, key: &str) -> Result<()> {
        let path = root().join("target/bench/operator.json");
        let mut all: Value = if path.exists() {
            serde_json::from_slice(&fs::read(&path)?)?
        } else {
            json!({})
        };
        all[key] = self.to_json()?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        Ok(fs::write(path, serde_json::to_vec_pretty(&all)?)?)
    }

    fn to_json(&self) -> Result<Value> {
        let mut value = self.details.clone();
        value["processors"] = json!(std::thread::available_parallelism()?.get());
        for row in &self.rows {
            value[row.key] = json!(row.value);
            if let Some(bar) = &row.bar {
                value["bars"][row.key] = json!({bar.name: bar.value, "met": bar.is_met});
            }
        }
        Ok(value)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}", self.title)?;
        for row in &self.rows {
            write!(formatter, "  {:<66}{:>10.2} {}", row.what, row.value, row.unit)?;
            if let Some(bar) = &row.bar {
                let verdict = if bar.is_met { "met" } else { "MISSED" };
                write!(formatter, "  bar {} {}: {verdict}", bar.sign, bar.value)?;
            }
            writeln!(formatter)?;
        }
        Ok(())
    }
}

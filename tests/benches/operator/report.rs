//! What was measured: as a table, and as a key of `target/bench/operator.json`.

use std::fmt;

use anyhow::Result;
use fs_err as fs;
use serde_json::{Value, json};
use vit_tests::root;

/// How large or small a number has to be.
#[derive(Clone, Copy)]
pub(crate) enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bar) => value >= bar,
            Self::AtMost(bar) => value <= bar,
        }
    }
}

/// The measurements of one part.
pub(crate) struct Report {
    title: String,
    rows: Vec<Row>,
    details: Value,
}

struct Row {
    key: &'static str,
    what: String,
    value: f64,
    unit: &'static str,
    bar: Option<Bar>,
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
    pub(crate) fn add(&mut self, key: &'static str, what: impl Into<String>, value: f64, unit: &'static str) {
        self.rows.push(Row {
            key,
            what: what.into(),
            value,
            unit,
            bar: None,
        });
    }

    /// Adds a number that has a bar.
    pub(crate) fn add_with_bar(
        &mut self,
        key: &'static str,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        bar: Bar,
    ) {
        self.add(key, what, value, unit);
        if let Some(row) = self.rows.last_mut() {
            row.bar = Some(bar);
        }
    }

    /// Adds what is in the file and not in the table.
    pub(crate) fn detail(&mut self, key: &str, value: impl Into<Value>) {
        self.details[key] = value.into();
    }

    /// Writes a key of the file; the others stay as they are.
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
            let (name, bar) = match row.bar {
                Some(Bar::AtLeast(bar)) => ("at_least", bar),
                Some(Bar::AtMost(bar)) => ("at_most", bar),
                None => continue,
            };
            let is_met = row.bar.is_some_and(|bar| bar.is_met(row.value));
            value["bars"][row.key] = json!({name: bar, "met": is_met});
        }
        Ok(value)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}", self.title)?;
        for row in &self.rows {
            write!(formatter, "  {:<66}{:>10.2} {}", row.what, row.value, row.unit)?;
            let (comparison, bar) = match row.bar {
                Some(Bar::AtLeast(bar)) => (">=", bar),
                Some(Bar::AtMost(bar)) => ("<=", bar),
                None => {
                    writeln!(formatter)?;
                    continue;
                }
            };
            let is_met = row.bar.is_some_and(|bar| bar.is_met(row.value));
            let verdict = if is_met { "met" } else { "MISSED" };
            writeln!(formatter, "  bar {comparison} {bar}: {verdict}")?;
        }
        Ok(())
    }
}

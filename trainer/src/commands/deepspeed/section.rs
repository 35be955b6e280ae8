//! Reads a DeepSpeed configuration key by key, so that none is missed.

use super::document::{Entries, Node};

#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Fields of the manifest's spec, and the key each comes from.
    pub(super) fields: Vec<(Vec<&'static str>, Node, String)>,
    /// Keys that change nothing, and why.
    pub(super) without_effect: Vec<String>,
    /// Keys whose counterpart behaves differently.
    pub(super) different: Vec<String>,
    /// Keys that cannot be converted.
    pub(super) errors: Vec<String>,
}

impl Findings {
    pub(super) fn field(&mut self, path: &[&'static str], value: Node, from: impl Into<String>) {
        self.fields.push((path.to_vec(), value, from.into()));
    }

    pub(super) fn number(&mut self, path: &[&'static str], value: f64, from: impl Into<String>) {
        self.field(path, Node::Number(value), from);
    }

    pub(super) fn refuse(&mut self, path: &str, value: impl std::fmt::Display, why: &str) {
        self.errors.push(format!("{path} is {value}: {why}"));
    }
}

/// How a key without a field is treated. Tables list keys with the same fate in one string.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// It changes nothing here, whatever its value.
    NoEffect(&'static str),
    /// Its feature is not supported: it must be off.
    Off(&'static str),
    /// Not a key of DeepSpeed, though it looks like one.
    NoKey(&'static str),
}

/// A map of the file, from which keys are taken.
#[derive(Debug, Default)]
pub(super) struct Section {
    path: String,
    entries: Entries,
}

impl Section {
    pub(super) fn root(entries: Entries) -> Self {
        Self {
            path: String::new(),
            entries,
        }
    }

    pub(super) fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    pub(super) fn take(&mut self, key: &str) -> Option<Node> {
        self.entries.shift_remove(key)
    }

    /// A map within this one; `None` if missing.
    pub(super) fn section(&mut self, key: &str, findings: &mut Findings) -> Option<Self> {
        let path = self.path_of(key);
        match self.take(key)? {
            Node::Map(entries) => Some(Self { path, entries }),
            Node::Null => None,
            other => {
                findings.refuse(&path, other, "must be an object");
                None
            }
        }
    }

    pub(super) fn number(&mut self, key: &str, findings: &mut Findings) -> Option<f64> {
        self.typed(key, findings, "must be a number", |node| match node {
            Node::Integer(value) => Some(*value as f64),
            Node::Number(value) => Some(*value),
            // YAML accepts fewer number formats than JSON.
            Node::Text(text) => text.parse().ok(),
            _ => None,
        })
    }

    pub(super) fn count(&mut self, key: &str, findings: &mut Findings) -> Option<u64> {
        self.typed(
            key,
            findings,
            "must be a whole number of at least 0",
            Node::as_count,
        )
    }

    pub(super) fn flag(&mut self, key: &str, findings: &mut Findings) -> Option<bool> {
        self.typed(key, findings, "must be true or false", |node| match node {
            Node::Bool(value) => Some(*value),
            _ => None,
        })
    }

    pub(super) fn text(&mut self, key: &str, findings: &mut Findings) -> Option<String> {
        self.typed(key, findings, "must be a string", |node| match node {
            Node::Text(value) => Some(value.clone()),
            _ => None,
        })
    }

    pub(super) fn numbers(&mut self, key: &str, findings: &mut Findings) -> Option<Vec<f64>> {
        self.typed(key, findings, "must be a list of numbers", |node| {
            let Node::List(values) = node else { return None };
            let number = |node: &Node| match node {
                Node::Integer(value) => Some(*value as f64),
                Node::Number(value) => Some(*value),
                _ => None,
            };
            values.iter().map(number).collect()
        })
    }

    fn typed<T>(
        &mut self,
        key: &str,
        findings: &mut Findings,
        expected: &str,
        read: impl FnOnce(&Node) -> Option<T>,
    ) -> Option<T> {
        let path = self.path_of(key);
        let node = self.take(key)?;
        if matches!(node, Node::Null) {
            return None;
        }
        if node == Node::Text("auto".into()) {
            let hint = format!("it is not resolved here; set the value with --set {path}=VALUE");
            findings.refuse(&path, node, &hint);
            return None;
        }
        let value = read(&node);
        if value.is_none() {
            findings.refuse(&path, node, expected);
        }
        value
    }

    /// Handles every key that was not read.
    pub(super) fn finish(self, fates: &[(&str, Fate)], findings: &mut Findings) {
        for (key, node) in &self.entries {
            let path = self.path_of(key);
            let is_it = |(keys, _): &&(&str, Fate)| keys.split(' ').any(|known| known == key);
            let fate = fates.iter().find(is_it).map(|(_, fate)| *fate);
            match fate {
                Some(Fate::NoEffect(why)) => findings.without_effect.push(format!("{path}: {why}")),
                Some(Fate::Off(_)) if is_off(node) => {
                    findings.without_effect.push(format!("{path}: is off"));
                }
                Some(Fate::Off(why) | Fate::NoKey(why)) => findings.refuse(&path, node, why),
                None => findings.refuse(&path, node, "unknown key; DeepSpeed would silently ignore it"),
            }
        }
    }
}

/// Whether a value leaves its feature off.
fn is_off(node: &Node) -> bool {
    match node {
        Node::Null | Node::Bool(false) | Node::Integer(0) => true,
        Node::Number(value) => *value == 0.0,
        Node::Text(text) => text == "none",
        Node::List(values) => values.is_empty(),
        Node::Map(entries) => {
            entries.is_empty()
                || matches!(node.get(&["enabled"]), Some(Node::Bool(false)))
                || matches!(node.get(&["device"]), Some(Node::Text(device)) if device == "none")
        }
        Node::Bool(true) | Node::Integer(_) | Node::Commented(..) => false,
    }
}

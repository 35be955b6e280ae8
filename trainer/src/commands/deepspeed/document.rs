//! A file's tree of values: keys keep their order and are unique, which the YAML parser checks.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_saphyr::Commented;

/// Keys in their order.
pub(super) type Entries = IndexMap<String, Node>;

/// A value of JSON or YAML.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Integer(i64),
    Number(f64),
    Text(String),
    List(Vec<Node>),
    Map(Entries),
    /// A scalar followed by a comment.
    #[serde(skip_deserializing)]
    Commented(Commented<Box<Node>>),
}

impl Node {
    /// Sets the value at a path of keys, creating the maps on the way.
    pub(super) fn set(&mut self, path: &[&str], value: Self) {
        let Some((key, rest)) = path.split_first() else {
            *self = value;
            return;
        };
        if !matches!(self, Self::Map(_)) {
            *self = Self::Map(Entries::new());
        }
        if let Self::Map(entries) = self {
            let entry = entries.entry((*key).to_owned());
            entry.or_insert(Self::Null).set(rest, value);
        }
    }

    pub(super) fn get(&self, path: &[&str]) -> Option<&Self> {
        let Some((key, rest)) = path.split_first() else {
            return Some(self);
        };
        let Self::Map(entries) = self else { return None };
        entries.get(*key)?.get(rest)
    }

    /// This scalar followed by a comment.
    pub(super) fn commented(self, comment: impl Into<String>) -> Self {
        Self::Commented(Commented(Box::new(self), comment.into()))
    }

    /// This value as a number, with or without a comment.
    pub(super) fn as_count(&self) -> Option<u64> {
        match self {
            Self::Integer(value) => u64::try_from(*value).ok(),
            // DeepSpeed's files write whole numbers as 5e8.
            Self::Number(value) if value.fract() == 0.0 && (0.0..9e15).contains(value) => Some(*value as u64),
            Self::Commented(value) => value.0.as_count(),
            _ => None,
        }
    }
}

impl std::fmt::Display for Node {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Null => formatter.write_str("null"),
            Self::Bool(value) => write!(formatter, "{value}"),
            Self::Integer(value) => write!(formatter, "{value}"),
            Self::Number(value) => write!(formatter, "{value}"),
            Self::Text(value) => write!(formatter, "{value:?}"),
            Self::List(values) => {
                let values: Vec<_> = values.iter().map(ToString::to_string).collect();
                write!(formatter, "[{}]", values.join(", "))
            }
            Self::Map(entries) => {
                let entries: Vec<_> = entries
                    .iter()
                    .map(|(key, value)| format!("{key}: {value}"))
                    .collect();
                write!(formatter, "{{{}}}", entries.join(", "))
            }
            Self::Commented(value) => value.0.fmt(formatter),
        }
    }
}

/// Blanks out `// ...` and `/* ... */`, comments of Hjson, which DeepSpeed reads, but not of YAML.
/// Lines and columns stay the same.
pub(super) fn without_comments(text: &str) -> String {
    let mut rest = text;
    let mut result = String::with_capacity(text.len());
    // The opening quote of a text that has not ended.
    let mut quote = None;
    while let Some(first) = rest.chars().next() {
        let length = match (quote, first) {
            (Some('"'), '\\') => rest.chars().take(2).map(char::len_utf8).sum(),
            (Some(open), _) => {
                if first == open {
                    quote = None;
                }
                first.len_utf8()
            }
            (None, '"' | '\'') => {
                quote = Some(first);
                1
            }
            (None, '#') => line_end(rest),
            (None, _) if rest.starts_with("//") || rest.starts_with("/*") => {
                let length = if rest.starts_with("//") {
                    line_end(rest)
                } else {
                    rest.find("*/").map_or(rest.len(), |end| end + 2)
                };
                let blank = |character| if character == '\n' { '\n' } else { ' ' };
                result.extend(rest[..length].chars().map(blank));
                rest = &rest[length..];
                continue;
            }
            (None, _) => first.len_utf8(),
        };
        result.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    result
}

fn line_end(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Node, serde_saphyr::Error> {
        serde_saphyr::from_str(text)
    }

    #[test]
    fn json_is_read_as_deepspeed_reads_it() {
        // Tabs, a trailing comma and a comment: DeepSpeed's parser accepts them, unlike JSON's.
        let node =
            read("{\n\t\"b\": 5e8, # elements\n\t\"a\": {\"on\": true, \"x\": \"auto\"},\n}").expect("reads");
        assert_eq!(node.get(&["b"]).and_then(Node::as_count), Some(500_000_000));
        assert_eq!(node.get(&["a", "on"]), Some(&Node::Bool(true)));
        assert_eq!(node.get(&["a", "x"]), Some(&Node::Text("auto".into())));
        assert!(matches!(&node, Node::Map(entries) if entries.get_index_of("b") == Some(0)));
    }

    #[test]
    fn comments_go_and_what_is_quoted_stays() {
        let text = "{ // batch, it's said\n\"a\": \"http://x\", /* two\nlines */ 'b': 'it''s // no comment', # // yaml's\n\"c\": 1 } // last";
        let found = without_comments(text);
        assert_eq!(found.lines().count(), text.lines().count());
        let node = read(&found).expect("reads");
        assert_eq!(node.get(&["a"]), Some(&Node::Text("http://x".into())));
        assert_eq!(node.get(&["c"]).and_then(Node::as_count), Some(1));
        assert!(
            !found.contains("batch") && found.contains("// no comment"),
            "{found}"
        );
    }

    #[test]
    fn a_key_that_is_there_twice_is_refused() {
        let error = read("{\"a\": 1, \"a\": 2}").expect_err("refused").to_string();
        assert!(error.contains('a'), "{error}");
    }

    #[test]
    fn what_is_written_reads_back_with_comments_behind_values() {
        let mut node = read("z: 1\na: [1, two]\n").expect("reads");
        node.set(&["m", "n"], Node::Number(1e-4).commented("why"));
        let text = serde_saphyr::to_string(&node).expect("writes");
        assert!(text.contains("# why"), "{text}");
        let back = read(&text).expect("reads back");
        assert_eq!(back.get(&["m", "n"]), Some(&Node::Number(1e-4)));
        assert!(text.starts_with("z: 1\n"), "{text}");
    }
}

//! A tree of values as a file has it: keys in their order, none twice.

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap as _, SerializeSeq as _, Serializer};
use serde_saphyr::Commented;

/// A value of JSON or YAML.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Integer(i64),
    Number(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
    /// A scalar with a comment behind it.
    Commented(Box<Node>, String),
}

impl Node {
    /// Puts a value at a path of keys, making the maps on the way.
    pub(super) fn set(&mut self, path: &[&str], value: Self) {
        let Some((key, rest)) = path.split_first() else {
            *self = value;
            return;
        };
        if !matches!(self, Self::Map(_)) {
            *self = Self::Map(Vec::new());
        }
        let Self::Map(entries) = self else { return };
        let place = entries.iter().position(|(name, _)| name == key);
        let place = place.unwrap_or_else(|| {
            entries.push(((*key).to_owned(), Self::Null));
            entries.len() - 1
        });
        entries[place].1.set(rest, value);
    }

    /// The value at a path of keys.
    pub(super) fn get(&self, path: &[&str]) -> Option<&Self> {
        let Some((key, rest)) = path.split_first() else {
            return Some(self);
        };
        let Self::Map(entries) = self else { return None };
        entries.iter().find(|(name, _)| name == key)?.1.get(rest)
    }

    /// The number that this is, comment or not.
    pub(super) fn as_count(&self) -> Option<u64> {
        match self {
            Self::Integer(value) => u64::try_from(*value).ok(),
            // 5e8 is how DeepSpeed's files write whole numbers.
            Self::Number(value) if value.fract() == 0.0 && (0.0..9e15).contains(value) => Some(*value as u64),
            Self::Commented(value, _) => value.as_count(),
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
            Self::Commented(value, _) => value.fmt(formatter),
        }
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Integer(value) => serializer.serialize_i64(*value),
            Self::Number(value) => serializer.serialize_f64(*value),
            Self::Text(value) => serializer.serialize_str(value),
            Self::List(values) => {
                let mut list = serializer.serialize_seq(Some(values.len()))?;
                for value in values {
                    list.serialize_element(value)?;
                }
                list.end()
            }
            Self::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
            Self::Commented(value, comment) => {
                Commented(value.as_ref(), comment.clone()).serialize(serializer)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(i64::try_from(value).map_or(Node::Number(value as f64), Node::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = access.next_element()? {
            values.push(value);
        }
        Ok(Node::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        while let Some((key, value)) = access.next_entry::<String, Node>()? {
            if entries.iter().any(|(known, _)| *known == key) {
                return Err(A::Error::custom(format!("the key {key} is there twice")));
            }
            entries.push((key, value));
        }
        Ok(Node::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Node, serde_saphyr::Error> {
        serde_saphyr::from_str(text)
    }

    #[test]
    fn json_is_read_as_deepspeed_reads_it() {
        // Tabs, a trailing comma and a comment: DeepSpeed's reader takes them, JSON's own would not.
        let node =
            read("{\n\t\"b\": 5e8, # elements\n\t\"a\": {\"on\": true, \"x\": \"auto\"},\n}").expect("reads");
        assert_eq!(node.get(&["b"]).and_then(Node::as_count), Some(500_000_000));
        assert_eq!(node.get(&["a", "on"]), Some(&Node::Bool(true)));
        assert_eq!(node.get(&["a", "x"]), Some(&Node::Text("auto".into())));
        assert!(matches!(&node, Node::Map(entries) if entries[0].0 == "b"));
    }

    #[test]
    fn a_key_that_is_there_twice_is_refused() {
        let error = read("{\"a\": 1, \"a\": 2}").expect_err("refused").to_string();
        assert!(error.contains('a'), "{error}");
    }

    #[test]
    fn what_is_written_reads_back_with_comments_behind_values() {
        let mut node = read("z: 1\na: [1, two]\n").expect("reads");
        node.set(
            &["m", "n"],
            Node::Commented(Box::new(Node::Number(1e-4)), "why".into()),
        );
        let text = serde_saphyr::to_string(&node).expect("writes");
        assert!(text.contains("# why"), "{text}");
        let back = read(&text).expect("reads back");
        assert_eq!(back.get(&["m", "n"]), Some(&Node::Number(1e-4)));
        assert!(text.starts_with("z: 1\n"), "{text}");
    }
}

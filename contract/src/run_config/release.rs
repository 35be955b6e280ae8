//! The release that wrote a run configuration, and the releases that can read it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Major and minor version of operator and trainer, such as `0.1`.
///
/// A trainer refuses unknown fields, because it would train something else without them. So
/// operators omit unused fields that are newer than the oldest supported release.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Release {
    major: u32,
    minor: u32,
}

impl Release {
    /// The first release, whose run configurations have no version.
    const FIRST: Self = Self { major: 0, minor: 1 };

    /// The release of this program.
    pub fn current() -> Self {
        env!("CARGO_PKG_VERSION").parse().unwrap_or(Self::FIRST)
    }

    /// The first release, whose run configurations have no version.
    pub fn first() -> Self {
        Self::FIRST
    }

    /// Whether operator and trainer of these releases are compatible: at most one minor version
    /// apart.
    pub fn works_with(self, other: Self) -> bool {
        self.major == other.major && self.minor.abs_diff(other.minor) <= 1
    }
}

impl fmt::Display for Release {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for Release {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut numbers = text.split('.').map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok(Self { major, minor }),
            _ => Err(format!("{text:?} is not a version such as 0.1")),
        }
    }
}

impl Serialize for Release {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Release {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::super::RunConfig;
    use super::super::tests::config;
    use super::*;

    /// The run configuration by an operator of the oldest compatible release, without optional
    /// fields.
    const OLDEST: &str = include_str!("goldens/run-0.1.json");

    fn fields(value: &Value, place: &str, found: &mut BTreeSet<String>) {
        for (name, value) in value.as_object().into_iter().flatten() {
            let place = format!("{place}.{name}");
            fields(value, &place, found);
            found.insert(place);
        }
    }

    fn fields_of(text: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        fields(&serde_json::from_str(text).expect("JSON"), "", &mut found);
        found
    }

    #[test]
    fn what_an_operator_of_the_release_before_wrote_is_read() {
        let read: RunConfig = serde_json::from_str(OLDEST).expect("reads");
        assert_eq!((read.version, read.errors()), (Release::FIRST, vec![]));
        let [next, later] = [2, 3].map(|minor| Release {
            minor,
            ..Release::FIRST
        });
        assert!(read.version.works_with(next) && next.works_with(read.version));
        assert!(!read.version.works_with(later) && !later.works_with(read.version));
    }

    #[test]
    fn a_trainer_of_the_release_before_reads_what_this_operator_writes() {
        let written = serde_json::to_string(&config()).expect("serializes");
        let known = fields_of(OLDEST);
        let new: Vec<String> = fields_of(&written).difference(&known).cloned().collect();
        assert!(
            new.is_empty(),
            "a job without {new:?} has these fields: omit them with skip_serializing_if"
        );
    }

    #[test]
    fn a_version_has_two_numbers() {
        assert_eq!(Release::current().to_string().split('.').count(), 2);
        for wrong in ["", "1", "a.b", "0."] {
            assert!(wrong.parse::<Release>().is_err(), "{wrong}");
        }
        assert_eq!("0.12.3".parse(), Ok(Release { major: 0, minor: 12 }));
    }
}

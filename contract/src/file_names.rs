//! Patterns for names of several files.

/// Maximum number of files in a range.
const MOST_FILES: u32 = 1_000_000;

/// The files that a pattern names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FileNames {
    /// The file with this name.
    One(String),
    /// Files of a range such as `train-{000..127}.tar`, in order; numbers have at least as many
    /// digits as the first.
    Range(Vec<String>),
    /// Files with this prefix and suffix, from a pattern with one `*`.
    Between(String, String),
}

impl FileNames {
    /// `None` for a pattern with several `*` or ranges, with both, or with a range that is
    /// malformed, descending or of more than a million files.
    pub fn parse(pattern: &str) -> Option<Self> {
        let Some((before, rest)) = pattern.split_once('{') else {
            let Some((before, after)) = pattern.split_once('*') else {
                return Some(Self::One(pattern.into()));
            };
            return (!after.contains('*')).then(|| Self::Between(before.into(), after.into()));
        };
        let (range, after) = rest.split_once('}')?;
        let (first, last) = range.split_once("..")?;
        let (from, to) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        if from > to || to - from >= MOST_FILES || after.contains(['{', '*']) || before.contains('*') {
            return None;
        }
        let digits = first.len();
        let names = (from..=to).map(|number| format!("{before}{number:0digits$}{after}"));
        Some(Self::Range(names.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_names_one_file_a_range_or_all_that_begin_and_end_alike() {
        let range = |names: &[&str]| FileNames::Range(names.iter().map(|name| (*name).to_owned()).collect());
        for (pattern, names) in [
            ("a.tar", FileNames::One("a.tar".into())),
            ("a-{08..10}.tar", range(&["a-08.tar", "a-09.tar", "a-10.tar"])),
            ("a-*.tar", FileNames::Between("a-".into(), ".tar".into())),
        ] {
            assert_eq!(FileNames::parse(pattern), Some(names), "{pattern}");
        }
        for pattern in [
            "*-*",
            "{0..1}*",
            "*{0..1}",
            "{3..1}",
            "{a..b}",
            "{0..1}{2..3}",
            "{0..1",
            "{0..1000000}",
        ] {
            assert_eq!(FileNames::parse(pattern), None, "{pattern}");
        }
    }
}

//! Reading the run configuration and the environment.

use std::path::Path;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use contract::{Device, Release, RunConfig, environment};

use crate::error::TrainError;

/// Parses `workers.device` on a command line.
pub(crate) fn device() -> impl TypedValueParser<Value = Device> {
    PossibleValuesParser::new(["auto", "cuda", "cpu"])
        .map(|name| serde_json::from_value(name.into()).expect("the name of a device"))
}

/// The run configuration that the environment names, fully validated.
pub(crate) fn read_run_config() -> Result<RunConfig, TrainError> {
    let path = std::env::var(environment::RUN_CONFIG).unwrap_or_else(|_| environment::RUN_CONFIG_PATH.into());
    parse_run_config(Path::new(&path))
}

fn parse_run_config(path: &Path) -> Result<RunConfig, TrainError> {
    let text = fs_err::read_to_string(path)
        .map_err(|error| TrainError::Config(format!("failed to read the run configuration: {error}")))?;
    let config = of_any_release(&text, Release::current())
        .map_err(|error| TrainError::Config(format!("{}: {error}", path.display())))?;
    checked(config)
}

/// The configuration, if it breaks no rule.
pub(crate) fn checked(config: RunConfig) -> Result<RunConfig, TrainError> {
    let mut errors = crds::out_of_bounds(&config);
    // Rules between fields need sound numbers.
    if errors.is_empty() {
        errors = config.errors();
    }
    match errors.as_slice() {
        [] => Ok(config),
        errors => Err(TrainError::from_rules(errors)),
    }
}

/// A run configuration that an operator of this release or of one that works with it wrote. The error says what is wrong.
fn of_any_release(text: &str, trainer: Release) -> Result<RunConfig, String> {
    #[derive(serde::Deserialize)]
    struct Written {
        version: Option<Release>,
    }
    let invalid = |error| format!("invalid run configuration: {error}");
    let written: Written = serde_json::from_str(text).map_err(invalid)?;
    let operator = written.version.unwrap_or_else(Release::first);
    if !operator.works_with(trainer) {
        return Err(format!(
            "the operator is version {operator}, but this trainer is {trainer}: they may be one minor version apart"
        ));
    }
    serde_json::from_str(text).map_err(|error| {
        let error = invalid(error);
        if operator == trainer {
            return error;
        }
        format!("{error} (the operator is version {operator}, this trainer {trainer}: use the trainer's image of {operator})")
    })
}

/// A required environment variable, parsed.
pub(crate) fn required_variable<T: FromStr>(name: &'static str) -> Result<T, TrainError> {
    let value = std::env::var(name)
        .map_err(|_| TrainError::Config(format!("the environment variable {name} is not set")))?;
    parse_variable(name, &value)
}

/// An optional environment variable, parsed.
pub(crate) fn variable_or<T: FromStr>(name: &'static str, default: T) -> Result<T, TrainError> {
    match std::env::var(name) {
        Ok(value) => parse_variable(name, &value),
        Err(_) => Ok(default),
    }
}

fn parse_variable<T: FromStr>(name: &'static str, value: &str) -> Result<T, TrainError> {
    value.parse().map_err(|_| {
        TrainError::Config(format!(
            "the environment variable {name} is {value:?}, which is not a valid {}",
            std::any::type_name::<T>().rsplit("::").next().unwrap_or("value")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_missing_or_wrong_is_named() {
        let missing = parse_run_config(Path::new("/nowhere/run.json"))
            .expect_err("refused")
            .to_string();
        assert!(missing.contains("/nowhere/run.json"), "{missing}");
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs_err::write(file.path(), r#"{"job": 3}"#).expect("writes");
        let wrong = parse_run_config(file.path()).expect_err("refused").to_string();
        assert!(wrong.contains("invalid run configuration"), "{wrong}");
        let written = include_str!("../../contract/src/run_config/goldens/run-0.1.json");
        let changed = written.replacen(r#""microBatchSize": 16"#, r#""microBatchSize": 0"#, 1);
        fs_err::write(file.path(), changed).expect("writes");
        let wrong = parse_run_config(file.path()).expect_err("refused").to_string();
        assert!(
            wrong.contains("training.microBatchSize is 0: must be at least 1"),
            "{wrong}"
        );
    }

    /// Invariant G2.
    #[test]
    fn an_operator_may_be_one_minor_version_apart() {
        let written = include_str!("../../contract/src/run_config/goldens/run-0.1.json");
        let [first, next, later] =
            ["0.1", "0.2", "0.3"].map(|release| release.parse::<Release>().expect("a version"));
        of_any_release(written, next).expect("reads");
        assert_eq!(
            of_any_release(written, later).expect_err("refused"),
            "the operator is version 0.1, but this trainer is 0.3: they may be one minor version apart"
        );
        let newer = written.replacen(r#""version": "0.1""#, r#""version": "0.2", "novelty": 1"#, 1);
        let error = of_any_release(&newer, first).expect_err("refused");
        assert!(
            error.starts_with("invalid run configuration: unknown field `novelty`")
                && error.ends_with(
                    "(the operator is version 0.2, this trainer 0.1: use the trainer's image of 0.2)"
                ),
            "{error}"
        );
    }

    #[test]
    fn a_variable_that_does_not_parse_says_what_it_should_be() {
        let message = parse_variable::<u32>("WORLD_SIZE", "two")
            .expect_err("refused")
            .to_string();
        assert_eq!(
            message,
            r#"the environment variable WORLD_SIZE is "two", which is not a valid u32"#
        );
    }
}

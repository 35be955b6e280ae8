//! Reading the run configuration and the environment.

use std::path::Path;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use contract::{Device, RunConfig, environment};

use crate::error::TrainError;

/// Reads `workers.device` on a command line.
pub(crate) fn device() -> impl TypedValueParser<Value = Device> {
    PossibleValuesParser::new(["auto", "cuda", "cpu"])
        .map(|name| serde_json::from_value(name.into()).expect("the name of a device"))
}

/// The run configuration that the environment names, with every rule checked.
pub(crate) fn read_run_config() -> Result<RunConfig, TrainError> {
    let path = std::env::var(environment::RUN_CONFIG).unwrap_or_else(|_| environment::RUN_CONFIG_PATH.into());
    parse_run_config(Path::new(&path))
}

fn parse_run_config(path: &Path) -> Result<RunConfig, TrainError> {
    let text = fs_err::read_to_string(path)
        .map_err(|error| TrainError::Config(format!("failed to read the run configuration: {error}")))?;
    let config: RunConfig = serde_json::from_str(&text).map_err(|error| {
        TrainError::Config(format!("{} is no run configuration: {error}", path.display()))
    })?;
    match config.errors().as_slice() {
        [] => Ok(config),
        errors => Err(TrainError::of_rules(errors)),
    }
}

/// A variable that must be there and must parse.
pub(crate) fn required_variable<T: FromStr>(name: &'static str) -> Result<T, TrainError> {
    let value = std::env::var(name)
        .map_err(|_| TrainError::Config(format!("the environment variable {name} is not set")))?;
    parse_variable(name, &value)
}

/// A variable that may be missing but must parse.
pub(crate) fn variable_or<T: FromStr>(name: &'static str, default: T) -> Result<T, TrainError> {
    match std::env::var(name) {
        Ok(value) => parse_variable(name, &value),
        Err(_) => Ok(default),
    }
}

fn parse_variable<T: FromStr>(name: &'static str, value: &str) -> Result<T, TrainError> {
    value.parse().map_err(|_| {
        TrainError::Config(format!(
            "the environment variable {name} is {value:?}, which is no {}",
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
        assert!(wrong.contains("is no run configuration"), "{wrong}");
    }

    #[test]
    fn a_variable_that_does_not_parse_says_what_it_should_be() {
        let message = parse_variable::<u32>("WORLD_SIZE", "two")
            .expect_err("refused")
            .to_string();
        assert_eq!(
            message,
            r#"the environment variable WORLD_SIZE is "two", which is no u32"#
        );
    }
}

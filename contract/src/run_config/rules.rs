//! Checks of values, and their errors.

use std::borrow::Cow;

/// A value that breaks a rule.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{field} is {value}: {expected}")]
pub struct ConfigError {
    /// Path of the field, as in the manifest's spec.
    pub field: Cow<'static, str>,
    /// The value it has.
    pub value: String,
    /// What is valid.
    pub expected: String,
}

/// Collects broken rules.
#[derive(Default)]
pub(super) struct Rules(pub(super) Vec<ConfigError>);

impl Rules {
    pub(super) fn require(
        &mut self,
        holds: bool,
        field: &'static str,
        value: impl std::fmt::Display,
        expected: impl Into<String>,
    ) {
        if !holds {
            self.0.push(ConfigError {
                field: field.into(),
                value: value.to_string(),
                expected: expected.into(),
            });
        }
    }

    pub(super) fn positive(&mut self, field: &'static str, value: u32) {
        self.require(value > 0, field, value, "must be at least 1");
    }

    pub(super) fn divides(&mut self, part: &'static str, divisor: u32, whole: &'static str, value: u32) {
        self.require(
            divisor == 0 || value.is_multiple_of(divisor),
            whole,
            value,
            format!("must be a multiple of {part} ({divisor})"),
        );
    }
}

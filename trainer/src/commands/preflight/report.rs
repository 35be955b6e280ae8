//! The results of the checks, as a table and as JSON.

use std::time::Instant;

use contract::ExitCode;
use serde::Serialize;

use crate::error::TrainError;

/// A check. In the order of the report.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Check {
    Configuration,
    Data,
    Storage,
    Device,
    Collective,
    Memory,
    Checkpoint,
}

impl Check {
    const ALL: [Self; 7] = [
        Self::Configuration,
        Self::Data,
        Self::Storage,
        Self::Device,
        Self::Collective,
        Self::Memory,
        Self::Checkpoint,
    ];

    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Outcome {
    Ok,
    Failed,
    NotReached,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    check: Check,
    outcome: Outcome,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<u8>,
}

#[derive(Debug, Default)]
pub(super) struct Report(Vec<Row>);

impl Report {
    /// Runs a check and records the outcome. Returns its value.
    pub(super) fn check<T>(
        &mut self,
        check: Check,
        run: impl FnOnce() -> Result<(T, String), TrainError>,
    ) -> Option<T> {
        let start = Instant::now();
        let result = run();
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok((value, detail)) => {
                self.passed(check, detail, Some(seconds));
                Some(value)
            }
            Err(error) => {
                self.failed(check, error.to_string(), error.exit_code());
                None
            }
        }
    }

    pub(super) fn passed(&mut self, check: Check, detail: String, seconds: Option<f64>) {
        self.put(Row {
            check,
            outcome: Outcome::Ok,
            detail,
            seconds,
            exit_code: None,
        });
    }

    pub(super) fn failed(&mut self, check: Check, reason: String, code: ExitCode) {
        self.put(Row {
            check,
            outcome: Outcome::Failed,
            detail: reason,
            seconds: None,
            exit_code: Some(code.code()),
        });
    }

    /// Later findings replace earlier ones.
    fn put(&mut self, row: Row) {
        self.0.retain(|known| known.check != row.check);
        self.0.push(row);
    }

    /// The code of the first check that failed.
    pub(super) fn exit_code(&self) -> ExitCode {
        let codes = self.rows().into_iter().filter_map(|row| row.exit_code);
        codes.map(ExitCode::from_code).next().unwrap_or(ExitCode::Done)
    }

    /// A row for every check, including those that were not reached.
    fn rows(&self) -> Vec<Row> {
        let row = |check| {
            let done = self.0.iter().find(|row| row.check == check).cloned();
            done.unwrap_or_else(|| Row {
                check,
                outcome: Outcome::NotReached,
                detail: String::new(),
                seconds: None,
                exit_code: None,
            })
        };
        Check::ALL.map(row).into()
    }

    pub(super) fn table(&self) -> Vec<String> {
        let rows = self.rows().into_iter().map(|row| {
            let outcome = match row.outcome {
                Outcome::Ok => "ok",
                Outcome::Failed => "FAILED",
                Outcome::NotReached => "-",
            };
            let detail = match row.outcome {
                Outcome::NotReached => "not reached",
                _ => &row.detail,
            };
            format!("{:<15}{outcome:<8}{detail}", row.check.name())
        });
        let verdict = match self.exit_code() {
            ExitCode::Done => "ready".to_owned(),
            code => format!("not ready, exit code {}", code.code()),
        };
        rows.chain([verdict]).collect()
    }

    pub(super) fn json(&self) -> String {
        serde_json::json!({
            "ok": self.exit_code() == ExitCode::Done,
            "exitCode": self.exit_code().code(),
            "checks": self.rows(),
        })
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_gives_the_exit_code_and_the_rest_is_told_too() {
        let mut report = Report::default();
        assert_eq!(
            report.check(Check::Configuration, || Ok((7, "fine".into()))),
            Some(7)
        );
        report.failed(Check::Memory, "too little".into(), ExitCode::OutOfMemory);
        let missing = || Err::<((), String), _>(TrainError::Rendezvous("nobody".into()));
        assert_eq!(report.check(Check::Collective, missing), None);
        assert_eq!(report.exit_code(), ExitCode::PeerLost, "in the order of checks");
        let table = report.table();
        assert_eq!(table[0], "configuration  ok      fine");
        assert_eq!(table[1], "data           -       not reached");
        assert_eq!(table[4], "collective     FAILED  nobody");
        assert_eq!(table.last().map(String::as_str), Some("not ready, exit code 75"));
        report.passed(Check::Device, "a GPU".into(), None);
        report.failed(Check::Device, "it fell off the bus".into(), ExitCode::DeviceFault);
        assert_eq!(report.table()[3], "device         FAILED  it fell off the bus");
        let json: serde_json::Value = serde_json::from_str(&report.json()).expect("JSON");
        assert_eq!((&json["ok"], &json["exitCode"]), (&false.into(), &76.into()));
        assert_eq!(json["checks"][5]["outcome"], "failed");
        assert_eq!(json["checks"][6]["outcome"], "notReached");
    }

    #[test]
    fn nothing_wrong_is_ready() {
        let mut report = Report::default();
        report.passed(Check::Data, "there".into(), None);
        assert_eq!(report.exit_code(), ExitCode::Done);
        assert_eq!(report.table().last().map(String::as_str), Some("ready"));
    }
}

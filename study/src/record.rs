//! Records of a study's runs in a cluster: a ConfigMap entry for each repetition of a run.

use std::collections::{BTreeMap, BTreeSet};

use contract::Measurement;
use serde::{Deserialize, Serialize};

use crate::plan::{Plan, Run};

/// How a repetition of a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// How often it was tried.
    pub tries: u32,
    /// The warm-up and time limits under which it ran.
    pub bounds: Bounds,
    /// Its result.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The fields of `measure` that decide whether a record is still valid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bounds {
    warmup_steps: u64,
    timeout_seconds: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pending_timeout_seconds: Option<u64>,
}

/// How a try ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Outcome {
    /// It succeeded.
    Measurement(Box<Measurement>),
    /// It failed.
    Failure {
        /// Why.
        message: String,
        /// Whether retrying cannot help.
        is_final: bool,
    },
}

impl Outcome {
    /// Longer messages are truncated, in bytes.
    const MESSAGE_BYTES: usize = 400;

    /// A failure with this message.
    pub fn failure(message: impl Into<String>, is_final: bool) -> Self {
        let mut message = message.into();
        if message.len() > Self::MESSAGE_BYTES {
            let is_boundary = |end: &usize| message.is_char_boundary(*end);
            let end = (0..=Self::MESSAGE_BYTES).rev().find(is_boundary).unwrap_or(0);
            message.truncate(end);
            message.push_str(" ...");
        }
        Self::Failure { message, is_final }
    }
}

impl Bounds {
    /// The bounds of a plan.
    pub fn of(plan: &Plan) -> Self {
        Self {
            warmup_steps: plan.warmup_steps,
            timeout_seconds: plan.timeout.as_secs(),
            pending_timeout_seconds: plan.pending_timeout.map(|timeout| timeout.as_secs()),
        }
    }
}

impl Record {
    /// Whether it is final, given the allowed `retries`.
    pub fn is_over(&self, retries: u32) -> bool {
        match &self.outcome {
            Outcome::Measurement(_) => true,
            Outcome::Failure { is_final, .. } => *is_final || self.tries > retries,
        }
    }

    /// Whether it is valid under these bounds. A measurement needs the same warm-up, a failure the
    /// same bounds.
    fn is_valid(&self, bounds: Bounds) -> bool {
        match &self.outcome {
            Outcome::Measurement(_) => self.bounds.warmup_steps == bounds.warmup_steps,
            Outcome::Failure { .. } => self.bounds == bounds,
        }
    }
}

/// The records of a study, by run and repetition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    known: BTreeMap<String, Record>,
    /// Entries of other writers or versions: kept until the space is needed.
    others: BTreeMap<String, String>,
}

impl Records {
    /// Most bytes of a study's records; a ConfigMap may have 1 MiB.
    pub const MOST_BYTES: usize = 900_000;

    /// Name of the ConfigMap with a study's records.
    pub fn config_map(study: &str) -> String {
        format!("{study}-results")
    }

    /// Parses a ConfigMap's data.
    pub fn read(data: &BTreeMap<String, String>) -> Self {
        let mut records = Self::default();
        for (key, json) in data {
            match serde_json::from_str(json) {
                Ok(record) => drop(records.known.insert(key.clone(), record)),
                Err(_) => drop(records.others.insert(key.clone(), json.clone())),
            }
        }
        records
    }

    /// The ConfigMap's data.
    pub fn write(&self) -> BTreeMap<String, String> {
        let json = |record| serde_json::to_string(record).expect("strings and finite numbers");
        let known = self.known.iter().map(|(key, record)| (key.clone(), json(record)));
        self.others.clone().into_iter().chain(known).collect()
    }

    /// The valid record of a run's repetition, counted from 0.
    pub fn get(&self, plan: &Plan, run: &Run, repetition: u32) -> Option<&Record> {
        let found = self.known.get(&name(&run.key, repetition))?;
        found.is_valid(Bounds::of(plan)).then_some(found)
    }

    /// Sets the record of a repetition of the run with this key.
    pub fn insert(&mut self, key: &str, repetition: u32, record: Record) {
        let name = name(key, repetition);
        self.others.remove(&name);
        self.known.insert(name, record);
    }

    /// Drops records outside the plan once all together are too large.
    pub fn make_room(&mut self, plan: &Plan) {
        if bytes(&self.write()) > Self::MOST_BYTES {
            let known: BTreeSet<&str> = plan.runs.iter().map(|run| run.key.as_str()).collect();
            let is_wanted = |name: &str| {
                let (key, number) = name.split_once('.').unwrap_or_default();
                known.contains(key)
                    && number
                        .parse::<u32>()
                        .is_ok_and(|number| number <= plan.repetitions)
            };
            self.known.retain(|name, _| is_wanted(name));
            self.others.clear();
        }
    }

    /// For each of [`Plan::runs`], the measurement or failure of each repetition.
    pub fn measured(&self, plan: &Plan) -> Vec<Vec<Result<Measurement, String>>> {
        let of_repetition = |run: &Run, repetition| {
            let found = self.get(plan, run, repetition);
            match found.map(|found| &found.outcome) {
                Some(Outcome::Measurement(measurement)) => Ok((**measurement).clone()),
                Some(Outcome::Failure { message, .. }) => Err(message.clone()),
                None => Err(NOT_RUN.into()),
            }
        };
        let of_run = |run| {
            (0..plan.repetitions)
                .map(|repetition| of_repetition(run, repetition))
                .collect()
        };
        plan.runs.iter().map(of_run).collect()
    }
}

/// The failure of a repetition that has not run.
pub const NOT_RUN: &str = "not run yet";

/// Upper bound of the size of a plan's records in bytes.
pub fn most_bytes(plan: &Plan, epochs: usize) -> usize {
    const RECORD: usize = 1500;
    const EPOCH: usize = 48;
    const NODE: usize = 66;
    let nodes: usize = plan.runs.iter().map(|run| run.config.nodes as usize).sum();
    let runs = plan.runs.len() * (RECORD + EPOCH * epochs) + nodes * NODE;
    runs.saturating_mul(plan.repetitions as usize)
}

fn bytes(data: &BTreeMap<String, String>) -> usize {
    data.iter().map(|(key, json)| key.len() + json.len()).sum()
}

fn name(key: &str, repetition: u32) -> String {
    format!("{key}.{}", repetition + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{measurement, plan};

    fn bounds() -> Bounds {
        Bounds::of(&plan("[{name: s, mode: Strong, ranks: [1, 2]}]"))
    }

    fn failed(tries: u32, is_final: bool) -> Record {
        Record {
            tries,
            bounds: bounds(),
            outcome: Outcome::failure("it broke", is_final),
        }
    }

    fn measured() -> Record {
        Record {
            tries: 2,
            bounds: bounds(),
            outcome: Outcome::Measurement(Box::new(measurement(100.0))),
        }
    }

    #[test]
    fn what_is_not_of_the_plan_makes_room() {
        let plan = plan("[{name: s, mode: Strong, ranks: [1, 2]}]");
        let mut records = Records::default();
        let message = "x".repeat(300);
        let record = |tries| Record {
            outcome: Outcome::failure(&message, true),
            ..failed(tries, true)
        };
        let known = &plan.runs[0].key;
        for repetition in 0..2500 {
            records.insert(known, repetition, record(1));
        }
        records.make_room(&plan);
        let left: Vec<String> = records.write().into_keys().collect();
        let wanted: Vec<String> = (0..plan.repetitions)
            .map(|repetition| name(known, repetition))
            .collect();
        assert_eq!(left, wanted, "repetitions that the plan no longer has");
    }

    #[test]
    fn records_read_back_and_tell_what_runs_measured() {
        let plan = plan("[{name: s, mode: Strong, ranks: [1, 2]}]");
        let mut records = Records::default();
        records.insert(&plan.runs[0].key, 0, measured());
        records.insert(&plan.runs[1].key, 2, failed(1, false));
        let mut data = records.write();
        assert_eq!(Records::read(&data), records);
        data.insert("no-record".into(), "{}".into());
        data.insert(format!("{}.2", plan.runs[0].key), "not JSON".into());
        let mut records = Records::read(&data);
        assert_eq!(records.write(), data, "entries of other writers stay");
        let not_yet = || Err("not run yet".to_owned());
        assert_eq!(
            records.measured(&plan),
            [
                [Ok(measurement(100.0)), not_yet(), not_yet()],
                [not_yet(), not_yet(), Err("it broke".into())]
            ]
        );
        records.insert(&plan.runs[0].key, 1, failed(1, true));
        assert_eq!(records.write().len(), data.len(), "it replaces the invalid entry");
    }

    #[test]
    fn a_run_is_tried_as_often_as_it_may_be() {
        assert!(measured().is_over(5));
        assert!(!failed(1, false).is_over(1));
        assert!(failed(2, false).is_over(1));
        assert!(failed(1, true).is_over(1));
    }

    #[test]
    fn runs_of_an_earlier_manifest_stay_while_there_is_room() {
        let plan = plan("[{name: s, mode: Strong, ranks: [1, 2]}]");
        let mut records = Records::default();
        records.insert("00000000", 0, measured());
        records.insert(&plan.runs[0].key, 0, measured());
        let before = records.clone();
        records.make_room(&plan);
        assert_eq!(records, before);
        let long = Record {
            outcome: Outcome::Failure {
                message: "x".repeat(Records::MOST_BYTES),
                is_final: false,
            },
            ..measured()
        };
        records.insert("00000001", 0, long);
        records.make_room(&plan);
        assert_eq!(records.write().len(), 1);
    }

    #[test]
    fn a_record_is_worth_nothing_once_its_bounds_have_changed() {
        let mut plan = plan("[{name: s, mode: Strong, ranks: [1, 2]}]");
        let mut records = Records::default();
        records.insert(&plan.runs[0].key, 0, measured());
        records.insert(&plan.runs[1].key, 0, failed(1, true));
        let known = |plan: &Plan| [0, 1].map(|run: usize| records.get(plan, &plan.runs[run], 0).is_some());
        assert_eq!(known(&plan), [true, true]);
        plan.timeout *= 2;
        assert_eq!(known(&plan), [true, false], "failed runs may now succeed");
        plan.warmup_steps += 1;
        assert_eq!(
            known(&plan),
            [false, false],
            "measurements are means over other steps"
        );
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let Outcome::Failure { message, .. } = Outcome::failure("é".repeat(1000), true) else {
            panic!("a failure")
        };
        assert_eq!(message.len(), Outcome::MESSAGE_BYTES + 4);
    }

    #[test]
    fn a_measurement_takes_no_more_room_than_is_reckoned_with() {
        let mut found = measurement(1.0 / 3.0);
        found.epochs = vec![found.epochs[0].clone(); Measurement::MOST_EPOCHS];
        found.nodes = vec!["n".repeat(63); 1];
        for epoch in &mut found.epochs {
            epoch.seconds = 123_456.789;
            epoch.loss = 0.001_234_567;
            epoch.train_accuracy = 1.0 / 3.0;
            epoch.validation_accuracy = Some(2.0 / 3.0);
        }
        let plan = plan("[{name: s, mode: Strong, ranks: [1, 2]}]");
        let mut records = Records::default();
        for run in &plan.runs {
            for repetition in 0..plan.repetitions {
                let outcome = Outcome::Measurement(Box::new(found.clone().rounded()));
                records.insert(
                    &run.key,
                    repetition,
                    Record {
                        outcome,
                        ..measured()
                    },
                );
            }
        }
        assert!(bytes(&records.write()) <= most_bytes(&plan, Measurement::MOST_EPOCHS));
    }
}

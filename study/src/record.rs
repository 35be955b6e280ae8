//! What a cluster keeps of a study's runs: an entry of a ConfigMap for each repetition of a run.

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
    /// Where it was tried last, by node rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// How that ended.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// How a try ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Outcome {
    /// What it measured.
    Measurement(Box<Measurement>),
    /// It measured nothing.
    Failure {
        /// Why.
        message: String,
        /// Whether another try would fail alike.
        is_final: bool,
    },
}

impl Record {
    /// Whether it is not tried again, where `retries` are allowed.
    pub fn is_over(&self, retries: u32) -> bool {
        match &self.outcome {
            Outcome::Measurement(_) => true,
            Outcome::Failure { is_final, .. } => *is_final || self.tries > retries,
        }
    }
}

/// The records of a study, by run and repetition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records(BTreeMap<String, Record>);

impl Records {
    /// Bytes of all records of a study at most; a ConfigMap takes 1 MiB.
    pub const MOST_BYTES: usize = 900_000;

    /// The name of the ConfigMap that has a study's records.
    pub fn config_map(study: &str) -> String {
        format!("{study}-results")
    }

    /// The records of a ConfigMap. What is none is left out, and so measured again.
    pub fn read(data: &BTreeMap<String, String>) -> Self {
        let record = |(key, json): (&String, &String)| Some((key.clone(), serde_json::from_str(json).ok()?));
        Self(data.iter().filter_map(record).collect())
    }

    /// What a ConfigMap is to have.
    pub fn write(&self) -> BTreeMap<String, String> {
        let json = |record| serde_json::to_string(record).expect("strings and finite numbers");
        self.0
            .iter()
            .map(|(key, record)| (key.clone(), json(record)))
            .collect()
    }

    /// What became of a repetition, counted from 0, of the run with this key.
    pub fn get(&self, key: &str, repetition: u32) -> Option<&Record> {
        self.0.get(&name(key, repetition))
    }

    /// Sets it.
    pub fn insert(&mut self, key: &str, repetition: u32, record: Record) {
        self.0.insert(name(key, repetition), record);
    }

    /// Forgets runs that a plan does not have, once all together take too much room.
    pub fn make_room(&mut self, plan: &Plan) {
        if bytes(&self.write()) > Self::MOST_BYTES {
            let known: BTreeSet<&str> = plan.runs.iter().map(|run| run.key.as_str()).collect();
            self.0
                .retain(|name, _| name.split_once('.').is_some_and(|(key, _)| known.contains(key)));
        }
    }

    /// For each of [`Plan::runs`] what its repetitions measured, or why they did not.
    pub fn measured(&self, plan: &Plan) -> Vec<Vec<Result<Measurement, String>>> {
        let of_repetition =
            |run: &Run, repetition| match self.get(&run.key, repetition).map(|found| &found.outcome) {
                Some(Outcome::Measurement(measurement)) => Ok((**measurement).clone()),
                Some(Outcome::Failure { message, .. }) => Err(message.clone()),
                None => Err(NOT_RUN.into()),
            };
        let of_run = |run| {
            (0..plan.repetitions)
                .map(|repetition| of_repetition(run, repetition))
                .collect()
        };
        plan.runs.iter().map(of_run).collect()
    }
}

/// What is said of a run that has not been carried out.
pub const NOT_RUN: &str = "not run yet";

/// Bytes that the records of a plan take at most.
pub fn most_bytes(plan: &Plan, epochs: usize) -> usize {
    const RECORD: usize = 1500;
    const EPOCH: usize = 48;
    plan.runs.len() * plan.repetitions as usize * (RECORD + EPOCH * epochs)
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

    fn failed(tries: u32, is_final: bool) -> Record {
        Record {
            tries,
            nodes: vec!["a".into()],
            outcome: Outcome::Failure {
                message: "it broke".into(),
                is_final,
            },
        }
    }

    fn measured() -> Record {
        Record {
            tries: 2,
            nodes: vec!["a".into(), "b".into()],
            outcome: Outcome::Measurement(Box::new(measurement(100.0))),
        }
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
        assert_eq!(Records::read(&data), records, "what is no record is left out");
        let not_yet = || Err("not run yet".to_owned());
        assert_eq!(
            records.measured(&plan),
            [
                [Ok(measurement(100.0)), not_yet(), not_yet()],
                [not_yet(), not_yet(), Err("it broke".into())]
            ]
        );
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
    fn a_measurement_takes_no_more_room_than_is_reckoned_with() {
        let mut found = measurement(1.0 / 3.0);
        found.epochs = vec![found.epochs[0].clone(); Measurement::MOST_EPOCHS];
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

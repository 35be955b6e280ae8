//! What the API server was asked by everyone, and how long it took over it: where the time of a measurement goes.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};
use vit_tests::exposition::Exposition;

use crate::usage::hundredths;

/// How long the API server took over answered requests, as it says itself.
const SECONDS: &str = "apiserver_request_duration_seconds";
/// Calls that are told; the others together are few.
const TOLD: usize = 16;

/// Answered requests by verb and resource, such as `PUT vittrainingjobs/status`.
#[derive(Clone, Default)]
pub(crate) struct Requests(BTreeMap<String, Answered>);

#[derive(Clone, Copy, Default)]
struct Answered {
    count: f64,
    /// All of them together, from the first byte to the last: where processors are short, most of it is waiting for one.
    seconds: f64,
}

impl Requests {
    /// All requests that the API server has answered. Watches last, and are none.
    pub(crate) fn read(metrics: &Exposition) -> Self {
        let mut requests = Self::default();
        for (labels, count) in metrics.labelled(&format!("{SECONDS}_count")) {
            if let Some(call) = call(&labels) {
                requests.0.entry(call).or_default().count += count;
            }
        }
        for (labels, seconds) in metrics.labelled(&format!("{SECONDS}_sum")) {
            if let Some(call) = call(&labels) {
                requests.0.entry(call).or_default().seconds += seconds;
            }
        }
        requests
    }

    /// The requests since an earlier look.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let news = |(call, answered): (&String, &Answered)| {
            let before = earlier.0.get(call).copied().unwrap_or_default();
            let since = Answered {
                count: answered.count - before.count,
                seconds: answered.seconds - before.seconds,
            };
            (since.count > 0.0).then(|| (call.clone(), since))
        };
        Self(self.0.iter().filter_map(news).collect())
    }

    pub(crate) fn to_json(&self) -> Value {
        let told = |(call, answered): (&String, &Answered)| {
            let Answered { count, seconds } = *answered;
            (
                call.clone(),
                json!({"count": count, "seconds": hundredths(seconds)}),
            )
        };
        Value::Object(self.0.iter().map(told).collect())
    }
}

/// A table, what took longest first.
impl fmt::Display for Requests {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut calls: Vec<_> = self.0.iter().collect();
        calls.sort_by(|(_, one), (_, other)| other.seconds.total_cmp(&one.seconds));
        let all: f64 = calls.iter().map(|(_, answered)| answered.seconds).sum();
        for (call, Answered { count, seconds }) in calls.into_iter().take(TOLD) {
            let share = 100.0 * seconds / all;
            writeln!(
                formatter,
                "    {call:<44}{count:>8} in {seconds:>8.1} s of waiting ({share:>4.1} %)"
            )?;
        }
        Ok(())
    }
}

/// What a series counts.
fn call(labels: &BTreeMap<&str, &str>) -> Option<String> {
    let label = |name| labels.get(name).copied().unwrap_or_default();
    let verb = label("verb");
    if verb == "WATCH" || label("resource").is_empty() {
        return None;
    }
    let subresource = match label("subresource") {
        "" => String::new(),
        name => format!("/{name}"),
    };
    Some(format!("{verb} {}{subresource}", label("resource")))
}

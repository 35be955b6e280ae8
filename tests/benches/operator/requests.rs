//! Requests of all clients to the API server, and their durations: they show where time is spent.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};
use vit_tests::exposition::Exposition;

use crate::usage::hundredths;

/// The API server's own metric of request durations.
const SECONDS: &str = "apiserver_request_duration_seconds";
/// Kinds of requests to print; the others are rare.
const PRINTED: usize = 16;

/// Answered requests by verb and resource, such as `PUT vittrainingjobs/status`: their number and
/// total seconds from first to last byte. On a busy machine, most of that is waiting for a CPU.
#[derive(Clone, Default)]
pub(crate) struct Requests(BTreeMap<String, (f64, f64)>);

impl Requests {
    /// All requests that the API server has answered, except watches, which never end.
    pub(crate) fn read(metrics: &Exposition) -> Self {
        let mut requests = Self::default();
        for sample in metrics.of(&format!("{SECONDS}_count")) {
            if let Some(call) = call(&sample.labels) {
                requests.0.entry(call).or_default().0 += sample.value;
            }
        }
        for sample in metrics.of(&format!("{SECONDS}_sum")) {
            if let Some(call) = call(&sample.labels) {
                requests.0.entry(call).or_default().1 += sample.value;
            }
        }
        requests
    }

    /// The requests since an earlier reading.
    pub(crate) fn since(mut self, earlier: &Self) -> Self {
        for (call, (count, seconds)) in &earlier.0 {
            let now = self.0.entry(call.clone()).or_default();
            *now = (now.0 - count, now.1 - seconds);
        }
        self.0.retain(|_, (count, _)| *count > 0.0);
        self
    }

    pub(crate) fn to_json(&self) -> Value {
        let entry = |(call, (count, seconds)): (&String, &(f64, f64))| {
            (
                call.clone(),
                json!({"count": count, "seconds": hundredths(*seconds)}),
            )
        };
        self.0.iter().map(entry).collect()
    }
}

/// A table, longest total first.
impl fmt::Display for Requests {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut calls: Vec<_> = self.0.iter().collect();
        calls.sort_by(|(_, one), (_, other)| other.1.total_cmp(&one.1));
        let all: f64 = calls.iter().map(|(_, answered)| answered.1).sum();
        for (call, (count, seconds)) in calls.into_iter().take(PRINTED) {
            let share = 100.0 * seconds / all;
            writeln!(
                formatter,
                "    {call:<44}{count:>8} in {seconds:>8.1} s of waiting ({share:>4.1} %)"
            )?;
        }
        Ok(())
    }
}

/// The request that a series counts.
fn call(labels: &BTreeMap<String, String>) -> Option<String> {
    let label = |name| labels.get(name).map_or("", String::as_str);
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

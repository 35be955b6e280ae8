//! The operator's calls to the API server, as the server's audit log counts them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use fs_err as fs;
use serde_json::{Value, json};

/// Calls by verb and resource, such as `update vittrainingjobs/status`.
#[derive(Clone, Default)]
pub(crate) struct Calls(pub(crate) BTreeMap<String, u64>);

impl Calls {
    /// An audit policy that records the calls of one user, and of nobody else.
    pub(crate) fn policy(user: &str) -> Value {
        json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted"],
            "rules": [{"level": "Metadata", "users": [user]}, {"level": "None"}],
        })
    }

    /// All calls in the log that have ended. Watches last and are none.
    pub(crate) fn read(log: &Path) -> Result<Self> {
        let mut calls = Self::default();
        for line in fs::read_to_string(log)?.lines() {
            let event: Value =
                serde_json::from_str(line).with_context(|| format!("an audit event: {line}"))?;
            let verb = event["verb"].as_str().unwrap_or_default();
            if verb == "watch" {
                continue;
            }
            let about = &event["objectRef"];
            let resource = about["resource"].as_str().unwrap_or("other");
            let subresource = about["subresource"].as_str().map(|name| format!("/{name}"));
            let call = format!("{verb} {resource}{}", subresource.unwrap_or_default());
            *calls.0.entry(call).or_default() += 1;
        }
        Ok(calls)
    }

    /// The calls since an earlier look.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let news = |(call, count): (&String, &u64)| {
            let count = count - earlier.0.get(call).copied().unwrap_or(0);
            (count > 0).then(|| (call.clone(), count))
        };
        Self(self.0.iter().filter_map(news).collect())
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

//! Measures when pods appear and vanish, by a watch of their metadata.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, watcher as watch};
use kube::{Api, Client, ResourceExt as _};

use crate::workload::NAMESPACE;

/// Time limit for all pods. The slowest contender needs 3 minutes.
const DEADLINE: Duration = Duration::from_secs(600);

/// Running pods, filtered by the server to keep the watch cheap.
pub(crate) fn running() -> watcher::Config {
    watcher::Config::default().fields("status.phase=Running")
}

/// When the first and the last of `count` matching pods were seen.
pub(crate) async fn appear(
    client: &Client,
    which: watcher::Config,
    count: usize,
) -> Result<(Instant, Instant)> {
    let mut times: HashMap<String, Instant> = HashMap::new();
    let watching = async {
        let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), NAMESPACE);
        let mut events = Box::pin(watch(api, which));
        while times.len() < count {
            let event = events.try_next().await?.context("the watch ended")?;
            if let watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) = event {
                times.entry(pod.name_any()).or_insert_with(Instant::now);
            }
        }
        anyhow::Ok(())
    };
    if let Ok(watched) = tokio::time::timeout(DEADLINE, watching).await {
        watched?;
    } else {
        bail!(
            "only {} of {count} pods appeared within {DEADLINE:?}",
            times.len()
        );
    }
    let first = times.values().min().context("no pods were expected")?;
    let last = times.values().max().context("no pods were expected")?;
    Ok((*first, *last))
}

/// When the first and the last matching pod vanished. They must exist when the watch begins.
pub(crate) async fn vanish(client: &Client, which: watcher::Config) -> Result<(Instant, Instant)> {
    let mut left = 0_usize;
    let mut first = None;
    let watching = async {
        let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), NAMESPACE);
        let mut events = Box::pin(watch(api, which));
        loop {
            match events.try_next().await?.context("the watch ended")? {
                watcher::Event::Init => left = 0,
                watcher::Event::InitApply(_) => left += 1,
                watcher::Event::Delete(_) => {
                    first.get_or_insert_with(Instant::now);
                    left = left.saturating_sub(1);
                }
                watcher::Event::InitDone | watcher::Event::Apply(_) => {}
            }
            if left == 0 && first.is_some() {
                return anyhow::Ok(());
            }
        }
    };
    if let Ok(watched) = tokio::time::timeout(DEADLINE, watching).await {
        watched?;
    } else {
        bail!("{left} pods remain after {DEADLINE:?}");
    }
    Ok((first.context("no pods vanished")?, Instant::now()))
}

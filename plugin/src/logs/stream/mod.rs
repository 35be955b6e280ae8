//! Copies the log of one pod, and continues after interruptions.

use std::io;
use std::time::Duration;

use crds::labels::CONTAINER;
use futures::{AsyncBufReadExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::Backoff as _;
use kube::runtime::watcher::{self, DefaultBackoff};
use tokio::time::{Instant, timeout};

use super::lines::Lines;
use crate::cluster::Cluster;
use crate::error::{Error, chain};
use crate::gang::Member;
use crate::output::report;
use crate::span::{self, whole_seconds};
use crate::wait::{is_permanent, permanent};

/// A followed log without new lines for this long is requested again: a silently dropped connection
/// looks the same.
const QUIET: Duration = Duration::from_secs(120);

/// The requested part of the log.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Wanted {
    /// Follow the log across attempts until the job ends
    #[arg(short, long, conflicts_with_all = ["attempt", "previous"])]
    pub(super) follow: bool,
    /// Only the last lines of each pod, at most this many
    #[arg(long, value_name = "LINES", allow_negative_numbers = true)]
    pub(super) tail: Option<u32>,
    /// Only lines of the last period, such as 90s, 5m or 1h30m; a plain number is in seconds
    #[arg(long, value_name = "DURATION", value_parser = span::parse)]
    pub(super) since: Option<Duration>,
    /// Prefix each line with its time
    #[arg(long)]
    timestamps: bool,
}

impl Wanted {
    /// The next request, `elapsed` after the first.
    fn params(self, lines: &Lines, elapsed: Duration) -> LogParams {
        let mut params = LogParams {
            container: Some(CONTAINER.into()),
            follow: self.follow,
            timestamps: self.timestamps || self.follow,
            since_time: lines.since(),
            ..LogParams::default()
        };
        if params.since_time.is_some() {
            return params;
        }
        // No line has been shown. Lines since the first request are wanted, too.
        params.since_seconds = self.since.map(|since| whole_seconds(since + elapsed));
        params.tail_lines = self.tail.map(i64::from);
        if self.tail == Some(0) && !elapsed.is_zero() {
            params.tail_lines = None;
            params.since_seconds = Some(whole_seconds(elapsed));
        }
        params
    }
}

/// Why a log request ended.
enum Ended {
    /// The server closed the stream: the container has exited, or the server shuts down.
    Closed,
    /// No new lines for [`QUIET`].
    Quiet,
    Broken(io::Error),
    Refused(kube::Error),
}

/// Reports the first interruption of a log.
#[derive(Debug, Default)]
struct Notice {
    cause: Option<String>,
    is_reported: bool,
}

impl Notice {
    /// Remembers an interruption. It is reported when a line follows, because a container's exit looks the same at first.
    fn remember(&mut self, cause: &str) {
        self.cause = Some(cause.into());
    }

    /// The words to report now.
    fn due(&mut self, pod: &str) -> Option<String> {
        let cause = self.cause.take().filter(|_| !self.is_reported)?;
        self.is_reported = true;
        Some(format!(
            "the log of pod {pod} was interrupted ({cause}); it continues after its last line"
        ))
    }

    fn report_now(&mut self, pod: &str, error: &dyn std::error::Error) {
        self.remember(&chain(error));
        self.report(pod);
    }

    fn report(&mut self, pod: &str) {
        if let Some(words) = self.due(pod) {
            report(&words);
        }
    }
}

/// The container of a followed pod.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Container {
    Running,
    Ended,
    /// The pod was deleted.
    Gone,
}

/// Copies the log of a pod to `say`; a followed log, until its container has exited.
pub(super) async fn copy(
    cluster: &Cluster,
    member: &Member,
    prefix: &str,
    wanted: Wanted,
    say: &dyn Fn(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let pods = cluster.pods();
    let doing = format!("read the log of pod {}", member.pod);
    if wanted.follow {
        return follow(cluster, member, prefix, wanted, say).await;
    }
    if !member.has_run {
        return Err(Error::NotFound(format!(
            "pod {} has not started yet ({}) and has no log",
            member.pod, member.state
        )));
    }
    let mut lines = Lines::plain(prefix);
    let params = wanted.params(&lines, Duration::ZERO);
    match read(&pods, &member.pod, &params, &mut lines, &mut |bytes| say(bytes)).await? {
        Ended::Closed | Ended::Quiet => say(&lines.rest()),
        Ended::Broken(error) => Err(Error::refused(&doing, &error)),
        Ended::Refused(error) => Err(cluster.error(&doing, error)),
    }
}

async fn follow(
    cluster: &Cluster,
    member: &Member,
    prefix: &str,
    wanted: Wanted,
    say: &dyn Fn(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let (pods, pod) = (cluster.pods(), &member.pod);
    let doing = format!("read the log of pod {pod}");
    if !member.has_run {
        started(&pods, pod)
            .await
            .map_err(|error| cluster.error(&doing, error))?;
    }
    let begin = Instant::now();
    let mut lines = Lines::followed(prefix, wanted.timestamps);
    let mut backoff = DefaultBackoff::default();
    let mut notice = Notice::default();
    let (mut was_open, mut has_ended) = (false, false);
    loop {
        let params = wanted.params(&lines, begin.elapsed());
        let mut has_new = false;
        let mut received = |bytes: &[u8]| {
            has_new = true;
            notice.report(pod);
            say(bytes)
        };
        let ended = read(&pods, pod, &params, &mut lines, &mut received).await?;
        if has_new {
            backoff.reset();
        }
        let waits = !matches!(ended, Ended::Quiet);
        match ended {
            // The container had exited before this request, which therefore got all lines.
            Ended::Closed if has_ended => return say(&lines.rest()),
            Ended::Refused(error) if is_missing(&error) || (has_ended && is_permanent(&error)) => {
                return say(&lines.rest());
            }
            Ended::Refused(error) if !was_open || is_permanent(&error) => {
                return Err(cluster.error(&doing, error));
            }
            Ended::Quiet => {}
            Ended::Closed => notice.remember("the API server closed the connection"),
            Ended::Broken(error) => notice.report_now(pod, &error),
            Ended::Refused(error) => notice.report_now(pod, &error),
        }
        was_open = true;
        if waits {
            tokio::time::sleep(backoff.next().unwrap_or(QUIET)).await;
        }
        match container(&pods, member).await {
            Ok(Container::Gone) => return say(&lines.rest()),
            Ok(state) => has_ended = state == Container::Ended,
            Err(error) if is_permanent(&error) => return Err(cluster.error(&doing, error)),
            // The next request fails or gets the answer.
            Err(_) => {}
        }
        lines.next_request();
    }
}

/// Waits until the container of a pod has started, or the pod is gone. Retries while the server is unreachable.
async fn started(pods: &Api<Pod>, pod: &str) -> Result<(), kube::Error> {
    let mut changes = watcher::watch_object(pods.clone(), pod).default_backoff().boxed();
    while let Some(change) = changes.next().await {
        match change.map_err(permanent) {
            Ok(Some(pod)) if !Member::of(&pod).is_some_and(|member| member.has_run) => {}
            Ok(_) => break,
            Err(Some(error)) => return Err(error),
            Err(None) => {}
        }
    }
    Ok(())
}

/// Sends the lines of one request to `say`.
async fn read(
    pods: &Api<Pod>,
    pod: &str,
    params: &LogParams,
    lines: &mut Lines,
    say: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<Ended, Error> {
    let patience = if params.follow { QUIET } else { Duration::MAX };
    // A server may answer only with the first line.
    let Ok(stream) = timeout(patience, pods.log_stream(pod, params)).await else {
        return Ok(Ended::Quiet);
    };
    let mut stream = match stream {
        Ok(stream) => std::pin::pin!(stream),
        Err(error) => return Ok(Ended::Refused(error)),
    };
    loop {
        let Ok(received) = timeout(patience, stream.fill_buf()).await else {
            return Ok(Ended::Quiet);
        };
        let count = match received {
            Ok([]) => return Ok(Ended::Closed),
            Ok(bytes) => {
                let shown = lines.take(bytes);
                if !shown.is_empty() {
                    say(&shown)?;
                }
                bytes.len()
            }
            Err(error) => return Ok(Ended::Broken(error)),
        };
        stream.as_mut().consume_unpin(count);
    }
}

async fn container(pods: &Api<Pod>, member: &Member) -> Result<Container, kube::Error> {
    let pod = pods.get_opt(&member.pod).await?;
    // A recreated job has pods of the same names.
    let pod = pod.filter(|pod| pod.metadata.uid == member.uid);
    Ok(match pod.as_ref().and_then(Member::of) {
        None => Container::Gone,
        Some(member) if member.is_running => Container::Running,
        Some(_) => Container::Ended,
    })
}

fn is_missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

#[cfg(test)]
mod tests;

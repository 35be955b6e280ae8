//! Waits until DNS knows the coordinator's name: a headless Service's record appears some time
//! after its pod.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Time limit for the name to appear.
const DEADLINE: Duration = Duration::from_secs(5 * 60);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The coordinator's name did not appear in time.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the coordinator {host} was not found within {seconds} s: {reason}")]
pub struct NotFound {
    host: String,
    seconds: u64,
    reason: String,
}

/// The coordinator's address; `None` if `stop` came first.
pub async fn resolve(
    host: &str,
    port: u16,
    stop: &CancellationToken,
) -> Result<Option<SocketAddr>, NotFound> {
    resolve_within(DEADLINE, host, port, stop).await
}

async fn resolve_within(
    deadline: Duration,
    host: &str,
    port: u16,
    stop: &CancellationToken,
) -> Result<Option<SocketAddr>, NotFound> {
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let reason = match tokio::net::lookup_host((host, port))
            .await
            .map(|mut found| found.next())
        {
            Ok(Some(address)) => return Ok(Some(address)),
            Ok(None) => "it has no address".to_owned(),
            Err(error) => error.to_string(),
        };
        if start.elapsed() + pause > deadline {
            return Err(NotFound {
                host: host.into(),
                seconds: deadline.as_secs(),
                reason,
            });
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(None),
            () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_known_name_is_found_and_an_unknown_one_is_named() {
        let stop = CancellationToken::new();
        let found = resolve("localhost", 7, &stop)
            .await
            .expect("resolves")
            .expect("an address");
        assert_eq!(found.port(), 7);
        let error = resolve_within(Duration::from_millis(250), "nobody.invalid", 7, &stop)
            .await
            .expect_err("never resolves")
            .to_string();
        assert!(
            error.starts_with("the coordinator nobody.invalid was not found within 0 s: "),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_stop_ends_the_wait() {
        let stop = CancellationToken::new();
        stop.cancel();
        assert_eq!(resolve("nobody.invalid", 7, &stop).await.expect("stops"), None);
    }
}

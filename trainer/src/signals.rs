//! Stop signals.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::error::TrainError;

/// A token that SIGTERM and SIGINT cancel.
pub(crate) fn stop_on_signal() -> Result<CancellationToken, TrainError> {
    let stop = CancellationToken::new();
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind).map_err(TrainError::system("failed to listen for signals"))?;
        let stop = stop.clone();
        tokio::spawn(async move {
            signals.recv().await;
            stop.cancel();
        });
    }
    Ok(stop)
}

//! Epochs with one list per value, because a termination message has little space.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Epoch;

/// epochs are all epochs, with one list per value.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Columns {
    /// seconds of each epoch's steps, without evaluation and checkpoints.
    seconds: Vec<f64>,
    /// loss is the mean training loss.
    loss: Vec<f64>,
    /// trainAccuracy is the share of training images classified right during training, 0 to 1.
    train_accuracy: Vec<f64>,
    /// validationAccuracy is the share of held-out images classified right after each epoch, 0 to
    /// 1; empty unless all epochs were evaluated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    validation_accuracy: Vec<f64>,
}

pub(super) fn serialize<S: Serializer>(epochs: &[Epoch], serializer: S) -> Result<S::Ok, S::Error> {
    let column = |value: fn(&Epoch) -> f64| epochs.iter().map(value).collect();
    let evaluated: Option<Vec<f64>> = epochs.iter().map(|epoch| epoch.validation_accuracy).collect();
    Columns {
        seconds: column(|epoch| epoch.seconds),
        loss: column(|epoch| epoch.loss),
        train_accuracy: column(|epoch| epoch.train_accuracy),
        validation_accuracy: evaluated.unwrap_or_default(),
    }
    .serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Epoch>, D::Error> {
    let columns = Columns::deserialize(deserializer)?;
    let rows = columns
        .seconds
        .iter()
        .zip(&columns.loss)
        .zip(&columns.train_accuracy);
    let epoch = |(row, ((seconds, loss), train_accuracy)): (usize, ((&f64, &f64), &f64))| Epoch {
        seconds: *seconds,
        loss: *loss,
        train_accuracy: *train_accuracy,
        validation_accuracy: columns.validation_accuracy.get(row).copied(),
    };
    Ok(rows.enumerate().map(epoch).collect())
}

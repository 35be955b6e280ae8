//! The result of an evaluation as text and as JSON.

use contract::RunConfig;
use serde_json::json;

use super::source::Source;
use super::tally::Scores;
use crate::checkpoint::WeightsKind;

#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) config: &'a RunConfig,
    pub(super) source: &'a Source,
    pub(super) scores: Scores,
    /// Held-out images, including unreadable ones, which are not classified.
    pub(super) held_out: u64,
    pub(super) seconds: f64,
    /// The GPU's product; `None` on the CPU.
    pub(super) gpu: Option<String>,
}

impl Report<'_> {
    fn images_per_second(&self) -> f64 {
        self.scores.images as f64 / self.seconds.max(1e-9)
    }

    /// One object. Unknown values, and a loss that is not a number, are null.
    pub(super) fn json(&self) -> String {
        let checkpoint = self.source.checkpoint.as_ref();
        let position = checkpoint.map(|(checkpoint, _)| checkpoint.state.position);
        json!({
            "job": self.config.job.name,
            "path": self.source.path,
            "weights": self.source.kind().map_or(json!("file"), |kind| json!(kind)),
            "step": position.map(|position| position.step),
            "epoch": position.map(|position| position.epoch),
            "heldOut": self.held_out,
            "images": self.scores.images,
            "correct": self.scores.correct,
            "top1": self.scores.share(self.scores.correct),
            "top5": self.scores.correct_top5.map(|correct| self.scores.share(correct)),
            "loss": self.scores.loss,
            "meanAveragePrecision": self.scores.mean_average_precision,
            "seconds": self.seconds,
            "imagesPerSecond": self.images_per_second(),
            "precision": self.config.training.precision,
            "device": self.gpu.as_deref().unwrap_or("cpu"),
        })
        .to_string()
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let scores = &self.scores;
        let share = |correct| format!("{:.4} ({correct} of {})", scores.share(correct), scores.images);
        let mut rows = vec![("weights", self.weights()), ("top-1", share(scores.correct))];
        rows.extend(scores.correct_top5.map(|correct| ("top-5", share(correct))));
        rows.extend(
            scores
                .mean_average_precision
                .map(|precision| ("mAP", format!("{precision:.4}"))),
        );
        rows.push(("loss", format!("{:.4}", scores.loss)));
        let unread = match self.held_out.saturating_sub(scores.images) {
            0 => String::new(),
            unread => format!(", {unread} more cannot be read"),
        };
        rows.push(("images", format!("{} held out{unread}", scores.images)));
        let precision = self.config.training.precision;
        rows.push((
            "speed",
            format!(
                "{:.0} images/s in {:.1} s, {precision} on {}",
                self.images_per_second(),
                self.seconds,
                self.gpu.as_deref().unwrap_or("the CPU")
            ),
        ));
        let rows = rows
            .into_iter()
            .map(|(name, value)| format!("  {name:<10}{value}"));
        std::iter::once(self.config.job.name.clone())
            .chain(rows)
            .collect()
    }

    fn weights(&self) -> String {
        let path = self.source.path.display();
        let Some((checkpoint, kind)) = &self.source.checkpoint else {
            return format!("{path}");
        };
        let which = match kind {
            WeightsKind::Ema => "moving average",
            WeightsKind::Trained if checkpoint.has_average() => "trained weights (--ema uses their average)",
            WeightsKind::Trained => "trained weights",
        };
        let position = checkpoint.state.position;
        format!(
            "{which} of step {}, {} of {} epochs done, in {path}",
            position.step, position.epoch, self.config.training.epochs
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_that_cannot_be_read_and_a_loss_that_is_no_number_are_told() {
        let job =
            serde_saphyr::from_str(include_str!("../../../../examples/digits.yaml")).expect("a manifest");
        let config = crds::validate(&job).expect("a sound manifest").run_config;
        let source = Source {
            path: "vit.safetensors".into(),
            checkpoint: None,
        };
        let report = Report {
            config: &config,
            source: &source,
            scores: Scores {
                images: 40,
                correct: 10,
                correct_top5: Some(30),
                loss: f64::NAN,
                mean_average_precision: None,
            },
            held_out: 42,
            seconds: 2.0,
            gpu: None,
        };
        assert_eq!(
            report.lines(),
            [
                "digits",
                "  weights   vit.safetensors",
                "  top-1     0.2500 (10 of 40)",
                "  top-5     0.7500 (30 of 40)",
                "  loss      NaN",
                "  images    40 held out, 2 more cannot be read",
                "  speed     20 images/s in 2.0 s, fp32 on the CPU",
            ]
        );
        let json: serde_json::Value = serde_json::from_str(&report.json()).expect("JSON");
        assert_eq!((&json["weights"], &json["top5"]), (&"file".into(), &0.75.into()));
        assert!(json["loss"].is_null() && json["step"].is_null());
    }
}

use serde_json::json;

use super::*;
use crate::fixtures::{now, place, study};

fn screen(status: serde_json::Value) -> String {
    render(&study(status), &place(""), now(), Paint::plain(100))
}

#[test]
fn a_study_under_way_shows_its_points_and_what_it_waits_for() {
    let condition = |type_: &str, status: &str, message: &str| {
        json!({
            "type": type_, "status": status, "reason": "RunWaits", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let screen = screen(json!({
        "phase": "Pending",
        "runs": {"total": 48, "measured": 3, "failed": 1, "summary": "3/48"},
        "conditions": [
            condition("Running", "False", "strong-r4-b16 #1: job digits-0a1b2c3d-1: no group of identical GPUs fits"),
            condition("Failed", "False", "the manifest was changed"),
        ],
        "points": [
            {
                "sweep": "strong", "ranks": 1, "microBatchSize": 16, "gradientAccumulationSteps": 1, "variant": "like",
                "measured": 3, "imagesPerSecond": 565.04, "stepMilliseconds": 28.3, "syncShare": 0.0, "efficiency": 1.0,
            },
            {
                "sweep": "strong", "ranks": 2, "microBatchSize": 16, "gradientAccumulationSteps": 1, "variant": "like",
                "measured": 0, "failure": "attempt 1: OutOfMemory: rank 0",
            },
            {"sweep": "batch", "ranks": 1, "microBatchSize": 4, "gradientAccumulationSteps": 1, "measured": 0},
        ],
    }));
    insta::assert_snapshot!(screen);
}

#[test]
fn a_study_that_is_over_says_how_it_ended() {
    let screen = screen(json!({
        "phase": "Failed",
        "startTime": "2026-01-01T00:00:00Z",
        "completionTime": "2026-01-01T01:30:00Z",
        "conditions": [{
            "type": "Failed", "status": "True", "reason": "InvalidSpec",
            "message": "spec.sweeps[strong].ranks is a list of 1: mode Strong needs at least two values",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    }));
    insta::assert_snapshot!(screen);
}

//! The screens of jobs in every state.

use serde_json::json;

use super::*;
use crate::fixtures::{
    assert_contains, done, job, now, out_of_memory, place, queued, suspended, training, waiting,
};

/// The metrics of two agents after this many steps of one second.
pub(crate) fn times(steps: u32) -> StepTimes {
    let mut times = StepTimes::default();
    for rank in 0..2 {
        let mut text = String::new();
        for (phase, seconds) in [
            ("data", 0.02),
            ("forward", 0.24),
            ("backward", 0.5),
            ("sync_exposed", 0.12),
            ("sync_straggler", 0.055),
            ("optimizer", 0.065),
        ] {
            let labels = format!("{{phase=\"{phase}\",rank=\"{rank}\"}}");
            let total = f64::from(steps) * seconds;
            text +=
                &format!("vit_step_seconds_sum{labels} {total}\nvit_step_seconds_count{labels} {steps}\n");
        }
        let total = f64::from(steps) * 0.2;
        text += &format!(
            "vit_sync_seconds_total{{kind=\"total\",operation=\"all_reduce\",rank=\"{rank}\"}} {total}\n"
        );
        times.add(&text);
    }
    times
}

fn member(node_rank: i32, state: &str) -> Member {
    Member {
        attempt: 2,
        node_rank,
        pod: format!("digits-2-{node_rank}"),
        state: state.into(),
        uid: None,
        is_ready: state == "ready",
        is_running: true,
        has_run: true,
    }
}

fn view(job: ViTTrainingJob) -> View {
    View {
        job,
        now: now(),
        members: Found::None,
        step_times: Found::None,
        is_recent: false,
        losses: Found::None,
    }
}

/// A job that trains, with all that its pods report.
pub(crate) fn running() -> View {
    let log: String = (0..200_u32)
        .map(|line| {
            let (step, loss) = (9 * line + 5, 0.6 + 1.7 * (-f64::from(line) / 40.0).exp());
            format!(
                "2026-11-22T11:{:02}:{:02}Z epoch 1/60 step {step}/2700  loss {loss:.4}  train 0.5\n",
                40 + line / 12,
                5 * (line % 12)
            )
        })
        .collect();
    View {
        members: Found::Yes(vec![member(0, "ready"), member(1, "ready")]),
        step_times: Found::Yes(times(1000)),
        losses: Found::Yes(Losses::read(&log)),
        ..view(job(training()))
    }
}

fn shown(view: &View, paint: Paint) -> String {
    let why = why::explain(&view.job, &place(""), view.now);
    render(view, &why, false, paint)
}

pub(crate) fn plain(job: ViTTrainingJob) -> String {
    shown(&view(job), Paint::plain(120))
}

#[test]
fn jobs_in_every_state() {
    insta::assert_snapshot!("a_job_that_trains", shown(&running(), Paint::plain(120)));
    insta::assert_snapshot!("a_job_that_waits_for_gpus", plain(job(waiting())));
    insta::assert_snapshot!("a_job_that_failed", plain(job(out_of_memory())));
    insta::assert_snapshot!("a_job_that_is_suspended", plain(job(suspended())));
    insta::assert_snapshot!("a_job_that_is_done", plain(job(done())));
    insta::assert_snapshot!("a_job_in_a_queue", plain(queued()));
}

#[test]
fn ranks_without_images_are_named_with_their_nodes() {
    let mut mixed = training();
    mixed["stragglers"] = json!([]);
    mixed["progress"]["idleRanks"] = json!([1, 7]);
    let text = plain(job(mixed));
    assert_contains(
        &text,
        "idle ranks   rank 1 on node2 gets no images because it would slow every step down",
    );
    assert_contains(&text, "rank 7 on an unknown node gets no images");
    assert!(!plain(job(training())).contains("idle"), "nobody is idle");
}

#[test]
fn what_the_operator_has_chosen_to_divide_is_told_with_what_it_takes() {
    let mut chosen = training();
    chosen["placement"]["strategy"] = json!({
        "name": "zeroStage 3, block", "zeroStage": 3, "shardWithinNode": false, "sequence": 1, "tensor": 1,
        "activationCheckpointing": "block", "memoryMebibytes": 700, "availableMebibytes": 900,
    });
    let text = plain(job(chosen.clone()));
    assert_contains(
        &text,
        "strategy     zeroStage 3, block: 700 MiB of 900 MiB a rank",
    );
    let strategy = chosen["placement"]["strategy"]
        .as_object_mut()
        .expect("an object");
    strategy.remove("availableMebibytes");
    assert_contains(&plain(job(chosen)), "zeroStage 3, block: 700 MiB a rank");
    assert!(
        !plain(job(training())).contains("strategy"),
        "the manifest says it"
    );
}

#[test]
fn a_job_that_trains_on_a_narrow_terminal() {
    let text = shown(&running(), Paint::plain(80));
    insta::assert_snapshot!(text);
    // Commands are not wrapped.
    for line in text.lines().filter(|line| !line.contains("kubectl")) {
        let columns = console::measure_text_width(line);
        assert!(columns <= 80, "{columns} columns: {line}");
    }
}

#[test]
fn a_job_that_nobody_has_looked_at() {
    let mut new = job(json!({}));
    new.status = None;
    insta::assert_snapshot!(plain(new));
}

#[test]
fn what_a_user_may_not_see_is_said_once() {
    let why = "cannot query the agent of pod digits-2-0: pods \"digits-2-0:9402\" is forbidden: User \"reader\" cannot get \
               resource \"pods/proxy\" in API group \"\" in the namespace \"research\"";
    let view = View {
        step_times: Found::No(why.into()),
        losses: Found::No(why.into()),
        ..running()
    };
    let text = shown(&view, Paint::plain(120));
    assert_eq!(text.matches("not shown").count(), 1, "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("where step time goes: cannot query the agent"),
        "{text}"
    );
}

#[test]
fn nodes_of_a_large_gang_are_counted() {
    let mut status = training();
    let nodes: Vec<String> = (0..64).map(|node| format!("node{node:02}")).collect();
    status["placement"]["nodes"] = json!(nodes);
    let view = View {
        members: Found::Yes((0..64).map(|rank| member(rank, "ready")).collect()),
        ..view(job(status))
    };
    let text = shown(&view, Paint::plain(120));
    assert!(text.contains("node06  ") && !text.contains("node07  "), "{text}");
    assert_contains(
        &text,
        "and 57 more nodes (-o wide names them); 64 of 64 pods ready",
    );
}

#[test]
fn the_age_of_an_old_record_is_shown() {
    let mut status = training();
    status["progress"]["updatedAt"] = "2026-11-22T11:55:00Z".into();
    let text = plain(job(status));
    assert_contains(&text, "last report of rank 0 was 5m ago");
}

#[test]
fn colours_are_used_where_they_are_wanted_only() {
    let colors = Paint {
        has_colors: true,
        width: 120,
    };
    let colored = shown(&running(), colors);
    assert!(colored.contains("\u{1b}["));
    assert_eq!(
        console::strip_ansi_codes(&colored),
        shown(&running(), Paint::plain(120))
    );
}

use serde_json::json;

use super::*;
use crate::fixtures::{assert_contains, done, job, now, out_of_memory, queued, suspended, training, waiting};

fn jobs() -> Vec<ViTTrainingJob> {
    let mut jobs = vec![
        job(training()),
        job(waiting()),
        queued(),
        job(out_of_memory()),
        job(suspended()),
        job(done()),
    ];
    let names = ["digits", "large", "queued", "oom", "parked", "done"];
    for (job, name) in jobs.iter_mut().zip(names) {
        job.metadata.name = Some(name.into());
    }
    let mut new = job(json!({}));
    new.metadata.name = Some("new".into());
    new.status = None;
    jobs.push(new);
    jobs
}

fn shown(has_namespace: bool, is_wide: bool) -> String {
    let columns = Columns {
        has_namespace,
        is_wide,
    };
    render(&jobs(), columns, now(), Paint::plain(120))
}

#[test]
fn jobs_in_every_state() {
    insta::assert_snapshot!(shown(false, false));
}

#[test]
fn jobs_of_all_namespaces_with_all_columns() {
    insta::assert_snapshot!(shown(true, true));
}

#[test]
fn phases_are_found_by_their_word_in_any_case() {
    assert_eq!(phase("running"), Ok(Phase::Running));
    let error = phase("runing").expect_err("refused");
    assert_contains(&error, "Pending, Starting, Running");
}

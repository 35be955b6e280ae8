//! The product on a real cluster: kubelets, containers, networks, Prometheus, the operator from the chart, and images
//! built from the shipped Dockerfiles. Needs root. One cluster serves all tests, which run one after another.
//!
//! With `VIT_KEEP_CLUSTER` set the cluster stays, to look at: `vit-cluster exec --name e2e -- kubectl get vtj -A`.

mod context;
mod faults;
mod lifecycle;
mod placement;
mod training;

use std::sync::Arc;

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};

use context::Context;

type Test = fn(&Context) -> Result<()>;

const TESTS: &[(&str, Test)] = &[
    (
        "one_manifest_trains_on_like_gpus",
        training::one_manifest_trains_on_like_gpus,
    ),
    (
        "prometheus_has_what_synchronisation_cost",
        training::prometheus_has_what_synchronisation_cost,
    ),
    (
        "synthetic_example_runs_without_a_data_set",
        training::synthetic_example_runs_without_a_data_set,
    ),
    (
        "gang_waits_with_counted_reasons_and_starts_by_itself",
        placement::gang_waits_and_starts_by_itself,
    ),
    (
        "two_jobs_applied_at_once_never_share_a_gpu",
        placement::two_jobs_never_share_a_gpu,
    ),
    (
        "unknown_preset_fails_with_the_known_ones",
        faults::unknown_preset_fails,
    ),
    (
        "missing_data_fails_once_and_expires",
        faults::missing_data_fails_once_and_expires,
    ),
    (
        "truncated_record_is_named_by_file_and_offset",
        faults::truncated_record_is_named,
    ),
    (
        "killed_rank_restarts_the_gang_from_its_checkpoint",
        faults::killed_rank_restarts_the_gang,
    ),
    (
        "leader_goes_away_and_the_job_does_not_notice",
        faults::leader_goes_away,
    ),
    (
        "suspended_job_saves_and_resumes_where_it_stopped",
        lifecycle::suspend_and_resume,
    ),
    ("scaled_job_continues_in_its_new_size", lifecycle::scale),
    ("deleted_job_leaves_nothing_behind", lifecycle::deletion),
    // The last one: it takes the cluster down.
    ("cluster_goes_and_leaves_nothing_behind", Context::tear_down),
];

fn main() -> Result<()> {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    if arguments.list {
        libtest_mimic::run(&arguments, trials(None)).exit();
    }
    let context = Arc::new(Context::set_up()?);
    let conclusion = libtest_mimic::run(&arguments, trials(Some(&context)));
    context.tear_down()?;
    conclusion.exit();
}

fn trials(context: Option<&Arc<Context>>) -> Vec<Trial> {
    TESTS
        .iter()
        .map(|(name, test)| {
            let context = context.cloned();
            Trial::test(*name, move || {
                let context = context.ok_or("the cluster is only there when tests run")?;
                let outcome = test(&context).map_err(|error| format!("{error:#}\n\n{}", context.dump()));
                context.clean_up().map_err(|error| format!("{error:#}"))?;
                Ok(outcome?)
            })
        })
        .collect()
}

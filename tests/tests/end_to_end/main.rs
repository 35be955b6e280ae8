//! End-to-end tests on a real cluster: kubelets, containers, networks, Prometheus, the operator
//! from the chart, and images from the shipped Dockerfiles. Needs root. All tests use one cluster:
//! first those that share it, two at a time, then the others one by one. `VIT_ALL_CASES`, which
//! `make test-all` sets, adds the longest.
//! `target/junit/end_to_end.xml` has durations.
//!
//! `VIT_KEEP_CLUSTER` keeps the cluster: `vit-cluster exec --name e2e -- kubectl get vtj -A`.

mod bucket;
mod chaos;
mod contenders;
mod context;
mod disruptions;
mod documentation;
mod elastic;
mod external;
mod faults;
mod gpus;
mod install;
mod isolation;
mod leader;
mod lifecycle;
mod monitoring;
mod placement;
mod plugin;
mod pod_groups;
mod queueing;
mod rights;
mod steps;
mod studies;
mod training;
mod upgrade;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};
use vit_tests::report::Report;

use context::{Context, Suite};

type Test = fn(&Context<'_>) -> Result<()>;

/// Tests, named by their paths.
macro_rules! tests {
    ($($test:expr),* $(,)?) => {
        &[$((stringify!($test), $test as Test)),*]
    };
}

/// Tests that use only their own namespace and at most one GPU of each node.
const SHARED: &[(&str, Test)] = tests![
    training::one_manifest_trains_on_like_gpus,
    training::prometheus_has_what_synchronisation_cost,
    training::synthetic_example_runs_without_a_data_set,
    faults::unknown_preset_fails_with_one_that_is_known,
    faults::missing_data_fails_once_and_expires,
    faults::truncated_record_is_named_by_file_and_offset,
    faults::rank_that_is_stopped_is_a_stall_and_the_gang_restarts,
    faults::image_that_cannot_be_had_fails_in_the_kubelets_words,
    faults::job_over_its_deadline_is_stopped,
    rights::objects_of_others_are_left_alone_and_told,
    plugin::plugin_shows_a_job_that_trains_and_steers_it,
    lifecycle::suspended_job_saves_and_resumes_where_it_stopped,
    lifecycle::job_that_is_stopped_while_its_trainer_starts_is_gone_at_once,
    lifecycle::job_in_the_folder_of_another_namespace_is_refused_and_changes_nothing,
    lifecycle::scaled_job_continues_in_its_new_size,
    isolation::strangers_reach_metrics_alone,
    bucket::data_sets_are_fetched_and_streamed_from_buckets,
];

/// The longest tests, which `make test-all` runs one by one before [`ALONE`]. Unit and integration
/// tests cover the parts: trainer, planner, operator, agent and chart.
const LONG: &[(&str, Test)] = tests![
    external::another_trainer_is_followed_through_faults_and_measured,
    placement::mixed_gpus_are_taken_and_share_images_by_speed_where_the_job_allows_it,
    faults::killed_rank_of_a_model_that_ranks_compute_together_is_replaced,
    studies::studies_take_turns_and_skip_what_fits_nowhere,
    queueing::kueue_grants_a_job_quota_and_takes_it_back,
    install::release_goes_and_another_takes_over_while_a_job_trains,
];

/// Tests that change the cluster, need most of its GPUs, measure time, or check a gang's nodes.
const ALONE: &[(&str, Test)] = tests![
    placement::gang_waits_with_counted_reasons_and_starts_by_itself,
    placement::gang_stays_within_one_rack,
    placement::two_jobs_applied_at_once_never_share_a_gpu,
    placement::job_of_higher_priority_goes_first,
    faults::killed_rank_restarts_the_gang_from_its_checkpoint,
    gpus::gang_trains_on_through_lost_ranks_and_gpus_and_too_little_memory,
    faults::rank_that_is_slow_is_named_with_its_node_until_it_recovers,
    monitoring::alerts_fire_and_panels_show_data,
    faults::gang_of_a_dead_node_trains_on_elsewhere,
    studies::study_is_measured_through_faults_and_leaves_nothing,
    elastic::elastic_gang_shrinks_with_a_node_and_grows_again,
    faults::leader_dies_between_two_pods_and_the_next_one_creates_the_rest,
    disruptions::training_outlives_the_control_plane,
    pod_groups::gang_is_bound_as_one_where_the_scheduler_can,
    disruptions::operator_is_upgraded_while_a_job_trains,
    disruptions::evicted_gang_trains_on,
    disruptions::namespace_is_deleted_while_its_job_trains,
    documentation::commands_of_getting_started_work,
    documentation::commands_of_how_tos_work,
    install::commands_that_are_told_after_an_installation_work,
    // Last: it needs all requests of the operator.
    rights::operator_has_the_rights_it_uses_and_no_others,
];

/// Runs instead of the tests if `VIT_CHAOS_MINUTES` is set.
const CHAOS: &[(&str, Test)] = tests![chaos::jobs_survive_random_faults];

/// Replaces the tests if `VIT_EARLIER_OPERATOR` is a folder with an earlier commit's operator.
const UPGRADE: &[(&str, Test)] = &[(
    "release_is_upgraded_and_rolled_back_while_jobs_train",
    upgrade::release_is_upgraded_and_rolled_back,
)];

/// Runs instead of the tests if `VIT_CONTENDERS` is set.
const CONTENDERS: &[(&str, Test)] = tests![
    contenders::torchrun_is_restarted_after_a_killed_rank,
    contenders::study_of_the_example_measures_each_kind_of_trainer,
];

/// Number of concurrent shared tests. They mostly wait; two gangs keep two cores busy.
const THREADS: usize = 2;

fn main() -> Result<ExitCode> {
    let arguments = Arguments::from_args();
    let are_all_wanted = std::env::var_os("VIT_ALL_CASES").is_some() || arguments.filter.is_some();
    let parts = if chaos::wanted()?.is_some() {
        &[(CHAOS, 1)][..]
    } else if upgrade::wanted().is_some() {
        &[(UPGRADE, 1)][..]
    } else if contenders::wanted() {
        &[(CONTENDERS, 1)][..]
    } else if are_all_wanted {
        &[(SHARED, THREADS), (LONG, 1), (ALONE, 1)][..]
    } else {
        &[(SHARED, THREADS), (ALONE, 1)]
    };
    if arguments.list {
        for &(tests, _) in parts {
            libtest_mimic::run(&arguments, trials(tests, None)).exit_if_failed();
        }
        return Ok(ExitCode::SUCCESS);
    }
    let is_whole =
        are_all_wanted && parts.len() > 1 && arguments.filter.is_none() && arguments.skip.is_empty();
    let images = if contenders::wanted() {
        contenders::images()?
    } else {
        vec![gpus::image()?]
    };
    let run = Arc::new(Run {
        suite: Suite::set_up(is_whole, &images)?,
        report: Report::new("end_to_end"),
    });
    let mut has_failed = false;
    for &(tests, threads) in parts {
        let arguments = Arguments {
            test_threads: Some(threads),
            ..arguments.clone()
        };
        has_failed |= libtest_mimic::run(&arguments, trials(tests, Some(&run))).has_failed();
    }
    run.report.write()?;
    run.suite.tear_down()?;
    // An error's text would separate the failures from the end of the log.
    Ok(if has_failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// What all tests of a run share.
struct Run {
    suite: Suite,
    report: Report,
}

fn trials(tests: &'static [(&'static str, Test)], run: Option<&Arc<Run>>) -> Vec<Trial> {
    tests
        .iter()
        .map(|(name, test)| {
            let run = run.cloned();
            Trial::test(*name, move || {
                let run = run.ok_or("the cluster exists only while tests run")?;
                Ok(run.report.time(name, || attempt(&run.suite, *test))?)
            })
        })
        .collect()
}

/// Puts the failure after the dumped state of the cluster, where the end of a log shows it.
fn attempt(suite: &Suite, test: Test) -> Result<(), String> {
    let context = Context::new(suite);
    let outcome = test(&context).map_err(|error| format!("{}\n\n{error:#}", context.dump()));
    let cleaned = context
        .clean_up()
        .map_err(|error| format!("cleaning up: {error:#}"));
    match (outcome, cleaned) {
        (Err(failed), Err(left)) => Err(format!("{failed}\n\n{left}")),
        (outcome, cleaned) => outcome.and(cleaned),
    }
}

//! One round of one study.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crds::conditions::reasons;
use crds::study::status::{StudyPhase, ViTScalingStudyStatus};
use crds::{Stored, StoredJob, ViTScalingStudy, ViTTrainingJob};
use kube::api::DeleteParams;
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType};

use kube::{Api, Resource as _, ResourceExt as _};
use study::StudyJob;
use tokio::time::Instant;
use tracing::{Instrument as _, debug, info, info_span, warn};

use super::next::{Creation, next, unplaced};
use super::observation::{Observation, nodes};
use super::{runs, status};
use crate::error::Error;
use crate::objects::{create, delete, patch_status, with_uid};
use crate::reconcile::{Context, Memory, event};
use crate::stored::leave_alone;
use crate::watch::cache::Cache;

/// Between rounds of a running study; its jobs' changes usually trigger earlier.
const UNDER_WAY: Duration = Duration::from_secs(10);

/// State shared by rounds of studies.
pub(crate) struct Studies {
    pub(crate) context: Arc<Context>,
    pub(crate) known: Cache<Stored<ViTScalingStudy>>,
    /// Apart from the jobs' memory, which forgets everything but jobs.
    pub(crate) memory: Memory,
}

/// Runs one round, and logs and counts it.
pub(crate) async fn reconcile(
    stored: Arc<Stored<ViTScalingStudy>>,
    studies: Arc<Studies>,
) -> Result<Action, Error> {
    let span = info_span!(
        "reconcile",
        study = stored.name_any(),
        namespace = stored.namespace().unwrap_or_default()
    );
    let context = &studies.context;
    let uid = stored.uid().unwrap_or_default();
    let (started, now) = (Instant::now(), context.settings.clock.now());
    let running = async {
        match &stored.0 {
            Ok(study) => Box::pin(round(&studies, Arc::new(study.clone()))).await,
            Err(unreadable) => leave_alone::<ViTScalingStudy>(&context.client, now, unreadable).await,
        }
    };
    let result = context.contain(running.instrument(span.clone())).await;
    context.metrics.reconciled(started.elapsed());
    match &result {
        Ok(_) => studies.memory.forget(&uid),
        Err(error) if error.is_of_deleted() => {
            studies.memory.forget(&uid);
            return Ok(Action::await_change());
        }
        Err(error) if error.is_conflict() => {
            context.metrics.failed(error.category());
            debug!(parent: &span, %error, "the study changed meanwhile");
        }
        Err(error) => {
            context.metrics.failed(error.category());
            warn!(parent: &span, %error, category = error.category(), "reconcile failed");
            if !studies.memory.reports(&uid, error) {
                return result;
            }
            let event = event(
                EventType::Warning,
                reasons::RECONCILE_FAILED,
                "Reconcile",
                &error.to_string(),
            );
            span.in_scope(|| context.publish(stored.object_ref(&()), vec![event]));
        }
    }
    result
}

/// When to try again after an error.
pub(crate) fn error_policy(
    study: Arc<Stored<ViTScalingStudy>>,
    error: &Error,
    studies: Arc<Studies>,
) -> Action {
    if let Error::Unreadable { .. } = error {
        return Action::await_change();
    }
    let uid = study.uid().unwrap_or_default();
    Action::requeue(error.back_off(studies.memory.failed(&uid)))
}

async fn round(studies: &Studies, study: Arc<ViTScalingStudy>) -> Result<Action, Error> {
    let context = &*studies.context;
    // Its objects are deleted by owner references.
    if study.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let mut observation = observe(studies, study);
    let study = &Arc::clone(&observation.study);
    let report = async |observation: &Observation, status, error: Option<&Error>| {
        let status = match error {
            Some(error) if !studies.memory.reports(&study.uid().unwrap_or_default(), error) => status,
            _ => status::with_error(observation, status, error),
        };
        write_status(context, study, status).await
    };
    let plan = match runs::plan(study) {
        Ok(plan) => plan,
        Err(why) => {
            let deleted = delete_jobs(context, study, unplaced(&observation)).await;
            let status = status::invalid(&observation, &why);
            report(&observation, status, deleted.as_ref().err()).await?;
            return deleted.map(|()| Action::requeue(UNDER_WAY));
        }
    };
    loop {
        let next = next(&observation, &plan);
        let drafted = status::status(&observation, &plan, &next);
        if let Err(error) = delete_jobs(context, study, next.delete.iter()).await {
            report(&observation, drafted, Some(&error)).await?;
            return Err(error);
        }
        let created = match &next.create {
            Some(creation) => create_job(context, study, creation).await,
            None => Ok(()),
        };
        match (created, next.create) {
            (Err(error), Some(creation)) if error.is_final() => {
                let refused = creation.job.name_any();
                warn!(job = refused, %error, "a job of the study is refused");
                observation.refused.insert(refused, error.to_string());
            }
            (created, _) => {
                let written = report(&observation, drafted, created.as_ref().err()).await?;
                let next_round = if is_over(&written) {
                    Action::await_change()
                } else {
                    Action::requeue(UNDER_WAY)
                };
                return created.map(|()| next_round);
            }
        }
    }
}

/// Whether the study has ended, and nothing is left to report.
fn is_over(study: &ViTScalingStudy) -> bool {
    study.status.as_ref().is_some_and(|status| {
        status.phase.is_some_and(StudyPhase::is_terminal)
            && status.observed_generation == study.metadata.generation
            && status.condition(crds::conditions::types::RECONCILED).is_none()
    })
}

/// The jobs in a study's namespace that are owned: far fewer than all.
fn owned_jobs(context: &Context, study: &ViTScalingStudy) -> Vec<Arc<StoredJob>> {
    context.jobs.store().state_filter(|job| {
        let job = job.meta();
        job.namespace == study.metadata.namespace && job.owner_references.is_some()
    })
}

/// The jobs of a study among owned ones, the oldest first.
fn jobs_of(owned: &[Arc<StoredJob>], study: &ViTScalingStudy) -> Vec<StudyJob> {
    let is_own = |job: &&ViTTrainingJob| {
        let mut owners = job.owner_references().iter();
        owners.any(|owner| Some(&owner.uid) == study.metadata.uid.as_ref())
    };
    let known = owned.iter().filter_map(|stored| stored.readable());
    let of_study = known
        .filter(is_own)
        .filter_map(|job| StudyJob::new(Arc::new(job.clone()), study));
    let mut jobs: Vec<StudyJob> = of_study.collect();
    jobs.sort_by_cached_key(|job| (job.job.creation_timestamp(), job.job.name_any()));
    jobs
}

/// Whether any pod of these jobs may still run.
fn have_pods(context: &Context, jobs: &[StudyJob]) -> bool {
    let now = context.settings.clock.now();
    jobs.iter().any(|job| {
        let attempt = job.job.status.as_ref().map_or(0, |status| status.attempt);
        let (pods, _) = context.caches.pods_of(&job.job, attempt, now);
        pods.iter().any(|pod| !pod.has_ended())
    })
}

fn observe(studies: &Studies, study: Arc<ViTScalingStudy>) -> Observation {
    let context = &studies.context;
    let owned = owned_jobs(context, &study);
    let jobs = jobs_of(&owned, &study);
    let names = || jobs.iter().flat_map(nodes);
    let facts = names().filter_map(|name| Some((name.clone(), context.caches.node(name)?)));
    let unready = names().filter_map(|name| Some((name.clone(), context.caches.unready_for(name)?)));
    Observation {
        facts: facts.collect(),
        unready: unready.collect(),
        waits_for: measures_first(studies, &owned, &study),
        has_pods: have_pods(context, &jobs),
        jobs,
        refused: BTreeMap::new(),
        now: context.settings.clock.now(),
        study,
    }
}

/// The study of the same namespace that measures before this one: an older one that is not over or
/// suspended, or any that still has a running job. Two that measure at once would disturb each
/// other.
fn measures_first(studies: &Studies, owned: &[Arc<StoredJob>], own: &ViTScalingStudy) -> Option<String> {
    let age = |study: &ViTScalingStudy| {
        (
            study.creation_timestamp().map(|time| time.0),
            study.uid().unwrap_or_default(),
        )
    };
    let state = studies.known.store().state();
    let others = state.iter().filter_map(|stored| stored.readable());
    let mut first: Vec<&ViTScalingStudy> = others
        .filter(|other| other.namespace() == own.namespace() && other.uid() != own.uid())
        .filter(|other| {
            let is_waiting =
                !is_over(other) && !other.spec.suspend && other.metadata.deletion_timestamp.is_none();
            let runs = || {
                let jobs = jobs_of(owned, other);
                !jobs.iter().all(StudyJob::is_over) || have_pods(&studies.context, &jobs)
            };
            (is_waiting && age(other) < age(own)) || runs()
        })
        .collect();
    first.sort_by_key(|other| age(other));
    Some(first.first()?.name_any())
}

/// Deletes jobs of the study.
async fn delete_jobs(
    context: &Context,
    study: &ViTScalingStudy,
    doomed: impl Iterator<Item = &StudyJob>,
) -> Result<(), Error> {
    let namespace = study.namespace().unwrap_or_default();
    let jobs: Api<StoredJob> = Api::namespaced(context.client.clone(), &namespace);
    for StudyJob { job, .. } in doomed {
        let parameters = with_uid(job.uid(), DeleteParams::foreground());
        delete(&jobs, job.name_any(), parameters).await?;
        info!(job = job.name_any(), "deleted a job of the study");
    }
    Ok(())
}

async fn create_job(context: &Context, study: &ViTScalingStudy, creation: &Creation) -> Result<(), Error> {
    let own = create(&context.client, study, StoredJob::from(creation.job.clone())).await?;
    if own.is_new {
        info!(
            job = creation.job.name_any(),
            run = creation.words,
            "created a job of the study"
        );
    }
    Ok(())
}

/// Writes a status if it changed. Returns the stored study.
async fn write_status(
    context: &Context,
    study: &Arc<ViTScalingStudy>,
    next: ViTScalingStudyStatus,
) -> Result<Arc<ViTScalingStudy>, Error> {
    let last = study.status.clone().unwrap_or_default();
    if next == last {
        return Ok(Arc::clone(study));
    }
    let api: Api<Stored<ViTScalingStudy>> =
        Api::namespaced(context.client.clone(), &study.namespace().unwrap_or_default());
    let written = patch_status(&api, &study.metadata, [&study.status, &Some(next.clone())]).await?;
    if last.phase != next.phase {
        info!(
            from = last.phase.map_or("new", StudyPhase::as_str),
            to = next.phase.map_or("new", StudyPhase::as_str),
            "phase changed"
        );
        context.publish(study.object_ref(&()), ended(&next).into_iter().collect());
    }
    let unreadable = |why| Error::Unreadable { object: "study", why };
    Ok(Arc::new(written.0.map_err(unreadable)?))
}

/// The Event of a finished study.
fn ended(status: &ViTScalingStudyStatus) -> Option<Event> {
    use crds::conditions::types::{COMPLETE, FAILED};
    let (type_, condition) = match status.phase? {
        StudyPhase::Succeeded => (EventType::Normal, COMPLETE),
        StudyPhase::Failed => (EventType::Warning, FAILED),
        _ => return None,
    };
    let condition = status.condition(condition)?;
    Some(event(type_, &condition.reason, "Finish", &condition.message))
}

#[cfg(test)]
mod tests {
    use crds::labels;
    use http::{Request, Response};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use kube::client::{Body, Client};
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    fn study(name: &str, created: i64) -> ViTScalingStudy {
        let mut study = super::super::tests::study();
        study.metadata.name = Some(name.into());
        study.metadata.uid = Some(format!("uid-of-{name}"));
        study.metadata.creation_timestamp = Some(Time(fixtures::at(created)));
        study
    }

    fn job(name: &str, namespace: &str, study: &str, created: i64) -> StoredJob {
        let mut job = fixtures::job();
        job.metadata.name = Some(name.into());
        job.metadata.namespace = Some(namespace.into());
        job.metadata.creation_timestamp = Some(Time(fixtures::at(created)));
        let owner =
            json!([{"apiVersion": "v", "kind": "k", "name": study, "uid": format!("uid-of-{study}")}]);
        job.metadata.owner_references = serde_json::from_value(owner).expect("an owner");
        for (label, value) in [(labels::RUN, "a"), (labels::REPETITION, "1"), (labels::TRY, "1")] {
            job.labels_mut().insert(label.into(), value.into());
        }
        job.into()
    }

    #[tokio::test]
    async fn a_study_sees_its_own_jobs_and_waits_for_one_with_a_job_or_an_older_one() {
        let jobs = Cache::new(|_| ());
        for (name, namespace, study, created) in [
            ("later", "research", "own", 2),
            ("first", "research", "own", 1),
            ("elsewhere", "other", "own", 1),
            ("elsewhere", "other", "younger", 1),
        ] {
            jobs.watched(Event::Apply(job(name, namespace, study, created)));
        }
        let (service, _server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let triggers = tokio::sync::mpsc::unbounded_channel().0;
        let client = Client::new(service, "default");
        let studies = Studies {
            context: fixtures::context(client, jobs.clone(), &[], &[], triggers),
            known: Cache::new(|_| ()),
            memory: Memory::default(),
        };
        let own = Arc::new(study("own", 10));
        let waits_for = || observe(&studies, Arc::clone(&own)).waits_for;
        let known = |study: ViTScalingStudy| drop(studies.known.watched(Event::Apply(study.into())));
        let seen = observe(&studies, Arc::clone(&own)).jobs;
        let names: Vec<String> = seen.iter().map(|job| job.job.name_any()).collect();
        assert_eq!(names, ["first", "later"]);
        known(study("younger", 11));
        assert_eq!(waits_for(), None);
        jobs.watched(Event::Apply(job("runs", "research", "younger", 3)));
        assert_eq!(waits_for().as_deref(), Some("younger"));
        known(study("older", 9));
        assert_eq!(waits_for().as_deref(), Some("older"));
    }
}

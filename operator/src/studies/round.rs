//! One round of one study.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crds::conditions::{reasons, study_reasons};
use crds::study::status::{StudyPhase, ViTScalingStudyStatus};
use crds::{ViTScalingStudy, ViTTrainingJob, labels};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DeleteParams;
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType};
use kube::runtime::reflector::Store;
use kube::{Api, Resource as _, ResourceExt as _};
use study::{Bounds, Outcome, Plan, Record, Records};
use tracing::{Instrument as _, debug, info, info_span, warn};

use super::next::{Creation, Deletion, Next, next};
use super::observation::{Child, Observation, OtherStudy};
use super::{observation, runs, status};
use crate::error::{self, Error};
use crate::objects::{create, delete, kind, replace_status, with_uid, written_by_us};
use crate::reconcile::{Context, event};

/// A study, or why it cannot be decoded.
pub(crate) type GuardedStudy = DeserializeGuard<ViTScalingStudy>;

/// Between rounds of a running study; its jobs' changes usually trigger earlier.
const UNDER_WAY: Duration = Duration::from_secs(10);
/// Until the cache shows a conflicting change.
const CATCH_UP: Duration = Duration::from_millis(200);

/// State shared by rounds of studies.
pub(crate) struct Studies {
    pub(crate) context: Arc<Context>,
    pub(crate) store: Store<GuardedStudy>,
    /// Versions of studies already reported as undecodable.
    reported: Mutex<HashSet<(String, String)>>,
}

impl Studies {
    pub(crate) fn new(context: Arc<Context>, store: Store<GuardedStudy>) -> Self {
        Self {
            context,
            store,
            reported: Mutex::default(),
        }
    }

    /// Whether it is new that this version of a study cannot be decoded.
    fn is_news(&self, study: &GuardedStudy) -> bool {
        let version = (
            study.uid().unwrap_or_default(),
            study.resource_version().unwrap_or_default(),
        );
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        reported.insert(version)
    }
}

/// Runs one round, and logs and counts it.
pub(crate) async fn reconcile(guarded: Arc<GuardedStudy>, studies: Arc<Studies>) -> Result<Action, Error> {
    let span = info_span!(
        "reconcile",
        study = guarded.name_any(),
        namespace = guarded.namespace().unwrap_or_default()
    );
    let context = &studies.context;
    let started = Instant::now();
    let result = match &guarded.0 {
        Ok(study) => {
            let round = Box::pin(round(&studies, Arc::new(study.clone())));
            round.instrument(span.clone()).await
        }
        Err(invalid) if studies.is_news(&guarded) => Err(Error::InvalidStudy(Box::new(invalid.clone()))),
        Err(_) => return Ok(Action::await_change()),
    };
    context.metrics.reconciled(started.elapsed());
    match &result {
        Ok(_) => context.memory.succeeded(&guarded.uid().unwrap_or_default()),
        Err(error) if error.is_of_deleted() => return Ok(Action::await_change()),
        Err(error) if error.is_conflict() => {
            context.metrics.failed(error.category());
            debug!(parent: &span, %error, "the study changed meanwhile");
        }
        Err(error) => {
            context.metrics.failed(error.category());
            warn!(parent: &span, %error, category = error.category(), "reconcile failed");
            let event = event(
                EventType::Warning,
                reasons::RECONCILE_FAILED,
                "Reconcile",
                &error.to_string(),
            );
            span.in_scope(|| context.publish(guarded.object_ref(&()), vec![event]));
        }
    }
    result
}

/// When to try again after an error.
pub(crate) fn error_policy(study: Arc<GuardedStudy>, error: &Error, studies: Arc<Studies>) -> Action {
    match error {
        Error::InvalidStudy(_) => Action::await_change(),
        error if error.is_conflict() => Action::requeue(CATCH_UP),
        _ => Action::requeue(error::back_off(
            studies.context.memory.failed(&study.uid().unwrap_or_default()),
        )),
    }
}

async fn round(studies: &Studies, study: Arc<ViTScalingStudy>) -> Result<Action, Error> {
    let context = &*studies.context;
    let jobs = jobs_of(context, &study);
    // Its objects are deleted by owner references.
    if study.metadata.deletion_timestamp.is_some() || is_settled(&study, &jobs) {
        return Ok(Action::await_change());
    }
    let results = Results::read(context, &study).await?;
    let observation = observe(studies, study, jobs, results.records());
    let study = &observation.study;
    let report = async |status, error: Option<&Error>| {
        let status = status::with_error(&observation, status, error);
        write_status(context, study, status).await
    };
    let plan = match runs::plan(study) {
        Ok(plan) => plan,
        Err(why) => {
            let deleted = delete_jobs(context, study, &Deletion::of_all(&observation)).await;
            report(status::invalid(&observation, &why), deleted.as_ref().err()).await?;
            return deleted.map(|()| Action::requeue(UNDER_WAY));
        }
    };
    let slots = runs::slots(&plan);
    let next = next(&observation, &plan, &slots);
    let results = match results.write(context, study, &next.records).await {
        Ok(results) => results,
        Err(error) => {
            // Without the record nothing is measured: keep the last status, with the error.
            report(observation.status(), Some(&error)).await?;
            return Err(error);
        }
    };
    let failed = |failure: &String| event(EventType::Warning, study_reasons::RUNS_FAILED, "Measure", failure);
    context.publish(study.object_ref(&()), next.failures.iter().map(failed).collect());
    let drafted = status::status(&observation, &plan, &slots, &next);
    if let Err(error) = delete_jobs(context, study, &next.delete).await {
        report(drafted, Some(&error)).await?;
        return Err(error);
    }
    let stopped = |note: &String| event(EventType::Normal, study_reasons::RUN_STOPPED, "Delete", note);
    context.publish(study.object_ref(&()), next.stopped.iter().map(stopped).collect());
    let Some(creation) = &next.create else {
        report(drafted, None).await?;
        return Ok(Action::requeue(UNDER_WAY));
    };
    // Record nodes before the job that is limited to them. An earlier round's error stays in the
    // status, because each change of it triggers another round.
    let written = write_status(context, study, drafted.clone()).await?;
    if let Err(error) = create_job(context, study, (creation, &plan), &next, results).await {
        let next = status::with_error(&observation, drafted, Some(&error));
        write_status(context, &written, next).await?;
        return Err(error);
    }
    Ok(Action::requeue(UNDER_WAY))
}

/// Whether nothing remains to do until the manifest changes.
fn is_settled(study: &ViTScalingStudy, jobs: &[Child]) -> bool {
    let is_over = study.status.as_ref().is_some_and(|status| {
        status.phase.is_some_and(StudyPhase::is_terminal)
            && status.observed_generation == study.metadata.generation
            && status.condition(crds::conditions::types::RECONCILED).is_none()
    });
    // A cache may have lagged when the study ended.
    is_over && jobs.iter().all(Child::is_over)
}

fn jobs_of(context: &Context, study: &ViTScalingStudy) -> Vec<Child> {
    let state = context.jobs.state();
    let own = state.iter().filter_map(|guarded| guarded.0.as_ref().ok());
    let own = own.filter(|job| observation::is_of(job, study));
    let mut jobs: Vec<Child> = own
        .filter_map(|job| {
            let attempt = job.status.as_ref().map_or(0, |status| status.attempt);
            let (pods, _) = context.caches.pods_of(job, attempt);
            let has_pods = pods.iter().any(|pod| !pod.has_ended());
            Child::of(Arc::new(job.clone()), study, has_pods)
        })
        .collect();
    jobs.sort_by_key(|child| child.job.name_any());
    jobs
}

fn observe(
    studies: &Studies,
    study: Arc<ViTScalingStudy>,
    jobs: Vec<Child>,
    records: Records,
) -> Observation {
    let context = &studies.context;
    let own = study.status.iter().flat_map(ViTScalingStudyStatus::all_nodes);
    let facts = own.filter_map(|name| Some((name.clone(), context.caches.node(name)?)));
    Observation {
        facts: facts.collect(),
        others: others(&studies.store, &study, |other| {
            let jobs = jobs_of(context, other);
            let busy = jobs.iter().filter(|child| child.is_busy());
            busy.flat_map(Child::nodes).cloned().collect()
        }),
        jobs,
        records,
        now: Timestamp::now(),
        study,
    }
}

/// The other studies with nodes. If two have the same node by chance, the older one keeps it.
fn others(
    studies: &Store<GuardedStudy>,
    own: &ViTScalingStudy,
    measures_on: impl Fn(&ViTScalingStudy) -> BTreeSet<String>,
) -> Vec<OtherStudy> {
    let age = |study: &ViTScalingStudy| {
        (
            study.creation_timestamp().map(|time| time.0),
            study.uid().unwrap_or_default(),
        )
    };
    let state = studies.state();
    let others = state
        .iter()
        .filter_map(|guarded| guarded.0.as_ref().ok())
        .filter(|other| other.uid() != own.uid());
    let mut others: Vec<OtherStudy> = others
        .filter_map(|other| {
            let measures_on = measures_on(other);
            let kept = other.status.iter().flat_map(ViTScalingStudyStatus::all_nodes);
            let nodes: BTreeSet<String> = kept.chain(&measures_on).cloned().collect();
            (!nodes.is_empty()).then(|| OtherStudy {
                name: format!("{}/{}", other.namespace().unwrap_or_default(), other.name_any()),
                nodes,
                measures_on,
                goes_first: age(other) < age(own),
            })
        })
        .collect();
    others.sort_by(|left, right| left.name.cmp(&right.name));
    others
}

/// The ConfigMap with a study's records.
struct Results {
    /// The existing one, if it is the study's.
    found: Option<ConfigMap>,
}

impl Results {
    async fn read(context: &Context, study: &ViTScalingStudy) -> Result<Self, Error> {
        let name = Records::config_map(&study.name_any());
        let found = api(context, study).get_opt(&name).await;
        let found = found.map_err(Error::api("get", kind::<ConfigMap>(), &name))?;
        let is_own = |config_map: &ConfigMap| {
            let owners = config_map.owner_references();
            owners
                .iter()
                .any(|owner| Some(&owner.uid) == study.uid().as_ref())
        };
        Ok(Self {
            found: found.filter(is_own),
        })
    }

    fn records(&self) -> Records {
        let data = self.found.as_ref().and_then(|found| found.data.as_ref());
        data.map(Records::read).unwrap_or_default()
    }

    /// Replaces the records that were read; a change in between is a conflict.
    async fn write(
        self,
        context: &Context,
        study: &ViTScalingStudy,
        records: &Records,
    ) -> Result<Self, Error> {
        let data = Some(records.write());
        let found = match self.found {
            Some(found) if found.data.clone().unwrap_or_default() == records.write() => found,
            Some(found) => {
                let name = found.name_any();
                let config_map = ConfigMap { data, ..found };
                let written = api(context, study)
                    .replace(&name, &written_by_us(), &config_map)
                    .await;
                written.map_err(Error::api("update", kind::<ConfigMap>(), &name))?
            }
            None => {
                let config_map = ConfigMap {
                    metadata: metadata(study),
                    data,
                    ..ConfigMap::default()
                };
                let own = create(&context.client, study, config_map).await?;
                // If another writer has just created it, the next round reads it.
                return Ok(Self { found: own.created });
            }
        };
        Ok(Self { found: Some(found) })
    }
}

fn api(context: &Context, study: &ViTScalingStudy) -> Api<ConfigMap> {
    Api::namespaced(context.client.clone(), &study.namespace().unwrap_or_default())
}

fn metadata(study: &ViTScalingStudy) -> ObjectMeta {
    let own = [
        (labels::MANAGED_BY, labels::MANAGER.to_owned()),
        (labels::STUDY_NAME, study.name_any()),
    ];
    ObjectMeta {
        name: Some(Records::config_map(&study.name_any())),
        namespace: study.namespace(),
        labels: Some(own.map(|(key, value)| (key.into(), value)).into()),
        owner_references: runs::owner(study).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// Deletes jobs of the study.
async fn delete_jobs(context: &Context, study: &ViTScalingStudy, doomed: &[Deletion]) -> Result<(), Error> {
    let namespace = study.namespace().unwrap_or_default();
    let jobs: Api<ViTTrainingJob> = Api::namespaced(context.client.clone(), &namespace);
    for doomed in doomed {
        let parameters = if doomed.is_foreground {
            DeleteParams::foreground()
        } else {
            DeleteParams::background()
        };
        let parameters = with_uid(Some(doomed.uid.clone()), parameters);
        delete(&jobs, doomed.name.clone(), parameters).await?;
        info!(job = doomed.name, "deleted a job of the study");
    }
    Ok(())
}

/// Creates a job. If the API server would always refuse it, records a failed run.
async fn create_job(
    context: &Context,
    study: &ViTScalingStudy,
    (creation, plan): (&Creation, &Plan),
    next: &Next,
    results: Results,
) -> Result<(), Error> {
    let error = match create(&context.client, study, creation.job.clone()).await {
        Ok(own) => {
            if own.created.is_some() {
                info!(
                    job = creation.job.name_any(),
                    run = creation.words,
                    "created a job of the study"
                );
            }
            return Ok(());
        }
        Err(error) if error.is_final() => error,
        Err(error) => return Err(error),
    };
    let mut records = next.records.clone();
    let record = Record {
        tries: creation.number,
        bounds: Bounds::of(plan),
        outcome: Outcome::failure(error.to_string(), true),
    };
    records.insert(&creation.key, creation.repetition, record);
    results.write(context, study, &records).await?;
    let note = format!("{}: {error}", creation.words);
    let failed = event(EventType::Warning, study_reasons::RUNS_FAILED, "Measure", &note);
    context.publish(study.object_ref(&()), vec![failed]);
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
    let api: Api<ViTScalingStudy> =
        Api::namespaced(context.client.clone(), &study.namespace().unwrap_or_default());
    let object = ViTScalingStudy {
        status: Some(next.clone()),
        ..ViTScalingStudy::clone(study)
    };
    let written = replace_status(&api, kind::<ViTScalingStudy>(), &object).await?;
    if last.phase != next.phase {
        info!(
            from = last.phase.map_or("new", StudyPhase::as_str),
            to = next.phase.map_or("new", StudyPhase::as_str),
            "phase changed"
        );
        context.publish(study.object_ref(&()), ended(&next).into_iter().collect());
    }
    Ok(Arc::new(written))
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

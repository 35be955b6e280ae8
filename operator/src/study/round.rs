//! One round of one study.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::conditions::{reasons, study_reasons};
use crds::study::status::{StudyPhase, ViTScalingStudyStatus};
use crds::{ViTScalingStudy, ViTTrainingJob, labels};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DeleteParams;
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType};
use kube::runtime::reflector::Store;
use kube::{Api, Resource as _, ResourceExt as _};
use planner::facts::inventory::{NodeFacts, NodeHealth};
use study::{Outcome, Record, Records};
use tracing::{Instrument as _, debug, info, info_span, warn};

use super::next::{Creation, Deletion, Next, next};
use super::observation::{Child, Observation, Other};
use super::{runs, status};
use crate::error::{self, Error};
use crate::objects::{create, delete, kind, replace_status, with_uid, written_by_us};
use crate::reconcile::{Context, event};

/// A study, or why it cannot be read.
pub(crate) type GuardedStudy = DeserializeGuard<ViTScalingStudy>;

/// Between two looks at a study that is under way; its jobs' changes bring nearly all before.
const UNDER_WAY: Duration = Duration::from_secs(10);
/// Until the cache shows what has been changed meanwhile.
const CATCH_UP: Duration = Duration::from_millis(200);

/// What rounds of studies share.
pub(crate) struct Studies {
    pub(crate) context: Arc<Context>,
    pub(crate) studies: Store<GuardedStudy>,
}

/// One round, logged and counted.
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
        Err(invalid) => Err(Error::InvalidObject(Box::new(invalid.clone()))),
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
        Error::InvalidObject(_) => Action::await_change(),
        error if error.is_conflict() => Action::requeue(CATCH_UP),
        _ => Action::requeue(error::back_off(
            studies.context.memory.failed(&study.uid().unwrap_or_default()),
        )),
    }
}

async fn round(studies: &Studies, study: Arc<ViTScalingStudy>) -> Result<Action, Error> {
    if study.metadata.deletion_timestamp.is_some() || is_settled(&study) {
        // What it owns goes with it, by owner references.
        return Ok(Action::await_change());
    }
    let context = &studies.context;
    let results = Results::read(context, &study).await?;
    let observation = observe(studies, study, results.records());
    let with_error = |status, error| status::with_error(&observation, status, error);
    let plan = match runs::plan(&observation.study) {
        Ok(plan) => plan,
        Err(why) => {
            let deleted = delete_jobs(context, &observation, &Deletion::of_all(&observation)).await;
            let next = with_error(status::invalid(&observation, &why), deleted.as_ref().err());
            write_status(context, &observation, next).await?;
            return deleted.map(|()| Action::requeue(UNDER_WAY));
        }
    };
    let next = next(&observation, &plan);
    let results = match prepare(context, &observation, &next, results).await {
        Ok(results) => results,
        Err(error) => {
            // What is not recorded has not been measured: the last status stands, with the error.
            let last = with_error(observation.status(), Some(&error));
            write_status(context, &observation, last).await?;
            return Err(error);
        }
    };
    let failures = next
        .failures
        .iter()
        .map(|failure| event(EventType::Warning, study_reasons::RUNS_FAILED, "Measure", failure));
    context.publish(observation.study.object_ref(&()), failures.collect());
    let drafted = status::status(&observation, &plan, &next);
    let Some(creation) = &next.create else {
        write_status(context, &observation, with_error(drafted, None)).await?;
        return Ok(Action::requeue(UNDER_WAY));
    };
    // Nodes are recorded before a job is created that may have no others. What kept an earlier round from creating it stays told:
    // each change of the status is a reason for another round.
    let study = write_status(context, &observation, drafted.clone()).await?;
    if let Err(error) = create_job(context, &observation, creation, &next, results).await {
        let next = with_error(drafted, Some(&error));
        write_status(
            context,
            &Observation {
                study,
                ..observation.clone()
            },
            next,
        )
        .await?;
        return Err(error);
    }
    Ok(Action::requeue(UNDER_WAY))
}

/// Whether nothing is to be done until the manifest changes.
fn is_settled(study: &ViTScalingStudy) -> bool {
    study.status.as_ref().is_some_and(|status| {
        status.phase.is_some_and(StudyPhase::is_terminal)
            && status.observed_generation == study.metadata.generation
            && status.condition(crds::conditions::types::RECONCILED).is_none()
    })
}

fn observe(studies: &Studies, study: Arc<ViTScalingStudy>, records: Records) -> Observation {
    let context = &studies.context;
    let now = Timestamp::now();
    let jobs = context.jobs.state();
    let jobs = jobs.iter().filter_map(|guarded| guarded.0.as_ref().ok());
    let mut jobs: Vec<Child> = jobs
        .filter_map(|job| Child::of(Arc::new(job.clone()), &study))
        .collect();
    jobs.sort_by_key(|child| child.job.name_any());
    let bound = SignedDuration::from_secs(study.spec.template.spec.failure_policy.node_lost_seconds.into());
    let own = study.status.iter().flat_map(ViTScalingStudyStatus::all_nodes);
    let unusable = own.filter_map(|name| {
        let why = unusable(context.caches.node(name), bound, now)?;
        Some((name.clone(), why))
    });
    Observation {
        unusable: unusable.collect(),
        others: others(&studies.studies, &study),
        jobs,
        records,
        now,
        study,
    }
}

/// Why runs cannot have a node any more.
fn unusable(node: Option<NodeFacts>, bound: SignedDuration, now: Timestamp) -> Option<&'static str> {
    match node {
        None => Some("gone"),
        Some(node) if node.cordoned => Some("cordoned"),
        Some(node) => match node.health {
            NodeHealth::NotReady(Some(since)) if now.duration_since(since) >= bound => Some("not ready"),
            _ => None,
        },
    }
}

/// The other studies that measure somewhere. Of two that are on one node by chance the older one keeps it.
fn others(studies: &Store<GuardedStudy>, own: &ViTScalingStudy) -> Vec<Other> {
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
        .filter(|other| other.uid() != own.uid() && other.metadata.deletion_timestamp.is_none());
    let mut others: Vec<Other> = others
        .filter_map(|other| {
            let status = other.status.as_ref()?;
            let is_over = status.phase.is_none_or(StudyPhase::is_terminal);
            let measures = !is_over && !other.spec.suspend && !status.nodes.is_empty();
            measures.then(|| Other {
                name: format!("{}/{}", other.namespace().unwrap_or_default(), other.name_any()),
                nodes: status.all_nodes().cloned().collect(),
                goes_first: age(other) < age(own),
            })
        })
        .collect();
    others.sort_by(|left, right| left.name.cmp(&right.name));
    others
}

/// The ConfigMap with what a study has measured.
struct Results {
    /// As it is, if it is the study's.
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

    /// Writes records in the place of those that were read; a change in between is a conflict.
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
                // It is there, and was not a moment ago: the next round reads it.
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

/// Everything that comes before the status: records, and then the deletion of what they make superfluous.
async fn prepare(
    context: &Context,
    observation: &Observation,
    next: &Next,
    results: Results,
) -> Result<Results, Error> {
    let results = results.write(context, &observation.study, &next.records).await?;
    delete_jobs(context, observation, &next.delete).await?;
    Ok(results)
}

async fn delete_jobs(context: &Context, observation: &Observation, doomed: &[Deletion]) -> Result<(), Error> {
    let namespace = observation.study.namespace().unwrap_or_default();
    let jobs: Api<ViTTrainingJob> = Api::namespaced(context.client.clone(), &namespace);
    for Deletion { name, uid, has_pods } in doomed {
        // The next run must not start beside pods that are still stopping.
        let parameters = if *has_pods {
            DeleteParams::foreground()
        } else {
            DeleteParams::background()
        };
        delete(&jobs, name.clone(), with_uid(Some(uid.clone()), parameters)).await?;
        info!(job = name, "deleted a job of the study");
    }
    Ok(())
}

/// Creates a job. One that the API server refuses for good is a run that failed.
async fn create_job(
    context: &Context,
    observation: &Observation,
    creation: &Creation,
    next: &Next,
    results: Results,
) -> Result<(), Error> {
    let study = &*observation.study;
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
        nodes: vec![],
        outcome: Outcome::Failure {
            message: error.to_string(),
            is_final: true,
        },
    };
    records.insert(&creation.key, creation.repetition, record);
    results.write(context, study, &records).await?;
    let note = format!("{}: {error}", creation.words);
    let failed = event(EventType::Warning, study_reasons::RUNS_FAILED, "Measure", &note);
    context.publish(study.object_ref(&()), vec![failed]);
    Ok(())
}

/// Writes a status, if anything in it is new. Gives the study as it is then.
async fn write_status(
    context: &Context,
    observation: &Observation,
    next: ViTScalingStudyStatus,
) -> Result<Arc<ViTScalingStudy>, Error> {
    let study = &observation.study;
    let last = observation.status();
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

/// The Event of a study that is over.
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

//! `kubectl vit suspend` and `kubectl vit resume`, of jobs and of studies.

use crds::Phase;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde_json::json;

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::kind::{Kind, Name, end};
use crate::outcomes::Outcomes;
use crate::output::print;
use crate::wait::{Timeout, wait};

/// Which objects, and whether to wait.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments<K: Kind> {
    #[command(flatten)]
    selection: Selection<K>,
    /// Wait until all of them are suspended or, for resume, running
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    timeout: Timeout,
}

/// Objects by name, by label, or all of the namespace.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Selection<K: Kind> {
    #[arg(value_name = K::VALUE, help = format!("The {}", K::NOUNS), add = crate::completion::names::<K>())]
    names: Vec<Name<K>>,
    #[arg(
        short = 'l',
        long,
        value_name = "LABELS",
        help = format!("All unfinished {} with these labels", K::NOUNS)
    )]
    selector: Option<String>,
    #[arg(long, help = format!("All unfinished {} of the namespace", K::NOUNS))]
    all: bool,
}

impl<K: Kind> Selection<K> {
    async fn names(&self, cluster: &Cluster) -> Result<Vec<Name<K>>, Error> {
        if !self.names.is_empty() {
            return Ok(self.names.clone());
        }
        let mut found: Vec<K> = cluster.list_readable(false, self.selector.as_deref()).await?;
        found.retain(|object| !object.is_over());
        if found.is_empty() {
            cluster.report_none(&format!("unfinished {}", K::NOUNS), false);
        }
        Ok(found.iter().map(Name::from_object).collect())
    }
}

/// The wanted value of `spec.suspend`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Action {
    Suspend,
    Resume,
}

impl Action {
    fn is_suspend(self) -> bool {
        self == Self::Suspend
    }

    fn verb(self) -> &'static str {
        match self {
            Self::Suspend => "suspend",
            Self::Resume => "resume",
        }
    }
}

pub(crate) async fn run<K: Kind>(
    cluster: &Cluster,
    arguments: &Arguments<K>,
    action: Action,
) -> Result<Exit, Error> {
    let names = arguments.selection.names(cluster).await?;
    let timeout = arguments.wait.then_some(arguments.timeout);
    change(cluster, &names, action, timeout, &print).await
}

/// Changes every object, and with a timeout waits for all of them. Results go to `say`, a line each.
async fn change<K: Kind>(
    cluster: &Cluster,
    names: &[Name<K>],
    action: Action,
    timeout: Option<Timeout>,
    say: &dyn Fn(&str) -> Result<(), Error>,
) -> Result<Exit, Error> {
    let mut outcomes = Outcomes::new();
    let mut changed = vec![];
    for name in names {
        if let Some(words) = outcomes.keep(set(cluster, name, action).await)? {
            say(&format!("{words}\n"))?;
            changed.push(name);
        }
    }
    let Some(timeout) = timeout else {
        return Ok(outcomes.exit());
    };
    let what = match action {
        Action::Suspend => "phase Suspended",
        Action::Resume => "phase Running",
    };
    let waits = changed.into_iter().map(|name| {
        let outcome = move |object: Option<&K>| outcome(name, action, object);
        wait(cluster, name, what, timeout, outcome)
    });
    let mut waits: FuturesUnordered<_> = waits.collect();
    while let Some(waited) = waits.next().await {
        if let Some(words) = outcomes.keep(waited)? {
            say(&format!("{words}\n"))?;
        }
    }
    Ok(outcomes.exit())
}

/// Sets `spec.suspend` of one object; returns a message about it.
async fn set<K: Kind>(cluster: &Cluster, name: &Name<K>, action: Action) -> Result<String, Error> {
    let object = cluster.get(name).await?;
    if object.suspend() == action.is_suspend() && !object.is_over() {
        return Ok(unchanged(&object, name, action));
    }
    check(&object, name, action)?;
    let patch = json!({"spec": {"suspend": action.is_suspend()}});
    cluster.patch(name, &patch).await?;
    Ok(match action {
        Action::Suspend => format!("{name} is suspending: {}", K::SUSPENDS),
        Action::Resume => format!("{name} is resuming: {}", K::RESUMES),
    })
}

/// A finished object cannot be suspended or resumed, but for a failed job, which is suspended first.
fn check<K: Kind>(object: &K, name: &Name<K>, action: Action) -> Result<(), Error> {
    let (noun, phase, verb) = (K::NOUN, object.phase_word(), action.verb());
    Err(Error::Usage(match action {
        _ if !object.is_over() => return Ok(()),
        Action::Suspend if object.can_suspend() => return Ok(()),
        Action::Resume if object.can_suspend() => format!(
            "{noun} {name} is {phase}: to retry it, suspend it, change what made it fail, and resume it"
        ),
        _ => format!("{noun} {name} is {phase}: there is nothing left to {verb}"),
    }))
}

fn unchanged<K: Kind>(object: &K, name: &Name<K>, action: Action) -> String {
    let phase = object.phase_word();
    match action {
        Action::Suspend if object.phase() == Some(Phase::Suspended) => {
            format!("{name} is already suspended{}", object.kept())
        }
        Action::Suspend => format!("{name} is already suspending: its phase is {phase}"),
        Action::Resume => format!("{name} is not suspended: its phase is {phase}"),
    }
}

/// The result of the wait; `None` while it continues.
fn outcome<K: Kind>(name: &Name<K>, action: Action, object: Option<&K>) -> Option<Result<String, Error>> {
    let may_change = |object: &&K| !object.is_over() || action == Action::Suspend && object.can_suspend();
    let Some(object) = object.filter(may_change) else {
        let end = end(name, object)?;
        return Some(end.map(|()| format!("{name} had already finished")));
    };
    if !object.is_observed() {
        return None;
    }
    match (action, object.phase()?) {
        (Action::Suspend, Phase::Suspended) => Some(Ok(format!("{name} is suspended{}", object.kept()))),
        (Action::Resume, Phase::Running) => Some(Ok(format!("{name} is running again{}", object.resumed()))),
        _ => None,
    }
}

#[cfg(test)]
mod tests;

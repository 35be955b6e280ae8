//! `kubectl vit watch`: the screen of `status`, kept current until the job is over.

use std::io::IsTerminal as _;
use std::time::Duration;

use console::Term;
use crds::{Phase, ViTTrainingJob};
use futures::StreamExt as _;
use tokio::time::MissedTickBehavior;

use crate::cluster::Cluster;
use crate::error::{Error, Exit};
use crate::gang::Found;
use crate::kind::{JobName, Kind, Name, end};
use crate::output;
use crate::paint::Paint;
use crate::status::{View, look, render};
use crate::step_times::StepTimes;
use crate::summary::phase;
use crate::wait::{Timeout, changes, wait_reporting, warn_or_fail};
use crate::why;

/// How often the screen is redrawn without a change of the object.
const REFRESH: Duration = Duration::from_secs(5);

/// Follow a job until it is over
///
/// A terminal shows the screen of status, kept current; otherwise, each change is a line. The exit code reports how the
/// job ended.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: kubectl vit watch digits && kubectl vit delete digits")]
pub(crate) struct Arguments {
    /// The job
    #[arg(value_name = "JOB", add = crate::completion::jobs())]
    job: JobName,
    #[command(flatten)]
    timeout: Timeout,
}

pub(crate) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Exit, Error> {
    let name = &arguments.job;
    // A missing job is an error; the watch would wait for it.
    cluster.get(name).await?;
    follow_job(cluster, name, arguments.timeout).await
}

/// Follows a job until it is over, with the screen of `status`.
pub(crate) async fn follow_job(cluster: &Cluster, name: &JobName, timeout: Timeout) -> Result<Exit, Error> {
    let mut before = None;
    let screen = async |job: ViTTrainingJob| {
        let mut view = look(cluster, job, false).await;
        show_recent(&mut view, &mut before);
        let why = why::explain(&view.job, cluster.place(), view.now);
        render(&view, &why, false, Paint::of_stdout())
    };
    Box::pin(follow(cluster, name, timeout, screen)).await
}

/// Follows an object until it is over: by its screen on a terminal, otherwise by a line per change.
pub(crate) async fn follow<K: Kind>(
    cluster: &Cluster,
    name: &Name<K>,
    timeout: Timeout,
    screen: impl AsyncFnMut(K) -> String,
) -> Result<Exit, Error> {
    if std::io::stdout().is_terminal() {
        let drawing = Box::pin(draw(cluster, name, screen));
        let state = || format!("{name} is not over");
        timeout.limit("its end", drawing, state).await?;
    } else {
        let report = |summary: &str| output::print(&format!("{name}: {summary}\n"));
        let over = |object: Option<&K>| end(name, object);
        wait_reporting(cluster, name, "its end", timeout, report, over).await?;
    }
    Ok(Exit::Done)
}

/// The screen, redrawn in its place.
async fn draw<K: Kind>(
    cluster: &Cluster,
    name: &Name<K>,
    mut screen: impl AsyncFnMut(K) -> String,
) -> Result<(), Error> {
    let mut changes = changes(cluster, name);
    let mut refresh = tokio::time::interval(REFRESH);
    refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut canvas = Canvas::default();
    let mut object: Option<K> = None;
    loop {
        let mut ended = None;
        tokio::select! {
            change = changes.next() => match change {
                Some(Ok(stored)) => {
                    let changed = stored.map(|stored| stored.0).transpose()?;
                    ended = end(name, changed.as_ref());
                    object = changed;
                }
                Some(Err(error)) => {
                    canvas.lines = 0;
                    warn_or_fail(cluster, name, error)?;
                    continue;
                }
                None => return Err(Error::NotFound(format!("the watch of {} {name} ended", K::NOUN))),
            },
            _ = refresh.tick() => {}
        }
        if let Some(object) = &object {
            canvas.show(&screen(object.clone()).await)?;
        }
        if let Some(ended) = ended {
            return ended;
        }
    }
}

/// Shows step times since the last refresh, if steps were finished since then.
fn show_recent(view: &mut View, before: &mut Option<StepTimes>) {
    let is_running = phase(&view.job) == Some(Phase::Running);
    let Found::Yes(now) = &mut view.step_times else {
        return;
    };
    let earlier = before.replace(now.clone());
    let recent = earlier.map(|earlier| now.since(&earlier));
    if let Some(recent) = recent.filter(|recent| is_running && recent.split().is_some()) {
        *now = recent;
        view.is_recent = true;
    }
}

/// The redrawn part of the terminal.
#[derive(Debug, Default)]
struct Canvas {
    lines: usize,
}

impl Canvas {
    fn show(&mut self, text: &str) -> Result<(), Error> {
        let term = Term::stdout();
        let (rows, columns) = term.size();
        // Lines that the terminal wrapped or scrolled out could not be cleared.
        let shown: Vec<String> = text
            .lines()
            .take(usize::from(rows).saturating_sub(1))
            .map(|line| console::truncate_str(line, usize::from(columns), "…").into_owned())
            .collect();
        term.clear_last_lines(self.lines)?;
        term.write_str(&format!("{}\n", shown.join("\n")))?;
        self.lines = shown.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::tests::{running, times};

    #[test]
    fn what_came_since_the_last_look_is_shown_once_there_is_some() {
        let mut before = None;
        let mut shown = |steps| {
            let mut view = running();
            view.step_times = Found::Yes(times(steps));
            show_recent(&mut view, &mut before);
            view.is_recent
        };
        assert!(!shown(10), "the first look has nothing to compare with");
        assert!(shown(20));
        assert!(!shown(20), "no step since");
    }
}

//! Events of a job: the changes between two statuses, published after the second was written.

use crds::conditions::{reasons, types};
use crds::status::StragglerStatus;
use crds::{Phase, ViTTrainingJobStatus};
use kube::runtime::events::{Event, EventType};

/// Longest note in bytes; the API server accepts up to 1,024.
const NOTE_BYTES: usize = 950;

pub(crate) fn between(last: &ViTTrainingJobStatus, next: &ViTTrainingJobStatus) -> Vec<Event> {
    let mut events = Vec::new();
    if last.last_failure != next.last_failure
        && let Some(failure) = &next.last_failure
    {
        let note = format!(
            "attempt {}: {} on {}: {}",
            failure.attempt,
            failure.class,
            failure.pod.as_deref().unwrap_or("an unknown pod"),
            failure.message
        );
        events.push(event(
            EventType::Warning,
            reasons::ATTEMPT_FAILED,
            &action_of_attempt("EndAttempt", failure.attempt),
            &note,
        ));
    }
    for condition in &next.conditions {
        let known = last
            .conditions
            .iter()
            .any(|other| other.type_ == condition.type_ && other.reason == condition.reason);
        let (type_, action) = match (condition.type_.as_str(), condition.reason.as_str()) {
            (types::PLACED, reasons::GANG_FITS | reasons::MIXED_GPUS) if last.attempt != next.attempt => {
                (EventType::Normal, "Place")
            }
            _ if known => continue,
            (
                types::PLACED,
                reasons::NO_FITTING_GROUP
                | reasons::NO_PRIORITY_CLASS
                | reasons::QUOTA_EXCEEDED
                | reasons::START_FAILING,
            ) => (EventType::Warning, "Place"),
            (types::PLACED, reasons::IN_QUEUE) => (EventType::Normal, "Queue"),
            (types::PLACED, reasons::ADMITTED) => (EventType::Normal, "Admit"),
            (types::RUNNING, reasons::EVICTED) => (EventType::Warning, "Evict"),
            (types::RUNNING, reasons::ALL_PODS_READY) => (EventType::Normal, "Start"),
            (types::RUNNING, reasons::RESIZING) => (EventType::Normal, "Resize"),
            (types::RUNNING, reasons::NODE_UNFIT) => (EventType::Warning, "Replace"),
            (types::SUSPENDED, _) => (EventType::Normal, "Suspend"),
            (types::COMPLETE, _) => (EventType::Normal, "Finish"),
            (types::FAILED, _) if next.phase == Some(Phase::Failed) => (EventType::Warning, "Finish"),
            _ => continue,
        };
        events.push(event(
            type_,
            &condition.reason,
            &action_of_attempt(action, next.attempt),
            &condition.message,
        ));
    }
    if last.attempt == next.attempt {
        events.extend(straggler_events(last, next));
    }
    events
}

/// Events for ranks that have become stragglers, or no longer are.
fn straggler_events(last: &ViTTrainingJobStatus, next: &ViTTrainingJobStatus) -> impl Iterator<Item = Event> {
    let is_in = |stragglers: &[StragglerStatus], rank| stragglers.iter().any(|other| other.rank == rank);
    let straggler_event = |type_, reason, straggler: &StragglerStatus, what: String| {
        let note = format!(
            "rank {} on {} {what}",
            straggler.rank,
            straggler.node.as_deref().unwrap_or("an unknown node")
        );
        let measure = action_of_attempt("Measure", next.attempt);
        let action = format!("{measure}Rank{}", straggler.rank);
        event(type_, reason, &action, &note)
    };
    let found = next
        .stragglers
        .iter()
        .filter(move |new| !is_in(&last.stragglers, new.rank));
    let gone = last
        .stragglers
        .iter()
        .filter(move |old| !is_in(&next.stragglers, old.rank));
    let found = found.map(move |straggler| {
        let what = format!(
            "takes {:.2} times as long for a step as the others, which wait for it",
            straggler.slowdown
        );
        straggler_event(EventType::Warning, reasons::STRAGGLER_FOUND, straggler, what)
    });
    let gone = gone.map(move |straggler| {
        let what = "is as fast as the others again".to_owned();
        straggler_event(EventType::Normal, reasons::STRAGGLER_GONE, straggler, what)
    });
    found.chain(gone)
}

/// One action per attempt: the recorder merges Events with the same reason and action.
pub(crate) fn action_of_attempt(action: &str, attempt: i32) -> String {
    format!("{action}{attempt}")
}

/// An Event with its note cut to [`NOTE_BYTES`].
pub(crate) fn event(type_: EventType, reason: &str, action: &str, note: &str) -> Event {
    let end = (0..=NOTE_BYTES.min(note.len()))
        .rev()
        .find(|index| note.is_char_boundary(*index))
        .unwrap_or(0);
    Event {
        type_,
        reason: reason.into(),
        action: action.into(),
        note: Some(note[..end].into()),
        secondary: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn a_new_placement_is_told_once() {
        let pending = fixtures::status(Phase::Pending, 0);
        let mut placed = fixtures::status(Phase::Starting, 1);
        placed.conditions = vec![fixtures::condition(types::PLACED, true, reasons::GANG_FITS)];
        let events = between(&pending, &placed);
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].reason, reasons::GANG_FITS);
        assert!(between(&placed, &placed).is_empty());
        let mut again = placed.clone();
        again.attempt = 2;
        assert_eq!(between(&placed, &again).len(), 1);
    }

    #[test]
    fn a_straggler_is_told_when_it_is_found_and_when_it_is_gone() {
        let fast = fixtures::status(Phase::Running, 1);
        let mut slow = fast.clone();
        slow.stragglers = vec![fixtures::straggler(1, "b", 2.5)];
        let mut slower = slow.clone();
        slower.stragglers[0].slowdown = 4.0;
        let notes = |last, next| -> Vec<(String, Option<String>)> {
            let events = between(last, next).into_iter();
            events.map(|event| (event.reason, event.note)).collect()
        };
        let found = "rank 1 on b takes 2.50 times as long for a step as the others, which wait for it";
        assert_eq!(
            notes(&fast, &slow),
            [(reasons::STRAGGLER_FOUND.into(), Some(found.into()))]
        );
        assert_eq!(notes(&slow, &slower), [], "once, not at every look");
        let gone = "rank 1 on b is as fast as the others again";
        assert_eq!(
            notes(&slower, &fast),
            [(reasons::STRAGGLER_GONE.into(), Some(gone.into()))]
        );
        let mut replaced = fast.clone();
        replaced.attempt = 2;
        assert_eq!(notes(&slower, &replaced), [], "a new gang is measured again");
    }

    #[test]
    fn a_long_note_is_cut_between_characters() {
        let event = event(EventType::Normal, "Reason", "Action", &"é".repeat(1000));
        let note = event.note.expect("a note");
        assert!(note.len() <= NOTE_BYTES && note.len() > NOTE_BYTES - 2);
    }
}

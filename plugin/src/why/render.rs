//! The explanation as text.

use crds::{ViTTrainingJob, words};

use super::Why;
use crate::paint::Paint;
use crate::text::{counted, wrapped};

/// The explanation for a terminal.
pub(crate) fn render(job: &ViTTrainingJob, why: &Why, paint: Paint) -> String {
    let since = why
        .since
        .iter()
        .map(|since| format!(" for {since}"))
        .collect::<String>();
    let reason = why.reason.iter().map(|reason| paint.dim(format!("  {reason}")));
    let reason = reason.collect::<String>();
    let mut text = format!(
        "{}  {}{since}{reason}\n{}\n",
        paint.bold(&why.job),
        paint.phase(why.phase),
        wrapped(&why.meaning, paint.width, 0)
    );
    if let Some(message) = &why.message {
        text += &format!("  {}\n", wrapped(message, paint.width, 2));
    }
    for finding in &why.findings {
        text += &format!("  - {}\n", wrapped(finding, paint.width, 4));
    }
    if !why.refused.is_empty() {
        text += &format!("\n{}\n", paint.bold("Groups of GPUs that do not fit"));
        for group in &why.refused {
            let (name, message) = (group.name(), words::rejects(&job.spec, group, false));
            let nodes = counted(group.nodes, "node");
            let line = wrapped(&format!("{name} ({nodes}): {message}"), paint.width, 4);
            let named = line.strip_prefix(name).unwrap_or(&line);
            text += &format!("  {}{named}\n", paint.accent(name));
        }
    }
    if !why.next.is_empty() {
        text += &format!("\n{}\n", paint.bold("Next"));
        for step in &why.next {
            text += &format!("  - {}\n", wrapped(&step.words, paint.width, 4));
            if let Some(command) = &step.command {
                // Not wrapped: it is to be copied.
                text += &format!("      {}\n", paint.accent(command));
            }
        }
    }
    text
}

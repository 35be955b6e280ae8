//! Colors and the width of the terminal, if any.

use std::fmt::Display;

use console::{Style, Term};
use crds::Phase;

/// Columns without a terminal.
const COLUMNS: usize = 120;

/// How things are shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    /// Whether colors are used.
    pub(crate) has_colors: bool,
    /// Columns of the terminal.
    pub(crate) width: usize,
}

impl Paint {
    /// For standard output: colors on a terminal unless `NO_COLOR` is set; `CLICOLOR_FORCE` forces them.
    pub(crate) fn of_stdout() -> Self {
        let size = Term::stdout().size_checked();
        Self {
            has_colors: console::colors_enabled(),
            width: size.map_or(COLUMNS, |(_, columns)| usize::from(columns)),
        }
    }

    /// No colors, and this many columns.
    pub(crate) fn plain(width: usize) -> Self {
        Self {
            has_colors: false,
            width,
        }
    }

    fn with(self, style: Style, text: impl Display) -> String {
        style.force_styling(self.has_colors).apply_to(text).to_string()
    }

    pub(crate) fn bold(self, text: impl Display) -> String {
        self.with(Style::new().bold(), text)
    }

    pub(crate) fn dim(self, text: impl Display) -> String {
        self.with(Style::new().dim(), text)
    }

    pub(crate) fn good(self, text: impl Display) -> String {
        self.with(Style::new().green(), text)
    }

    pub(crate) fn warning(self, text: impl Display) -> String {
        self.with(Style::new().yellow(), text)
    }

    pub(crate) fn bad(self, text: impl Display) -> String {
        self.with(Style::new().red(), text)
    }

    pub(crate) fn accent(self, text: impl Display) -> String {
        self.with(Style::new().cyan(), text)
    }

    /// The word for a phase; `New` before the operator has processed the job.
    pub(crate) fn phase(self, phase: Option<Phase>) -> String {
        let word = phase.map_or("New", Phase::as_str);
        match phase {
            Some(Phase::Running | Phase::Succeeded) => self.good(word),
            Some(Phase::Failed) => self.bad(word),
            Some(Phase::Suspended) => self.dim(word),
            None | Some(Phase::Pending | Phase::Starting | Phase::Restarting | Phase::Suspending) => {
                self.warning(word)
            }
        }
    }
}

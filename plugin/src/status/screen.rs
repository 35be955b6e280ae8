//! The screen under construction: facts, each with its name on the left.

use crate::paint::Paint;
use crate::text::wrapped;

/// Columns of the names on the left.
pub(super) const LEFT: usize = 13;

pub(super) struct Screen {
    pub(super) paint: Paint,
    pub(super) text: String,
}

impl Screen {
    /// A line with its name on the left, wrapped.
    pub(super) fn line(&mut self, name: &str, words: &str) {
        let words = wrapped(words, self.paint.width, LEFT);
        self.raw(name, &words);
    }

    /// A line that is not wrapped.
    pub(super) fn raw(&mut self, name: &str, words: &str) {
        let padded = format!("{name:<LEFT$}");
        self.text += &format!("{}{words}\n", self.paint.dim(padded));
    }
}

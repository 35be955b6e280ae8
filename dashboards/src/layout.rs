//! Positions of panels.

use crate::panel::Builder;
use crate::schema::{Content, GridPos, Panel, Row};

/// Columns of a dashboard.
const COLUMNS: u32 = 24;

/// Panels under headings, from left to right and from top to bottom.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    panels: Vec<Panel>,
    y: u32,
}

impl Layout {
    /// A heading: the question that the panels below it answer.
    pub(crate) fn heading(mut self, question: &str) -> Self {
        let row = Content::Row(Row {
            collapsed: false,
            panels: [],
        });
        self.push("row", question.into(), String::new(), (0, COLUMNS, 1), row);
        self.y += 1;
        self
    }

    /// Panels side by side, with this height.
    pub(crate) fn line(mut self, height: u32, panels: impl IntoIterator<Item = Builder>) -> Self {
        let mut x = 0;
        for builder in panels {
            let width = builder.width();
            let (kind, title, description, data) = builder.content();
            let content = Content::Data(Box::new(data));
            self.push(kind, title, description, (x, width, height), content);
            x += width;
        }
        self.y += height;
        self
    }

    fn push(
        &mut self,
        kind: &'static str,
        title: String,
        description: String,
        (x, w, h): (u32, u32, u32),
        content: Content,
    ) {
        self.panels.push(Panel {
            id: u32::try_from(self.panels.len() + 1).unwrap_or(u32::MAX),
            r#type: kind,
            title,
            description,
            grid_pos: GridPos { x, y: self.y, w, h },
            content,
        });
    }

    pub(crate) fn panels(self) -> Vec<Panel> {
        self.panels
    }
}

//! The classes of images.

use serde::{Deserialize, Serialize};

/// The classes of one image.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Label {
    Class(i64),
    /// Any number of classes: a list, or a row with a column per class.
    Classes(Vec<i64>),
}

impl Label {
    pub(super) fn classes(&self) -> &[i64] {
        match self {
            Self::Class(class) => std::slice::from_ref(class),
            Self::Classes(classes) => classes,
        }
    }
}

impl From<i64> for Label {
    fn from(class: i64) -> Self {
        Self::Class(class)
    }
}

/// The labels of many images, in order.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Labels {
    classes: Vec<i32>,
    /// The end of each image's classes; `None` if each image has one class that is not in a list.
    ends: Option<Vec<u64>>,
}

impl Labels {
    pub(super) fn from_classes(classes: Vec<i32>) -> Self {
        Self { classes, ends: None }
    }

    pub(super) fn from_lists<List: AsRef<[i32]>>(lists: impl IntoIterator<Item = List>) -> Self {
        let (mut classes, mut ends) = (Vec::new(), Vec::new());
        for list in lists {
            classes.extend_from_slice(list.as_ref());
            ends.push(classes.len() as u64);
        }
        let ends = Some(ends);
        Self { classes, ends }
    }

    /// Number of images.
    pub(super) fn len(&self) -> usize {
        self.ends.as_ref().map_or(self.classes.len(), Vec::len)
    }

    /// The label of one image.
    pub(super) fn of(&self, image: usize) -> Label {
        let Some(ends) = &self.ends else {
            return Label::Class(self.classes[image].into());
        };
        let start = image.checked_sub(1).map_or(0, |before| ends[before]) as usize;
        let classes = &self.classes[start..ends[image] as usize];
        Label::Classes(classes.iter().map(|class| i64::from(*class)).collect())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Label> {
        (0..self.len()).map(|image| self.of(image))
    }

    /// All classes of all images, in order.
    pub(super) fn classes(&self) -> &[i32] {
        &self.classes
    }

    /// Keeps the first images.
    pub(super) fn truncate(&mut self, images: usize) {
        if images >= self.len() {
            return;
        }
        let kept = match &mut self.ends {
            Some(ends) => {
                ends.truncate(images);
                ends.last().map_or(0, |end| *end as usize)
            }
            None => images,
        };
        self.classes.truncate(kept);
    }

    /// Appends the labels of more images. If there are any, both are lists, or neither is.
    pub(super) fn append(&mut self, more: Self) {
        if more.len() == 0 {
            return;
        }
        if self.len() == 0 {
            *self = more;
            return;
        }
        let before = self.classes.len() as u64;
        self.classes.extend_from_slice(&more.classes);
        match (&mut self.ends, more.ends) {
            (Some(ends), Some(more)) => ends.extend(more.into_iter().map(|end| before + end)),
            (None, None) => {}
            _ => unreachable!("a data set has lists of classes in all of its files, or in none"),
        }
    }

    /// Bytes to compute a fingerprint from.
    pub(super) fn parts(&self) -> impl Iterator<Item = Vec<u8>> {
        let classes = self
            .classes
            .iter()
            .map(|class| i64::from(*class).to_le_bytes().to_vec());
        let ends = self.ends.iter().flatten();
        classes.chain(ends.map(|end| end.to_le_bytes().to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_any_length_are_kept_apart() {
        let mut labels = Labels::from_lists([&[3, 1][..], &[], &[7]]);
        labels.append(Labels::from_lists([&[5][..], &[]]));
        let lists = |labels: &Labels| {
            labels
                .iter()
                .map(|label| label.classes().to_vec())
                .collect::<Vec<_>>()
        };
        assert_eq!(lists(&labels), [vec![3, 1], vec![], vec![7], vec![5], vec![]]);
        labels.truncate(2);
        assert_eq!(
            (lists(&labels), labels.classes()),
            (vec![vec![3, 1], vec![]], &[3, 1][..])
        );

        // Files without rows may be either.
        labels.append(Labels::default());
        let mut other = Labels::from_lists::<&[i32]>([]);
        other.append(Labels::from_classes(vec![8]));
        assert_eq!((labels.len(), other), (2, Labels::from_classes(vec![8])));

        let mut single = Labels::from_classes(vec![4, 2]);
        single.append(Labels::from_classes(vec![9]));
        assert_eq!(single.of(2), Label::Class(9));
        single.truncate(1);
        assert_eq!((single.len(), single.of(0)), (1, Label::Class(4)));
        let parts = |labels: &Labels| labels.parts().collect::<Vec<_>>();
        assert_ne!(
            parts(&Labels::from_lists([[1, 2]])),
            parts(&Labels::from_lists([[1], [2]]))
        );
    }
}

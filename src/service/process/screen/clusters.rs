//! The clusters of several characters that share a cell: letters with marks, flags, emoji. Each is kept once.

use std::collections::HashMap;

use super::row::Content;

/// The maximum number of clusters. If all of them are shown, further characters that would join one are left out.
const MAX_CLUSTERS: usize = 1024;

/// The maximum length of a cluster in bytes. Further characters are left out. The longest emoji has 35.
const MAX_CLUSTER: usize = 48;

/// The number of characters that are left out before the clusters are collected again, if most of them are shown.
const PATIENCE: usize = 100_000;

#[derive(Debug, Default)]
pub(super) struct Clusters {
    texts: Vec<Box<str>>,
    indexes: HashMap<Box<str>, usize>,
    /// The number of characters that were left out since the last collection.
    refused: usize,
    /// The value of `refused` from which on another collection is worth its time.
    patience: usize,
}

impl Clusters {
    /// Forgets all clusters. None of them may be shown.
    pub(super) fn clear(&mut self) {
        self.texts.clear();
        self.indexes.clear();
        (self.refused, self.patience) = (0, 0);
    }

    /// The memory in bytes.
    pub(super) fn held(&self) -> usize {
        self.texts.len() * 2 * (MAX_CLUSTER + size_of::<Box<str>>())
    }

    fn is_full(&self) -> bool {
        self.texts.len() >= MAX_CLUSTERS
    }

    /// Whether to forget the clusters that are no longer shown. This takes a look at all cells, so after a collection that has freed
    /// little, the next one comes late.
    pub(super) fn needs_collection(&self) -> bool {
        self.is_full() && self.refused >= self.patience
    }

    /// The text of a cell.
    pub(super) fn text(&self, content: Content) -> String {
        let mut text = String::new();
        self.write(content, &mut text);
        text
    }

    /// Appends the text of a cell. An empty one is a space.
    pub(super) fn write(&self, content: Content, out: &mut String) {
        match content.get() {
            Ok(character) => out.push(character),
            Err(index) => out.push_str(self.texts.get(index).map_or(" ", |text| text)),
        }
    }

    /// The content with one more character, and the new width; `None` if there is no room for it.
    pub(super) fn join(&mut self, content: Content, character: char, width: u8) -> Option<Content> {
        let mut text = self.text(content);
        text.push(character);
        if text.len() > MAX_CLUSTER {
            return None;
        }
        if let Some(index) = self.indexes.get(&*text) {
            return Some(Content::cluster(*index, width));
        }
        if self.is_full() {
            self.refused += 1;
            return None;
        }
        let index = self.texts.len();
        let text: Box<str> = text.into();
        self.texts.push(text.clone());
        self.indexes.insert(text, index);
        Some(Content::cluster(index, width))
    }

    /// Forgets all clusters but those of these cells.
    pub(super) fn collect<'c>(&mut self, cells: impl Iterator<Item = &'c mut Content>) {
        let old = std::mem::take(self);
        for content in cells {
            let Err(index) = content.get() else { continue };
            let Some(text) = old.texts.get(index) else {
                continue;
            };
            let index = match self.indexes.get(text) {
                Some(index) => *index,
                None => {
                    self.texts.push(text.clone());
                    self.indexes.insert(text.clone(), self.texts.len() - 1);
                    self.texts.len() - 1
                }
            };
            *content = Content::cluster(index, content.width());
        }
        let finds_little = self.texts.len() > MAX_CLUSTERS / 2;
        self.patience = if finds_little { PATIENCE } else { 1 };
    }
}

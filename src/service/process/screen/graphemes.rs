//! Grapheme clusters, and their width in columns: which characters share a cell. The rules are those of UAX #29 as
//! `@xterm/addon-unicode-graphemes` has them, which the terminal page uses, also where it leaves out a rule.

use super::grapheme_table::RANGES;

/// How a character joins others, by the property `Grapheme_Cluster_Break`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Other,
    Prepend,
    Extend,
    RegionalIndicator,
    SpacingMark,
    HangulL,
    HangulV,
    HangulT,
    HangulLv,
    HangulLvt,
    ZeroWidthJoiner,
    /// A pictograph, which a joiner joins to the one before.
    Pictographic,
}

impl Kind {
    /// Whether `next` belongs to the same cluster.
    fn joins(self, next: Self) -> bool {
        matches!(
            (self, next),
            (_, Self::Extend | Self::ZeroWidthJoiner | Self::SpacingMark)
                | (Self::Prepend, _)
                | (Self::ZeroWidthJoiner, Self::Pictographic)
                | (Self::RegionalIndicator, Self::RegionalIndicator)
                | (
                    Self::HangulL,
                    Self::HangulL | Self::HangulV | Self::HangulLv | Self::HangulLvt
                )
                | (
                    Self::HangulV | Self::HangulLv,
                    Self::HangulV | Self::HangulT
                )
                | (Self::HangulT | Self::HangulLvt, Self::HangulT)
        )
    }
}

/// The last character that was printed, as far as the next one depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Last {
    kind: Kind,
    /// The columns of the cluster.
    pub(super) width: u8,
}

impl Last {
    /// A printable ASCII character.
    pub(super) const ASCII: Self = Self {
        kind: Kind::Other,
        width: 1,
    };

    /// The same after a cluster of this many columns.
    pub(super) fn with_width(self, width: u8) -> Self {
        Self { width, ..self }
    }

    /// Whether any character joins, also a letter.
    pub(super) fn joins_all(self) -> bool {
        self.kind == Kind::Prepend
    }
}

/// What a character does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The state for the next character.
    pub(super) last: Last,
    /// The columns of the cluster that the character joins.
    pub(super) joined: Option<u8>,
}

impl Step {
    /// The step of `character`, which follows `before`.
    pub(super) fn after(before: Option<Last>, character: char) -> Self {
        let (kind, width) = properties(character);
        let Some(before) = before.filter(|before| before.kind.joins(kind)) else {
            let last = Last { kind, width };
            return Self { last, joined: None };
        };
        let last = if kind == Kind::RegionalIndicator {
            // Two of them are a flag. A third one begins another flag.
            Last {
                kind: Kind::Other,
                width: 2,
            }
        } else {
            let width = width.max(before.width);
            Last { kind, width }
        };
        Self {
            last,
            joined: Some(before.width),
        }
    }
}

/// The kind and the number of columns of a printable character.
fn properties(character: char) -> (Kind, u8) {
    let code = u32::from(character);
    match code {
        // The most frequent characters: Latin, Greek and Cyrillic letters, the lines of boxes, and ideographs.
        0..=0xa8 | 0xaf..=0x2ff | 0x370..=0x482 | 0x2500..=0x259f => (Kind::Other, 1),
        0x4e00..=0x9fff => (Kind::Other, 2),
        0xac00..=0xd7a3 if (code - 0xac00).is_multiple_of(28) => (Kind::HangulLv, 2),
        0xac00..=0xd7a3 => (Kind::HangulLvt, 2),
        _ => in_table(code),
    }
}

fn in_table(code: u32) -> (Kind, u8) {
    let at = RANGES.partition_point(|(_, last, ..)| *last < code);
    match RANGES.get(at) {
        Some((first, _, kind, width)) if *first <= code => (*kind, *width),
        _ => (Kind::Other, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The columns of each cluster of a text.
    fn widths(text: &str) -> Vec<u8> {
        let mut widths = Vec::new();
        let mut before = None;
        for character in text.chars() {
            let step = Step::after(before, character);
            if step.joined.is_some() {
                widths.pop();
            }
            widths.push(step.last.width);
            before = Some(step.last);
        }
        widths
    }

    #[test]
    fn the_shortcuts_agree_with_the_table() {
        let before = |range: &(u32, u32, Kind, u8)| range.1;
        assert!(RANGES.windows(2).all(|pair| before(&pair[0]) < pair[1].0));
        for code in (0..0xac00).chain(0xd7a4..0x11_0000) {
            if let Some(character) = char::from_u32(code) {
                assert_eq!(properties(character), in_table(code), "{code:x}");
            }
        }
    }

    #[test]
    fn clusters_have_the_width_of_the_terminal_page() {
        for (text, expected) in [
            ("aé漢─", &[1, 1, 2, 1][..]),
            ("e\u{301}\u{308}x", &[1, 1]),
            ("\u{301}", &[1]),
            ("👩\u{200d}👩\u{200d}👧!", &[2, 1]),
            ("👍🏽👍", &[2, 2]),
            ("🇩🇪🇫🇷🇮", &[2, 2, 1]),
            ("❤❤\u{fe0f}", &[1, 2]),
            ("1\u{fe0f}\u{20e3}1", &[2, 1]),
            ("한각가", &[2, 2, 2]),
            ("\u{1112}\u{1161}\u{11ab}", &[2]),
            ("क\u{94d}षि", &[1, 1]),
        ] {
            assert_eq!(widths(text), expected, "{text}");
        }
    }
}

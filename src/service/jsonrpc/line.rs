//! Lines from and to an agent.

use super::recover_id::{IdRecovery, RecoveredId};
use crate::service::lines::Line;

/// What a line of the agent contains.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::service) enum MessageLine<'a> {
    /// An empty line, or part of a line that is too long.
    Nothing,
    Text(&'a str),
    /// A message that cannot be passed on: its id if one was found, and the reason.
    Unreadable(Option<RecoveredId>, &'static str),
}

/// Decodes an agent's lines as UTF-8 and recovers the ids of lines that are too long.
#[derive(Debug, Default)]
pub(in crate::service) struct LineDecoder {
    /// The id of the long line that is being skipped.
    skipped: Option<IdRecovery>,
}

impl LineDecoder {
    /// Decodes a line. Logs a warning if it cannot be a message.
    pub(in crate::service) fn decode<'a>(&mut self, line: Line<'a>) -> MessageLine<'a> {
        match line {
            Line::Whole(bytes) if bytes.trim_ascii().is_empty() => MessageLine::Nothing,
            Line::Whole(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => MessageLine::Text(text),
                Err(_) => {
                    let start = start_of(bytes);
                    log::warn!("skipped a line of the agent that is not UTF-8: {start:?}");
                    MessageLine::Unreadable(IdRecovery::of(bytes), "is not UTF-8")
                }
            },
            Line::TooLong(bytes) => {
                let start = start_of(bytes);
                log::warn!("skipped a line of the agent over the message limit: {start:?}");
                self.skipped = Some(IdRecovery::default());
                MessageLine::Nothing
            }
            Line::Skipped(bytes) => {
                if let Some(skipped) = &mut self.skipped {
                    skipped.push(bytes);
                }
                MessageLine::Nothing
            }
            Line::Broken(error) => {
                log::warn!("cannot read the agent's output any further: {error}");
                MessageLine::Nothing
            }
            Line::SkippedEnd => {
                let recovered = self.skipped.take().and_then(IdRecovery::finish);
                MessageLine::Unreadable(recovered, "is over the message limit (max_message)")
            }
        }
    }
}

/// The start of a line, for the log.
pub(in crate::service) fn start_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).into_owned()
}

/// Appends a message as one line. Line feeds, which JSON allows only as white space between tokens, become spaces, so
/// that one message cannot become two. U+2028 and U+2029, which some readers treat as line ends, can occur only in
/// strings and become escapes.
pub(in crate::service) fn push_line(lines: &mut Vec<u8>, parts: &[&str]) {
    let start = lines.len();
    for part in parts {
        // Both characters start with the same byte. A search for one byte is much faster.
        if part.as_bytes().contains(&0xe2) && part.contains(['\u{2028}', '\u{2029}']) {
            let escaped = part
                .replace('\u{2028}', "\\u2028")
                .replace('\u{2029}', "\\u2029");
            lines.extend_from_slice(escaped.as_bytes());
        } else {
            lines.extend_from_slice(part.as_bytes());
        }
    }
    for byte in &mut lines[start..] {
        // The unconditional write lets the compiler vectorize the loop.
        *byte = if matches!(byte, b'\n' | b'\r') {
            b' '
        } else {
            *byte
        };
    }
    lines.push(b'\n');
}

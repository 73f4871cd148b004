//! What an attached client says in text: control messages.

use serde_json::Value;

use crate::sys::TerminalSize;

/// The longest control message that is looked at.
const LONGEST: usize = 1024;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// The terminal has this size now.
    Resize(TerminalSize),
}

/// Reads a control message; `None` for anything else.
pub(crate) fn parse(text: &str) -> Option<Control> {
    if text.len() > LONGEST {
        return None;
    }
    let message: Value = serde_json::from_str(text).ok()?;
    match message.get("type")?.as_str()? {
        "resize" => Some(Control::Resize(TerminalSize {
            rows: dimension(message.get("rows")?)?,
            cols: dimension(message.get("cols")?)?,
        })),
        _ => None,
    }
}

/// A number of lines or columns: 1 to 65535.
pub(crate) fn dimension(value: &Value) -> Option<u16> {
    value
        .as_u64()
        .and_then(|number| u16::try_from(number).ok())
        .filter(|number| *number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resize_is_taken_and_nothing_else() {
        assert_eq!(
            parse(r#"{"type":"resize","rows":1,"cols":65535}"#),
            Some(Control::Resize(TerminalSize {
                rows: 1,
                cols: 65535
            }))
        );
        for bad in [
            "",
            "resize",
            "[]",
            r#"{"type":"resize"}"#,
            r#"{"type":"resize","rows":0,"cols":80}"#,
            r#"{"type":"resize","rows":24,"cols":65536}"#,
            r#"{"type":"resize","rows":-1,"cols":80}"#,
            r#"{"type":"resize","rows":24.5,"cols":80}"#,
            r#"{"type":"resize","rows":"24","cols":80}"#,
            r#"{"type":"other","rows":24,"cols":80}"#,
            r#"{"type":1}"#,
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let padded = format!(
            r#"{{"type":"resize","rows":24,"cols":80{}}}"#,
            " ".repeat(LONGEST)
        );
        assert_eq!(parse(&padded), None, "too long");
    }
}

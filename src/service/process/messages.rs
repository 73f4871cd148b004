//! The text messages of the attach protocol, for client authors.
//!
//! A client of [`Terminal`](super::Terminal), or one that attaches to a process of [`Processes`](super::Processes),
//! sends the program's input as binary messages and receives its output as binary messages. Text messages are JSON: a
//! client sends a [`Control`], and the server sends an [`AttachEvent`]. Both sides ignore text that they do not know.
//!
//! A client that attaches first gets its [role](AttachEvent::Role), the [size](AttachEvent::Size) of the terminal and, for a
//! process, who else is attached ([`AttachEvent::Clients`]). Output follows.
//!
//! A process without a terminal has no size. Binary messages from the server are its standard output, and its standard error
//! comes as [`AttachEvent::Stderr`]. [`Control::Eof`] ends its input.
//!
//! There are two other dialects. With `?input=text` in the URL, all messages of the client are input, and the server sends
//! no events: it closes the connection with 4300 plus the exit code. With the subprotocol `tty`, clients of ttyd can attach.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::sys::TerminalSize;
use crate::text::without_mark;

/// The maximum length of a text message that is parsed.
const MAX_CONTROL: usize = 1024;

/// A text message from a client to the server.
///
/// ```
/// use outrigger::service::process::{Control, TerminalSize};
///
/// let resize = Control::Resize(TerminalSize { rows: 24, cols: 80 });
/// assert_eq!(resize.to_json(), r#"{"type":"resize","rows":24,"cols":80}"#);
/// assert_eq!(Control::parse(&resize.to_json()), Some(resize));
/// assert_eq!(Control::parse("hello"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Control {
    /// The terminal has a new size: `{"type":"resize","rows":24,"cols":80}`.
    Resize(TerminalSize),
    /// There is no more input: `{"type":"eof"}`. A terminal ignores it.
    Eof,
}

impl Control {
    /// Parses a message. Returns `None` if it is not a control message, or is longer than 1024 bytes.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_CONTROL {
            return None;
        }
        let message: Value = serde_json::from_str(without_mark(text)).ok()?;
        match message.get("type")?.as_str()? {
            "resize" => Some(Self::Resize(size(&message)?)),
            "eof" => Some(Self::Eof),
            _ => None,
        }
    }

    /// The message as JSON.
    pub fn to_json(self) -> String {
        match self {
            Self::Resize(TerminalSize { rows, cols }) => {
                format!(r#"{{"type":"resize","rows":{rows},"cols":{cols}}}"#)
            }
            Self::Eof => r#"{"type":"eof"}"#.to_owned(),
        }
    }
}

/// What an attached client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachRole {
    /// Its input goes to the program, and it sets the size of the terminal.
    Writer,
    /// It watches. Its input is ignored.
    Viewer,
}

impl AttachRole {
    /// The name in messages.
    fn name(self) -> &'static str {
        match self {
            Self::Writer => "writer",
            Self::Viewer => "viewer",
        }
    }
}

/// A text message from the server to an attached client.
///
/// ```
/// use outrigger::service::process::AttachEvent;
///
/// let event = AttachEvent::parse(r#"{"type":"exit","exitCode":143,"signal":"SIGTERM"}"#);
/// assert_eq!(event, Some(AttachEvent::Exit { code: 143, signal: Some("SIGTERM".into()) }));
///
/// let exit = AttachEvent::Exit { code: 0, signal: None };
/// assert_eq!(exit.to_json(), r#"{"type":"exit","exitCode":0}"#);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachEvent {
    /// The role of the client: `{"type":"role","role":"viewer"}`. It is the first message, or the second after [`AttachEvent::Process`].
    Role(AttachRole),
    /// The id of the process, for a client that has attached to a name: `{"type":"process","process_id":"..."}`. It comes before the
    /// role. A client that comes back attaches to the id, because another process may have the name by then.
    Process(String),
    /// The size of the terminal: `{"type":"size","rows":24,"cols":80}`. It follows the role, and is sent again whenever the
    /// size has changed.
    Size(TerminalSize),
    /// Who is attached to a process: `{"type":"clients","writer":"ada","viewers":2}`. It follows the size, and is sent again
    /// when it has changed, at most once a second. A [`Terminal`](super::Terminal) does not send it.
    Clients {
        /// The name of the principal whose input goes to the program. `None` if there is no writer.
        writer: Option<String>,
        /// The number of clients that watch.
        viewers: usize,
    },
    /// The screen, for a client with `?replay=screen`: `{"type":"screen","offset":1234,"data":"..."}`. Output from the offset on
    /// follows.
    Screen {
        /// The offset of the output that follows.
        offset: u64,
        /// The output that rebuilds the screen on any terminal.
        data: String,
    },
    /// Bytes from the standard error of a process without a terminal: `{"type":"stderr","data_b64":"..."}`. With
    /// `?stderr=merge` they come as output instead.
    Stderr(Vec<u8>),
    /// The program has exited, and all its output has been sent. CLOSE 1000 follows.
    Exit {
        /// The exit code, or 128 plus the number of the signal that killed the program. 255 if it is unknown.
        code: i32,
        /// The name of the signal that killed the program.
        signal: Option<String>,
    },
    /// The output between two offsets was dropped and cannot be sent.
    Gap {
        /// The offset of the first missing byte.
        from: u64,
        /// The offset of the first byte after the gap.
        to: u64,
    },
    /// The program could not be started. CLOSE 1011 follows.
    Error {
        /// The reason.
        message: String,
    },
}

impl AttachEvent {
    /// Parses a message. Returns `None` if it is not one of these.
    pub fn parse(text: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(text).ok()?;
        let text = |name| Some(message.get(name)?.as_str()?.to_owned());
        let offset = |name| message.get(name)?.as_u64();
        match message.get("type")?.as_str()? {
            "role" => match message.get("role")?.as_str()? {
                "writer" => Some(Self::Role(AttachRole::Writer)),
                "viewer" => Some(Self::Role(AttachRole::Viewer)),
                _ => None,
            },
            "process" => Some(Self::Process(text("process_id")?)),
            "size" => Some(Self::Size(size(&message)?)),
            "clients" => Some(Self::Clients {
                writer: match message.get("writer")? {
                    Value::Null => None,
                    writer => Some(writer.as_str()?.to_owned()),
                },
                viewers: usize::try_from(offset("viewers")?).ok()?,
            }),
            "screen" => Some(Self::Screen {
                offset: offset("offset")?,
                data: text("data")?,
            }),
            "stderr" => Some(Self::Stderr(
                BASE64_STANDARD.decode(text("data_b64")?).ok()?,
            )),
            "exit" => Some(Self::Exit {
                code: i32::try_from(message.get("exitCode")?.as_i64()?).ok()?,
                signal: text("signal"),
            }),
            "gap" => Some(Self::Gap {
                from: offset("from")?,
                to: offset("to")?,
            }),
            "error" => Some(Self::Error {
                message: text("message")?,
            }),
            _ => None,
        }
    }

    /// The message as JSON.
    pub fn to_json(&self) -> String {
        match self {
            Self::Role(role) => format!(r#"{{"type":"role","role":"{}"}}"#, role.name()),
            Self::Process(id) => json!({"type": "process", "process_id": id}).to_string(),
            Self::Size(TerminalSize { rows, cols }) => {
                format!(r#"{{"type":"size","rows":{rows},"cols":{cols}}}"#)
            }
            Self::Clients { writer, viewers } => {
                let writer = Value::from(writer.as_deref());
                format!(r#"{{"type":"clients","writer":{writer},"viewers":{viewers}}}"#)
            }
            Self::Screen { offset, data } => {
                let data = Value::from(data.as_str());
                format!(r#"{{"type":"screen","offset":{offset},"data":{data}}}"#)
            }
            Self::Stderr(bytes) => {
                let data = BASE64_STANDARD.encode(bytes);
                format!(r#"{{"type":"stderr","data_b64":"{data}"}}"#)
            }
            Self::Exit { code, signal: None } => format!(r#"{{"type":"exit","exitCode":{code}}}"#),
            Self::Exit {
                code,
                signal: Some(signal),
            } => {
                let signal = Value::from(signal.as_str());
                format!(r#"{{"type":"exit","exitCode":{code},"signal":{signal}}}"#)
            }
            Self::Gap { from, to } => format!(r#"{{"type":"gap","from":{from},"to":{to}}}"#),
            Self::Error { message } => json!({"type": "error", "message": message}).to_string(),
        }
    }
}

/// The size in a message with `rows` and `cols`.
fn size(message: &Value) -> Option<TerminalSize> {
    let read = |name| dimension_of(message, name);
    Some(TerminalSize {
        rows: read("rows")?,
        cols: read("cols")?,
    })
}

/// The rows or columns in a message.
fn dimension_of(message: &Value, name: &str) -> Option<u16> {
    dimension(message.get(name)?.as_f64()?)
}

/// The rows and columns of a resize that is out of range, for the log.
pub(super) fn out_of_range(text: &str) -> Option<(f64, f64)> {
    if text.len() > MAX_CONTROL {
        return None;
    }
    let message: Value = serde_json::from_str(text).ok()?;
    let is_whole = |number: &f64| number.fract() == 0.0;
    let read = |name| message.get(name)?.as_f64().filter(is_whole);
    (message.get("type")? == "resize").then_some((read("rows")?, read("cols")?))
}

/// The first field that makes a JSON object with a `type` no control message, and what it is, for the log. Its value is not shown,
/// because it may be typed input.
pub(super) fn wrong_field(text: &str) -> Option<(&'static str, &'static str)> {
    if text.len() > MAX_CONTROL {
        return None;
    }
    let message: Value = serde_json::from_str(text).ok()?;
    let name = if message.get("type")? == "resize" {
        let is_wrong = |name: &&str| dimension_of(&message, name).is_none();
        ["rows", "cols"].into_iter().find(is_wrong)?
    } else {
        "type"
    };
    let found = match message.get(name) {
        None => "missing",
        Some(Value::Number(number))
            if number.as_f64().is_some_and(|number| number.fract() != 0.0) =>
        {
            "a fraction"
        }
        Some(Value::Number(_)) => "out of range",
        Some(Value::String(_)) => "a string",
        Some(_) => "of another type",
    };
    Some((name, found))
}

/// The number of rows or columns of a terminal: 1 to 65535. Some languages write 30 as 30.0.
pub(super) fn dimension(number: f64) -> Option<u16> {
    let is_whole = number.fract() == 0.0 && (1.0..=65535.0).contains(&number);
    is_whole.then_some(number as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_complete_resize_is_a_control_message() {
        assert_eq!(
            Control::parse(r#"{"type":"resize","rows":1,"cols":65535}"#),
            Some(Control::Resize(TerminalSize {
                rows: 1,
                cols: 65535
            }))
        );
        // The bug: 30.0, as many languages write 30, was ignored.
        let size = TerminalSize { rows: 30, cols: 80 };
        for text in [
            r#"{"type":"resize","rows":30.0,"cols":8e1}"#,
            "\u{feff}{\"type\":\"resize\",\"rows\":30,\"cols\":80}",
        ] {
            assert_eq!(Control::parse(text), Some(Control::Resize(size)), "{text}");
        }
        for bad in [
            "",
            "resize",
            "[]",
            r#"{"type":"resize"}"#,
            r#"{"type":"resize","rows":0,"cols":80}"#,
            r#"{"type":"resize","rows":24,"cols":65536}"#,
            r#"{"type":"resize","rows":-1,"cols":80}"#,
            r#"{"type":"resize","rows":24.5,"cols":80}"#,
            r#"{"type":"resize","rows":24,"cols":1e300}"#,
            r#"{"type":"resize","rows":"24","cols":80}"#,
            r#"{"type":"other","rows":24,"cols":80}"#,
            r#"{"type":1}"#,
        ] {
            assert_eq!(Control::parse(bad), None, "{bad}");
        }
        let padded = format!(
            r#"{{"type":"resize","rows":24,"cols":80{}}}"#,
            " ".repeat(MAX_CONTROL)
        );
        assert_eq!(Control::parse(&padded), None, "too long");
    }

    #[test]
    fn each_event_is_parsed_from_its_own_json() {
        let signal = Some("SIGKILL".to_owned());
        let clients = |writer: Option<&str>, viewers| AttachEvent::Clients {
            writer: writer.map(str::to_owned),
            viewers,
        };
        for (event, json) in [
            (
                AttachEvent::Role(AttachRole::Writer),
                r#"{"type":"role","role":"writer"}"#,
            ),
            (
                AttachEvent::Role(AttachRole::Viewer),
                r#"{"type":"role","role":"viewer"}"#,
            ),
            (
                AttachEvent::Size(TerminalSize {
                    rows: 1,
                    cols: 65535,
                }),
                r#"{"type":"size","rows":1,"cols":65535}"#,
            ),
            (
                clients(Some("a \"b\""), 1000),
                r#"{"type":"clients","writer":"a \"b\"","viewers":1000}"#,
            ),
            (
                clients(None, 0),
                r#"{"type":"clients","writer":null,"viewers":0}"#,
            ),
            (
                AttachEvent::Exit { code: 137, signal },
                r#"{"type":"exit","exitCode":137,"signal":"SIGKILL"}"#,
            ),
            (
                AttachEvent::Gap { from: 7, to: 9 },
                r#"{"type":"gap","from":7,"to":9}"#,
            ),
            (
                AttachEvent::Error {
                    message: "no \"x\"".to_owned(),
                },
                r#"{"message":"no \"x\"","type":"error"}"#,
            ),
        ] {
            assert_eq!(event.to_json(), json);
            assert_eq!(AttachEvent::parse(json), Some(event));
        }
        for bad in [
            "",
            "[]",
            r#"{"type":"exit"}"#,
            r#"{"type":"gap","from":1}"#,
            r#"{"type":"role","role":"owner"}"#,
            r#"{"type":"size","rows":0,"cols":80}"#,
            r#"{"type":"clients","viewers":1}"#,
            r#"{"type":"clients","writer":1,"viewers":1}"#,
        ] {
            assert_eq!(AttachEvent::parse(bad), None, "{bad}");
        }
    }
}

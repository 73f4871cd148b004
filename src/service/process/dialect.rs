//! The dialects of the attach protocol: selects the dialect of a client, and reads the client's messages.
//!
//! [`ContextOutput`](super::sink::ContextOutput) writes the server's messages. Nothing else depends on the dialect.

use std::{fmt, io};

use serde_json::Value;

use super::event_stream::Details;
use super::fields::bad_request;
use super::messages::{Control, dimension, out_of_range, wrong_field};
use crate::log_event::{log_event, word};
use crate::record::record;
use crate::sys::TerminalSize;
use crate::{Accept, ClientId, Message, Rejection, Request};

/// The subprotocol of ttyd's page and clients.
const TTY: &str = "tty";

/// The subprotocol of clients of Outrigger, which does not change the messages.
const OUTRIGGER: &str = "outrigger";

/// The maximum length of a `tty` message with a size. A client's first message may carry a token, too.
const MAX_TTY_CONTROL: usize = 8 << 10;

/// Why a resize is rejected.
const OUT_OF_RANGE: &str = "rows and cols must be whole numbers from 1 to 65535";

/// How the messages between the server and a reader are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Binary messages are input and output, and text messages are JSON. This is the default.
    Json,
    /// The same, but standard error comes as output: `?stderr=merge`.
    Merged,
    /// The same, but of the server's text messages, only the exit: clients of kernel-images know no other.
    KernelImages,
    /// All messages of the client are input, and the server sends output alone: `?input=text`.
    Text,
    /// The first byte of each message is a command: ttyd's subprotocol `tty`.
    Tty,
    /// Server-sent events, which are the answer to a call.
    EventStream(Details),
}

record!(
    enum Dialect {
        Json,
        Merged,
        KernelImages,
        Text,
        Tty,
        EventStream(details),
    }
);

/// A message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientMessage<'m> {
    Input(&'m [u8]),
    Resize(TerminalSize),
    /// There is no more input.
    EndOfInput,
    /// Stops the output to this client.
    Pause,
    /// Continues the output to this client.
    Resume,
    /// The greeting of a `tty` client that gives no size.
    Greeting,
}

/// A message that is ignored, by its length. Its content is not kept, because it may be typed input such as a password.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Ignored {
    /// Text that is not a control message.
    Text(usize),
    /// A `tty` message whose command is unknown.
    Command(usize),
    /// A `tty` message whose size is missing or invalid.
    Size(usize),
    /// A control message with a field that is wrong.
    Field((&'static str, &'static str)),
    /// A resize whose dimensions are out of range.
    Resize { rows: f64, cols: f64 },
}

impl Dialect {
    /// Selects the dialect of a WebSocket client: `tty` if the client offers it and does not prefer `outrigger`, otherwise
    /// that of the parameter `input`.
    pub(crate) fn of(request: &Request<'_>) -> Result<Self, Rejection> {
        let is_text = match request.parameters("input").last().as_deref() {
            None | Some("binary") => false,
            Some("text") => true,
            Some(_) => return Err(bad_request("'input' is not text or binary")),
        };
        let is_merged = match request.parameters("stderr").last().as_deref() {
            None | Some("separate") => false,
            Some("merge") => true,
            Some(_) => return Err(bad_request("'stderr' is not merge or separate")),
        };
        let known = request
            .list("sec-websocket-protocol")
            .find(|offered| [TTY, OUTRIGGER].contains(offered));
        match (known, is_text) {
            (Some(TTY), true) => Err(bad_request(
                "'input' is text, but the subprotocol is 'tty': they exclude each other",
            )),
            (Some(TTY), false) => Ok(Self::Tty),
            (_, true) => Ok(Self::Text),
            (_, false) if is_merged => Ok(Self::Merged),
            (_, false) => Ok(Self::Json),
        }
    }

    /// The dialect of a client that may be one of kernel-images: it asks for nothing that only Outrigger has.
    pub(crate) fn of_compatible(request: &Request<'_>) -> Result<Self, Rejection> {
        let dialect = Self::of(request)?;
        let mut pairs = request
            .query()
            .into_iter()
            .flat_map(|query| query.split('&'));
        let asks = pairs.any(|pair| !pair.is_empty() && !pair.starts_with("token="))
            || request.header("outrigger-resume").is_some()
            || request
                .list("sec-websocket-protocol")
                .any(|name| name == OUTRIGGER);
        Ok(match dialect {
            Self::Json if !asks => Self::KernelImages,
            other => other,
        })
    }

    /// Accepts the handshake of a client.
    pub(crate) fn accept(self) -> Accept {
        match self {
            Self::Tty => Accept::default().protocol(TTY),
            Self::Json | Self::Merged | Self::KernelImages | Self::Text | Self::EventStream(_) => {
                Accept::default()
            }
        }
    }

    /// Reads a message of a client.
    pub(crate) fn read<'m>(self, message: Message<'m>) -> Result<ClientMessage<'m>, Ignored> {
        match (self, message) {
            (Self::Tty, Message::Text(text)) => read_tty(text.as_bytes()),
            (Self::Tty, Message::Binary(bytes)) => read_tty(bytes),
            (_, Message::Binary(bytes)) => Ok(ClientMessage::Input(bytes)),
            (Self::Text, Message::Text(text)) => Ok(ClientMessage::Input(text.as_bytes())),
            (
                Self::Json | Self::Merged | Self::KernelImages | Self::EventStream(_),
                Message::Text(text),
            ) => match Control::parse(text) {
                Some(Control::Eof) => Ok(ClientMessage::EndOfInput),
                Some(Control::Resize(size)) => Ok(ClientMessage::Resize(size)),
                None => Err(match out_of_range(text) {
                    Some((rows, cols)) => Ignored::Resize { rows, cols },
                    None => wrong_field(text).map_or(Ignored::Text(text.len()), Ignored::Field),
                }),
            },
        }
    }
}

/// Reads a message of a `tty` client.
fn read_tty(message: &[u8]) -> Result<ClientMessage<'_>, Ignored> {
    let ignored = Ignored::Size(message.len());
    match message {
        [b'0', input @ ..] => Ok(ClientMessage::Input(input)),
        [b'1', size @ ..] => read_tty_size(size)
            .and_then(|size| size.ok_or(()))
            .map(ClientMessage::Resize)
            .map_err(|()| ignored),
        [b'2', ..] => Ok(ClientMessage::Pause),
        [b'3', ..] => Ok(ClientMessage::Resume),
        [b'{', ..] => read_tty_size(message)
            .map(|size| size.map_or(ClientMessage::Greeting, ClientMessage::Resize))
            .map_err(|()| ignored),
        _ => Err(Ignored::Command(message.len())),
    }
}

/// Reads `{"columns":80,"rows":24}`, with any other fields. Returns `Ok(None)` if it has neither of the two.
fn read_tty_size(json: &[u8]) -> Result<Option<TerminalSize>, ()> {
    if json.len() > MAX_TTY_CONTROL {
        return Err(());
    }
    let fields: Value = serde_json::from_slice(json).map_err(|_| ())?;
    let fields = fields.as_object().ok_or(())?;
    let (Some(cols), Some(rows)) = (fields.get("columns"), fields.get("rows")) else {
        let has_one = fields.contains_key("columns") || fields.contains_key("rows");
        return if has_one { Err(()) } else { Ok(None) };
    };
    let read = |value: &Value| value.as_f64().and_then(dimension).ok_or(());
    Ok(Some(TerminalSize {
        rows: read(rows)?,
        cols: read(cols)?,
    }))
}

impl Ignored {
    /// Logs that the message was ignored.
    pub(crate) fn log(self, client: ClientId) {
        match self {
            Self::Text(_) | Self::Command(_) => log::warn!("{client} sent {self}: ignored"),
            Self::Size(_) => log::debug!("{client} sent {self}: ignored"),
            Self::Field((field, found)) => {
                log_event!(
                    Warn,
                    client = client,
                    "control message rejected",
                    field = field,
                    found = found,
                    expected = expected(field),
                );
            }
            Self::Resize { rows, cols } => {
                log_event!(
                    Warn,
                    client = client,
                    "resize rejected",
                    rows = word(&rows),
                    cols = word(&cols),
                    reason = OUT_OF_RANGE,
                );
            }
        }
    }
}

/// What a field of a control message must be.
fn expected(field: &str) -> &'static str {
    match field {
        "type" => "\"resize\" or \"eof\"",
        _ => "a whole number from 1 to 65535",
    }
}

/// Logs that the size of a client's terminal cannot be set.
pub(super) fn log_failed_resize(client: ClientId, size: TerminalSize, error: &io::Error) {
    let reason = error.to_string();
    log_event!(
        Warn,
        client = client,
        "resize rejected",
        rows = size.rows,
        cols = size.cols,
        reason = reason.as_str(),
    );
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(length) => write!(
                f,
                "a text message of {length} bytes that is not a control message"
            ),
            Self::Command(length) => write!(
                f,
                "a message of {length} bytes that has no command of the subprotocol 'tty'"
            ),
            Self::Size(length) => write!(
                f,
                "a message of {length} bytes that has no valid size of a terminal"
            ),
            Self::Field((field, found)) => {
                let expected = expected(field);
                write!(
                    f,
                    "a control message whose {field:?} is {found}: expected {expected}"
                )
            }
            Self::Resize { rows, cols } => {
                write!(
                    f,
                    "a resize to {rows} rows and {cols} columns: {OUT_OF_RANGE}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(target: &str, protocols: &str) -> Result<Dialect, String> {
        let head = format!(
            "GET {target} HTTP/1.1\r\nHost: h\r\nSec-WebSocket-Protocol: {protocols}\r\n\r\n"
        );
        let request = Request::parse(head.as_bytes()).expect("valid");
        Dialect::of(&request).map_err(|rejection| rejection.message.into_owned())
    }

    #[test]
    fn the_first_known_subprotocol_and_the_query_select_the_dialect() {
        for (target, protocols, dialect) in [
            ("/", "", Dialect::Json),
            ("/?input=binary", "x", Dialect::Json),
            ("/?input=text", "", Dialect::Text),
            ("/?input=binary&input=text", "", Dialect::Text),
            ("/", "tty", Dialect::Tty),
            ("/?input=binary", "x, tty, outrigger", Dialect::Tty),
            ("/", "tty, outrigger.token.T", Dialect::Tty),
            ("/", "outrigger, tty", Dialect::Json),
            ("/?input=text", "outrigger, tty", Dialect::Text),
            ("/", "TTY", Dialect::Json),
        ] {
            assert_eq!(of(target, protocols), Ok(dialect), "{target} {protocols}");
        }
        for value in ["", "Text", "json", "1"] {
            let why = of(&format!("/?input={value}"), "").expect_err(value);
            assert_eq!(why, "'input' is not text or binary");
        }
        assert!(of("/?input=text", "tty").is_err());
    }

    #[test]
    fn a_client_that_asks_for_nothing_of_outrigger_may_be_one_of_kernel_images() {
        let of = |target: &str, fields: &str| {
            let head = format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
            let request = Request::parse(head.as_bytes()).expect("valid");
            Dialect::of_compatible(&request).expect("valid")
        };
        for target in ["/", "/?", "/?token=x"] {
            assert_eq!(of(target, ""), Dialect::KernelImages);
            assert_eq!(of(target, "Outrigger-Resume: new\r\n"), Dialect::Json);
            let ours = "Sec-WebSocket-Protocol: outrigger\r\n";
            assert_eq!(of(target, ours), Dialect::Json);
        }
        assert_eq!(of("/?mode=writer", ""), Dialect::Json);
        assert_eq!(of("/?input=text", ""), Dialect::Text);
    }

    #[test]
    fn text_is_input_only_for_clients_that_ask_for_it() {
        let resize = r#"{"type":"resize","rows":2,"cols":3}"#;
        let size = TerminalSize { rows: 2, cols: 3 };
        let read = |dialect: Dialect, text| dialect.read(Message::Text(text));
        assert_eq!(read(Dialect::Json, resize), Ok(ClientMessage::Resize(size)));
        assert_eq!(read(Dialect::Json, "ls"), Err(Ignored::Text(2)));
        // The bug: all of these were logged as no control message.
        for (text, field, wrong) in [
            (r#"{"type":"resize","cols":80}"#, "rows", "missing"),
            (r#"{"type":"resize","rows":24}"#, "cols", "missing"),
            (
                r#"{"type":"resize","rows":"24","cols":80}"#,
                "rows",
                "a string",
            ),
            (
                r#"{"type":"resize","rows":30.5,"cols":80}"#,
                "rows",
                "a fraction",
            ),
            (
                r#"{"type":"resize","rows":30,"cols":null}"#,
                "cols",
                "of another type",
            ),
            (r#"{"type":"redraw"}"#, "type", "a string"),
        ] {
            let ignored = Ignored::Field((field, wrong));
            assert_eq!(read(Dialect::Json, text), Err(ignored), "{text}");
        }
        let fraction = Ignored::Field(("rows", "a fraction"));
        assert_eq!(
            fraction.to_string(),
            "a control message whose \"rows\" is a fraction: expected a whole number from 1 to 65535"
        );
        let wrong = r#"{"type":"resize","rows":-1,"cols":70000}"#;
        let (rows, cols) = (-1.0, 70_000.0);
        assert_eq!(
            read(Dialect::Json, wrong),
            Err(Ignored::Resize { rows, cols })
        );
        for text in [resize, "ls", ""] {
            let input = Ok(ClientMessage::Input(text.as_bytes()));
            assert_eq!(read(Dialect::Text, text), input);
        }
        for dialect in [Dialect::Json, Dialect::Text] {
            let input = Ok(ClientMessage::Input(b"\xff0"));
            assert_eq!(dialect.read(Message::Binary(b"\xff0")), input);
        }
    }

    #[test]
    fn messages_of_ttyd_clients_are_commands() {
        let size = |rows, cols| Ok(ClientMessage::Resize(TerminalSize { rows, cols }));
        let token = format!(
            r#"{{"AuthToken":"{}","columns":4,"rows":3}}"#,
            "x".repeat(3000)
        );
        let too_long = format!(r#"{{"AuthToken":"{}"}}"#, "x".repeat(MAX_TTY_CONTROL));
        let bad_size = |text: &str| Err(Ignored::Size(text.len()));
        for (text, read) in [
            ("0ls\n", Ok(ClientMessage::Input(b"ls\n"))),
            ("0", Ok(ClientMessage::Input(b""))),
            (r#"1{"columns":80,"rows":24}"#, size(24, 80)),
            ("2", Ok(ClientMessage::Pause)),
            ("3", Ok(ClientMessage::Resume)),
            (
                r#"{"AuthToken":"","columns":65535,"rows":1}"#,
                size(1, 65535),
            ),
            (&token, size(3, 4)),
            (r#"{"AuthToken":"T"}"#, Ok(ClientMessage::Greeting)),
            ("{}", Ok(ClientMessage::Greeting)),
            ("", Err(Ignored::Command(0))),
            ("4", Err(Ignored::Command(1))),
            ("ls\n", Err(Ignored::Command(3))),
            ("1", bad_size("1")),
            ("1{}", bad_size("1{}")),
            (r#"1{"columns":80}"#, bad_size(r#"1{"columns":80}"#)),
            (
                r#"1{"columns":0,"rows":24}"#,
                bad_size(r#"1{"columns":0,"rows":24}"#),
            ),
            (
                r#"{"columns":80,"rows":65536}"#,
                bad_size(r#"{"columns":80,"rows":65536}"#),
            ),
            (
                r#"{"columns":"80","rows":24}"#,
                bad_size(r#"{"columns":"80","rows":24}"#),
            ),
            ("{", bad_size("{")),
            (&too_long, bad_size(&too_long)),
        ] {
            assert_eq!(Dialect::Tty.read(Message::Text(text)), read, "{text}");
            let binary = Dialect::Tty.read(Message::Binary(text.as_bytes()));
            assert_eq!(binary, read, "{text}");
        }
    }

    #[test]
    fn what_was_typed_is_not_logged() {
        for ignored in [
            Dialect::Json.read(Message::Text("secret")),
            Dialect::Tty.read(Message::Binary(b"secret")),
            Dialect::Tty.read(Message::Text(r#"{"AuthToken":"secret","rows":0}"#)),
        ] {
            let ignored = ignored.expect_err("ignored");
            assert!(!format!("{ignored} {ignored:?}").contains("secret"));
        }
    }
}

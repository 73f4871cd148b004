//! Commands, a line of JSON each.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value};

use crate::{ClientId, CloseCode, OwnedMessage};

/// The most bytes of a close reason: what a control frame holds beside the code.
const MAX_REASON: usize = 123;

/// A close reason of at most [`MAX_REASON`] bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Text(pub(super) String);

/// What a program can ask for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Send {
        client: ClientId,
        data: OwnedMessage,
    },
    Broadcast {
        data: OwnedMessage,
        except: Vec<ClientId>,
        path: Option<String>,
    },
    Close {
        client: ClientId,
        code: CloseCode,
        reason: Text,
    },
    Status {
        id: Value,
    },
    Shutdown,
}

type Fields = Map<String, Value>;

impl Command {
    /// Reads a line, or says what is wrong with it.
    pub(super) fn parse(line: &[u8]) -> Result<Self, String> {
        let value: Value =
            serde_json::from_slice(line).map_err(|error| format!("not JSON: {error}"))?;
        let Value::Object(mut fields) = value else {
            return Err("not a JSON object".to_owned());
        };
        let name = match fields.get("cmd") {
            Some(Value::String(name)) => name.clone(),
            Some(_) => return Err("\"cmd\" is not a string".to_owned()),
            None => return Err("\"cmd\" is missing".to_owned()),
        };
        Ok(match name.as_str() {
            "send" => Self::Send {
                client: client(&fields)?,
                data: data(&mut fields)?,
            },
            "broadcast" => Self::Broadcast {
                except: except(&fields)?,
                path: path(&fields)?,
                data: data(&mut fields)?,
            },
            "close" => Self::Close {
                client: client(&fields)?,
                code: code(&fields)?,
                reason: reason(&fields)?,
            },
            "status" => Self::Status {
                id: fields.remove("id").unwrap_or_default(),
            },
            "shutdown" => Self::Shutdown,
            other => return Err(format!("unknown command {}", shown(other))),
        })
    }
}

fn client(fields: &Fields) -> Result<ClientId, String> {
    match fields.get("client") {
        Some(Value::String(text)) => text
            .parse()
            .map_err(|_| format!("unknown client {}", shown(text))),
        Some(_) => Err("\"client\" is not a string".to_owned()),
        None => Err("\"client\" is missing".to_owned()),
    }
}

fn data(fields: &mut Fields) -> Result<OwnedMessage, String> {
    match (fields.remove("text"), fields.remove("binary")) {
        (Some(Value::String(text)), None) => Ok(OwnedMessage::Text(text)),
        (None, Some(Value::String(text))) => BASE64_STANDARD
            .decode(text)
            .map(OwnedMessage::Binary)
            .map_err(|error| format!("\"binary\" is not base64: {error}")),
        (Some(_), Some(_)) => Err("both \"text\" and \"binary\"".to_owned()),
        (None, None) => Err("neither \"text\" nor \"binary\"".to_owned()),
        (Some(_), None) => Err("\"text\" is not a string".to_owned()),
        (None, Some(_)) => Err("\"binary\" is not a string".to_owned()),
    }
}

/// Clients that are left out. One that is gone by now is no error: it does not get the message either.
fn except(fields: &Fields) -> Result<Vec<ClientId>, String> {
    let wrong = || "\"except\" is not an array of client ids".to_owned();
    match fields.get("except") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(ids)) => ids
            .iter()
            .map(|id| id.as_str().and_then(|id| id.parse().ok()).ok_or_else(wrong))
            .collect(),
        Some(_) => Err(wrong()),
    }
}

fn path(fields: &Fields) -> Result<Option<String>, String> {
    match fields.get("path") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(path)) => Ok(Some(path.clone())),
        Some(_) => Err("\"path\" is not a string".to_owned()),
    }
}

fn code(fields: &Fields) -> Result<CloseCode, String> {
    let Some(value) = fields.get("code") else {
        return Ok(CloseCode::NORMAL);
    };
    value
        .as_u64()
        .and_then(|code| u16::try_from(code).ok())
        .map(CloseCode)
        .filter(|code| code.is_sendable())
        .ok_or_else(|| format!("{value} is not a close code that may be sent"))
}

fn reason(fields: &Fields) -> Result<Text, String> {
    match fields.get("reason") {
        None => Ok(Text(String::new())),
        Some(Value::String(reason)) if reason.len() <= MAX_REASON => Ok(Text(reason.clone())),
        Some(Value::String(_)) => Err(format!("\"reason\" is over {MAX_REASON} bytes")),
        Some(_) => Err("\"reason\" is not a string".to_owned()),
    }
}

/// A word of the program's own, quoted and cut.
fn shown(text: &str) -> String {
    let cut = &text[..text.floor_char_boundary(100)];
    format!("{cut:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_read() {
        let parse = |line: &str| Command::parse(line.as_bytes()).expect(line);
        let client = "c2.1".parse().expect("an id");
        assert_eq!(
            parse(r#"{"cmd":"send","client":"c2.1","text":"hi"}"#),
            Command::Send {
                client,
                data: OwnedMessage::Text("hi".into())
            }
        );
        assert_eq!(
            parse(r#"{"cmd":"send","client":"c2.1","binary":"AP8="}"#),
            Command::Send {
                client,
                data: OwnedMessage::Binary(vec![0, 255])
            }
        );
        assert_eq!(
            parse(r#"{"cmd":"broadcast","text":"","except":["c2.1"],"path":"/x"}"#),
            Command::Broadcast {
                data: OwnedMessage::Text(String::new()),
                except: vec![client],
                path: Some("/x".into())
            }
        );
        assert_eq!(
            parse(r#"{"cmd":"close","client":"c2.1"}"#),
            Command::Close {
                client,
                code: CloseCode::NORMAL,
                reason: Text(String::new())
            }
        );
        assert_eq!(
            parse(r#"{"cmd":"status","id":7}"#),
            Command::Status { id: 7.into() }
        );
        assert_eq!(parse(r#" {"cmd":"shutdown"} "#), Command::Shutdown);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (line, want) in [
            ("hello", "not JSON"),
            ("[1]", "not a JSON object"),
            ("{}", "\"cmd\" is missing"),
            (r#"{"cmd":7}"#, "\"cmd\" is not a string"),
            (r#"{"cmd":"dance"}"#, "unknown command \"dance\""),
            (r#"{"cmd":"send","text":"x"}"#, "\"client\" is missing"),
            (
                r#"{"cmd":"send","client":"bob","text":"x"}"#,
                "unknown client \"bob\"",
            ),
            (r#"{"cmd":"send","client":"c1"}"#, "neither"),
            (
                r#"{"cmd":"send","client":"c1","text":"a","binary":"AA=="}"#,
                "both",
            ),
            (
                r#"{"cmd":"send","client":"c1","text":null,"binary":"AA=="}"#,
                "both",
            ),
            (r#"{"cmd":"send","client":"c1","binary":"A"}"#, "not base64"),
            (
                r#"{"cmd":"broadcast","text":"a","except":"c1"}"#,
                "\"except\"",
            ),
            (r#"{"cmd":"broadcast","text":"a","path":1}"#, "\"path\""),
            (
                r#"{"cmd":"close","client":"c1","code":1006}"#,
                "1006 is not a close code",
            ),
            (
                r#"{"cmd":"close","client":"c1","code":"1000"}"#,
                "is not a close code",
            ),
            (
                "{\"cmd\":\"send\",\"client\":\"c1\",\"text\":\"\\ud800\"}",
                "not JSON",
            ),
        ] {
            let error = Command::parse(line.as_bytes()).expect_err(line);
            assert!(error.contains(want), "{line}: {error}");
        }
        let long = format!(
            r#"{{"cmd":"close","client":"c1","reason":"{}"}}"#,
            "x".repeat(124)
        );
        assert!(
            Command::parse(long.as_bytes())
                .expect_err("too long")
                .contains("over 123")
        );
        assert!(
            Command::parse(&[b'['; 100_000]).is_err(),
            "deep nesting is an error and no overflow"
        );
    }
}

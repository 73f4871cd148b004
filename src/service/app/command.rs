//! The commands that the program writes, as lines of JSON.

use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use crate::record::record;
use crate::service::json::{NotJson, Skimmer};
use crate::text::without_mark;
use crate::{ClientId, CloseCode, Keep, OwnedMessage};

/// The maximum length of a close reason in bytes. It must fit into a control frame together with the code.
const MAX_REASON: usize = 123;

/// A command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AppCommand {
    Send {
        client: ClientId,
        data: OwnedMessage,
    },
    Broadcast {
        data: OwnedMessage,
        except: Vec<ClientId>,
        path: Option<String>,
    },
    Subscribe {
        client: ClientId,
        topic: String,
        keep: Keep,
    },
    Unsubscribe {
        client: ClientId,
        topic: String,
    },
    Publish {
        topic: String,
        data: OwnedMessage,
        except: Vec<ClientId>,
    },
    Topics {
        /// JSON.
        id: String,
        of: TopicsOf,
    },
    Close {
        client: ClientId,
        code: CloseCode,
        /// At most [`MAX_REASON`] bytes.
        reason: String,
    },
    Status {
        /// JSON.
        id: String,
    },
    Shutdown,
}

/// The topics that a program asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TopicsOf {
    /// All topics, each with the number of its members.
    All,
    /// The topics of a client.
    Client(ClientId),
    /// The members of a topic.
    Members(String),
}

record!(
    enum TopicsOf {
        All,
        Client(client),
        Members(topic),
    }
);

/// The maximum number of fields of a command. Further fields are unknown ones.
const MAX_FIELDS: usize = 8;

/// The maximum length of the `id` of a status in bytes.
const MAX_ID: usize = 1024;

/// The fields of a command, with their values as JSON text. A line with many small values thus needs no more memory than
/// its bytes.
pub(crate) struct CommandFields<'a>(Vec<(Cow<'a, str>, &'a str)>);

impl<'a> CommandFields<'a> {
    /// Reads the fields of a line.
    pub(crate) fn read(line: &'a [u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(line).map_err(|error| format!("not UTF-8: {error}"))?;
        let text = without_mark(text);
        let mut skimmer = Skimmer::new(text);
        if skimmer.peek() != Some(b'{') {
            let json = skimmer.value().and_then(|_| skimmer.end());
            json.map_err(|NotJson| not_json(text))?;
            return Err("not a JSON object".to_owned());
        }
        let mut fields = Vec::new();
        let object = skimmer.object(|name, value| {
            if fields.len() <= MAX_FIELDS {
                fields.push((name, &text[value]));
            }
        });
        object
            .and_then(|()| skimmer.end())
            .map_err(|NotJson| not_json(text))?;
        Ok(Self(fields))
    }

    /// Removes and returns the value of a field.
    fn take(&mut self, name: &str) -> Result<Option<&'a str>, String> {
        let mut found = None;
        let mut twice = false;
        self.0.retain(|(key, value)| {
            let same = key == name;
            if same {
                twice |= found.replace(*value).is_some();
            }
            !same
        });
        if twice {
            return Err(format!("\"{name}\" occurs twice"));
        }
        Ok(found)
    }

    /// Removes and returns a field that is a string.
    fn take_text(&mut self, name: &str) -> Result<Option<String>, String> {
        self.take(name)?.map(|value| text(name, value)).transpose()
    }

    /// Checks that no field is left.
    fn end(self) -> Result<(), String> {
        match self.0.first() {
            Some((name, _)) => Err(format!("unknown field {}", shown(name))),
            None => Ok(()),
        }
    }
}

/// The error for text that is not JSON. Texts over 4 KiB get no details.
fn not_json(text: &str) -> String {
    let error = serde_json::from_str::<Value>(&text[..text.floor_char_boundary(4096)]);
    match error {
        Err(error) if text.len() <= 4096 => format!("not JSON: {error}"),
        _ => "not JSON".to_owned(),
    }
}

impl AppCommand {
    /// Parses a command.
    pub(crate) fn parse(mut fields: CommandFields<'_>) -> Result<Self, String> {
        let name = fields.take_text("cmd")?.ok_or("\"cmd\" is missing")?;
        let command = match name.as_str() {
            "send" => Self::Send {
                client: client(&mut fields)?,
                data: data(&mut fields)?,
            },
            "broadcast" => Self::Broadcast {
                except: except(&mut fields)?,
                path: match fields.take("path")? {
                    None | Some("null") => None,
                    Some(value) => Some(text("path", value)?),
                },
                data: data(&mut fields)?,
            },
            "subscribe" => Self::Subscribe {
                client: client(&mut fields)?,
                topic: topic(&mut fields)?,
                keep: keep(&mut fields)?,
            },
            "unsubscribe" => Self::Unsubscribe {
                client: client(&mut fields)?,
                topic: topic(&mut fields)?,
            },
            "publish" => Self::Publish {
                topic: topic(&mut fields)?,
                except: except(&mut fields)?,
                data: data(&mut fields)?,
            },
            "topics" => Self::Topics {
                id: id(&mut fields)?,
                of: topics_of(&mut fields)?,
            },
            "close" => Self::Close {
                client: client(&mut fields)?,
                code: code(&mut fields)?,
                reason: reason(&mut fields)?,
            },
            "status" => Self::Status {
                id: id(&mut fields)?,
            },
            "shutdown" => Self::Shutdown,
            other => return Err(format!("unknown command {}", shown(other))),
        };
        fields.end()?;
        Ok(command)
    }
}

/// Parses a string value.
fn text(name: &str, value: &str) -> Result<String, String> {
    serde_json::from_str(value).map_err(|_| format!("\"{name}\" is not a string"))
}

fn client(fields: &mut CommandFields<'_>) -> Result<ClientId, String> {
    let text = fields.take_text("client")?.ok_or("\"client\" is missing")?;
    parse_client(&text)
}

fn parse_client(text: &str) -> Result<ClientId, String> {
    text.parse()
        .map_err(|_| format!("unknown client {}", shown(text)))
}

/// The id that the answer repeats, as JSON.
fn id(fields: &mut CommandFields<'_>) -> Result<String, String> {
    match fields.take("id")?.unwrap_or("null") {
        id if id.len() <= MAX_ID => Ok(id.to_owned()),
        _ => Err(format!("\"id\" is over {MAX_ID} bytes")),
    }
}

fn topic(fields: &mut CommandFields<'_>) -> Result<String, String> {
    Ok(fields.take_text("topic")?.ok_or("\"topic\" is missing")?)
}

fn keep(fields: &mut CommandFields<'_>) -> Result<Keep, String> {
    match fields.take_text("keep")?.as_deref() {
        None | Some("all") => Ok(Keep::All),
        Some("latest") => Ok(Keep::Latest),
        Some(_) => Err("\"keep\" is neither \"all\" nor \"latest\"".to_owned()),
    }
}

fn topics_of(fields: &mut CommandFields<'_>) -> Result<TopicsOf, String> {
    let topic = fields.take_text("topic")?;
    match (fields.take("client")?, topic) {
        (None, None) => Ok(TopicsOf::All),
        (None, Some(topic)) => Ok(TopicsOf::Members(topic)),
        (Some(value), None) => parse_client(&text("client", value)?).map(TopicsOf::Client),
        (Some(_), Some(_)) => Err("both \"client\" and \"topic\"".to_owned()),
    }
}

fn data(fields: &mut CommandFields<'_>) -> Result<OwnedMessage, String> {
    match (fields.take("text")?, fields.take("binary")?) {
        (Some(value), None) => Ok(OwnedMessage::Text(text("text", value)?)),
        (None, Some(value)) => BASE64_STANDARD
            .decode(text("binary", value)?)
            .map(OwnedMessage::Binary)
            .map_err(|error| format!("\"binary\" is not base64: {error}")),
        (Some(_), Some(_)) => Err("both \"text\" and \"binary\"".to_owned()),
        (None, None) => Err("neither \"text\" nor \"binary\"".to_owned()),
    }
}

/// The clients that a broadcast or a published message leaves out, sorted. They may have disconnected.
fn except(fields: &mut CommandFields<'_>) -> Result<Vec<ClientId>, String> {
    let wrong = || "\"except\" is not an array of client ids".to_owned();
    let value = match fields.take("except")? {
        None | Some("null") => return Ok(Vec::new()),
        Some(value) => value,
    };
    let mut ids = Vec::new();
    let mut valid = true;
    let array = Skimmer::new(value).array(|element| {
        let id = serde_json::from_str::<String>(&value[element]).ok();
        match id.and_then(|id| id.parse().ok()) {
            Some(id) => ids.push(id),
            None => valid = false,
        }
    });
    if array.is_err() || !valid {
        return Err(wrong());
    }
    ids.sort_unstable();
    Ok(ids)
}

fn code(fields: &mut CommandFields<'_>) -> Result<CloseCode, String> {
    let Some(value) = fields.take("code")? else {
        return Ok(CloseCode::NORMAL);
    };
    let code = value.parse().ok().map(CloseCode);
    code.filter(|code: &CloseCode| code.is_sendable())
        .ok_or_else(|| {
            let shown = &value[..value.floor_char_boundary(100)];
            format!("{shown} is not a close code that may be sent")
        })
}

fn reason(fields: &mut CommandFields<'_>) -> Result<String, String> {
    match fields.take_text("reason")? {
        None => Ok(String::new()),
        Some(reason) if reason.len() <= MAX_REASON => Ok(reason),
        Some(_) => Err(format!("\"reason\" is over {MAX_REASON} bytes")),
    }
}

/// Text from the program, quoted and truncated, for an error message.
fn shown(text: &str) -> String {
    let cut = &text[..text.floor_char_boundary(100)];
    format!("{cut:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &[u8]) -> Result<AppCommand, String> {
        CommandFields::read(line).and_then(AppCommand::parse)
    }

    #[test]
    fn each_command_is_parsed() {
        let parse = |line: &str| parse(line.as_bytes()).expect(line);
        let client = "c2.1".parse().expect("an id");
        assert_eq!(
            parse(r#"{"cmd":"send","client":"c2.1","text":"hi"}"#),
            AppCommand::Send {
                client,
                data: OwnedMessage::Text("hi".into())
            }
        );
        assert_eq!(
            parse(r#"{"cmd":"send","client":"c2.1","binary":"AP8="}"#),
            AppCommand::Send {
                client,
                data: OwnedMessage::Binary(vec![0, 255])
            }
        );
        assert_eq!(
            parse(r#"{"cmd":"broadcast","text":"","except":["c2.1"],"path":"/x"}"#),
            AppCommand::Broadcast {
                data: OwnedMessage::Text(String::new()),
                except: vec![client],
                path: Some("/x".into())
            }
        );
        assert_eq!(
            parse(r#"{"cmd":"close","client":"c2.1"}"#),
            AppCommand::Close {
                client,
                code: CloseCode::NORMAL,
                reason: String::new()
            }
        );
        assert_eq!(
            parse(r#"{"cmd":"subscribe","client":"c2.1","topic":"a b","keep":"latest"}"#),
            AppCommand::Subscribe {
                client,
                topic: "a b".into(),
                keep: Keep::Latest
            }
        );
        assert_eq!(
            parse(r#"{"cmd":"unsubscribe","client":"c2.1","topic":"x"}"#),
            AppCommand::Unsubscribe {
                client,
                topic: "x".into()
            }
        );
        assert_eq!(
            parse(r#"{"cmd":"publish","topic":"x","binary":"AP8=","except":["c2.1"]}"#),
            AppCommand::Publish {
                topic: "x".into(),
                data: OwnedMessage::Binary(vec![0, 255]),
                except: vec![client]
            }
        );
        for (fields, of) in [
            ("", TopicsOf::All),
            (r#","client":"c2.1""#, TopicsOf::Client(client)),
            (r#","topic":"x""#, TopicsOf::Members("x".into())),
        ] {
            assert_eq!(
                parse(&format!(r#"{{"cmd":"topics","id":"q"{fields}}}"#)),
                AppCommand::Topics {
                    id: "\"q\"".into(),
                    of
                }
            );
        }
        assert_eq!(
            parse(r#"{"cmd":"status","id":7}"#),
            AppCommand::Status { id: "7".into() }
        );
        assert_eq!(parse(r#" {"cmd":"shutdown"} "#), AppCommand::Shutdown);
    }

    #[test]
    fn an_invalid_command_gets_a_precise_error() {
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
                r#"{"cmd":"subscribe","client":"c1"}"#,
                "\"topic\" is missing",
            ),
            (
                r#"{"cmd":"subscribe","client":"c1","topic":"x","keep":"some"}"#,
                "\"keep\" is neither",
            ),
            (
                r#"{"cmd":"topics","client":"c1","topic":"x"}"#,
                "both \"client\" and \"topic\"",
            ),
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
            // The bug: the last of two values won, and a misspelled field was ignored.
            (
                r#"{"cmd":"close","client":"c1","client":"c2"}"#,
                "\"client\" occurs twice",
            ),
            (
                r#"{"cmd":"close","client":"c1","c\u006fde":4000,"code":4001}"#,
                "\"code\" occurs twice",
            ),
            (
                r#"{"cmd":"shutdown","cmd":"status"}"#,
                "\"cmd\" occurs twice",
            ),
            (
                r#"{"cmd":"broadcast","text":"a","exept":["c1"]}"#,
                "unknown field \"exept\"",
            ),
            (
                r#"{"cmd":"status","a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9}"#,
                "unknown field",
            ),
        ] {
            let error = parse(line.as_bytes()).expect_err(line);
            assert!(error.contains(want), "{line}: {error}");
        }
        let long = format!(
            r#"{{"cmd":"close","client":"c1","reason":"{}"}}"#,
            "x".repeat(124)
        );
        assert!(
            parse(long.as_bytes())
                .expect_err("too long")
                .contains("over 123")
        );
        assert!(
            parse(&[b'['; 100_000]).is_err(),
            "deep nesting is an error, not an overflow"
        );
    }
}

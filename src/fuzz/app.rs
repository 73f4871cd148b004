//! Fuzzes the commands of an `app` program: the parser, against a naive one on serde_json.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::service::app::command::{AppCommand, CommandFields, TopicsOf};
use crate::{ClientId, CloseCode, Keep, OwnedMessage};

/// Longer lines may have ids over the limit, whose length the values of serde_json do not tell.
const MAX_LINE: usize = 1024;

/// Parses any line as a command. A line is accepted if and only if the naive parser accepts it, as the same command.
pub fn app_command(data: &[u8]) {
    let mut command = CommandFields::read(data).and_then(AppCommand::parse);
    let Ok(text) = std::str::from_utf8(data) else {
        assert!(command.is_err(), "not UTF-8");
        return;
    };
    if text.len() > MAX_LINE {
        return;
    }
    // A reader may ignore a byte order mark (RFC 8259 section 8.1).
    match serde_json::from_str::<Pairs>(text.strip_prefix('\u{feff}').unwrap_or(text)) {
        Ok(pairs) => {
            // An id keeps its spelling, which a value does not tell.
            if let Ok(AppCommand::Topics { id, .. } | AppCommand::Status { id }) = &mut command {
                let id = serde_json::from_str::<Value>(&std::mem::take(id));
                let id = id.expect("an id is JSON");
                assert_eq!(&id, pairs.get("id").unwrap_or(&Value::Null), "{text}");
            }
            let expected = parse(&pairs);
            assert_eq!(command.as_ref().ok(), expected.as_ref(), "{text}");
        }
        // serde_json rejects numbers that have no value.
        Err(error) => assert!(
            command.is_err() || error.to_string().starts_with("number out of range"),
            "{text}: {error}"
        ),
    }
    if let Err(error) = command {
        assert!(error.len() < 1000, "{error}");
    }
}

/// All members of an object, also those with equal names.
struct Pairs(Vec<(String, Value)>);

impl Pairs {
    fn get(&self, name: &str) -> Option<&Value> {
        let pair = self.0.iter().find(|(key, _)| key == name);
        pair.map(|(_, value)| value)
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AllMembers;
        impl<'de> Visitor<'de> for AllMembers {
            type Value = Pairs;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(AllMembers)
    }
}

/// The fields of each command, apart from `cmd`.
const FIELDS: [(&str, &[&str]); 9] = [
    ("send", &["client", "text", "binary"]),
    ("broadcast", &["except", "path", "text", "binary"]),
    ("subscribe", &["client", "topic", "keep"]),
    ("unsubscribe", &["client", "topic"]),
    ("publish", &["topic", "except", "text", "binary"]),
    ("topics", &["id", "client", "topic"]),
    ("close", &["client", "code", "reason"]),
    ("status", &["id"]),
    ("shutdown", &[]),
];

fn parse(pairs: &Pairs) -> Option<AppCommand> {
    let get = |name: &str| pairs.get(name);
    let name = get("cmd")?.as_str()?;
    let (_, fields) = FIELDS.iter().find(|(command, _)| *command == name)?;
    for (at, (key, _)) in pairs.0.iter().enumerate() {
        let is_known = key == "cmd" || fields.contains(&key.as_str());
        if !is_known || pairs.0[..at].iter().any(|(other, _)| other == key) {
            return None;
        }
    }
    let text = |name| Some(get(name)?.as_str()?.to_owned());
    let client = || get("client")?.as_str()?.parse::<ClientId>().ok();
    let data = || match (get("text"), get("binary")) {
        (Some(text), None) => Some(OwnedMessage::Text(text.as_str()?.to_owned())),
        (None, Some(binary)) => {
            let bytes = BASE64_STANDARD.decode(binary.as_str()?).ok()?;
            Some(OwnedMessage::Binary(bytes))
        }
        _ => None,
    };
    let except = || match get("except") {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(value) => {
            let ids = value.as_array()?.iter();
            let ids = ids.map(|id| id.as_str()?.parse().ok());
            let mut ids: Vec<ClientId> = ids.collect::<Option<_>>()?;
            ids.sort();
            Some(ids)
        }
    };
    Some(match name {
        "send" => AppCommand::Send {
            client: client()?,
            data: data()?,
        },
        "broadcast" => AppCommand::Broadcast {
            data: data()?,
            except: except()?,
            path: match get("path") {
                None | Some(Value::Null) => None,
                Some(path) => Some(path.as_str()?.to_owned()),
            },
        },
        "subscribe" => AppCommand::Subscribe {
            client: client()?,
            topic: text("topic")?,
            keep: match get("keep").map(Value::as_str) {
                None | Some(Some("all")) => Keep::All,
                Some(Some("latest")) => Keep::Latest,
                Some(_) => return None,
            },
        },
        "unsubscribe" => AppCommand::Unsubscribe {
            client: client()?,
            topic: text("topic")?,
        },
        "publish" => AppCommand::Publish {
            topic: text("topic")?,
            data: data()?,
            except: except()?,
        },
        "topics" => AppCommand::Topics {
            id: String::new(),
            of: match (get("client"), get("topic")) {
                (None, None) => TopicsOf::All,
                (Some(_), None) => TopicsOf::Client(client()?),
                (None, Some(_)) => TopicsOf::Members(text("topic")?),
                (Some(_), Some(_)) => return None,
            },
        },
        "close" => AppCommand::Close {
            client: client()?,
            code: match get("code") {
                None => CloseCode::NORMAL,
                Some(code) => {
                    let code = CloseCode(u16::try_from(code.as_u64()?).ok()?);
                    Some(code).filter(|code| code.is_sendable())?
                }
            },
            reason: match get("reason") {
                None => String::new(),
                Some(reason) => {
                    let reason = reason.as_str()?;
                    Some(reason.to_owned()).filter(|reason| reason.len() <= 123)?
                }
            },
        },
        "status" => AppCommand::Status { id: String::new() },
        "shutdown" => AppCommand::Shutdown,
        other => unreachable!("{other} is in the table"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, rounds};

    const LINES: [&str; 9] = [
        r#"{"cmd":"send","client":"c2.1","text":"hi\u0020\ud83d\ude00"}"#,
        r#"{"cmd":"broadcast","binary":"AP8=","except":["c2.1","c3"],"path":"/x"}"#,
        r#"{"cmd":"subscribe","client":"c2.1","topic":"a b","keep":"latest"}"#,
        r#"{"cmd":"unsubscribe","client":"c2.1","topic":"x"}"#,
        r#"{"cmd":"publish","topic":"x","text":"","except":null}"#,
        r#"{"cmd":"topics","id":[1,{"a":null}],"client":"c2.1"}"#,
        r#"{"cmd":"close","client":"c2.1","code":4000,"reason":"over"}"#,
        r#"{"cmd":"status","id":7.50}"#,
        r#"{"cmd":"shutdown"}"#,
    ];

    #[test]
    fn commands_are_parsed_as_a_naive_parser_parses_them() {
        for line in LINES {
            let pairs = serde_json::from_str::<Pairs>(line).expect("an object");
            assert!(parse(&pairs).is_some(), "{line}");
        }
        let mut random = Random::new(52);
        for round in 0..rounds(50_000) {
            let mut line = LINES[round % LINES.len()].as_bytes().to_vec();
            for _ in 0..random.below(4) {
                let at = random.below(line.len());
                match random.below(8) {
                    // A member of another command.
                    0 => {
                        let other = LINES[random.below(LINES.len())];
                        let mut other = other[1..other.len() - 1].split_inclusive(',');
                        let member = other.next_back().unwrap_or_default();
                        let member = format!(",{}}}", member.trim_end_matches(','));
                        line.pop();
                        line.extend(member.bytes());
                    }
                    1 => drop(line.remove(at)),
                    _ => line[at] = b"{}[],:\"\\10e-. nulc"[random.below(18)],
                }
                if line.is_empty() {
                    break;
                }
            }
            app_command(&line);
        }
    }
}

//! The configuration file: one JSON object with the values of flags by their names. Comments, and commas at the end of an object or a
//! list, are permitted. An error names the key and its line.

use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::command::{Command, ProgramArg, Serves};
use super::flag::{Flag, Takes};
use super::settings::Settings;
use super::suggestion::suggestion;
use super::values::missing_feature;
use crate::ServiceId;
use crate::server::is_reserved_path;
use crate::service::{Endpoint, OnFailure};
use crate::text::without_mark;

/// The key of the program and its arguments.
const PROGRAM: &str = "command";

const COMMAND_HINT: &str =
    "write the program and its arguments as \"command\": [\"PROGRAM\", \"ARGUMENT\"]";

/// The key of the routes.
const ROUTES: &str = "routes";

/// The content of a configuration file.
#[derive(Debug)]
pub(super) struct ConfigFile {
    name: String,
    text: String,
    fields: Map<String, Value>,
}

impl ConfigFile {
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        Self::parse(name, without_mark(&text).to_owned())
    }

    fn parse(name: String, text: String) -> Result<Self, String> {
        let text = plain_json(&text);
        let fields = object(&text).map_err(|error| format!("{name}: {error}"))?;
        Ok(Self { name, text, fields })
    }

    /// Applies the file, except for the flags that the command line overrides.
    pub(super) fn apply(
        &self,
        command: &'static Command,
        settings: &mut Settings,
        is_overridden: impl Fn(&Flag) -> bool,
    ) -> Result<(), String> {
        for (key, value) in &self.fields {
            if matches!(command.serves, Serves::Routes) && key == ROUTES {
                settings.routes = self.routes(value)?;
                continue;
            }
            // A value that a flag overrides must still be valid.
            let mut unused = Settings::new();
            let flag = Flag::find(key, command);
            let settings = if flag.is_some_and(&is_overridden) {
                &mut unused
            } else {
                &mut *settings
            };
            let place = [key.as_str()];
            self.set(&place, command, Flag::of(command), settings, value)?;
        }
        Ok(())
    }

    /// Reads the routes: `{PATH: {COMMAND: {its settings}}}`.
    fn routes(&self, routes: &Value) -> Result<Vec<(&'static Command, Settings)>, String> {
        let routes = routes.as_object().filter(|routes| !routes.is_empty());
        let routes = routes.ok_or_else(|| {
            let why = "expected an object of paths, each with a command";
            self.error(&[ROUTES], why)
        })?;
        if routes.len() > ServiceId::MOST {
            let why = format!("more than {} routes", ServiceId::MOST);
            return Err(self.error(&[ROUTES], &why));
        }
        let mut all: Vec<(&'static Command, Settings)> = Vec::new();
        for (path, route) in routes {
            let place = [ROUTES, path];
            let endpoint: Endpoint = path
                .parse()
                .map_err(|error| self.error(&place, &format!("{error}")))?;
            if is_reserved_path(endpoint.path()) {
                return Err(self.error(&place, "this path is reserved for the server"));
            }
            let same = |(_, other): &(&'static Command, Settings)| {
                let other = other.path.as_ref();
                other.is_some_and(|other| other.path() == endpoint.path())
            };
            if all.iter().any(same) {
                return Err(self.error(&place, "this path is used twice"));
            }
            let (command, mut settings) = self.route(path, route)?;
            settings.path = Some(endpoint);
            all.push((command, settings));
        }
        Ok(all)
    }

    fn route(&self, path: &str, route: &Value) -> Result<(&'static Command, Settings), String> {
        let place = [ROUTES, path];
        let names: Vec<_> = Command::of_routes().map(|command| command.name).collect();
        let expected = format!(
            "expected an object with one of {} and its settings",
            names.join(", ")
        );
        let one = || self.error(&place, &expected);
        let (name, fields) = route
            .as_object()
            .filter(|route| route.len() == 1)
            .and_then(|route| route.iter().next())
            .ok_or_else(one)?;
        let mut commands = Command::of_routes();
        let command = commands
            .find(|command| command.name == name)
            .ok_or_else(|| {
                let hint = suggestion(name, &names, "\"", "\"");
                self.error(&[ROUTES, path, name], &format!("{expected}{hint}"))
            })?;
        let place = [ROUTES, path, name];
        let fields = fields
            .as_object()
            .ok_or_else(|| self.error(&place, "expected an object of settings"))?;
        let mut settings = Settings::new();
        // A route must not end the others.
        settings
            .restart_limits()
            .for_each(|limit| limit.on_failure = OnFailure::Retry);
        for (key, value) in fields {
            let place = [ROUTES, path, name, key];
            let flags = Flag::of_route(command);
            self.set(&place, command, flags, &mut settings, value)?;
        }
        // Several routes cannot share the server's own standard streams.
        if command.program != ProgramArg::None && settings.program.is_empty() {
            return Err(self.error(&place, "missing \"command\""));
        }
        Ok((command, settings))
    }

    /// Applies one setting. Its key is the last of `place`.
    fn set(
        &self,
        place: &[&str],
        command: &'static Command,
        flags: Vec<&'static Flag>,
        settings: &mut Settings,
        value: &Value,
    ) -> Result<(), String> {
        let key = place.last().copied().unwrap_or_default();
        let wrong = |why: String| self.error(place, &why);
        if key == PROGRAM {
            if command.program == ProgramArg::None {
                return Err(wrong(format!("'{}' takes no program", command.name)));
            }
            settings.program = words(value).map_err(wrong)?;
            return Ok(());
        }
        let mut flags = flags.into_iter().filter(|flag| flag.in_file);
        let Some(flag) = flags.clone().find(|flag| flag.name == key) else {
            if place.len() > 1 && is_of_server(key) && !is_meant_as_command(key, command) {
                let why = "this is a setting of the server: write it outside the routes";
                return Err(wrong(why.to_owned()));
            }
            let why = unknown_setting(key, flags.by_ref().map(|flag| flag.name).collect(), command);
            return Err(wrong(why));
        };
        // The option --program is another one: the program that replaces this one.
        if value.is_object() && is_meant_as_command(key, command) {
            return Err(wrong(COMMAND_HINT.to_owned()));
        }
        for value in values(flag, value).map_err(wrong)? {
            flag.apply(settings, &value).map_err(wrong)?;
        }
        Ok(())
    }

    /// An error message with the key and its line.
    fn error(&self, place: &[&str], why: &str) -> String {
        // Each key follows the key of the object that contains it.
        let mut at = 0;
        for key in place {
            let quoted = Value::from(*key).to_string();
            at += self.text[at..].find(&quoted).unwrap_or_default();
        }
        let line = self.text[..at].matches('\n').count() + 1;
        let key = Value::from(place.last().copied().unwrap_or_default());
        format!("{}, line {line}: {key}: {why}", self.name)
    }
}

/// A JSON value in which no object has a key twice. The last of two values would silently replace the first.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(UniqueVisitor).map(Self)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = from.next_key::<String>()? {
            if map.contains_key(&key) {
                let key = Value::from(key);
                return Err(A::Error::custom(format_args!("{key} is used twice")));
            }
            let Unique(value) = from.next_value()?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Unique(value)) = from.next_element()? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
}

/// Reads a JSON object.
pub(super) fn object(text: &str) -> Result<Map<String, Value>, String> {
    let wrong = "expected a JSON object; YAML, TOML and comments with '#' are not supported";
    if !text.trim_start().starts_with('{') {
        return Err(wrong.to_owned());
    }
    match serde_json::from_str(text) {
        Ok(Unique(Value::Object(fields))) => Ok(fields),
        Ok(_) => Err(wrong.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Replaces comments, and commas at the end of an object or a list, by spaces. Lines stay where they are.
pub(super) fn plain_json(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let (mut at, mut comma) = (0, None);
    while at < bytes.len() {
        let end = match (bytes[at], bytes.get(at + 1)) {
            (b'"', _) => {
                comma = None;
                at += 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
                continue;
            }
            (b'/', Some(b'/')) => bytes[at..].iter().position(|byte| *byte == b'\n'),
            (b'/', Some(b'*')) => {
                let inside = bytes[at + 2..].windows(2);
                inside
                    .into_iter()
                    .position(|pair| pair == b"*/")
                    .map(|end| end + 4)
            }
            (byte, _) => {
                match byte {
                    b',' => comma = Some(at),
                    b'}' | b']' => {
                        if let Some(comma) = comma.take() {
                            bytes[comma] = b' ';
                        }
                    }
                    _ if byte.is_ascii_whitespace() => {}
                    _ => comma = None,
                }
                at += 1;
                continue;
            }
        };
        let end = end.map_or(bytes.len(), |length| at + length);
        for byte in &mut bytes[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8(bytes).unwrap_or_default()
}

/// Whether a key is a setting of a server with routes.
fn is_of_server(key: &str) -> bool {
    let mut commands = Command::ALL
        .iter()
        .filter(|command| command.serves_routes());
    commands.any(|command| Flag::find(key, command).is_some_and(|flag| flag.in_file))
}

/// The error for a key that is not one of these settings of a command.
fn unknown_setting(key: &str, mut names: Vec<&str>, command: &Command) -> String {
    if let Some(why) = missing_feature(key) {
        return why.to_owned();
    }
    names.extend((command.program != ProgramArg::None).then_some(PROGRAM));
    names.extend(matches!(command.serves, Serves::Routes).then_some(ROUTES));
    let mut hint = suggestion(key, &names, "\"", "\"");
    if is_meant_as_command(key, command) {
        hint = format!("; {COMMAND_HINT}");
    } else if key == "env" && command.program != ProgramArg::None {
        hint = "; write \"command\": [\"env\", \"NAME=VALUE\", \"PROGRAM\"]".to_owned();
    }
    format!("'{}' has no such setting{hint}", command.name)
}

/// Whether a key is what other programs call the program or its arguments.
fn is_meant_as_command(key: &str, command: &Command) -> bool {
    command.program != ProgramArg::None && ["program", "cmd", "exec", "args"].contains(&key)
}

/// The values of a setting, as they would be written on the command line.
fn values(flag: &Flag, value: &Value) -> Result<Vec<String>, String> {
    match (flag.takes, value) {
        (Takes::Nothing, Value::Bool(true)) => Ok(vec![String::new()]),
        (Takes::Nothing, Value::Bool(false)) => Ok(Vec::new()),
        (Takes::Nothing, _) => Err("expected true or false".to_owned()),
        (Takes::One("JSON"), Value::Object(_)) => Ok(vec![value.to_string()]),
        (Takes::Many(name), Value::Object(_)) => {
            Err(format!("expected a list such as [\"{name}\"]"))
        }
        (Takes::One(_), Value::Array(_)) => Err("expected one value, not a list".to_owned()),
        (Takes::Many(_), Value::Array(list)) => list.iter().map(scalar).collect(),
        (Takes::One(_) | Takes::Many(_), value) => Ok(vec![scalar(value)?]),
    }
}

fn scalar(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err("expected a string or a number".to_owned()),
    }
}

fn words(value: &Value) -> Result<Vec<String>, String> {
    let words: Option<Vec<String>> = value
        .as_array()
        .filter(|words| words.first().is_some_and(|program| *program != ""))
        .and_then(|words| {
            let words = words.iter();
            words.map(|word| word.as_str().map(str::to_owned)).collect()
        });
    words.ok_or_else(|| {
        "expected a list of the program and its arguments, such as [\"PROGRAM\", \"ARGUMENT\"]"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::super::values::ListenValue;
    use super::*;

    /// The settings that a file of this content makes of a command's.
    fn applied(command: &str, text: &str) -> Result<Settings, String> {
        let command = Command::find(command).expect("a command");
        let file = ConfigFile::parse("outrigger.json".to_owned(), text.to_owned())?;
        let mut settings = Settings::new();
        file.apply(command, &mut settings, |_| false)?;
        Ok(settings)
    }

    fn error(command: &str, text: &str) -> String {
        applied(command, text).expect_err("it is invalid")
    }

    #[test]
    fn every_flag_can_be_set_in_a_file_by_its_name() {
        for command in Command::ALL {
            for flag in Flag::of(command) {
                let value = match (flag.takes, flag.accepts.first()) {
                    (Takes::Nothing, _) => Value::Bool(true),
                    (Takes::One(_), Some(value)) => Value::from(*value),
                    (Takes::Many(_), _) => Value::from(flag.accepts),
                    (Takes::One(_), None) => continue,
                };
                let text = Value::Object([(flag.name.to_owned(), value)].into_iter().collect());
                let result = applied(command.name, &text.to_string());
                if flag.in_file {
                    let settings = result.expect(flag.name);
                    assert!(settings.has(flag.name));
                } else {
                    let error = result.expect_err(flag.name);
                    assert!(error.contains("has no such setting"), "{error}");
                }
            }
        }
    }

    #[test]
    fn a_switch_is_true_or_false_and_a_repeatable_flag_is_a_list() {
        let text = r#"{"reuse-port":false,/* x */"allow-host":["a","b",],} // y"#;
        let settings = applied("echo", text);
        let settings = settings.expect("it is valid");
        assert!(!settings.server.reuse_port && !settings.has("reuse-port"));
        assert_eq!(settings.server.access.hosts, ["a", "b"]);
        let settings = applied("echo", r#"{"listen":"127.0.0.1:0","max-clients":7}"#);
        let settings = settings.expect("it is valid");
        let listen = ListenValue::Address(([127, 0, 0, 1], 0).into());
        assert_eq!(settings.listen, [listen]);
        assert_eq!(settings.server.max_clients, 7);
        let extra = applied("echo", r#"{"announce-extra":{"a":[1]}}"#).expect("it is valid");
        assert_eq!(extra.announce.extra["a"], serde_json::json!([1]));
    }

    #[test]
    fn a_flag_on_the_command_line_overrides_the_file() {
        let command = Command::find("echo").expect("a command");
        let apply = |text: &str| {
            let file = ConfigFile::parse("outrigger.json".to_owned(), text.to_owned())?;
            let mut settings = Settings::new();
            file.apply(command, &mut settings, |flag| flag.name == "allow-host")?;
            Ok::<_, String>(settings)
        };
        let settings = apply(r#"{"allow-host":["a"]}"#).expect("it is valid");
        assert!(settings.server.access.hosts.is_empty());
        let error = apply(r#"{"allow-host":["http://a"]}"#).expect_err("it is invalid");
        assert!(error.contains("is not a host name"), "{error}");
    }

    #[test]
    fn an_error_names_the_key_and_its_line() {
        for (command, text, says) in [
            ("echo", "[]", "expected a JSON object"),
            ("serve", "listen: 1\n", "YAML, TOML and comments with '#'"),
            ("serve", "# x\n[a]\nb = 1\n", "YAML, TOML and comments"),
            ("serve", "", "expected a JSON object; YAML"),
            (
                "agent",
                "{\"program\":{\"command\":\"x\"}}",
                "write the program and its arguments as \"command\": [",
            ),
            (
                "serve",
                "{\"routes\":{\"/x\":{\"pipe\":{\"program\":\"x\"}}}}",
                "write the program and its arguments as \"command\": [",
            ),
            (
                "agent",
                "{\"args\":[\"x\"]}",
                "as \"command\": [\"PROGRAM\"",
            ),
            ("agent", "{\"command\":{\"x\":1}}", "such as [\"PROGRAM\""),
            (
                "terminal",
                "{\"env\":{\"A\":\"b\"}}",
                "a list such as [\"NAME=VALUE\"]",
            ),
            (
                "mcp",
                "{\"env\":{\"A\":\"b\"}}",
                "[\"env\", \"NAME=VALUE\", \"PROGRAM\"]",
            ),
            // A comment moves no line, and hides no key.
            (
                "echo",
                "{// \"dance\"\n/* \"dance\"\n*/\"dance\":[1,],}",
                "line 3: \"dance\": 'echo' has no such setting",
            ),
            ("echo", "{", "outrigger.json: "),
            (
                "echo",
                "{\n\"dance\":1}",
                "line 2: \"dance\": 'echo' has no such setting",
            ),
            (
                "echo",
                "{\"max-cleints\":1}",
                "'echo' has no such setting (did you mean \"max-clients\"?)",
            ),
            ("app", "{\"comand\":[\"x\"]}", "(did you mean \"command\"?)"),
            ("serve", "{\"rotues\":{}}", "(did you mean \"routes\"?)"),
            ("echo", "{\"log\":\"wran\"}", "(did you mean 'warn'?)"),
            ("echo", "{\"command\":[\"x\"]}", "'echo' takes no program"),
            ("echo", "{\"config\":\"x\"}", "'echo' has no such setting"),
            (
                "echo",
                "{\n\n\"reuse-port\":1}",
                "line 3: \"reuse-port\": expected true or false",
            ),
            (
                "echo",
                "{\"max-clients\":[1]}",
                "expected one value, not a list",
            ),
            (
                "echo",
                "{\"max-clients\":{}}",
                "expected a string or a number",
            ),
            ("echo", "{\"max-clients\":0}", "is not a number from 1"),
            (
                "agent",
                "{\"command\":[\"\"]}",
                "expected a list of the program and its arguments",
            ),
            (
                "agent",
                "{\"command\":\"x\"}",
                "expected a list of the program and its arguments",
            ),
            // The bug: the last of two values won, without a word.
            (
                "echo",
                "{\"max-clients\":1,\n\"max-clients\":2}",
                "outrigger.json: \"max-clients\" is used twice at line 2 column 13",
            ),
            (
                "serve",
                "{\"routes\":{\"/x\":{\"echo\":{}},\"/x\":{\"app\":{}}}}",
                "outrigger.json: \"/x\" is used twice at line 1",
            ),
            (
                "echo",
                "{\"allow-host\":[{\"a\":1,\"a\":1}]}",
                "outrigger.json: \"a\" is used twice",
            ),
            ("serve", "{\"routes\":{}}", "expected an object of paths"),
            ("serve", "{\"path\":\"/x\"}", "'serve' has no such setting"),
            (
                "serve",
                "{\"routes\":{\"/x\":{\"dance\":{}}}}",
                "expected an object with one of agent, terminal",
            ),
            (
                "serve",
                "{\"routes\":{\"/x\":{\"serve\":{}}}}",
                "expected an object with one of agent, terminal",
            ),
            (
                "serve",
                "{\"routes\":{\"/x\":{\"echo\":[]}}}",
                "expected an object of settings",
            ),
            (
                "serve",
                "{\"routes\":{\"/x\":{\"app\":{}}}}",
                "missing \"command\"",
            ),
            (
                "serve",
                "{\"routes\":{\"/metrics\":{\"echo\":{}}}}",
                "reserved for the server",
            ),
            (
                "serve",
                "{\"routes\":{\"/x\":{\"echo\":{}},\"/x/...\":{\"echo\":{}}}}",
                "used twice",
            ),
            (
                "serve",
                "{\"routes\":{\"/x\":{\"echo\":{\"max-clients\":1}}}}",
                "this is a setting of the server: write it outside the routes",
            ),
        ] {
            let error = error(command, text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}

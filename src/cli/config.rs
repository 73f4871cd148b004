//! The configuration file: the options of the command line by their names, as one JSON object.

use std::path::Path;

use outrigger::ServiceId;
use outrigger::service::Endpoint;
use serde_json::{Map, Value};

use super::options::Option;
use super::{Command, Program, Settings};

/// The key under which the program and its arguments stand.
const PROGRAM: &str = "command";

/// The key under which stands what `serve` serves.
const ROUTES: &str = "routes";

/// What the server answers itself.
const OWN_PATHS: [&str; 4] = ["/healthz", "/readyz", "/status", "/metrics"];

/// What can be served at a path.
const SERVABLE: [Command; 5] = [
    Command::Agent,
    Command::Terminal,
    Command::Processes,
    Command::App,
    Command::Echo,
];

/// A file that was read.
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
        match serde_json::from_str(&text) {
            Ok(Value::Object(fields)) => Ok(Self { name, text, fields }),
            Ok(_) => Err(format!("{name}: it is not a JSON object")),
            Err(error) => Err(format!("{name}: {error}")),
        }
    }

    /// Takes over what the file says, but for the options that were `given` on the command line.
    pub(super) fn apply(
        &self,
        command: Command,
        settings: &mut Settings,
        given: impl Fn(&str) -> bool,
    ) -> Result<(), String> {
        for (key, value) in &self.fields {
            if command == Command::Serve && key == ROUTES {
                settings.routes = self.routes(value)?;
                continue;
            }
            // What a flag says stands, but a key that is wrong is wrong.
            let mut unused = Settings::new();
            let settings = if given(key) {
                &mut unused
            } else {
                &mut *settings
            };
            let place = [key.as_str()];
            self.set(&place, command, Option::is_of_files, settings, value)?;
        }
        Ok(())
    }

    /// What `serve` serves: `{PATH: {COMMAND: {its own settings}}}`.
    fn routes(&self, routes: &Value) -> Result<Vec<(Command, Settings)>, String> {
        let routes = routes.as_object().filter(|routes| !routes.is_empty());
        let routes = routes.ok_or_else(|| {
            let why = "it is an object of paths, each with what is served there";
            self.complaint(&[ROUTES], why)
        })?;
        if routes.len() > ServiceId::MOST {
            return Err(self.complaint(&[ROUTES], "these are too many"));
        }
        let mut all: Vec<(Command, Settings)> = Vec::new();
        for (path, route) in routes {
            let place = [ROUTES, path];
            let endpoint: Endpoint = path
                .parse()
                .map_err(|error| self.complaint(&place, &format!("{error}")))?;
            if OWN_PATHS.contains(&endpoint.path()) {
                return Err(self.complaint(&place, "this path is the server's own"));
            }
            let same = |(_, other): &(Command, Settings)| {
                let other = other.path.as_ref();
                other.is_some_and(|other| other.path() == endpoint.path())
            };
            if all.iter().any(same) {
                return Err(self.complaint(&place, "this path is there twice"));
            }
            let (command, mut settings) = self.route(path, route)?;
            settings.path = Some(endpoint);
            all.push((command, settings));
        }
        Ok(all)
    }

    fn route(&self, path: &str, route: &Value) -> Result<(Command, Settings), String> {
        let place = [ROUTES, path];
        let one = || {
            let names: Vec<_> = SERVABLE.map(Command::name).into();
            let why = format!(
                "it is an object with one of {} and its settings",
                names.join(", ")
            );
            self.complaint(&place, &why)
        };
        let (name, fields) = route
            .as_object()
            .filter(|route| route.len() == 1)
            .and_then(|route| route.iter().next())
            .ok_or_else(one)?;
        let known = SERVABLE.into_iter().find(|command| command.name() == name);
        let command = known.ok_or_else(one)?;
        let place = [ROUTES, path, name];
        let fields = fields
            .as_object()
            .ok_or_else(|| self.complaint(&place, "it is an object of settings"))?;
        let mut settings = Settings::new();
        for (key, value) in fields {
            let place = [ROUTES, path, name, key];
            let own = |option: &Option| option.is_of_files() && !option.is_general();
            self.set(&place, command, own, &mut settings, value)?;
        }
        // Without a program an app talks on our own standard streams, which are not several.
        if command.program() != Program::None && settings.program.is_empty() {
            return Err(self.complaint(&place, "it needs a \"command\""));
        }
        Ok((command, settings))
    }

    /// Takes over one setting, whose key is the last of `place`.
    fn set(
        &self,
        place: &[&str],
        command: Command,
        allowed: impl Fn(&Option) -> bool,
        settings: &mut Settings,
        value: &Value,
    ) -> Result<(), String> {
        let key = place.last().copied().unwrap_or_default();
        let wrong = |why: String| self.complaint(place, &why);
        if key == PROGRAM {
            if command.program() == Program::None {
                return Err(wrong(format!("'{}' takes no program", command.name())));
            }
            settings.program = words(value).map_err(wrong)?;
            return Ok(());
        }
        let option = Option::find(key, command).filter(|option| allowed(option));
        let option = option.ok_or_else(|| {
            let name = command.name();
            wrong(format!("'{name}' has no such setting"))
        })?;
        for value in values(option, value).map_err(wrong)? {
            (option.apply)(settings, &value).map_err(wrong)?;
        }
        Ok(())
    }

    /// What is wrong, with the key and the line on which it stands.
    fn complaint(&self, place: &[&str], why: &str) -> String {
        // Each key stands behind the one that it is in.
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

/// The values that a setting stands for, as they would stand on the command line.
fn values(option: &Option, value: &Value) -> Result<Vec<String>, String> {
    match (option.value, value) {
        (None, Value::Bool(true)) => Ok(vec![String::new()]),
        (None, Value::Bool(false)) => Ok(Vec::new()),
        (None, _) => Err("it is true or false".to_owned()),
        (Some(_), Value::Array(_)) if !option.is_repeatable() => {
            Err("it is one value and not a list".to_owned())
        }
        (Some(_), Value::Array(list)) => list.iter().map(one).collect(),
        (Some(_), Value::Object(_)) if option.name == "announce-extra" => {
            Ok(vec![value.to_string()])
        }
        (Some(_), value) => Ok(vec![one(value)?]),
    }
}

fn one(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err("it is a string or a number".to_owned()),
    }
}

fn words(value: &Value) -> Result<Vec<String>, String> {
    let words: std::option::Option<Vec<String>> = value
        .as_array()
        .filter(|words| words.first().is_some_and(|program| *program != ""))
        .and_then(|words| {
            words
                .iter()
                .map(|word| word.as_str().map(str::to_owned))
                .collect()
        });
    words.ok_or_else(|| "it is a list of the program and its arguments".to_owned())
}

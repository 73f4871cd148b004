//! The configuration file: the options of the command line by their names, as one JSON object.

use std::path::Path;

use serde_json::{Map, Value};

use super::options::Option;
use super::{Command, Program, Settings};

/// The key under which the program and its arguments stand.
const PROGRAM: &str = "command";

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
            let wrong = |why: String| self.complaint(key, &why);
            if key == PROGRAM {
                if command.program() == Program::None {
                    return Err(wrong("this command takes no program".to_owned()));
                }
                settings.program = words(value).map_err(wrong)?;
                continue;
            }
            let Some(option) = Option::find(key, command).filter(|option| option.is_of_files())
            else {
                return Err(wrong(format!("'{}' has no such setting", command.name())));
            };
            if given(key) {
                continue;
            }
            for value in values(option, value).map_err(wrong)? {
                (option.apply)(settings, &value).map_err(wrong)?;
            }
        }
        Ok(())
    }

    /// What is wrong, with the key and the line on which it stands.
    fn complaint(&self, key: &str, why: &str) -> String {
        let quoted = Value::from(key).to_string();
        let at = self.text.find(&quoted).unwrap_or_default();
        let line = self.text[..at].matches('\n').count() + 1;
        format!("{}, line {line}: {quoted}: {why}", self.name)
    }
}

/// The values that a setting stands for, as they would stand on the command line.
fn values(option: &Option, value: &Value) -> Result<Vec<String>, String> {
    match (option.value, value) {
        (None, Value::Bool(true)) => Ok(vec![String::new()]),
        (None, Value::Bool(false)) => Ok(Vec::new()),
        (None, _) => Err("it is true or false".to_owned()),
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
        _ => Err("it is a string or a number, or a list of them".to_owned()),
    }
}

fn words(value: &Value) -> Result<Vec<String>, String> {
    let words: std::option::Option<Vec<String>> = value
        .as_array()
        .filter(|words| !words.is_empty())
        .and_then(|words| {
            words
                .iter()
                .map(|word| word.as_str().map(str::to_owned))
                .collect()
        });
    words.ok_or_else(|| "it is a list of the program and its arguments".to_owned())
}

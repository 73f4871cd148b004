//! `outrigger example-app`: a chat room for `outrigger app`. It reads events from standard input and writes commands to
//! standard output.

use std::io::{self, BufRead, Write};

use serde_json::Value;

/// Answers events until standard input ends.
pub(crate) fn run() -> io::Result<()> {
    let mut out = io::stdout().lock();
    // The id and name of each client.
    let mut names: Vec<(String, String)> = Vec::new();
    let mut visits = 0u64;
    for line in io::stdin().lock().lines() {
        let event: Value = serde_json::from_str(&line?)?;
        let client = event["client"].as_str().unwrap_or_default().to_owned();
        for command in answer(&event, client, &mut names, &mut visits) {
            writeln!(out, "{command}")?;
        }
        out.flush()?;
    }
    Ok(())
}

/// Returns the commands for an event.
fn answer(
    event: &Value,
    client: String,
    names: &mut Vec<(String, String)>,
    visits: &mut u64,
) -> Vec<String> {
    let broadcast = |text: String, except: Option<&str>| {
        let text = Value::from(text);
        let except = except.map(|client| Value::from(client).to_string());
        let except = except.unwrap_or_default();
        format!(r#"{{"cmd":"broadcast","text":{text},"except":[{except}]}}"#)
    };
    match event["event"].as_str().unwrap_or_default() {
        "connect" => {
            *visits += 1;
            let name = format!("guest {visits}");
            let others: Vec<&str> = names.iter().map(|(_, name)| &**name).collect();
            let here = if others.is_empty() {
                "You are alone.".to_owned()
            } else {
                format!("Also here: {}.", others.join(", "))
            };
            let welcome = format!("You are {name}. {here} '/name NAME' changes your name.");
            names.push((client.clone(), name.clone()));
            vec![
                format!(
                    r#"{{"cmd":"send","client":{},"text":{}}}"#,
                    Value::from(client.as_str()),
                    Value::from(welcome)
                ),
                broadcast(format!("{name} is here."), Some(&client)),
            ]
        }
        "message" => {
            let Some(text) = event["text"].as_str() else {
                return Vec::new();
            };
            let Some((_, name)) = names.iter_mut().find(|(known, _)| *known == client) else {
                return Vec::new();
            };
            match text.strip_prefix("/name ").map(str::trim) {
                Some(new) if !new.is_empty() => {
                    let old = std::mem::replace(name, new.to_owned());
                    vec![broadcast(format!("{old} is now {new}."), None)]
                }
                _ => vec![broadcast(format!("{name}: {text}"), None)],
            }
        }
        "disconnect" => match names.iter().position(|(known, _)| *known == client) {
            Some(at) => vec![broadcast(
                format!("{} has left.", names.swap_remove(at).1),
                None,
            )],
            None => Vec::new(),
        },
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn guests_are_announced_renamed_and_heard() {
        let (mut names, mut visits) = (Vec::new(), 0);
        let mut texts = |client: &str, event: Value| -> Vec<String> {
            answer(&event, client.to_owned(), &mut names, &mut visits)
                .iter()
                .map(|command| {
                    let command: Value = command.parse().expect("JSON");
                    command["text"].as_str().expect("a text").to_owned()
                })
                .collect()
        };
        let first = texts("c1", json!({"event": "connect"}));
        assert!(first[0].starts_with("You are guest 1. You are alone."));
        let second = texts("c2", json!({"event": "connect"}));
        assert!(second[0].contains("Also here: guest 1."));
        assert_eq!(second[1], "guest 2 is here.");
        assert_eq!(
            texts("c2", json!({"event": "message", "text": "/name Ann"})),
            ["guest 2 is now Ann."]
        );
        assert_eq!(
            texts("c2", json!({"event": "message", "text": "hello"})),
            ["Ann: hello"]
        );
        assert!(texts("c2", json!({"event": "message", "binary": "AA=="})).is_empty());
        assert_eq!(
            texts("c2", json!({"event": "disconnect"})),
            ["Ann has left."]
        );
        assert!(texts("c2", json!({"event": "drain"})).is_empty());
    }
}

//! Tests of the configuration file.

use super::super::settings::ListenFlag;
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
    let settings = applied("echo", r#"{"reuse-port":false,"allow-host":["a","b"]}"#);
    let settings = settings.expect("it is valid");
    assert!(!settings.server.reuse_port && !settings.has("reuse-port"));
    assert_eq!(settings.server.access.hosts, ["a", "b"]);
    let settings = applied("echo", r#"{"listen":"127.0.0.1:0","max-clients":7}"#);
    let settings = settings.expect("it is valid");
    let listen = ListenFlag::Address(([127, 0, 0, 1], 0).into());
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

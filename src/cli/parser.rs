//! Parses the command line.

use std::ffi::OsString;

use lexopt::{Arg, Parser};

use super::action::Action;
use super::command::{Command, ProgramArg, Serves};
use super::config_file::ConfigFile;
use super::flag::{Flag, Takes};
use super::outcome::UsageError;
use super::output::Colors;
use super::settings::Settings;
use super::suggestion::suggestion;
use super::{help, values};
use crate::demo::Example;

/// Parses the command line.
pub(super) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Action, UsageError> {
    // Everything after `--` belongs to the program.
    let mut args: Vec<OsString> = args.into_iter().collect();
    let program = args
        .iter()
        .position(|arg| arg == "--")
        .map(|at| args.split_off(at).split_off(1));
    let mut parser = Parser::from_iter(args.iter());
    let with_one_dash = args.iter().skip(2);
    let with_one_dash = with_one_dash.filter_map(|arg| one_dash(arg.to_str()?));
    let hint = |error: String| UsageError::from(format!("{error}; see 'outrigger --help'"));
    let name = match parser.next().map_err(|error| error.to_string())? {
        None => return Err(hint("missing command".to_owned())),
        Some(Arg::Long("help") | Arg::Short('h')) => {
            return Ok(Action::Print(help::overview(Colors::stdout())));
        }
        Some(Arg::Long("version") | Arg::Short('V')) => {
            return Ok(Action::Print(help::version()));
        }
        Some(Arg::Value(name)) => name,
        Some(Arg::Long(name)) => {
            let mut commands = Command::ALL.iter();
            return Err(hint(
                if commands.any(|command| Flag::find(name, command).is_some()) {
                    format!("option '--{name}' must follow the command")
                } else {
                    unknown_flag(name, &["help", "version"])
                },
            ));
        }
        Some(flag) => return Err(hint(flag.unexpected().to_string())),
    };
    let name = name.to_string_lossy();
    if let Some(example) = Example::find(&name) {
        return example_action(&mut parser, example).map_err(hint);
    }
    let command = command(&name).map_err(hint)?;
    let hint = |error: String| UsageError {
        message: format!("{error}; see 'outrigger {} --help'", command.name),
        outcome: command.usage_outcome,
    };
    let parsed = parse_flags(&mut parser, command, program);
    // The parser sees letters with a value, of which it can only say that they are wrong.
    let mut of_flags = with_one_dash.filter(|(name, _)| Flag::find(name, command).is_some());
    let parsed = parsed.map_err(|error| match of_flags.next() {
        Some((name, rest)) => format!("unknown option '-{name}' (did you mean '--{name}{rest}'?)"),
        None => error,
    });
    parsed.map_err(hint)
}

/// The name in an argument such as `-port` or `-port=1`, and what follows it.
fn one_dash(arg: &str) -> Option<(&str, &str)> {
    let name = arg
        .strip_prefix('-')
        .filter(|name| !name.starts_with('-'))?;
    let end = name.find('=').unwrap_or(name.len());
    (end > 1).then(|| name.split_at(end))
}

/// The command of this name.
pub(super) fn command(name: &str) -> Result<&'static Command, String> {
    Command::find(name).ok_or_else(|| {
        let names: Vec<_> = Command::ALL.iter().map(|command| command.name).collect();
        let mut hint = suggestion(name, &names, "'", "'");
        if hint.is_empty() {
            hint = format!("; the commands are {}", names.join(", "));
        }
        format!("unknown command '{name}'{hint}")
    })
}

/// One of the demo's programs. They take no arguments.
fn example_action(parser: &mut Parser, example: &Example) -> Result<Action, String> {
    match parser.next().map_err(|error| error.to_string())? {
        None => Ok(Action::Example(example.run)),
        Some(Arg::Long("help") | Arg::Short('h')) => {
            Ok(Action::Print(help::examples(Colors::stdout())))
        }
        Some(arg) => Err(arg.unexpected().to_string()),
    }
}

fn parse_flags(
    parser: &mut Parser,
    command: &'static Command,
    program: Option<Vec<OsString>>,
) -> Result<Action, String> {
    let mut settings = Settings::new();
    let mut given: Vec<(&'static Flag, String)> = Vec::new();
    let mut words: Vec<String> = Vec::new();
    while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
        let flag = match arg {
            Arg::Short('h') => {
                return Ok(Action::Print(help::brief(command, Colors::stdout())));
            }
            Arg::Long("help") => {
                return Ok(Action::Print(help::of(command, Colors::stdout())));
            }
            Arg::Long(name) => Flag::find(name, command).ok_or_else(|| {
                let flags = Flag::of(command);
                let mut names: Vec<_> = flags.iter().map(|flag| flag.name).collect();
                names.push("help");
                unknown_flag(name, &names)
            })?,
            Arg::Short(letter) => {
                let mut flags = Flag::of(command).into_iter();
                let flag = flags.find(|flag| flag.short == Some(letter));
                flag.ok_or_else(|| arg.unexpected().to_string())?
            }
            Arg::Value(word) => {
                let word = utf8(word)?;
                if words.len() == command.max_words {
                    return Err(unexpected_word(command, &word));
                }
                words.push(word);
                continue;
            }
        };
        let value = match flag.takes {
            Takes::Nothing => String::new(),
            Takes::One(_) | Takes::Many(_) => {
                let value = parser.value().map_err(|error| error.to_string())?;
                let value = value.into_string();
                value.map_err(|_| format!("--{}: the value is not UTF-8", flag.name))?
            }
        };
        given.push((flag, value));
    }
    // The file is applied first and without the flags that are given, so that a flag replaces the file's list.
    if let Some((_, path)) = given.iter().rfind(|(flag, _)| flag.name == "config") {
        let file = ConfigFile::read(path.as_ref())?;
        file.apply(command, &mut settings, |one| {
            given
                .iter()
                .any(|(flag, _)| flag.name == one.name || flag.excludes(one).is_some())
        })?;
    }
    for (flag, value) in &given {
        let wrong = |error| format!("--{}: {error}", flag.name);
        flag.apply(&mut settings, value).map_err(wrong)?;
    }
    if let Some(program) = program {
        settings.program = program_after_dashes(command, program)?;
    }
    if let Serves::Tool(action) = command.serves {
        return action(settings, &words);
    }
    settings.operand = words.pop();
    settings.complete(command)?;
    Ok(Action::Run(command, Box::new(settings)))
}

fn utf8(word: OsString) -> Result<String, String> {
    word.into_string()
        .map_err(|word| format!("'{}' is not UTF-8", word.to_string_lossy()))
}

/// The error for a flag that this build does not have. `names` are those that it has.
fn unknown_flag(name: &str, names: &[&str]) -> String {
    if let Some(why) = values::missing_feature(name) {
        return format!("--{name}: {why}");
    }
    let mut hint = suggestion(name, names, "'--", "'");
    let is_place = ["host", "hostname", "address", "addr", "bind", "interface"].contains(&name);
    if is_place && names.contains(&"listen") {
        hint = "; use --listen HOST:PORT".to_owned();
    }
    format!("unknown option '--{name}'{hint}")
}

fn unexpected_word(command: &Command, word: &str) -> String {
    match command.program {
        _ if word.ends_with(".json") && Flag::find("config", command).is_some() => {
            format!("unexpected argument '{word}'; use --config {word}")
        }
        ProgramArg::Required | ProgramArg::Optional => {
            format!("unexpected argument '{word}'; put the program after '--'")
        }
        ProgramArg::None => format!("unexpected argument '{word}'"),
    }
}

/// The program and its arguments after `--`.
fn program_after_dashes(command: &Command, program: Vec<OsString>) -> Result<Vec<String>, String> {
    let Some(first) = program.first() else {
        return Err(match command.program {
            ProgramArg::Required | ProgramArg::Optional => "missing program after '--'".to_owned(),
            ProgramArg::None => "unexpected argument '--'".to_owned(),
        });
    };
    if command.program == ProgramArg::None {
        let first = first.to_string_lossy();
        return Err(format!("unexpected argument '{first}' after '--'"));
    }
    program.into_iter().map(utf8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Action, String> {
        let words = line.split_ascii_whitespace().map(OsString::from);
        parse(words).map_err(|error| error.message)
    }

    fn error(line: &str) -> String {
        parsed(line).expect_err(line)
    }

    fn listens(line: &str) -> String {
        match parsed(line).expect(line) {
            Action::Run(_, settings) => format!("{:?}", settings.listen),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn a_port_alone_is_one_of_127_0_0_1() {
        let loopback = listens("outrigger echo --listen 127.0.0.1:8080");
        for line in [
            "outrigger echo --port 8080",
            "outrigger echo --port=8080",
            "outrigger echo -p 8080",
            "outrigger echo -p8080",
            "outrigger echo -p 1 -p 8080",
            "outrigger echo --listen 8080",
            "outrigger echo --listen :8080",
        ] {
            assert_eq!(listens(line), loopback, "{line}");
        }
    }

    #[test]
    fn flags_that_contradict_each_other_are_an_error_that_says_what_to_do() {
        let both = error("outrigger echo -p 8080 --listen 0.0.0.0:80");
        assert!(
            both.contains("--port cannot be combined with --listen: write the port after the host"),
            "{both}"
        );
        let both = error("outrigger echo --port-range 1-2 -p 8080");
        assert!(
            both.contains("--port cannot be combined with --port-range"),
            "{both}"
        );
    }

    #[test]
    fn an_unknown_word_gets_the_similar_one() {
        for (line, says) in [
            ("outrigger agnet", "'agnet' (did you mean 'agent'?); see"),
            ("outrigger echo -port 1", "'-port' (did you mean '--port'?)"),
            ("outrigger echo -port=1", "(did you mean '--port=1'?)"),
            ("outrigger echo -listen :1", "(did you mean '--listen'?)"),
            ("outrigger echo --host ::", "; use --listen HOST:PORT; see"),
            ("outrigger serve a.json", "; use --config a.json; see"),
            (
                "outrigger echo --listen /x.sock",
                "; write unix:/x.sock; see",
            ),
            ("outrigger echo --listen ::2:70", "write [::2]:70; see"),
            (
                "outrigger help tokne",
                "'tokne' (did you mean 'token'?); see",
            ),
            (
                "outrigger --port 1 echo",
                "'--port' must follow the command",
            ),
            ("outrigger --versoin", "(did you mean '--version'?); see"),
            ("outrigger echo --prot 1", "(did you mean '--port'?); see"),
            ("outrigger echo --hlep", "(did you mean '--help'?); see"),
            ("outrigger echo --log wran", "(did you mean 'warn'?); see"),
            ("outrigger token lst", "(did you mean 'list'?); see"),
            ("outrigger completions bsh", "(did you mean 'bash'?); see"),
            (
                "outrigger token list --scop a",
                "(did you mean '--scope'?); see",
            ),
        ] {
            let error = error(line);
            assert!(error.contains(says), "{line}: {error}");
        }
        for line in [
            "outrigger dance",
            "outrigger echo --dance",
            "outrigger token dance",
        ] {
            let error = error(line);
            assert!(!error.contains("did you mean"), "{error}");
        }
    }

    #[test]
    fn every_example_in_the_help_is_accepted() {
        for command in Command::ALL {
            assert!(!command.examples.is_empty(), "{}", command.name);
            for (what, example) in command.examples {
                // What follows is for the shell.
                let line = example.split([')', '|', '>']).next().unwrap_or_default();
                let line = line.trim_start_matches("source <(");
                let words = format!("outrigger {}", command.name);
                assert!(line.starts_with(&words), "{example}");
                assert!(!what.is_empty() && !what.ends_with('.'), "{what}");
                let line = line.replace(['\'', '"'], "");
                let result = parsed(&line);
                // The only permitted error: files that the example names do not exist here.
                let error = result.err().filter(|error| !error.contains("(os error 2)"));
                assert_eq!(error, None, "{example}");
            }
        }
    }
}

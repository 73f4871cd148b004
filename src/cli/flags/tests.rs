//! Tests of the table of flags.

use super::*;

/// Every flag with each command that takes it.
fn all() -> impl Iterator<Item = (&'static Command, &'static Flag)> {
    let commands = Command::ALL.iter().copied();
    commands.flat_map(|command| {
        let flags = Flag::of(command).into_iter();
        flags.map(move |flag| (command, flag))
    })
}

#[test]
fn a_default_in_the_help_is_the_default_of_the_settings() {
    for (command, flag) in all() {
        let Some(default) = flag.default else {
            continue;
        };
        let mut settings = Settings::new();
        // `--listen` adds to a list that is empty until all flags are read.
        if flag.name == "listen" {
            settings.complete_listen().expect("the default is valid");
            let complete = format!("{settings:?}");
            settings = Settings::new();
            (flag.set)(&mut settings, default).expect("the default is valid");
            assert_eq!(format!("{settings:?}"), complete);
            continue;
        }
        let before = format!("{settings:?}");
        let set = (flag.set)(&mut settings, default);
        assert_eq!(set, Ok(()), "{} --{}", command.name, flag.name);
        assert_eq!(format!("{settings:?}"), before, "--{}", flag.name);
    }
}

#[test]
fn a_flag_accepts_and_rejects_the_values_of_its_row_and_kind() {
    for (_, flag) in all() {
        for value in flag.accepts {
            let accepted = (flag.set)(&mut Settings::new(), value);
            assert_eq!(accepted, Ok(()), "--{} {value}", flag.name);
        }
        for value in flag.rejects {
            let rejected = (flag.set)(&mut Settings::new(), value);
            let error = rejected.expect_err(&format!("--{} {value}", flag.name));
            assert!(!error.contains('\n') && !error.ends_with('.'), "{error}");
        }
        for word in flag.words {
            let accepted = (flag.set)(&mut Settings::new(), word);
            assert_eq!(accepted, Ok(()), "--{} {word}", flag.name);
        }
        let takes_time = flag.takes == Takes::One("TIME");
        let has_samples = !flag.accepts.is_empty() || !flag.words.is_empty();
        let is_tested = has_samples || takes_time || flag.takes == Takes::Nothing;
        assert!(is_tested, "--{} has no test", flag.name);
        if takes_time {
            let set = |value| (flag.set)(&mut Settings::new(), value);
            assert_eq!(
                (set("500ms"), set("1h")),
                (Ok(()), Ok(())),
                "--{}",
                flag.name
            );
            assert!(set("soon").is_err(), "--{}", flag.name);
            let needs_time = flag.rejects.contains(&"0");
            assert_eq!(set("0").is_err(), needs_time, "--{}", flag.name);
        }
    }
}

#[test]
fn a_name_is_used_once_and_what_a_flag_requires_exists() {
    for (command, flag) in all() {
        let first = Flag::find(flag.name, command);
        assert_eq!(first.map(|other| other.help), Some(flag.help));
        let flags = Flag::of(command).into_iter();
        let letters = flags.filter(|other| other.short == flag.short);
        assert!(flag.short.is_none() || letters.count() == 1);
        let same =
            all().filter(|(other, found)| other.name == command.name && found.name == flag.name);
        assert_eq!(same.count(), 1, "--{}", flag.name);
        if let Some(required) = flag.requires {
            assert!(Flag::find(required, command).is_some(), "--{required}");
        }
        for (other, why) in flag.excludes {
            let other = Flag::find(other, command).expect(other);
            assert_eq!(other.excludes(flag), Some(*why));
        }
    }
}

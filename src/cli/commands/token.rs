//! `outrigger token`: lists and edits the tokens of a file.

use super::super::flags::access::TOKEN_FILE;
use super::super::flags::{Flag, Takes};
use super::super::token::{OPERATIONS, action};
use super::{Command, Serves};

pub(super) static TOKEN: Command = Command {
    name: "token",
    usage: "\
add NAME [--scope SCOPE] --token-file FILE
list --token-file FILE
revoke NAME --token-file FILE",
    summary: "edit the tokens that clients present",
    about: "\
Edits a token file. A server that uses it with --token-file reloads it on SIGHUP and closes the
connections of revoked tokens.

  add       generates a token, prints it once, and writes its SHA-256 digest to FILE. A file with
            one word becomes a file with lines, in which the word is the token 'default'
  list      prints the name and the scope of each token
  revoke    removes a token. The last one cannot be removed, because a server needs one
",
    examples: &[
        (
            "create a token with which a client can use services",
            "outrigger token add ada --scope use --token-file tokens",
        ),
        (
            "list the tokens with their scopes",
            "outrigger token list --token-file tokens",
        ),
        (
            "remove a token",
            "outrigger token revoke ada --token-file tokens",
        ),
    ],
    title: "Token options",
    flags: FLAGS,
    max_words: 2,
    words: || OPERATIONS.to_vec(),
    serves: Serves::Tool(action),
    ..Command::BASE
};

const FLAGS: &[Flag] = &[
    Flag {
        name: "scope",
        takes: Takes::One("SCOPE"),
        words: &["all", "use", "watch", "metrics"],
        default_note: Some("all"),
        help: "for 'add': metrics allows /status and /metrics; watch also allows viewers and observers; use also allows connections to services; all also allows the calls of the process API",
        in_file: false,
        set: |settings, value| {
            let scope = value.parse();
            let scope = scope.map_err(|error| format!("'{value}' is {error}"))?;
            settings.token_scope = Some(scope);
            Ok(())
        },
        rejects: &["", "ALL", "none"],
        ..Flag::BASE
    },
    Flag {
        default_note: None,
        help: "the file to edit; 'add' creates it with mode 0600",
        in_file: false,
        ..TOKEN_FILE
    },
];

//! `outrigger token`: lists and edits the tokens of a file.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, fchown, flock};
use rustix::process::{Gid, Uid};

use super::super::action::{Action, TokenCommand, TokenOperation};
use super::super::command::{Command, Serves};
use super::super::flag::{Flag, Takes};
use super::super::flags::access::TOKEN_FILE;
use super::super::logging;
use super::super::outcome::{Outcome, fail};
use super::super::output::print;
use super::super::settings::Settings;
use super::super::suggestion::suggestion;
use crate::server::words;
use crate::sys::random_uuid;
use crate::text::without_mark;
use crate::{Credential, Scope, Secret, Token, Tokens};

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
    flags: TOKEN_FLAGS,
    max_words: 2,
    words: || OPERATIONS.to_vec(),
    serves: Serves::Tool(action),
    ..Command::BASE
};

const TOKEN_FLAGS: &[Flag] = &[
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

/// The names of the operations.
const OPERATIONS: [&str; 3] = ["add", "list", "revoke"];

/// The action of a command line: its flags, and the words that are not flags.
fn action(settings: Settings, words: &[String]) -> Result<Action, String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let operation = match words.as_slice() {
        ["add", name] => {
            TokenOperation::Add((*name).to_owned(), settings.token_scope.unwrap_or_default())
        }
        ["list"] => TokenOperation::List,
        ["revoke", name] => TokenOperation::Revoke((*name).to_owned()),
        ["add" | "revoke"] => return Err("missing NAME".to_owned()),
        ["list", word, ..] => return Err(format!("unexpected argument '{word}'")),
        _ => {
            let word = words.first().copied().unwrap_or_default();
            let hint = suggestion(word, &OPERATIONS, "'", "'");
            return Err(format!("expected 'add', 'list' or 'revoke'{hint}"));
        }
    };
    if settings.token_scope.is_some() && !matches!(operation, TokenOperation::Add(..)) {
        return Err("--scope has no effect without 'add'".to_owned());
    }
    let file = settings.token_file.ok_or("missing --token-file FILE")?;
    Ok(Action::Token(TokenCommand { operation, file }))
}

/// Carries out the command.
pub(crate) fn run(command: &TokenCommand) -> Outcome {
    let file = &command.file;
    let done = match &command.operation {
        TokenOperation::Add(name, scope) => add(file, name, *scope),
        TokenOperation::List => list(file),
        TokenOperation::Revoke(name) => revoke(file, name),
    };
    match done {
        Ok(()) => Outcome::Clean,
        Err((error, outcome)) => fail(&format!("{}: {error}", file.display()), outcome),
    }
}

/// An error message, and how the program ends.
type Failure = (String, Outcome);

/// The system or the file does not allow what was asked for.
fn failed(error: impl ToString) -> Failure {
    (error.to_string(), Outcome::Failure)
}

fn add(file: &Path, name: &str, scope: Scope) -> Result<(), Failure> {
    let token = Token::generate();
    let secret = Secret::from(token.clone());
    let line = format!("{name} {scope} {}", secret.to_sha256());
    let credential = Credential::new(name, scope, secret).ok_or_else(|| {
        let why = "is no name: 1 to 64 letters, digits and characters of '-_.@', but not 'nobody'";
        (format!("'{name}' {why}"), Outcome::Usage)
    })?;
    let edit = Edit::begin(file, true)?;
    let mut tokens = edit.tokens.clone();
    if tokens
        .iter()
        .any(|one| one.name() == name && one.scope() == scope)
    {
        let why = format!("'{name}' has a token of the scope {scope} already; revoke it first");
        return Err(failed(why));
    }
    tokens
        .add(credential)
        .map_err(|error| failed(format!("'{name}': {error}")))?;
    let text = with_line(&edit.text, &line);
    // The file is complete before the token is printed, and is used only if it was.
    edit.write(&text, || {
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{}", token.reveal())?;
        stdout.flush()
    })?;
    logging::write_line(&format!(
        "outrigger: added '{name}' ({scope}); SIGHUP makes a running server accept it\n"
    ));
    Ok(())
}

fn list(file: &Path) -> Result<(), Failure> {
    let (_, tokens) = read(file, false)?;
    let width = tokens.iter().map(|one| one.name().len()).max();
    let width = width.unwrap_or_default();
    let lines = tokens
        .iter()
        .map(|one| format!("{:width$} {}\n", one.name(), one.scope()));
    print(&lines.collect::<String>());
    Ok(())
}

fn revoke(file: &Path, name: &str) -> Result<(), Failure> {
    let edit = Edit::begin(file, false)?;
    if edit.tokens.find(name).is_none() {
        return Err(failed(format!("there is no token '{name}'")));
    }
    if edit.tokens.iter().all(|one| one.name() == name) {
        let why = "is the last token, and a server needs one; add another one first";
        return Err(failed(format!("'{name}' {why}")));
    }
    edit.write(&without_line(&edit.text, name), || Ok(()))?;
    logging::write_line(&format!(
        "outrigger: revoked '{name}'; SIGHUP makes a running server close its connections\n"
    ));
    Ok(())
}

/// The content of a file, with a line more. A file with one word gets the form with lines.
fn with_line(text: &str, line: &str) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for existing in &mut lines {
        if let [secret] = words(existing)[..] {
            let named = format!("default {} {secret}", Scope::All);
            *existing = existing.trim_start().replacen(secret, &named, 1);
        }
    }
    lines.push(format!("{line}\n"));
    lines.join("\n")
}

/// The content of a file, without the tokens of this name.
fn without_line(text: &str, name: &str) -> String {
    let lines = text.split_inclusive('\n');
    lines
        .filter(|line| words(line).first() != Some(&name))
        .collect()
}

/// Reads a token file. With `may_be_empty`, it may also have no token or not exist.
fn read(file: &Path, may_be_empty: bool) -> Result<(String, Tokens), Failure> {
    let text = match fs::read_to_string(file) {
        Err(error) if may_be_empty && error.kind() == io::ErrorKind::NotFound => String::new(),
        // The mark would become part of the first line's name.
        text => without_mark(&text.map_err(failed)?).to_owned(),
    };
    let tokens = match text.parse::<Tokens>() {
        Err(error) if may_be_empty && error.is_empty() => Tokens::default(),
        tokens => tokens.map_err(|error| (error.to_string(), Outcome::Usage))?,
    };
    Ok((text, tokens))
}

/// An edit of a file, which no other edit overlaps.
struct Edit {
    /// The file, which is not a symbolic link.
    file: PathBuf,
    /// Its directory, which is locked until the edit ends.
    _folder: File,
    text: String,
    tokens: Tokens,
}

impl Edit {
    fn begin(file: &Path, may_create: bool) -> Result<Self, Failure> {
        // The target of a link is replaced, and the link stays.
        let file = match fs::canonicalize(file) {
            Err(error) if may_create && error.kind() == io::ErrorKind::NotFound => file.to_owned(),
            found => found.map_err(failed)?,
        };
        let folder = match file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let folder = File::open(folder).map_err(failed)?;
        flock(&folder, FlockOperation::LockExclusive).map_err(failed)?;
        let (text, tokens) = read(&file, may_create)?;
        Ok(Self {
            file,
            _folder: folder,
            text,
            tokens,
        })
    }

    /// Replaces the file atomically. A new file is for its owner alone, and an existing one keeps its owner and mode.
    /// `prepare` runs when the new content is on the disk, and nothing changes if it fails.
    fn write(&self, text: &str, prepare: impl FnOnce() -> io::Result<()>) -> Result<(), Failure> {
        let mut name = self.file.clone().into_os_string();
        name.push(format!(".{}", random_uuid().simple()));
        let unfinished = PathBuf::from(name);
        let mut out = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)
            .map_err(failed)?;
        let written = self
            .copy_owner(&out)
            .and_then(|()| out.write_all(text.as_bytes()))
            .and_then(|()| out.sync_all())
            .and_then(|()| prepare())
            .and_then(|()| fs::rename(&unfinished, &self.file));
        written.map_err(|error| {
            let _ = fs::remove_file(&unfinished);
            failed(error)
        })
    }

    /// Gives the new file the owner and the mode of the existing one.
    fn copy_owner(&self, out: &File) -> io::Result<()> {
        let found = match fs::metadata(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        let made = out.metadata()?;
        if (made.uid(), made.gid()) != (found.uid(), found.gid()) {
            let (user, group) = (Uid::from_raw(found.uid()), Gid::from_raw(found.gid()));
            fchown(out, Some(user), Some(group))?;
        }
        out.set_permissions(Permissions::from_mode(found.mode() & 0o777))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_keeps_comments_and_the_other_tokens() {
        for (text, after) in [
            ("", "ada use X\n"),
            ("s3cret", "default all s3cret\nada use X\n"),
            ("  s # old\n", "default all s # old\nada use X\n"),
            ("# a\n\nall\n", "# a\n\ndefault all all\nada use X\n"),
            ("# c\nbob all s\n", "# c\nbob all s\nada use X\n"),
            ("bob all s", "bob all s\nada use X\n"),
        ] {
            assert_eq!(with_line(text, "ada use X"), after);
        }
        let text = "# ada all\nada all s # c\n\n  ada use t\nadam use u\n#ada\nbob use ada";
        let left = "# ada all\n\nadam use u\n#ada\nbob use ada";
        assert_eq!(without_line(text, "ada"), left);
        assert_eq!(
            without_line("bob use t\r\nada all s\r\n", "bob"),
            "ada all s\r\n"
        );
    }
}

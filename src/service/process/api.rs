//! The bodies and paths of the process API.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustix::process::Signal;
use serde_json::{Value, json};
use uuid::Uuid;

use super::body::{Fields, Kind, Schema};
use super::control::dimension;
use super::program::{MARK, Program};
use super::sink::Gathered;
use crate::sys::{Account, TerminalSize, usage};
use crate::{Rejection, Request, Response, StatusCode, Time};

/// What `exec` takes of each output of a program, unless its caller says otherwise.
const CAPTURE: usize = 1 << 20;

/// The longest body of a call, but for that of `stdin`.
const MAX_BODY: usize = 1 << 20;

/// A call of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    List,
    Spawn,
    Exec,
    Status(Uuid),
    Stdin(Uuid),
    Kill(Uuid),
    Resize(Uuid),
    Stream(Uuid),
    Attach(Uuid),
}

impl Call {
    /// The call that a method and a path below the endpoint stand for.
    pub(crate) fn read(method: &str, below: &str) -> Result<Self, Rejection> {
        let segments: Vec<&str> = below.split('/').collect();
        let (call, allow) = match *segments {
            [""] => (Self::List, "GET"),
            ["", "spawn"] => (Self::Spawn, "POST"),
            ["", "exec"] => (Self::Exec, "POST"),
            ["", id, "status"] => (Self::Status(parse_id(id)?), "GET"),
            ["", id, "stdin"] => (Self::Stdin(parse_id(id)?), "POST"),
            ["", id, "kill"] => (Self::Kill(parse_id(id)?), "POST"),
            ["", id, "resize"] => (Self::Resize(parse_id(id)?), "POST"),
            ["", id, "stdout", "stream"] => (Self::Stream(parse_id(id)?), "GET"),
            ["", id, "attach"] => (Self::Attach(parse_id(id)?), "GET"),
            _ => return Err(Rejection::not_found()),
        };
        if method == allow {
            Ok(call)
        } else {
            Err(Rejection::method_not_allowed(allow))
        }
    }

    /// The process that it names.
    pub(crate) fn id(self) -> Option<Uuid> {
        match self {
            Self::List | Self::Spawn | Self::Exec => None,
            Self::Status(id)
            | Self::Stdin(id)
            | Self::Kill(id)
            | Self::Resize(id)
            | Self::Stream(id)
            | Self::Attach(id) => Some(id),
        }
    }

    /// The longest body that it may have.
    pub(crate) fn max_body(self) -> usize {
        match self {
            Self::Stdin(_) => usize::MAX,
            _ => MAX_BODY,
        }
    }

    /// Whether it has a body.
    pub(crate) fn has_body(self) -> bool {
        matches!(
            self,
            Self::Spawn | Self::Exec | Self::Stdin(_) | Self::Kill(_) | Self::Resize(_)
        )
    }
}

/// Ids are written in one way: the one they were given out in.
fn parse_id(text: &str) -> Result<Uuid, Rejection> {
    let hyphenated = text.len() == 36;
    Uuid::try_parse(text)
        .ok()
        .filter(|_| hyphenated)
        .ok_or_else(no_process)
}

pub(crate) fn no_process() -> Rejection {
    Rejection::new(StatusCode::NOT_FOUND, "process not found")
}

pub(crate) fn bad(message: impl Into<std::borrow::Cow<'static, str>>) -> Rejection {
    Rejection::new(StatusCode::BAD_REQUEST, message)
}

/// Whether a body that is JSON may be coming, before it has come.
pub(crate) fn check_content_type(request: &Request<'_>) -> Result<(), Rejection> {
    let length = request.header("content-length").unwrap_or(b"0");
    if length.iter().all(|digit| *digit == b'0') && request.header("transfer-encoding").is_none() {
        return Err(bad("a JSON body is required"));
    }
    // A browser sends this type across origins only after it has asked whether it may.
    let media_type = request
        .header("content-type")
        .and_then(|value| value.split(|byte| *byte == b';').next())
        .unwrap_or_default();
    if media_type
        .trim_ascii()
        .eq_ignore_ascii_case(b"application/json")
    {
        Ok(())
    } else {
        Err(Rejection::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the Content-Type has to be application/json",
        ))
    }
}

/// Whether answers have fields that the process API of kernel-images does not know: `?details=1`. Its schema allows no
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Details {
    Usual,
    All,
}

impl Details {
    /// What a request asks for.
    pub(crate) fn of(request: &Request<'_>) -> Result<Self, Rejection> {
        match request.parameters("details").last().as_deref() {
            None | Some("0" | "false") => Ok(Self::Usual),
            Some("1" | "true") => Ok(Self::All),
            Some(_) => Err(bad("'details' is not 0 or 1")),
        }
    }
}

/// What is to be run.
#[derive(Clone, Debug)]
pub(crate) struct RunRequest {
    pub(crate) command: Vec<String>,
    pub(crate) cwd: Option<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) account: Option<Account>,
    pub(crate) terminal: Option<TerminalSize>,
    pub(crate) timeout: Option<Duration>,
}

/// The fields of `stdin`, `kill` and `resize`.
const STDIN: &Schema = &[("data_b64", Kind::Text)];
const KILL: &Schema = &[("signal", Kind::Text)];
const RESIZE: &Schema = &[("rows", Kind::Number), ("cols", Kind::Number)];

/// Those of `spawn`, and of `exec`, which has one more.
const SPAWN: &Schema = EXEC.split_at(EXEC.len() - 1).0;
const EXEC: &Schema = &[
    ("command", Kind::Text),
    ("args", Kind::Words),
    ("cwd", Kind::Text),
    ("env", Kind::Variables),
    ("as_user", Kind::Text),
    ("as_root", Kind::Flag),
    ("timeout_sec", Kind::Number),
    ("allocate_tty", Kind::Flag),
    ("rows", Kind::Number),
    ("cols", Kind::Number),
    ("max_output_bytes", Kind::Number),
];

/// The longest timeout; a longer one is treated as none.
const LONGEST: Duration = Duration::from_secs(1_000_000_000);

fn missing(name: &str) -> Rejection {
    bad(format!("{name:?} is missing"))
}

/// Base64: the body of `stdin`.
pub(super) fn read_data(body: &[u8]) -> Result<Vec<u8>, Rejection> {
    let fields = Fields::read(body, STDIN)?;
    let text = fields.text("data_b64").ok_or_else(|| missing("data_b64"))?;
    BASE64_STANDARD
        .decode(text)
        .map_err(|error| bad(format!("\"data_b64\" is not base64: {error}")))
}

/// Both dimensions: the body of `resize`.
pub(super) fn read_size(body: &[u8]) -> Result<TerminalSize, Rejection> {
    let fields = Fields::read(body, RESIZE)?;
    for name in ["rows", "cols"] {
        if !fields.has(name) {
            return Err(missing(name));
        }
    }
    size(&fields)
}

/// A terminal's size; absent dimensions have their defaults.
fn size(fields: &Fields<'_>) -> Result<TerminalSize, Rejection> {
    let read = |name: &str, usual| match fields.number(name) {
        None => Ok(usual),
        Some(number) if number.fract() == 0.0 && (1.0..=65535.0).contains(&number) => {
            Ok(number as u16)
        }
        Some(_) => Err(bad(format!("{name:?} is not a number from 1 to 65535"))),
    };
    let usual = TerminalSize::default();
    Ok(TerminalSize {
        rows: read("rows", usual.rows)?,
        cols: read("cols", usual.cols)?,
    })
}

/// The signal of a `kill`.
pub(super) fn read_signal(body: &[u8]) -> Result<Signal, Rejection> {
    let fields = Fields::read(body, KILL)?;
    let name = fields.text("signal").ok_or_else(|| missing("signal"))?;
    Ok(match name.strip_prefix("SIG").unwrap_or(name) {
        "TERM" => Signal::TERM,
        "KILL" => Signal::KILL,
        "INT" => Signal::INT,
        "HUP" => Signal::HUP,
        _ => return Err(bad("\"signal\" is not one of TERM, KILL, INT, HUP")),
    })
}

/// The body of `spawn`.
pub(super) fn read_spawn(body: &[u8]) -> Result<RunRequest, Rejection> {
    read_run(&Fields::read(body, SPAWN)?)
}

/// The body of `exec`: what is to be run, and how much of each of its outputs is taken, at most `most`.
pub(super) fn read_exec(body: &[u8], most: usize) -> Result<(RunRequest, usize), Rejection> {
    let fields = Fields::read(body, EXEC)?;
    let limit = match fields.number("max_output_bytes") {
        None => CAPTURE.min(most),
        Some(number) if number.fract() == 0.0 && (0.0..=most as f64).contains(&number) => {
            number as usize
        }
        Some(_) => {
            let why = format!("\"max_output_bytes\" is not a number from 0 to {most}");
            return Err(bad(why));
        }
    };
    Ok((read_run(&fields)?, limit))
}

fn read_run(fields: &Fields<'_>) -> Result<RunRequest, Rejection> {
    let name = fields.text("command").filter(|name| !name.is_empty());
    let mut command = vec![name.ok_or_else(|| missing("command"))?.to_owned()];
    command.extend_from_slice(fields.words("args"));
    let env = fields.variables("env");
    for (name, _) in env {
        if name.is_empty() || name.contains('=') {
            return Err(bad(format!(
                "\"env\": {name:?} is not the name of a variable"
            )));
        }
        if name == MARK {
            return Err(bad(format!("\"env\": {MARK} is set by the server")));
        }
    }
    let cwd = fields.text("cwd");
    if let Some(cwd) = cwd {
        if !cwd.starts_with('/') {
            return Err(bad("\"cwd\" is not an absolute path"));
        }
        if !std::path::Path::new(cwd).is_dir() {
            return Err(bad("\"cwd\" is not a directory"));
        }
    }
    let timeout = fields
        .number("timeout_sec")
        .filter(|seconds| *seconds > 0.0);
    let timeout = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let size = size(fields)?;
    Ok(RunRequest {
        command,
        cwd: cwd.map(str::to_owned),
        env: env.to_vec(),
        account: account(fields)?,
        terminal: fields.flag("allocate_tty").then_some(size),
        timeout: timeout.filter(|timeout| *timeout <= LONGEST),
    })
}

/// The account to run the program as, unless it is our own.
fn account(fields: &Fields<'_>) -> Result<Option<Account>, Rejection> {
    let wanted = match (fields.text("as_user"), fields.flag("as_root")) {
        (None, false) => return Ok(None),
        (Some(wanted), false) => wanted,
        (None, true) => "root",
        (Some(_), true) => return Err(bad("\"as_user\" and \"as_root\" exclude each other")),
    };
    find_account(wanted)
}

/// The size that a request asks for.
pub(crate) fn size_of(request: &Request<'_>) -> Result<TerminalSize, Rejection> {
    let read = |name: &str, usual: u16| {
        let Some(text) = request.parameters(name).last() else {
            return Ok(usual);
        };
        let number: Option<u16> = text.parse::<u64>().ok().and_then(|n| dimension(&n.into()));
        number.ok_or_else(|| bad(format!("'{name}' is not a number from 1 to 65535")))
    };
    let usual = TerminalSize::default();
    Ok(TerminalSize {
        rows: read("rows", usual.rows)?,
        cols: read("cols", usual.cols)?,
    })
}

/// The account that a user's name or number stands for, unless we run as it already.
pub(crate) fn find_account(wanted: &str) -> Result<Option<Account>, Rejection> {
    let account = Account::find(wanted).map_err(|error| {
        let why = format!("looking up user {wanted:?} failed: {error}");
        match error.kind() {
            std::io::ErrorKind::InvalidInput => bad(why),
            _ => Rejection::new(StatusCode::INTERNAL, why),
        }
    })?;
    let account = account.ok_or_else(|| bad(format!("there is no user {wanted:?}")))?;
    if account.is_ours(wanted) {
        Ok(None)
    } else if Account::may_change() {
        Ok(Some(account))
    } else {
        Err(bad("only root can run programs as another user"))
    }
}

/// One entry of the list.
pub(crate) fn summary(program: &mut Program, now: Time) -> Value {
    let exit = program.exit();
    let attached = program
        .sink
        .attachments()
        .map(|readers| (readers.writer().is_some(), readers.reader_count()));
    let (writer, readers) = attached.unwrap_or_default();
    json!({
        "process_id": program.id.to_string(),
        "pid": program.pid(),
        "command": program.command[0],
        "args": program.command[1..],
        "tty": program.has_terminal(),
        "started_at": rfc3339(program.started),
        "running_s": program.ran(now).as_secs_f64(),
        "state": if exit.is_some() { "exited" } else { "running" },
        "exit_code": exit.map(|exit| exit.code),
        "signal": exit.and_then(|exit| exit.signal),
        "attached": writer,
        "readers": readers,
    })
}

/// The answer to `spawn`.
pub(crate) fn spawned(program: &Program) -> Response {
    let body = json!({
        "process_id": program.id.to_string(),
        "pid": program.pid(),
        "started_at": rfc3339(program.started),
    });
    Response::json(StatusCode::OK, body.to_string())
}

/// The answer to `status`.
pub(crate) fn status(program: &Program, now: Time, details: Details) -> Response {
    let exit = program.exit();
    let used = if exit.is_none() {
        usage(program.pid())
    } else {
        None
    };
    let (cpu, memory) = used.unwrap_or_default();
    let ran = program.ran(now).as_secs_f64().max(0.001);
    let percent = (cpu.as_secs_f64() / ran * 1000.0).round() / 10.0;
    let mut body = json!({
        "state": if exit.is_some() { "exited" } else { "running" },
        "exit_code": exit.map(|exit| exit.code),
        "cpu_pct": percent,
        "mem_bytes": memory,
    });
    if details == Details::All {
        body["signal"] = exit.and_then(|exit| exit.signal).into();
        body["timed_out"] = program.timed_out().into();
    }
    Response::json(StatusCode::OK, body.to_string())
}

/// The answer to `exec`.
pub(crate) fn executed(program: &Program, output: &Gathered, now: Time) -> Response {
    let exit = program.exit();
    let truncated = output.is_truncated();
    let mut others = json!({
        "exit_code": exit.map(|exit| exit.code),
        "duration_ms": program.ran(now).as_millis() as u64,
    });
    if output.details == Details::All {
        others["signal"] = exit.and_then(|exit| exit.signal).into();
        others["timed_out"] = program.timed_out().into();
        others["truncated"] = truncated.into();
    }
    // Output may be long. It is encoded to its place; nothing in it has to be escaped.
    let mut body = others.to_string();
    body.pop();
    body.reserve(100 + (output.stdout.len() + output.stderr.len()) * 4 / 3);
    for (name, bytes) in [
        ("stdout_b64", &output.stdout),
        ("stderr_b64", &output.stderr),
    ] {
        body.push_str(",\"");
        body.push_str(name);
        body.push_str("\":\"");
        BASE64_STANDARD.encode_string(bytes, &mut body);
        body.push('"');
    }
    body.push('}');
    let response = Response::new(StatusCode::OK, "application/json", body.into_bytes());
    if truncated {
        // The fields of the body are fixed, and output that was cut has to be told from all of it.
        response.field("X-Outrigger-Truncated", "true")
    } else {
        response
    }
}

fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_ids_are_read_strictly() {
        let id = Uuid::new_v4();
        let read =
            |method, below: &str| Call::read(method, below).map_err(|rejection| rejection.status.0);
        assert_eq!(read("GET", ""), Ok(Call::List));
        assert_eq!(read("POST", "/spawn"), Ok(Call::Spawn));
        assert_eq!(read("GET", &format!("/{id}/status")), Ok(Call::Status(id)));
        assert_eq!(
            read("GET", &format!("/{id}/stdout/stream")),
            Ok(Call::Stream(id))
        );
        assert_eq!(read("GET", "/spawn"), Err(405));
        assert_eq!(read("DELETE", &format!("/{id}/kill")), Err(405));
        for bad in [
            "/".to_owned(),
            "/spawn/".to_owned(),
            "//spawn".to_owned(),
            format!("/{id}"),
            format!("/{id}/"),
            format!("/{id}/status/"),
            format!("/{}/status", id.simple()),
            format!("/{{{id}}}/status"),
            format!("/{}x/status", &id.to_string()[..35]),
            "/1/status".to_owned(),
            "/../status".to_owned(),
        ] {
            assert_eq!(read("GET", &bad), Err(404), "{bad}");
        }
    }

    #[test]
    fn a_body_says_what_is_wrong_with_it() {
        let message = |body: &str| {
            let rejection = read_spawn(body.as_bytes()).expect_err(body);
            assert_eq!(rejection.status.0, 400, "{body}");
            rejection.message.into_owned()
        };
        for (body, says) in [
            ("", "not JSON"),
            ("[]", "a JSON object"),
            ("{}", "\"command\" is missing"),
            (r#"{"command":""}"#, "\"command\" is missing"),
            (r#"{"command":["sh"]}"#, "\"command\" to be a string"),
            (r#"{"command":"s\u0000h"}"#, "zero byte"),
            (r#"{"command":"sh","args":"x"}"#, "\"args\""),
            (r#"{"command":"sh","args":[1]}"#, "\"args\""),
            (r#"{"command":"sh","env":{"A":1}}"#, "\"env\""),
            (r#"{"command":"sh","env":{"A=B":"1"}}"#, "\"env\""),
            (
                r#"{"command":"sh","env":{"OUTRIGGER_PROCESS_ID":"1"}}"#,
                "set by the server",
            ),
            (r#"{"command":"sh","cwd":"/nowhere"}"#, "\"cwd\""),
            (
                r#"{"command":"sh","cwd":"."}"#,
                "\"cwd\" is not an absolute",
            ),
            (r#"{"command":"sh","rows":0}"#, "\"rows\""),
            (r#"{"command":"sh","as_root":1}"#, "\"as_root\""),
            (r#"{"command":"sh","as_user":"no such user"}"#, "no user"),
            (r#"{"command":"sh","as_user":"root:x"}"#, "not a number"),
            (
                r#"{"command":"sh","max_output_bytes":1}"#,
                "unknown field \"max_output_bytes\"",
            ),
        ] {
            assert!(message(body).contains(says), "{body}: {}", message(body));
        }
        let request = read_spawn(
            br#"{"command":"sh","args":null,"allocate_tty":true,"cols":100,"timeout_sec":0.5}"#,
        );
        let request = request.expect("valid");
        assert_eq!(
            request.terminal,
            Some(TerminalSize {
                rows: 24,
                cols: 100
            })
        );
        assert_eq!(request.timeout, Some(Duration::from_millis(500)));
        for no_limit in ["0", "-1", "1e30", "1e300"] {
            let body = format!(r#"{{"command":"sh","timeout_sec":{no_limit}}}"#);
            let request = read_spawn(body.as_bytes()).expect("valid");
            assert_eq!(request.timeout, None, "{no_limit}");
        }
    }

    /// An answer took up to `--max-message` of each output, so that thirty callers could hold a gigabyte.
    #[test]
    fn exec_takes_as_much_output_as_it_is_told() {
        let limit = |more: &str| {
            let body = format!(r#"{{"command":"sh"{more}}}"#);
            read_exec(body.as_bytes(), 16 << 20).map(|(_, limit)| limit)
        };
        assert_eq!(limit("").ok(), Some(1 << 20));
        assert_eq!(limit(r#","max_output_bytes":null"#).ok(), Some(1 << 20));
        assert_eq!(limit(r#","max_output_bytes":0"#).ok(), Some(0));
        assert_eq!(
            limit(r#","max_output_bytes":16777216"#).ok(),
            Some(16 << 20)
        );
        for bad in ["16777217", "-1", "1.5", "1e300"] {
            let rejection = limit(&format!(r#","max_output_bytes":{bad}"#)).expect_err(bad);
            assert!(rejection.message.contains("from 0 to 16777216"));
        }
        let small = read_exec(br#"{"command":"sh"}"#, 1000).expect("valid");
        assert_eq!(small.1, 1000, "a smaller server takes less");
    }
}

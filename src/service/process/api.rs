//! The bodies and paths of the process API.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustix::process::Signal;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::control::dimension;
use super::program::Program;
use super::sink::Gathered;
use crate::sys::{Account, TerminalSize, usage};
use crate::{Refusal, Request, Response, StatusCode, Time};

/// The most arguments, variables and bytes of them: more than any kernel takes would only fail later.
const MAX_WORDS: usize = 10_000;

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
    pub(crate) fn read(method: &str, below: &str) -> Result<Self, Refusal> {
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
            _ => return Err(Refusal::not_found()),
        };
        if method == allow {
            Ok(call)
        } else {
            Err(Refusal::method_not_allowed(allow))
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

    /// Whether it has a body.
    pub(crate) fn has_body(self) -> bool {
        matches!(
            self,
            Self::Spawn | Self::Exec | Self::Stdin(_) | Self::Kill(_) | Self::Resize(_)
        )
    }
}

/// Ids are written in one way: the one they were given out in.
fn parse_id(text: &str) -> Result<Uuid, Refusal> {
    let hyphenated = text.len() == 36;
    Uuid::try_parse(text)
        .ok()
        .filter(|_| hyphenated)
        .ok_or_else(no_process)
}

pub(crate) fn no_process() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "process not found")
}

pub(crate) fn bad(message: impl Into<std::borrow::Cow<'static, str>>) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, message)
}

/// Whether a body that is JSON may be coming, before it has come.
pub(crate) fn check_content_type(request: &Request<'_>) -> Result<(), Refusal> {
    if request.header("content-length").is_none() && request.header("transfer-encoding").is_none() {
        return Err(Refusal::new(
            StatusCode::LENGTH_REQUIRED,
            "a JSON body is required",
        ));
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
        Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the Content-Type has to be application/json",
        ))
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

/// The fields of a JSON body. One that is `null` is as good as absent.
#[derive(Debug)]
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    pub(crate) fn read(body: &[u8]) -> Result<Self, Refusal> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(_) => Err(bad("the body is not a JSON object")),
            Err(error) => Err(bad(format!("the body is not JSON: {error}"))),
        }
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn text(&self, name: &str) -> Result<Option<&str>, Refusal> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let text = value
            .as_str()
            .ok_or_else(|| bad(format!("{name:?} is not a string")))?;
        if text.contains('\0') {
            return Err(bad(format!("{name:?} contains a zero byte")));
        }
        Ok(Some(text))
    }

    fn flag(&self, name: &str) -> Result<bool, Refusal> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(bad(format!("{name:?} is not true or false"))),
        }
    }

    /// A terminal's size; what is absent is as usual.
    fn size(&self, usual: TerminalSize) -> Result<TerminalSize, Refusal> {
        let read = |name: &str, usual| match self.get(name) {
            None => Ok(usual),
            Some(value) => dimension(value)
                .ok_or_else(|| bad(format!("{name:?} is not a number from 1 to 65535"))),
        };
        Ok(TerminalSize {
            rows: read("rows", usual.rows)?,
            cols: read("cols", usual.cols)?,
        })
    }

    /// Base64.
    pub(crate) fn data(&self) -> Result<Vec<u8>, Refusal> {
        let text = self
            .text("data_b64")?
            .ok_or_else(|| bad("\"data_b64\" is missing"))?;
        BASE64_STANDARD
            .decode(text)
            .map_err(|error| bad(format!("\"data_b64\" is not base64: {error}")))
    }

    /// Both dimensions, which have to be there.
    pub(crate) fn new_size(&self) -> Result<TerminalSize, Refusal> {
        for name in ["rows", "cols"] {
            if self.get(name).is_none() {
                return Err(bad(format!("{name:?} is missing")));
            }
        }
        self.size(TerminalSize::default())
    }

    /// The signal of a `kill`.
    pub(crate) fn signal(&self) -> Result<Signal, Refusal> {
        let name = self
            .text("signal")?
            .ok_or_else(|| bad("\"signal\" is missing"))?;
        Ok(match name.strip_prefix("SIG").unwrap_or(name) {
            "TERM" => Signal::TERM,
            "KILL" => Signal::KILL,
            "INT" => Signal::INT,
            "HUP" => Signal::HUP,
            _ => return Err(bad("\"signal\" is not one of TERM, KILL, INT, HUP")),
        })
    }

    /// The body of `spawn` and `exec`.
    pub(crate) fn run_request(&self) -> Result<RunRequest, Refusal> {
        let name = self
            .text("command")?
            .filter(|name| !name.is_empty())
            .ok_or_else(|| bad("\"command\" is missing"))?;
        let mut command = vec![name.to_owned()];
        if let Some(args) = self.get("args") {
            let words = args
                .as_array()
                .filter(|args| args.len() <= MAX_WORDS)
                .ok_or_else(|| bad("\"args\" is not a list of strings"))?;
            for word in words {
                let word = word.as_str().filter(|word| !word.contains('\0'));
                let word = word.ok_or_else(|| bad("\"args\" is not a list of strings"))?;
                command.push(word.to_owned());
            }
        }
        let mut env = Vec::new();
        if let Some(variables) = self.get("env") {
            let variables = variables
                .as_object()
                .filter(|variables| variables.len() <= MAX_WORDS)
                .ok_or_else(|| bad("\"env\" is not an object of strings"))?;
            for (name, value) in variables {
                let value = value.as_str().filter(|value| !value.contains('\0'));
                let valid = !name.is_empty() && !name.contains(['=', '\0']);
                let value = value
                    .filter(|_| valid)
                    .ok_or_else(|| bad("\"env\" is not an object of strings"))?;
                env.push((name.clone(), value.to_owned()));
            }
        }
        let cwd = self.text("cwd")?.filter(|cwd| !cwd.is_empty());
        if let Some(cwd) = cwd
            && !std::path::Path::new(cwd).is_dir()
        {
            return Err(bad("\"cwd\" is not a directory"));
        }
        let timeout = match self.get("timeout_sec") {
            None => None,
            Some(value) => {
                let seconds = value
                    .as_f64()
                    .filter(|seconds| (0.0..=1e9).contains(seconds));
                let seconds =
                    seconds.ok_or_else(|| bad("\"timeout_sec\" is not a number of seconds"))?;
                (seconds > 0.0).then(|| Duration::from_secs_f64(seconds))
            }
        };
        let size = self.size(TerminalSize::default())?;
        Ok(RunRequest {
            command,
            cwd: cwd.map(str::to_owned),
            env,
            account: self.account()?,
            terminal: self.flag("allocate_tty")?.then_some(size),
            timeout,
        })
    }

    /// Whom the program is to run as, unless that is us.
    fn account(&self) -> Result<Option<Account>, Refusal> {
        let name = match (self.text("as_user")?, self.flag("as_root")?) {
            (None, false) => return Ok(None),
            (Some(name), false) => name,
            (None, true) => "root",
            (Some(_), true) => return Err(bad("\"as_user\" and \"as_root\" exclude each other")),
        };
        find_account(name)
    }
}

/// The size that a request asks for.
pub(crate) fn size_of(request: &Request<'_>) -> Result<TerminalSize, Refusal> {
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

/// The account of a name, unless we run as it already.
pub(crate) fn find_account(name: &str) -> Result<Option<Account>, Refusal> {
    let account = Account::find(name).map_err(|error| {
        let why = format!("looking up user {name:?} failed: {error}");
        Refusal::new(StatusCode::INTERNAL, why)
    })?;
    let account = account.ok_or_else(|| bad(format!("there is no user {name:?}")))?;
    if account.is_ours() {
        Ok(None)
    } else if Account::may_change() {
        Ok(Some(account))
    } else {
        let why = "only root can run programs as another user";
        Err(Refusal::new(StatusCode::FORBIDDEN, why))
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
    Response::json(StatusCode::OK, &body)
}

/// The answer to `status`.
pub(crate) fn status(program: &Program, now: Time) -> Response {
    let exit = program.exit();
    let used = if exit.is_none() {
        usage(program.pid())
    } else {
        None
    };
    let (cpu, memory) = used.unwrap_or_default();
    let ran = program.ran(now).as_secs_f64().max(0.001);
    let percent = (cpu.as_secs_f64() / ran * 1000.0).round() / 10.0;
    let body = json!({
        "state": if exit.is_some() { "exited" } else { "running" },
        "exit_code": exit.map(|exit| exit.code),
        "signal": exit.and_then(|exit| exit.signal),
        "cpu_pct": percent,
        "mem_bytes": memory,
    });
    Response::json(StatusCode::OK, &body)
}

/// The answer to `exec`.
pub(crate) fn executed(program: &Program, output: &Gathered, now: Time) -> Response {
    let exit = program.exit();
    let mut body = json!({
        "exit_code": exit.map(|exit| exit.code),
        "stdout_b64": BASE64_STANDARD.encode(&output.stdout),
        "stderr_b64": BASE64_STANDARD.encode(&output.stderr),
        "duration_ms": program.ran(now).as_millis() as u64,
    });
    if let Some(signal) = exit.and_then(|exit| exit.signal) {
        body["signal"] = signal.into();
    }
    if program.timed_out() {
        body["timed_out"] = true.into();
    }
    if output.exceeded {
        body["truncated"] = true.into();
    }
    Response::json(StatusCode::OK, &body)
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
            |method, below: &str| Call::read(method, below).map_err(|refusal| refusal.status.0);
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
            let fields = Fields::read(body.as_bytes());
            let request = fields.and_then(|fields| fields.run_request());
            request.expect_err(body).message.into_owned()
        };
        for (body, says) in [
            ("", "not JSON"),
            ("[]", "not a JSON object"),
            ("{}", "\"command\" is missing"),
            (r#"{"command":""}"#, "\"command\" is missing"),
            (r#"{"command":["sh"]}"#, "\"command\" is not a string"),
            (r#"{"command":"s\u0000h"}"#, "zero byte"),
            (r#"{"command":"sh","args":"x"}"#, "\"args\""),
            (r#"{"command":"sh","args":[1]}"#, "\"args\""),
            (r#"{"command":"sh","env":{"A":1}}"#, "\"env\""),
            (r#"{"command":"sh","env":{"A=B":"1"}}"#, "\"env\""),
            (r#"{"command":"sh","cwd":"/nowhere"}"#, "\"cwd\""),
            (r#"{"command":"sh","rows":0}"#, "\"rows\""),
            (r#"{"command":"sh","timeout_sec":-1}"#, "\"timeout_sec\""),
            (r#"{"command":"sh","as_root":1}"#, "\"as_root\""),
            (r#"{"command":"sh","as_user":"no such user"}"#, "no user"),
        ] {
            assert!(message(body).contains(says), "{body}: {}", message(body));
        }
        let fields = Fields::read(
            br#"{"command":"sh","args":null,"allocate_tty":true,"cols":100,"timeout_sec":0.5,"other":1}"#,
        );
        let request = fields
            .and_then(|fields| fields.run_request())
            .expect("valid");
        assert_eq!(
            request.terminal,
            Some(TerminalSize {
                rows: 24,
                cols: 100
            })
        );
        assert_eq!(request.timeout, Some(Duration::from_millis(500)));
    }
}

//! Parses the bodies of calls to the process API.

use std::time::Duration;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_STANDARD;
use rustix::process::Signal;

use super::accounts::find_account_within;
use super::compat::Compat;
use super::fields::{BodyFields, FieldType, Schema, bad_request};
use super::screen::{InvalidKey, KeyModes, key_bytes, paste_bytes};
use crate::Rejection;
use crate::sys::{Account, PROGRAM_ID, TerminalSize};

/// The default limit of `exec` for each output stream of a program is this part of the limit for all calls together, so
/// that one call does not use it up.
const DEFAULT_PART: usize = 4;

/// The program that a call starts.
#[derive(Clone, Debug)]
pub(crate) struct RunRequest {
    pub(crate) command: Vec<String>,
    pub(crate) cwd: Option<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) account: Option<Account>,
    pub(crate) terminal: Option<TerminalSize>,
    pub(crate) timeout: Option<Duration>,
    /// All of its input.
    pub(crate) stdin: Option<Vec<u8>>,
    /// Whether its terminal is recorded.
    pub(crate) record: bool,
}

impl RunRequest {
    /// A program on a terminal, without other settings.
    pub(super) fn on_terminal(command: Vec<String>, size: TerminalSize) -> Self {
        Self {
            command,
            cwd: None,
            env: Vec::new(),
            account: None,
            terminal: Some(size),
            timeout: None,
            stdin: None,
            record: false,
        }
    }
}

const STDIN: &Schema = &[("data_b64", FieldType::Text), ("eof", FieldType::Flag)];
const INPUT: &Schema = &[
    ("text", FieldType::Text),
    ("keys", FieldType::Words),
    ("paste", FieldType::Text),
];
const KILL: &Schema = &[("signal", FieldType::Text)];
const RESIZE: &Schema = &[("rows", FieldType::Number), ("cols", FieldType::Number)];

/// `exec` has one more field than `spawn`.
const SPAWN: &Schema = EXEC.split_at(EXEC.len() - 1).0;
const EXEC: &Schema = &[
    ("command", FieldType::Text),
    ("args", FieldType::Words),
    ("cwd", FieldType::Text),
    ("env", FieldType::Variables),
    ("as_user", FieldType::Text),
    ("as_root", FieldType::Flag),
    ("timeout_sec", FieldType::Number),
    ("allocate_tty", FieldType::Flag),
    ("rows", FieldType::Number),
    ("cols", FieldType::Number),
    ("stdin_b64", FieldType::Text),
    ("record", FieldType::Flag),
    ("max_output_bytes", FieldType::Number),
];

/// The maximum timeout. A longer one means no timeout.
const MAX_TIMEOUT: Duration = Duration::from_secs(1_000_000_000);

fn missing(name: &str) -> Rejection {
    bad_request(format!("{name:?} is missing"))
}

/// Input for a process. `is_last` means that no more input follows (`eof` in the request).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InputData {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_last: bool,
}

/// Reads the body of `stdin`.
pub(crate) fn read_data(body: &[u8], compat: Compat) -> Result<InputData, Rejection> {
    let fields = BodyFields::read(body, STDIN, compat)?;
    let is_last = fields.flag("eof");
    match base64(&fields, "data_b64", compat)? {
        None if !is_last => Err(missing("data_b64")),
        bytes => Ok(InputData {
            bytes: bytes.unwrap_or_default(),
            is_last,
        }),
    }
}

/// Reads base64 as Go does: the bits that belong to no byte may have any value.
const LOOSE: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Reads a field in base64. Clients of kernel-images may break its lines.
fn base64(
    fields: &BodyFields<'_>,
    name: &str,
    compat: Compat,
) -> Result<Option<Vec<u8>>, Rejection> {
    let bytes = fields.text(name).map(|text| match compat.is_lenient() {
        true => LOOSE.decode(text.replace(['\r', '\n'], "")),
        false => BASE64_STANDARD.decode(text),
    });
    bytes
        .transpose()
        .map_err(|error| bad_request(format!("{name:?} is not base64: {error}")))
}

/// Reads the body of `resize`.
pub(crate) fn read_size(body: &[u8], compat: Compat) -> Result<TerminalSize, Rejection> {
    let fields = BodyFields::read(body, RESIZE, compat)?;
    for name in ["rows", "cols"] {
        if !fields.has(name) {
            return Err(missing(name));
        }
    }
    size(&fields, Compat::None)
}

/// Reads a terminal's size. Absent dimensions have their defaults, as have those that kernel-images ignores.
fn size(fields: &BodyFields<'_>, compat: Compat) -> Result<TerminalSize, Rejection> {
    let read = |name: &str, usual| match fields.number(name) {
        None => Ok(usual),
        Some(number) if compat.is_lenient() && number <= 0.0 => Ok(usual),
        Some(number) if number.fract() == 0.0 && (1.0..=65535.0).contains(&number) => {
            Ok(number as u16)
        }
        Some(_) => Err(bad_request(format!(
            "{name:?} is not a number from 1 to 65535"
        ))),
    };
    let usual = TerminalSize::default();
    Ok(TerminalSize {
        rows: read("rows", usual.rows)?,
        cols: read("cols", usual.cols)?,
    })
}

/// Reads the body of `kill`.
pub(crate) fn read_signal(body: &[u8], compat: Compat) -> Result<Signal, Rejection> {
    let fields = BodyFields::read(body, KILL, compat)?;
    let name = fields.text("signal").ok_or_else(|| missing("signal"))?;
    Ok(match name.strip_prefix("SIG").unwrap_or(name) {
        "TERM" => Signal::TERM,
        "KILL" => Signal::KILL,
        "INT" => Signal::INT,
        "HUP" => Signal::HUP,
        _ => return Err(bad_request("\"signal\" is not one of TERM, KILL, INT, HUP")),
    })
}

/// Reads the body of `spawn`.
pub(crate) fn read_spawn(body: &[u8], compat: Compat) -> Result<RunRequest, Rejection> {
    read_run(&BodyFields::read(body, SPAWN, compat)?, compat)
}

/// Reads the body of `exec`. Returns the program, and the limit for each of its output streams. `most` is the limit for
/// all calls together.
pub(crate) fn read_exec(
    body: &[u8],
    most: usize,
    compat: Compat,
) -> Result<(RunRequest, usize), Rejection> {
    let fields = BodyFields::read(body, EXEC, compat)?;
    let limit = match fields.number("max_output_bytes") {
        None => most / DEFAULT_PART,
        Some(number) if number.fract() == 0.0 && (0.0..=most as f64).contains(&number) => {
            number as usize
        }
        Some(_) => {
            let why = format!("\"max_output_bytes\" is not a number from 0 to {most}");
            return Err(bad_request(why));
        }
    };
    Ok((read_run(&fields, compat)?, limit))
}

fn read_run(fields: &BodyFields<'_>, compat: Compat) -> Result<RunRequest, Rejection> {
    let name = fields.text("command").filter(|name| !name.is_empty());
    let mut command = vec![name.ok_or_else(|| missing("command"))?.to_owned()];
    command.extend_from_slice(fields.words("args"));
    let env = fields.variables("env");
    for (name, _) in env {
        if name.is_empty() || name.contains('=') {
            return Err(bad_request(format!(
                "\"env\": {name:?} is not the name of a variable"
            )));
        }
        if name == PROGRAM_ID {
            return Err(bad_request(format!(
                "\"env\": {PROGRAM_ID} is set by the server"
            )));
        }
    }
    let cwd = fields.text("cwd").filter(|cwd| !cwd.is_empty());
    if cwd.is_some_and(|cwd| !cwd.starts_with('/') && !compat.is_lenient()) {
        return Err(bad_request("\"cwd\" is not an absolute path"));
    }
    let timeout = fields
        .number("timeout_sec")
        .filter(|seconds| *seconds > 0.0);
    let timeout = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let size = size(fields, compat)?;
    let terminal = fields.flag("allocate_tty").then_some(size);
    let stdin = base64(fields, "stdin_b64", compat)?;
    if stdin.is_some() && terminal.is_some() {
        return Err(bad_request(
            "\"stdin_b64\" and \"allocate_tty\" exclude each other: the input of a terminal has no end",
        ));
    }
    let record = fields.flag("record");
    if record && terminal.is_none() {
        return Err(bad_request(
            "\"record\" without \"allocate_tty\": only terminals are recorded",
        ));
    }
    Ok(RunRequest {
        command,
        cwd: cwd.map(str::to_owned),
        env: env.to_vec(),
        account: account(fields)?,
        terminal,
        timeout: timeout.filter(|timeout| *timeout <= MAX_TIMEOUT),
        stdin,
        record,
    })
}

/// The account to run the program as; `None` for the server's own.
fn account(fields: &BodyFields<'_>) -> Result<Option<Account>, Rejection> {
    let user = fields.text("as_user").filter(|user| !user.is_empty());
    let wanted = match (user, fields.flag("as_root")) {
        (None, false) => return Ok(None),
        (Some(wanted), false) => wanted,
        (None, true) => "root",
        (Some(_), true) => {
            return Err(bad_request(
                "\"as_user\" and \"as_root\" exclude each other",
            ));
        }
    };
    find_account_within(wanted)
}

/// The maximum length of typed or pasted text in bytes, and the maximum number of keys.
const MAX_TYPED: usize = 64 << 10;
const MAX_KEYS: usize = 1000;

/// Reads the body of `input`, for a terminal with these modes: its text, then its keys, then what it pastes.
pub(crate) fn read_input(body: &[u8], modes: KeyModes) -> Result<Vec<u8>, Rejection> {
    let fields = BodyFields::read(body, INPUT, Compat::None)?;
    let (text, keys, paste) = (
        fields.text("text"),
        fields.words("keys"),
        fields.text("paste"),
    );
    if text.is_none() && paste.is_none() && !fields.has("keys") {
        return Err(bad_request("\"text\", \"keys\" and \"paste\" are missing"));
    }
    let length = text.map_or(0, str::len) + paste.map_or(0, str::len);
    if length > MAX_TYPED || keys.len() > MAX_KEYS {
        return Err(bad_request(format!(
            "there are more than {MAX_TYPED} bytes of text or {MAX_KEYS} keys"
        )));
    }
    let mut bytes = text.unwrap_or_default().as_bytes().to_vec();
    for key in keys {
        let pressed = key_bytes(key, modes);
        bytes.extend(pressed.map_err(|InvalidKey(key)| {
            bad_request(format!("\"keys\": {key:?} is not the name of a key"))
        })?);
    }
    if let Some(paste) = paste {
        bytes.extend(paste_bytes(paste, modes));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn an_invalid_body_is_rejected_with_the_reason() {
        let message = |body: &str| {
            let read = || read_spawn(body.as_bytes(), Compat::None).expect_err(body);
            let mut rejection = read();
            // The user database of a busy machine may be slow. Its answer is there when the caller tries again.
            let deadline = Instant::now() + Duration::from_secs(60);
            while rejection.status.0 == 503 && Instant::now() < deadline {
                std::thread::yield_now();
                rejection = read();
            }
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
            (
                r#"{"command":"sh","cwd":"."}"#,
                "\"cwd\" is not an absolute",
            ),
            (r#"{"command":"sh","rows":0}"#, "\"rows\""),
            (r#"{"command":"sh","as_root":1}"#, "\"as_root\""),
            (r#"{"command":"sh","record":true}"#, "only terminals"),
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
            Compat::None,
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
            let request = read_spawn(body.as_bytes(), Compat::None).expect("valid");
            assert_eq!(request.timeout, None, "{no_limit}");
        }
    }

    #[test]
    fn the_description_has_the_fields_of_every_body() {
        let spec = include_str!("openapi.json");
        let spec: serde_json::Value = serde_json::from_str(spec).expect("JSON");
        for (name, schema) in [
            ("ProcessSpawnRequest", SPAWN),
            ("ProcessExecRequest", EXEC),
            ("ProcessStdinRequest", STDIN),
            ("ProcessInputRequest", INPUT),
            #[cfg(feature = "screen")]
            ("ProcessWaitRequest", super::super::waits::WAIT),
            ("ProcessKillRequest", KILL),
            ("ProcessResizeRequest", RESIZE),
        ] {
            let fields = &spec["components"]["schemas"][name]["properties"];
            let fields = fields.as_object().expect("an object");
            let known: std::collections::BTreeSet<_> =
                schema.iter().map(|(name, _)| *name).collect();
            assert!(
                known.iter().all(|name| fields.contains_key(*name)),
                "{name}"
            );
            assert_eq!(known.len(), fields.len(), "{name}");
        }
    }

    /// The bug: bodies that kernel-images accepts were rejected.
    #[test]
    fn empty_strings_mean_none_and_kernel_images_ignores_more() {
        for compat in [Compat::None, Compat::KernelImages] {
            let body = br#"{"command":"sh","args":[],"cwd":"","as_user":"","env":{}}"#;
            let request = read_spawn(body, compat).expect("valid");
            assert_eq!((request.cwd, request.account.is_none()), (None, true));
        }
        let body = br#"{"command":"sh","cwd":".","rows":0,"cols":-1,"allocate_tty":true,"new":1}"#;
        assert!(read_spawn(body, Compat::None).is_err());
        let request = read_spawn(body, Compat::KernelImages).expect("valid");
        let usual = TerminalSize::default();
        assert_eq!(
            (request.cwd.as_deref(), request.terminal),
            (Some("."), Some(usual))
        );
        // Line breaks, and bits after the last byte.
        let data = br#"{"data_b64":"aGVs\r\nbG9="}"#;
        assert!(read_data(data, Compat::None).is_err());
        let data = read_data(data, Compat::KernelImages).expect("valid");
        assert_eq!(data.bytes, b"hello");
        let resize = br#"{"rows":0,"cols":80}"#;
        assert!(read_size(resize, Compat::KernelImages).is_err());
    }

    /// The bug: the limit of each output was the message limit, so that thirty callers could hold a gigabyte.
    #[test]
    fn exec_takes_output_up_to_the_limit_in_its_body() {
        let limit = |more: &str| {
            let body = format!(r#"{{"command":"sh"{more}}}"#);
            read_exec(body.as_bytes(), 64 << 20, Compat::None).map(|(_, limit)| limit)
        };
        assert_eq!(limit("").ok(), Some(16 << 20));
        assert_eq!(limit(r#","max_output_bytes":null"#).ok(), Some(16 << 20));
        assert_eq!(limit(r#","max_output_bytes":0"#).ok(), Some(0));
        assert_eq!(
            limit(r#","max_output_bytes":67108864"#).ok(),
            Some(64 << 20)
        );
        for bad in ["67108865", "-1", "1.5", "1e300"] {
            let rejection = limit(&format!(r#","max_output_bytes":{bad}"#)).expect_err(bad);
            assert!(rejection.message.contains("from 0 to 67108864"));
        }
        let small = read_exec(br#"{"command":"sh"}"#, 1000, Compat::None).expect("valid");
        assert_eq!(small.1, 250, "the default follows the server's limit");
    }
}

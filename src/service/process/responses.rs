//! The responses of the process API.

use std::io;
use std::time::SystemTime;

use rustix::io::Errno;
use serde_json::{Value, json};

use super::calls::SpecFormat;
use super::event_stream::Details;
use super::exec_output::CollectedOutput;
use super::fields::bad_request;
use super::program::Program;
use crate::service::Endpoint;
use crate::sys::usage;
use crate::{Context, Rejection, Response, StatusCode, Time};

/// An entry of the list of processes. `with_usage` adds its use of processor time and memory.
pub(crate) fn summary(program: &mut Program, now: Time, with_usage: bool) -> Value {
    let mut summary = fields(program, now);
    if with_usage {
        let used = program.exit().is_none().then(|| usage(program.pid()));
        let (cpu, memory) = used.flatten().unwrap_or_default();
        summary["cpu_s"] = cpu.as_secs_f64().into();
        summary["mem_bytes"] = memory.into();
    }
    summary
}

fn fields(program: &mut Program, now: Time) -> Value {
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
        "recorded": program.is_recorded(),
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

/// The answer to `PUT by-name/NAME`. `created` tells whether this call has started the process.
pub(super) fn ensured(program: &Program, created: bool) -> Response {
    let exit = program.exit();
    let body = json!({
        "process_id": program.id.to_string(),
        "pid": program.pid(),
        "started_at": rfc3339(program.started),
        "created": created,
        "state": if exit.is_some() { "exited" } else { "running" },
        "exit_code": exit.map(|exit| exit.code),
        "signal": exit.and_then(|exit| exit.signal),
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

/// What the answer to `exec` says beside the output.
pub(super) fn execution(program: &Program, now: Time) -> Value {
    let exit = program.exit();
    json!({
        "exit_code": exit.map(|exit| exit.code),
        "duration_ms": program.ran(now).as_millis() as u64,
        "signal": exit.and_then(|exit| exit.signal),
        "timed_out": program.timed_out(),
    })
}

/// Answers `exec`. The output may be long, so it is not copied. Base64 needs no escapes.
pub(super) fn answer_executed(
    ctx: &mut Context,
    mut execution: Value,
    output: &mut CollectedOutput,
) {
    if let (Details::Usual, Some(fields)) = (output.details, execution.as_object_mut()) {
        fields.retain(|name, _| matches!(&**name, "exit_code" | "duration_ms"));
    }
    let [stdout, stderr] = output.take();
    let mut beginning = execution.to_string();
    beginning.pop();
    beginning.push_str(",\"stdout_b64\":\"");
    let middle = ["\",\"stderr_b64\":\"".to_owned()];
    let end = ["\"}".to_owned()];
    let blocks = stdout.into_iter().chain(middle).chain(stderr).chain(end);
    let blocks = blocks.map(String::into_bytes).collect();
    let response = Response::json(StatusCode::OK, beginning);
    ctx.respond_in_blocks(output.caller, response, blocks);
}

/// The answer to a call whose process could not be started. The child enters its working directory itself, so the error
/// may be that of the directory.
pub(super) fn start_failed(error: &io::Error, name: &str, has_cwd: bool, hint: &str) -> Rejection {
    if is_fault_of_command(error) {
        let hint = match name.contains(' ') && hint.is_empty() {
            true => "; \"command\" is the program alone: write its arguments into \"args\"",
            false => hint,
        };
        let what = if has_cwd {
            "enter \"cwd\" or start the command"
        } else {
            "start the command"
        };
        return bad_request(format!("cannot {what}: {error}{hint}"));
    }
    let rejection = Rejection::new(StatusCode::INTERNAL, "failed to start process");
    rejection.detail(error.to_string())
}

/// Whether another command could have been started: this one does not exist, may not be executed, is not executable or is
/// a directory.
fn is_fault_of_command(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(
        errno,
        Some(
            Errno::NOENT
                | Errno::ACCESS
                | Errno::PERM
                | Errno::ISDIR
                | Errno::NOEXEC
                | Errno::NOTDIR
        )
    )
}

/// The description of the API in OpenAPI, with the paths of an endpoint. JSON is valid YAML.
pub(super) fn spec(format: SpecFormat, endpoint: &Endpoint) -> Response {
    let base = endpoint.path().trim_end_matches('/');
    let text = include_str!("openapi.json").replace("\"/process/", &format!("\"{base}/"));
    let content_type = match format {
        SpecFormat::Json => "application/json",
        SpecFormat::Yaml => "application/vnd.oai.openapi",
    };
    Response::new(StatusCode::OK, content_type, text.into_bytes())
}

pub(super) fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

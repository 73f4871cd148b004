//! The answers of the process API.

use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::events::Details;
use super::program::Program;
use super::sink::CollectedOutput;
use crate::sys::usage;
use crate::{Response, StatusCode, Time};

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
pub(crate) fn executed(program: &Program, output: &CollectedOutput, now: Time) -> Response {
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
    // The output may be long, so it is encoded in place. Base64 needs no escapes.
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
        // The schema fixes the fields of the body, so a header says that the output is incomplete.
        response.field("X-Outrigger-Truncated", "true")
    } else {
        response
    }
}

fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

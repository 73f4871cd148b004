//! `outrigger example-mcp`: a small server of the Model Context Protocol on standard input and output.
//!
//! For client authors, it supports revision 2026-07-28, which has no sessions, as well as those that begin with `initialize`.

use std::io::{self, BufRead, Write};

use serde_json::{Value, json};

/// The revision without sessions, and the newest one with them.
const STATELESS: &str = "2026-07-28";
const NEWEST_WITH_SESSIONS: &str = "2025-11-25";

/// Error codes of JSON-RPC 2.0, section 5.1.
const PARSE_ERROR: i64 = -32700;
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;

/// The most steps of `count`.
const MAX_STEPS: u64 = 10_000;

/// Answers messages until standard input ends.
pub(crate) fn run() -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut lines = io::stdin().lock();
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        for message in answer(&line) {
            writeln!(out, "{message}")?;
        }
        out.flush()?;
        line.clear();
    }
    Ok(())
}

/// The messages with which a line is answered.
fn answer(line: &str) -> Vec<Value> {
    let Ok(message) = serde_json::from_str::<Value>(line) else {
        return vec![error(&Value::Null, PARSE_ERROR, "Parse error")];
    };
    let (id, params) = (&message["id"], &message["params"]);
    let Some(method) = message["method"].as_str().filter(|_| !id.is_null()) else {
        return Vec::new();
    };
    let mut progress = Vec::new();
    let result = match method {
        "initialize" => {
            let wanted = params["protocolVersion"].as_str();
            let wanted = wanted.filter(|wanted| *wanted < STATELESS);
            Ok(json!({
                "protocolVersion": wanted.unwrap_or(NEWEST_WITH_SESSIONS),
                "capabilities": {"tools": {}},
                "serverInfo": server_info(),
            }))
        }
        "server/discover" => Ok(json!({
            "supportedVersions": [STATELESS, NEWEST_WITH_SESSIONS, "2025-06-18", "2025-03-26"],
            "capabilities": {"tools": {}},
            "resultType": "complete",
            "ttlMs": 60_000,
            "cacheScope": "public",
        })),
        "ping" => Ok(json!({})),
        "tools/list" => Ok(json!({
            "tools": tools(),
            "resultType": "complete",
            "ttlMs": 60_000,
            "cacheScope": "public",
        })),
        "tools/call" => call(params, &mut progress),
        _ => Err((METHOD_NOT_FOUND, "Method not found")),
    };
    let response = match result {
        Ok(mut result) => {
            result["_meta"] = json!({"io.modelcontextprotocol/serverInfo": server_info()});
            json!({"jsonrpc": "2.0", "id": id, "result": result})
        }
        Err((code, message)) => error(id, code, message),
    };
    progress.push(response);
    progress
}

fn error(id: &Value, code: i64, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}

fn server_info() -> Value {
    json!({"name": "outrigger example-mcp", "version": env!("CARGO_PKG_VERSION")})
}

fn tools() -> Value {
    let number = json!({"type": "number"});
    json!([
        {
            "name": "echo",
            "description": "Returns its text.",
            "inputSchema": {
                "type": "object",
                "properties": {"text": {"type": "string"}},
                "required": ["text"],
            },
        },
        {
            "name": "add",
            "description": "Adds two numbers.",
            "inputSchema": {
                "type": "object",
                "properties": {"a": number, "b": number},
                "required": ["a", "b"],
            },
        },
        {
            "name": "count",
            "description": "Reports its progress in steps.",
            "inputSchema": {
                "type": "object",
                "properties": {"steps": {"type": "integer", "minimum": 1, "maximum": MAX_STEPS}},
                "required": ["steps"],
            },
        },
    ])
}

/// Calls a tool. Appends notifications about its progress if the client asks for them.
fn call(params: &Value, progress: &mut Vec<Value>) -> Result<Value, (i64, &'static str)> {
    let arguments = &params["arguments"];
    let text = match params["name"].as_str() {
        Some("echo") => arguments["text"].as_str().map(str::to_owned),
        Some("add") => {
            let numbers = arguments["a"].as_f64().zip(arguments["b"].as_f64());
            numbers.map(|(a, b)| (a + b).to_string())
        }
        Some("count") => {
            let steps = arguments["steps"].as_u64();
            let steps = steps.filter(|steps| (1..=MAX_STEPS).contains(steps));
            let token = &params["_meta"]["progressToken"];
            for step in 1..=steps.unwrap_or(0) {
                if !token.is_null() {
                    progress.push(json!({
                        "jsonrpc": "2.0",
                        "method": "notifications/progress",
                        "params": {"progressToken": token, "progress": step, "total": steps},
                    }));
                }
            }
            steps.map(|steps| format!("counted to {steps}"))
        }
        _ => return Err((INVALID_PARAMS, "Unknown tool")),
    };
    let text = text.ok_or((INVALID_PARAMS, "Invalid arguments"))?;
    Ok(json!({
        "content": [{"type": "text", "text": text}],
        "isError": false,
        "resultType": "complete",
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Value {
        let mut messages = answer(line);
        assert_eq!(messages.len(), 1, "{line}");
        messages.remove(0)
    }

    #[test]
    fn both_kinds_of_revisions_are_answered() {
        let initialized = one(
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#,
        );
        assert_eq!(initialized["result"]["protocolVersion"], "2025-06-18");
        let discovered = one(r#"{"jsonrpc":"2.0","id":"d","method":"server/discover"}"#);
        assert_eq!(discovered["result"]["supportedVersions"][0], STATELESS);
        assert_eq!(discovered["id"], "d");
        assert_eq!(
            answer(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#),
            [Value::Null; 0]
        );
        assert_eq!(one("{")["error"]["code"], PARSE_ERROR);
        assert_eq!(
            one(r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#)["error"]["code"],
            METHOD_NOT_FOUND
        );
    }

    #[test]
    fn tools_are_listed_and_called() {
        let listed = one(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#);
        assert_eq!(listed["result"]["tools"].as_array().map(Vec::len), Some(3));
        let call = |name: &str, arguments: &str| {
            answer(&format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{name}","arguments":{arguments},"_meta":{{"progressToken":"p"}}}}}}"#
            ))
        };
        assert_eq!(
            call("add", r#"{"a":1,"b":2.5}"#)[0]["result"]["content"][0]["text"],
            "3.5"
        );
        assert_eq!(call("add", "{}")[0]["error"]["code"], INVALID_PARAMS);
        assert_eq!(call("none", "{}")[0]["error"]["code"], INVALID_PARAMS);
        let counted = call("count", r#"{"steps":2}"#);
        assert_eq!(counted.len(), 3);
        assert_eq!(counted[1]["params"]["progressToken"], "p");
        assert_eq!(counted[1]["params"]["progress"], 2);
    }
}

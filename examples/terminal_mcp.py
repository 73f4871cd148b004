#!/usr/bin/env python3
"""An MCP server that lets an agent use terminals: it runs programs, reads their screens, types and waits.

    outrigger processes --no-auth -p 7078 &
    outrigger mcp -- python3 examples/terminal_mcp.py http://127.0.0.1:7078/process

The terminals outlive the agent's session, and people can attach to them. If `outrigger processes` requires a token, set OUTRIGGER_TOKEN.
"""

import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request

API = sys.argv[1]
TERMINAL = {"terminal": {"type": "string", "description": "What `run` has returned."}}
TOOLS = {
    "run": ("Runs a program on a new terminal. Returns the terminal and its screen.", ["command"], {
        "command": {"type": "string"}, "args": {"type": "array", "items": {"type": "string"}}, "cwd": {"type": "string"},
        "env": {"type": "object"}, "rows": {"type": "integer"}, "cols": {"type": "integer"}}),
    "screen": ("Returns what a terminal shows, and earlier lines.", ["terminal"], {**TERMINAL, "lines": {"type": "integer"}}),
    "type": ("Types text, then keys such as Enter, C-c, Up or F1, then pastes. Returns the quiet screen.", ["terminal"], {**TERMINAL,
        "text": {"type": "string"}, "keys": {"type": "array", "items": {"type": "string"}}, "paste": {"type": "string"}}),
    "wait": ("Waits until the screen shows a text or matches an expression, nothing is written for a time, or the program exits.",
             ["terminal"], {**TERMINAL, "text": {"type": "string"}, "regex": {"type": "string"}, "idle_ms": {"type": "integer"},
                            "exit": {"type": "boolean"}, "timeout_ms": {"type": "integer"}}),
}


def call(method, path, body=None):
    """The JSON answer to a call of the process API."""
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get("OUTRIGGER_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(API + path, data, headers, method=method)) as answer:
        return json.load(answer)


def show(screen, first):
    return "\n".join([first, *screen["lines"]]).rstrip()


def wait(terminal, conditions):
    answer = call("POST", f"/{terminal}/wait", conditions)
    exit_code = f", exit code {answer['exit_code']}" if answer.get("exit_code") is not None else ""
    return show(answer["screen"], f"[{answer['reason']}{exit_code}]")


def use(tool, arguments):
    """The text that a tool returns."""
    if tool == "run":
        terminal = call("POST", "/spawn", {"rows": 24, "cols": 80, **arguments, "allocate_tty": True})["process_id"]
        return f"terminal {terminal}\n" + wait(terminal, {"idle_ms": 200, "timeout_ms": 5000})
    terminal = urllib.parse.quote(arguments.pop("terminal"), safe="")
    if tool == "type":
        call("POST", f"/{terminal}/input", arguments)
        return wait(terminal, {"idle_ms": 200, "timeout_ms": 5000})
    if tool == "wait":
        return wait(terminal, arguments)
    return show(call("GET", f"/{terminal}/screen?lines={arguments.get('lines', 0)}"), "")


for request in map(json.loads, sys.stdin):
    method, params, result = request.get("method"), request.get("params", {}), {}
    if method == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "terminals", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": name, "description": text, "inputSchema": {"type": "object", "required": required, "properties": fields}}
                            for name, (text, required, fields) in TOOLS.items()]}
    elif method == "tools/call":
        try:
            result = {"content": [{"type": "text", "text": use(params["name"], params.get("arguments", {}))}]}
        except (urllib.error.URLError, KeyError, ValueError) as error:
            why = error.read().decode() if isinstance(error, urllib.error.HTTPError) else repr(error)
            result = {"isError": True, "content": [{"type": "text", "text": why}]}
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)

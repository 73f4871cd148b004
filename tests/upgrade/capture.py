#!/usr/bin/env python3
"""Stores the state of a server of this version. Every later version has to be able to continue with it:
tests/cli/states_of_other_versions_are_read.rs tries that.

usage: tests/upgrade/capture.py FOLDER      a new folder in tests/upgrade/states, named after the version
env:   OUTRIGGER=target/release/outrigger
"""

import json
import os
import signal
import sys
import time

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, "tests/common")
import peers  # noqa: E402

AGENT = """
import json, sys
ANSWERS = {"initialize": {"protocolVersion": 1, "agentCapabilities": {}}, "session/new": {"sessionId": "s1"}}
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") in ANSWERS:
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": ANSWERS[message["method"]]}
        print(json.dumps(answer), flush=True)
"""
MCP = ["python3", "tests/common/mcp_server.py"]
ROUTES = {
    "/terminal": {"terminal": {"command": ["cat"]}},
    "/process/...": {"processes": {}},
    "/app": {"app": {"command": ["cat"]}},
    "/pipe": {"pipe": {"command": ["cat"], "shared": True}},
    "/own-pipe": {"pipe": {"command": ["cat"]}},
    "/agent": {"agent": {"command": ["python3", "-c", AGENT]}},
    "/mcp": {"mcp": {"command": MCP}},
    "/shared-mcp": {"mcp": {"command": [*MCP, "sessions"], "share": "all"}},
}


def say(connection, **message):
    connection.sendall(peers.frame(1, json.dumps({"jsonrpc": "2.0", **message}).encode()))


def half(connection):
    """Sends the first half of a message."""
    connection.sendall(peers.frame(1, b"half of this")[:10])


def call(connection, path, fields, message):
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode() + peers.AUTHORIZATION
    connection.sendall(
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        b"Accept: application/json, text/event-stream\r\n%s\r\n" % (path.encode(), len(body), head) + body
    )


def session_of(port, path):
    """Begins a session of an MCP server, and a call in it that is not answered."""
    connection = peers.connect(port)
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    call(connection, path, {}, {"id": 1, "method": "initialize", "params": params})
    head = peers.read_head(connection).decode()
    session = next(line.split(": ")[1] for line in head.split("\r\n") if line.lower().startswith("mcp-session-id"))
    waiting = peers.connect(port)
    fields = {"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-06-18"}
    call(waiting, path, fields, {"id": 2, "method": "tools/call", "params": {"name": "wait", "arguments": {}}})
    return connection, waiting


def use(port):
    """Gives the server something of each kind to remember. Returns the connections."""
    kept = [peers.open_client(port, path) for path in ("/terminal", "/app", "/pipe", "/own-pipe", "/echo")]
    for connection in kept:
        connection.sendall(peers.frame(1, b'{"jsonrpc":"2.0","id":1,"method":"x"}'))
        half(connection)
    # Cut, so that it is detached.
    peers.open_client(port, "/echo?resume=new").close()
    process = peers.connect(port)
    process.sendall(peers.post("/process/spawn", b'{"command":"cat","allocate_tty":true}'))
    agent = peers.open_client(port, "/agent")
    say(agent, id=1, method="initialize", params={"protocolVersion": 1, "clientCapabilities": {}})
    peers.read_frame(agent)
    say(agent, id=2, method="session/new", params={"cwd": "/", "mcpServers": []})
    peers.read_frame(agent)
    say(agent, id=3, method="session/prompt", params={"sessionId": "s1", "prompt": [{"type": "text", "text": "go"}]})
    return [*kept, process, agent, *session_of(port, "/mcp"), *session_of(port, "/shared-mcp")]


def main():
    peers.prepare()
    folder = sys.argv[1]
    os.makedirs(folder)
    with open(f"{folder}/outrigger.json", "w") as file:
        json.dump({"routes": {"/echo": {"echo": {}}, **ROUTES}}, file, indent=1)
        file.write("\n")
    state, program = os.path.abspath(f"{folder}/state"), os.path.abspath(f"{folder}/program")
    with open(program, "w", opener=lambda path, flags: os.open(path, flags, 0o755)) as file:
        file.write(f"#!/bin/sh\ncat >{state}.part\nmv {state}.part {state}\necho stored >&2\nexit 1\n")
    binary = os.environ.get("OUTRIGGER", "target/release/outrigger")
    with peers.serving(binary, ROUTES, ["--program", program]) as server:
        connections = use(server.port)
        time.sleep(1)
        os.kill(server.pid, signal.SIGUSR2)
        while not os.path.exists(state):
            time.sleep(0.05)
        for connection in connections:
            connection.close()
    os.unlink(program)
    print(f"{os.path.getsize(state)} bytes")


main()

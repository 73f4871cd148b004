#!/usr/bin/env python3
"""Counts the instructions (with callgrind) and system calls (with strace) that `outrigger` needs per message in fixed
conversations, and compares them with tests/costs.json. A count hardly differs between runs, so it shows changes that a
timed test cannot.

The figures depend on the compiler and on the processor's vector instructions. For a new combination of these there is nothing
to compare with until you store its figures with --write.

Each service has two conversations of different length. The difference in instructions divided by the difference in messages
is the cost of a message, without start and end. Work of the kernel counts as system calls only.

usage: tests/costs.py [--write] [NAME...]      --write stores the measured figures
env:   OUTRIGGER=target/release/outrigger
"""

import contextlib
import json
import os
import pathlib
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile

OUTRIGGER = os.environ.get("OUTRIGGER", "target/release/outrigger")
PING, PONG = 9, 10
KEPT = pathlib.Path(__file__).with_suffix(".json")
# The kernel may split input into more or fewer reads, in another order.
TOLERANCE, SPLIT_TOLERANCE, CALLS_TOLERANCE = 0.04, 0.3, 0.1
REQUEST = (
    b"GET /%s HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n%s\r\n"
)


def frame(payload, opcode):
    length = len(payload)
    if length < 126:
        head = bytes([0x80 | opcode, 0x80 | length])
    elif length < 65536:
        head = bytes([0x80 | opcode, 0xFE]) + length.to_bytes(2)
    else:
        head = bytes([0x80 | opcode, 0xFF]) + length.to_bytes(8)
    mask = bytes([1, 2, 3, 4])
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def reply_size(length):
    return length + (2 if length < 126 else 4 if length < 65536 else 10)


AGENT = """
import os, re
rest = b""
while chunk := os.read(0, 65536):
    *lines, rest = (rest + chunk).split(b"\\n")
    ids = [re.search(rb'"id":([^,}]+)', line)[1] for line in lines]
    os.write(1, b"".join(b'{"jsonrpc":"2.0","id":%s,"result":{"sessionId":"s","stopReason":"end_turn"}}\\n' % id for id in ids))
"""
PRINTER = """
import os, tty
tty.setraw(0)
os.write(1, b"!")
while key := os.read(0, 1):
    os.write(1, key * SIZE)
"""


# With an argument, it has sessions of older revisions.
MCP_SERVER = """
import json, sys
versions = {"protocolVersion": "2025-11-25", "serverInfo": {}} if sys.argv[1:] else {"supportedVersions": ["2026-07-28"]}
for line in sys.stdin:
    call = json.loads(line)
    result = {**versions, "capabilities": {}, "tools": [], "content": []}
    if call["method"] == "server/discover" and sys.argv[1:]:
        error = {"code": -32601, "message": "Method not found"}
        print(json.dumps({"jsonrpc": "2.0", "id": call["id"], "error": error}), flush=True)
    elif "id" in call:
        print(json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result}), flush=True)
"""


ROOM = """
import json, os
rest = b""
while chunk := os.read(0, 65536):
    *lines, rest = (rest + chunk).split(b"\\n")
    commands = []
    for event in map(json.loads, lines):
        if event["event"] == "connect":
            commands.append({"cmd": "subscribe", "client": event["client"], "topic": "room"})
            commands.append({"cmd": "send", "client": event["client"], "text": "hello"})
        elif event["event"] == "message":
            commands.append({"cmd": "publish", "topic": "room", "text": event["text"]})
    os.write(1, b"".join(json.dumps(command).encode() + b"\\n" for command in commands))
"""


class Client:
    """An open WebSocket connection."""

    def __init__(self, port, query=b"", fields=b""):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(REQUEST % (query, fields))
        self.rest = b""
        while not self.rest.endswith(b"\r\n\r\n"):
            self.rest += self.take(1)
        self.rest = b""

    def send(self, data):
        self.socket.sendall(data)

    def take(self, most):
        came = self.socket.recv(most)
        assert came, "the server stays"
        return came

    def skip(self, size):
        """Reads `count` bytes of frames."""
        while size:
            size -= len(self.take(size))

    def messages(self):
        """Yields the payloads of messages, which are shorter than 64 KiB. Answers PINGs."""
        while True:
            while len(self.rest) < sum(span := self.frame()):
                self.rest += self.take(65536)
            begin, length = span
            opcode = self.rest[0] & 15
            payload, self.rest = self.rest[begin : begin + length], self.rest[begin + length :]
            if opcode == PING:
                self.send(frame(payload, PONG))
            else:
                yield payload

    def frame(self):
        """Returns where the payload of the buffered frame begins and how long it is, as far as the header has arrived."""
        length = self.rest[1] if len(self.rest) > 1 else 0
        return (2, length) if length < 126 else (4, int.from_bytes(self.rest[2:4]))


def echo(size, depth, opcode=2, payload=b"hello wo", options=(), fields=b""):
    """Echoes batches of `depth` messages of `size` bytes. `fields` are added to the request."""
    payload = (payload * (size // len(payload) + 1))[:size]
    batch = frame(payload, opcode) * depth
    size = reply_size(len(payload)) * depth

    def run(client, rounds):
        for _ in range(rounds):
            client.send(batch)
            client.skip(size)
        return rounds * depth

    return ["echo", *options], run, lambda port: Client(port, b"", fields)


def calls(depth, query=b""):
    """Sends batches of `depth` prompts in a session of a shared agent."""

    def call(id, method, **params):
        return frame(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode(), 1)

    def run(client, rounds):
        answers = client.messages()
        for request in call(1, "initialize", protocolVersion=1), call(2, "session/new", cwd="/", mcpServers=[]):
            client.send(request)
            next(answers)
        prompt = [{"type": "text", "text": "hello there, agent"}]
        for _ in range(rounds):
            client.send(b"".join(call(3 + id, "session/prompt", sessionId="s", prompt=prompt) for id in range(depth)))
            for id in range(depth):
                assert json.loads(next(answers))["id"] == 3 + id
        return rounds * depth

    return ["agent", "--path", "/", "--", sys.executable, "-c", AGENT], run, lambda port: Client(port, query)


class Room:
    """The members of a topic. The first one publishes."""

    def __init__(self, port, members):
        self.members = [Client(port) for _ in range(members)]
        self.socket = self.members[0].socket
        for member in self.members:
            member.skip(reply_size(len("hello")))


def publish(members, depth):
    """Publishes batches of `depth` messages of 20 bytes to the members of a topic. Counts the deliveries."""
    batch = frame(b"x" * 20, 1) * depth

    def run(room, rounds):
        for _ in range(rounds):
            room.members[0].send(batch)
            for member in room.members:
                member.skip(reply_size(20) * depth)
        return rounds * depth * members

    return ["app", "--path", "/", "--", sys.executable, "-c", ROOM], run, lambda port: Room(port, members)


class HttpClient:
    """A connection for HTTP calls."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answers = self.socket.makefile("rb")
        self.session = None

    def call(self, fields, body):
        """Makes a call. Returns the body of the answer."""
        head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{fields}\r\n"
        self.socket.sendall(head.encode() + body)
        assert self.answers.readline().startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 202 "))
        length = None
        while (line := self.answers.readline().strip().lower()) != b"":
            name, _, value = line.partition(b": ")
            if name == b"content-length":
                length = int(value)
            elif name == b"mcp-session-id":
                self.session = value.decode()
        return self.read_events() if length is None else self.answers.read(length)

    def read_events(self):
        """Returns the message of an event stream. A server begins one if its program takes long to answer, as on a busy machine."""
        stream = b""
        while size := int(self.answers.readline(), 16):
            stream += self.answers.read(size)
            self.answers.readline()
        self.answers.readline()
        return re.findall(rb"^data: ?(.+)$", stream, re.M)[-1]


def tools(size):
    """Calls a tool of a shared MCP server with an argument of `size` bytes."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "costs", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    fields = (
        "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
        "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: t\r\n"
    )

    def run(client, rounds):
        params = {"name": "t", "arguments": {"text": 'a "word", ' * (size // 10)}, "_meta": meta}
        for id in range(rounds):
            call = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
            assert json.loads(client.call(fields, json.dumps(call).encode()))["id"] == id
        return rounds

    return ["mcp", "--path", "/", "--", sys.executable, "-c", MCP_SERVER], run, HttpClient


def session_tools(size):
    """The same in a session of an older revision, on a process that sessions share."""
    fields = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n"

    def begin(port):
        client = HttpClient(port)
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "costs", "version": "1"}}
        client.call(fields, json.dumps({"jsonrpc": "2.0", "id": "begin", "method": "initialize", "params": params}).encode())
        client.fields = f"{fields}Mcp-Session-Id: {client.session}\r\n"
        client.call(client.fields, json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode())
        return client

    def run(client, rounds):
        params = {"name": "t", "arguments": {"text": 'a "word", ' * (size // 10)}}
        for id in range(rounds):
            call = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
            assert json.loads(client.call(client.fields, json.dumps(call).encode()))["id"] == id
        return rounds

    command = ["mcp", "--path", "/", "--share", "all", "--", sys.executable, "-c", MCP_SERVER, "sessions"]
    return command, run, begin


def keys(size):
    """Sends keys to a program on a terminal, which answers each with `size` bytes."""

    def run(client, rounds):
        output = client.messages()
        # The terminal's events come before its output.
        while next(output) != b"!":
            pass
        for _ in range(rounds):
            client.send(frame(b"k", 2))
            left = size
            while left > 0:
                left -= len(next(output))
        return rounds

    return ["terminal", "--path", "/", "--", sys.executable, "-c", PRINTER.replace("SIZE", str(size))], run, Client


PROXY = ["--trusted-proxy", "127.0.0.1"]
FORWARDED = b"X-Forwarded-For: 192.0.2.1\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"

# For each: the conversation, the rounds of the shorter and the longer one, and the tolerance for instructions.
CONVERSATIONS = {
    "echo of 20 bytes, one by one": (echo(20, 1), 200, 1200, TOLERANCE),
    "echo of 20 bytes through a proxy and with a traceparent, one by one": (
        echo(20, 1, options=PROXY, fields=FORWARDED),
        200,
        1200,
        TOLERANCE,
    ),
    "echo of 20 bytes, 32 at once": (echo(20, 32), 20, 120, TOLERANCE),
    "echo of 20 bytes of text, 32 at once": (echo(20, 32, 1), 20, 120, TOLERANCE),
    "echo of 1 KiB, 16 at once": (echo(1024, 16), 20, 120, TOLERANCE),
    "echo of 16 KiB": (echo(16384, 1), 20, 120, TOLERANCE),
    "echo of 16 KiB of text": (echo(16384, 1, 1), 20, 120, TOLERANCE),
    "echo of 16 KiB of Greek": (echo(16384, 1, 1, "κόσμε ".encode()[:8]), 20, 120, TOLERANCE),
    "echo of 1 MiB": (echo(1 << 20, 1), 3, 13, SPLIT_TOLERANCE),
    "JSON-RPC calls, one by one": (calls(1), 100, 600, TOLERANCE),
    "JSON-RPC calls, 16 at once": (calls(16), 20, 120, TOLERANCE),
    "JSON-RPC calls of a client that can resume, one by one": (calls(1, b"?resume=new"), 100, 600, TOLERANCE),
    "JSON-RPC calls of a client that can resume, 16 at once": (calls(16, b"?resume=new"), 20, 120, TOLERANCE),
    "tools/call of an MCP server": (tools(20), 100, 600, TOLERANCE),
    "tools/call in a session on a shared MCP server": (session_tools(20), 100, 600, TOLERANCE),
    "tools/call of an MCP server with 16 KiB": (tools(16384), 50, 250, TOLERANCE),
    "one message to 100 members of a topic": (publish(100, 1), 10, 60, TOLERANCE),
    "one message to 100 members of a topic, 16 at once": (publish(100, 16), 10, 60, TOLERANCE),
    "keys to a terminal and their echo": (keys(1), 100, 600, SPLIT_TOLERANCE),
    "4,000 bytes from a terminal": (keys(4000), 100, 600, SPLIT_TOLERANCE),
}


def have(command, conversation, rounds):
    """Has a conversation of `rounds` rounds with a server. Returns the number of messages."""
    arguments, run, connect = conversation
    options = ["--listen", "127.0.0.1:0", "--log", "off", "--no-auth"]
    server = subprocess.Popen(
        [*command, OUTRIGGER, arguments[0], *options, *arguments[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        port = int(re.search(rb":(\d+)/", server.stdout.readline())[1])
        client = connect(port)
        messages = run(client, rounds)
        client.socket.close()
        # Signals the group, because strace does not forward signals.
        os.killpg(server.pid, signal.SIGTERM)
        assert server.wait(60) in (0, -signal.SIGTERM)
    finally:
        # The tools leave the traced program behind when they are killed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    return messages


def instructions(conversation, rounds):
    """Returns the instructions and messages of a whole run with one conversation."""
    with tempfile.NamedTemporaryFile() as out:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}", "-q"]
        messages = have(command, conversation, rounds)
        text = pathlib.Path(out.name).read_text()
        return int(re.search(r"^(?:summary|totals): (\d+)", text, re.M)[1]), messages


def system_calls(conversation, rounds):
    """Returns the system calls and messages of a whole run with one conversation."""
    with tempfile.NamedTemporaryFile() as out:
        messages = have(["strace", "-qq", "-o", out.name], conversation, rounds)
        # A static program asks the kernel for the time. Others read it from memory that the kernel shares, and make no call.
        calls = [line for line in pathlib.Path(out.name).read_text().splitlines() if not line.startswith("clock_gettime(")]
        return sum(line.count("(") for line in calls), messages


def machine():
    """The compiler and processor that the figures depend on."""
    compiler = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    return f"{platform.machine()}, {'AVX2' if 'avx2' in flags else 'no AVX2'}, rustc {compiler}"


def main():
    arguments = sys.argv[1:]
    write = "--write" in arguments
    names = [name for name in arguments if not name.startswith("--")] or list(CONVERSATIONS)
    all_kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    kept = all_kept.setdefault(machine(), {})
    compares = bool(kept) and not write
    if not compares and not write:
        print(f"  nothing is kept for {machine()}: not compared")
    worse = []
    for name in names:
        conversation, fewer, more, tolerance = CONVERSATIONS[name]
        for what, measure, digits, most in [
            ("instructions", instructions, 0, tolerance),
            ("system calls", system_calls, 2, max(tolerance, CALLS_TOLERANCE)),
        ]:
            was = kept.setdefault(name, {}).get(what)
            # If the client is slow for a moment, its messages arrive in more pieces, which is not a cost of the server.
            for _ in range(6):
                (before, few), (after, many) = (measure(conversation, rounds) for rounds in (fewer, more))
                each = round((after - before) / (many - few), digits or None)
                change = each / was - 1 if was else 0.0
                if abs(change) <= most:
                    break
            print(f"  {name}: {each} {what} a message ({change:+.1%})", flush=True)
            if write:
                kept[name][what] = each
            elif compares and (not was or abs(change) > most):
                worse.append(f"{what} of {name}")
    if write:
        KEPT.write_text(json.dumps(all_kept, indent=2) + "\n")
    if worse:
        print(f"not what it was, which is to be mended or kept with --write: {'; '.join(worse)}", file=sys.stderr)
        sys.exit(1)


main()

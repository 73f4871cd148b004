"""Helpers for tests/mcp/stress.py: HTTP with server-sent events, MCP requests, and a running `outrigger mcp`."""

import base64
import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from peers import PATIENCE, children_of, eventually

OUTRIGGER = os.environ.get("OUTRIGGER", "target/release/outrigger")
QUICK = "--quick" in sys.argv
UPGRADES = "--upgrades" in sys.argv
STATELESS, VERSION = "2026-07-28", "2025-11-25"
PREFIX = "io.modelcontextprotocol/"
SUBSCRIPTION = PREFIX + "subscriptionId"
BOTH = "application/json, text/event-stream"
SERVER = [sys.executable, "-E", "-S", os.path.join(os.path.dirname(os.path.abspath(__file__)), "mcp_server.py")]


class Connection:
    """A connection that stays open for several requests."""

    def __init__(self, port, source="127.0.0.1"):
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.bind((source, 0))
        self.socket.connect(("127.0.0.1", port))
        self.buffer = bytearray()
        self.fields = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def reset(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, method, path, fields=(), body=None):
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in dict(fields).items())]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))

    def read(self):
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the connection ended")
        self.buffer += data

    def line(self):
        while (end := self.buffer.find(b"\r\n")) < 0:
            self.read()
        line = bytes(self.buffer[:end])
        del self.buffer[: end + 2]
        return line

    def head(self):
        """Returns the status. The fields are in `fields`, with names in lower case."""
        status = int(self.line().split()[1])
        self.fields = {}
        while line := self.line():
            name, _, value = line.decode("latin-1").partition(":")
            self.fields[name.lower()] = value.strip()
        return status

    def exactly(self, count):
        while len(self.buffer) < count:
            self.read()
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def pieces(self):
        """The body, in the pieces in which it arrives."""
        if self.fields.get("transfer-encoding") == "chunked":
            while size := int(self.line(), 16):
                yield self.exactly(size)
                assert self.line() == b""
            assert self.line() == b""
        elif "content-length" in self.fields:
            yield self.exactly(int(self.fields["content-length"]))
        elif self.fields.get("connection") == "close":
            with contextlib.suppress(ConnectionError):
                while True:
                    self.read()
            yield self.exactly(len(self.buffer))

    def body(self):
        return b"".join(self.pieces())

    def events(self):
        """The events of a stream, as pairs of an id, or None, and data. Comments are skipped."""
        rest = b""
        for piece in self.pieces():
            *blocks, rest = (rest + piece).split(b"\n\n")
            for block in blocks:
                id, data = None, []
                for line in block.split(b"\n"):
                    name, _, value = line.partition(b":")
                    value = value.removeprefix(b" ")
                    if name == b"id":
                        id = value.decode()
                    elif name == b"data":
                        data.append(value)
                if id is not None or data:
                    yield id, b"\n".join(data)
        assert not rest.strip(), rest

    def messages(self):
        """The JSON-RPC messages of a response, whose head has been read."""
        kind = self.fields.get("content-type", "")
        if kind.startswith("text/event-stream"):
            for _, data in self.events():
                if data:
                    yield json.loads(data)
        else:
            body = self.body()
            if body:
                assert kind.startswith("application/json"), (kind, body)
                yield json.loads(body)


def meta(token=None, **more):
    known = {
        PREFIX + "protocolVersion": STATELESS,
        PREFIX + "clientInfo": {"name": "stress", "version": "1"},
        PREFIX + "clientCapabilities": {},
    }
    return {**known, **({} if token is None else {"progressToken": token}), **more}


def encoded(value):
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def stateless(method, params=None, id=1, token=None, **extra):
    """The fields and the message of a request of revision 2026-07-28. A field of None in `extra` is left out."""
    params = {**(params or {}), "_meta": meta(token)}
    fields = {"Content-Type": "application/json", "Accept": BOTH, "MCP-Protocol-Version": STATELESS, "Mcp-Method": method}
    if method in ("tools/call", "prompts/get"):
        fields["Mcp-Name"] = params.get("name", "")
    elif method == "resources/read":
        fields["Mcp-Name"] = params.get("uri", "")
    fields.update(extra)
    fields = {name: value for name, value in fields.items() if value is not None}
    return fields, {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def post(connection, fields, message, path="/mcp"):
    """Sends a POST and returns the status of the response. `message` is a value or bytes."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    connection.send("POST", path, fields, body)
    return connection.head()


def ask(connection, method, params=None, path="/mcp", **more):
    """Sends a request of revision 2026-07-28. Returns the status and all messages."""
    status = post(connection, *stateless(method, params, **more), path)
    return status, list(connection.messages())


def tool(connection, name, id=1, token=None, extra=None, path="/mcp", **arguments):
    return ask(connection, "tools/call", {"name": name, "arguments": arguments}, path, id=id, token=token, **(extra or {}))


def text_of(message):
    return message["result"]["content"][0]["text"]


class Session:
    """A session of revision 2025-11-25, or of another one."""

    def __init__(self, port, fields=(), source="127.0.0.1", version=VERSION, path="/mcp"):
        self.port, self.source, self.path = port, source, path
        self.connection = Connection(port, source)
        self.fields = {"Content-Type": "application/json", "Accept": BOTH, **dict(fields)}
        params = {"protocolVersion": version, "capabilities": {"sampling": {}}, "clientInfo": {"name": "stress", "version": "1"}}
        self.status, self.messages = self.ask("initialize", params, id=0)
        self.id = self.connection.fields.get("mcp-session-id")
        self.answer = self.connection.fields
        if self.id:
            self.fields |= {"Mcp-Session-Id": self.id, "MCP-Protocol-Version": version}
            assert self.send({"jsonrpc": "2.0", "method": "notifications/initialized"}) == 202

    def send(self, message):
        """Sends a message that gets no response, and returns the status."""
        status = post(self.connection, self.fields, message, self.path)
        self.rest = self.connection.body()
        return status

    def ask(self, method, params=None, id=1, connection=None):
        connection = connection or self.connection
        status = post(connection, self.fields, {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}, self.path)
        return status, list(connection.messages())

    def tool(self, name, id=1, token=None, connection=None, **arguments):
        params = {"name": name, "arguments": arguments}
        if token is not None:
            params["_meta"] = {"progressToken": token}
        return self.ask("tools/call", params, id, connection)

    def open(self, name, id, token=None, **arguments):
        """Starts a call on a connection of its own and returns it, with its head read."""
        connection = Connection(self.port, self.source)
        params = {"name": name, "arguments": arguments, **({} if token is None else {"_meta": {"progressToken": token}})}
        assert post(connection, self.fields, {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}, self.path) == 200
        return connection

    def get(self, last=None, **extra):
        """Opens a stream. Returns the connection and the status."""
        connection = Connection(self.port, self.source)
        fields = {**self.fields, "Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {}), **extra}
        connection.send("GET", self.path, fields)
        return connection, connection.head()

    def delete(self):
        self.connection.send("DELETE", self.path, self.fields)
        status = self.connection.head()
        self.connection.body()
        return status


class Mcp:
    """A running `outrigger mcp`."""

    def __init__(self, options=(), program=SERVER, tokens=None):
        self.log = tempfile.TemporaryFile()
        guard = [] if tokens else ["--no-auth"]
        command = [OUTRIGGER, "mcp", "--listen", "127.0.0.1:0", "--log", "info", *guard, *options, "--", *program]
        environment = {**os.environ, **({"OUTRIGGER_TOKEN": tokens} if tokens else {})}
        environment.pop("RUST_LOG", None)
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, env=environment)
        self.pid = self.process.pid
        found = re.search(rb":(\d+)/", self.process.stdout.readline())
        assert found, self.log_text()
        self.port = int(found[1])
        self.authorization = {"Authorization": "Bearer " + tokens.split()[2]} if tokens else {}

    def log_text(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def connect(self, **more):
        return Connection(self.port, **more)

    def session(self, **more):
        session = Session(self.port, **more)
        assert session.status == 200 and session.id, (session.status, session.messages)
        return session

    def status(self):
        with self.connect() as connection:
            connection.send("GET", "/status", {"Connection": "close", **self.authorization})
            assert connection.head() == 200
            return json.loads(connection.body())

    def held(self):
        """What clients can make the server hold: its counters, descriptors and children."""
        status = self.status()
        names = ["sessions", "pending_requests", "kept_bytes", "processes", "client_count", "detached"]
        held = {name: status[name] for name in names}
        return held | {"descriptors": len(os.listdir(f"/proc/{self.pid}/fd")), "children": len(children_of(self.pid))}

    def memory(self):
        with open(f"/proc/{self.pid}/status") as file:
            return int(re.search(r"VmRSS:\s+(\d+) kB", file.read())[1]) / 1024

    def stop(self):
        self.process.terminate()
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


def upgrade_often(server, is_over):
    """Makes the server replace its program several times a second."""
    while not is_over.wait(0.2):
        os.kill(server.pid, signal.SIGUSR2)


@contextlib.contextmanager
def serving(*options, **more):
    """A server that must end with code 0 and must not panic."""
    server = Mcp(options, **more)
    is_over = threading.Event()
    upgrader = threading.Thread(target=upgrade_often, args=(server, is_over))
    try:
        if UPGRADES:
            upgrader.start()
        yield server
        if UPGRADES:
            is_over.set()
            upgrader.join()
            print(f"  {server.log_text().count('upgraded from version')} upgrades")
        code = server.stop()
        assert code == 0, (code, server.log_text()[-2000:])
        assert "panicked" not in server.log_text(), server.log_text()[-4000:]
    except BaseException:
        is_over.set()
        server.process.kill()
        server.process.wait()
        print(server.log_text()[-3000:], file=sys.stderr)
        raise
    finally:
        server.log.close()


def expect_nothing_left(server, before, what):
    """Waits until the server holds what it held before."""
    eventually(f"nothing is left {what}", lambda: ((held := server.held()) == before, (held, before)))

#!/usr/bin/env python3
"""Ends a connection to each kind of service in every way that a peer can bring about, without and with an upgrade before or in the
middle of it. Each connection must be reported as connected and as disconnected exactly once, with the cause of the list below, in the
log, and to the program of `app` in its events. What never became a connection must not be reported.

usage: tests/load/kinds_of_ends.py [--list]      OUTRIGGER=target/release/outrigger
"""

import collections
import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import socket
import struct
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
from peers import AUTHORIZATION, MIB, Server, bearer, connect, eventually, frame, get, post, read_head, upgrade

OUTRIGGER = os.environ.get("OUTRIGGER", "target/release/outrigger")
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
REVOKED = "a-token-that-will-be-taken-away"


class Way:
    """A way to end: what the peer does before an upgrade in the middle, what it does after it, and the causes that may be reported."""

    def __init__(self, name, causes, end, begin=None, fields=b"", token=None, only=None):
        self.name, self.causes, self.end, self.begin = name, causes, end, begin
        self.fields, self.token, self.only = fields, token, only


def sends(*parts):
    return lambda peer: peer.sendall(b"".join(parts))


def fin(peer):
    peer.close()


def reset(peer):
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def half_close(peer):
    peer.shutdown(socket.SHUT_WR)


def then(*steps):
    def act(peer):
        for step in steps:
            step(peer)

    return act


def closes(code, reason=b""):
    return sends(frame(CLOSE, code.to_bytes(2) + reason))


def keep(_peer):
    """The server ends the connection."""


def masked(first, length_field, rest=b""):
    return bytes([first]) + length_field + b"\0\0\0\0" + rest


# After a half-close, from which FIN does not differ, a pipe and a terminal send the rest of the output and close the connection.
EOF, ERROR = ("eof", "read_error", "service"), ("protocol_error",)
PEER = ("close",)
HEADER, PAYLOAD, FRAGMENT = b"\x82", masked(0x82, b"\xa0", b"x" * 5), frame(BINARY, b"x", 0)

WAYS = [
    Way("FIN", EOF, fin),
    Way("RST", EOF, reset),
    Way("half-close", EOF, half_close),
    *(
        Way(f"{name} {place}", EOF, end, sends(begin))
        for place, begin in [("inside a header", HEADER), ("inside a payload", PAYLOAD), ("inside a message", FRAGMENT)]
        for name, end in [("FIN", fin), ("RST", reset), ("half-close", half_close)]
    ),
    Way("CLOSE without a code", PEER, sends(frame(CLOSE, b""))),
    *(Way(f"CLOSE {code}", PEER, closes(code)) for code in (1000, 1001, 1008, 3000, 4999)),
    Way("CLOSE with a reason", PEER, closes(1000, b"done")),
    Way("CLOSE inside a message", PEER, closes(1000), sends(FRAGMENT)),
    Way("CLOSE and FIN", PEER, then(closes(1000), fin)),
    Way("CLOSE and half-close", PEER, then(closes(1000), half_close)),
    Way("CLOSE and RST", PEER + EOF, then(closes(1000), reset)),
    Way("CLOSE and more", PEER, sends(frame(CLOSE, b"\x03\xe8"), frame(TEXT, b"more"), frame(PING, b""))),
    *(Way(f"CLOSE with the code {code}", ERROR, closes(code)) for code in (0, 999, 1005, 1006, 2999, 5000)),
    Way("CLOSE of one byte", ERROR, sends(frame(CLOSE, b"\x03"))),
    Way("CLOSE with a reason that is not UTF-8", ERROR, closes(1000, b"\xff")),
    Way("CLOSE over 125 bytes", ERROR, closes(1000, b"x" * 124)),
    Way("a frame without a mask", ERROR, sends(b"\x82\x01x")),
    *(Way(f"opcode {opcode}", ERROR, sends(frame(opcode, b""))) for opcode in (3, 7, 11, 15)),
    *(Way(f"reserved bit {bit:#x}", ERROR, sends(frame(TEXT, b"x", 0x80 | bit))) for bit in (0x40, 0x20, 0x10)),
    Way("a continuation of nothing", ERROR, sends(frame(0, b"x"))),
    Way("a message inside a message", ERROR, sends(frame(TEXT, b"x")), sends(FRAGMENT)),
    Way("a PING in fragments", ERROR, sends(frame(PING, b"", 0))),
    Way("a PING over 125 bytes", ERROR, sends(frame(PING, b"x" * 126))),
    Way("a length with its first bit", ERROR, sends(masked(0x82, b"\xff" + b"\xff" * 8))),
    Way("a length that is longer than needed", ERROR, sends(masked(0x82, b"\xfe\0\x01", b"x"))),
    Way("a frame over the limit", ERROR, sends(masked(0x82, b"\xff" + (64 * MIB).to_bytes(8)))),
    Way("a message over the limit", ERROR, sends(masked(0x80, b"\xff" + (16 * MIB).to_bytes(8))), sends(FRAGMENT)),
    Way("text that is not UTF-8", ERROR, sends(frame(TEXT, b"\xff"))),
    Way("text that is not UTF-8, in fragments", ERROR, sends(frame(0, b"\xc3")), sends(frame(TEXT, b"\xc3", 0))),
    Way("no answer to CLOSE after an error", ERROR, then(sends(frame(3, b"")), keep)),
    Way("no answer to a PING", ("ping_timeout",), keep),
    Way("RST while output is unread", EOF + ("write_error",), reset, sends(*[frame(BINARY, b"x" * 60_000)] * 40), only=("/echo",)),
    Way("no time left after a cut", ("not_resumed",), fin, fields=b"Outrigger-Resume: new\r\n"),
    Way("no time left after a reset", ("not_resumed",), reset, fields=b"Outrigger-Resume: new\r\n"),
    Way("CLOSE of a resumable client", PEER, closes(1000), fields=b"Outrigger-Resume: new\r\n"),
    Way("an error of a resumable client", ERROR, sends(frame(3, b"")), fields=b"Outrigger-Resume: new\r\n"),
    Way("its token is taken away", ("revoked",), keep, token=REVOKED),
    Way("its token is taken away after a cut", ("revoked", "not_resumed"), fin, fields=b"Outrigger-Resume: new\r\n", token=REVOKED),
    # A terminal is told to end, and closes the connection after the last output.
    Way("the server stops", ("shutdown", "service"), keep),
]

# What never became a connection.
NOTHING = [
    ("FIN at once", b"", fin),
    ("RST at once", b"", reset),
    ("FIN inside a request", upgrade("/echo")[:40], fin),
    ("RST inside a request", upgrade("/echo")[:40], reset),
    ("half-close inside a request", upgrade("/echo")[:40], half_close),
    ("a request that stops", upgrade("/echo")[:40], keep),
    ("a wrong token", upgrade("/echo", bearer("nobody")), fin),
    ("an unknown path", upgrade("/nothing"), fin),
    ("no HTTP", b"\x16\x03\x01\x02\0\x01\0\r\n\r\n", fin),
    ("a call", get("/healthz"), fin),
    ("another version", upgrade("/echo").replace(b"Version: 13", b"Version: 8"), fin),
]
MODES = ["without an upgrade", "after an upgrade", "with an upgrade in the middle"]




# A server for each of them, because the log is limited to 100 similar lines at once.
SERVICES = {
    "/echo": {"echo": {}},
    "/app": {"app": {"command": ["sh", "-c", "exec cat >> $EVENTS"]}},
    "/agent": {"agent": {"command": [OUTRIGGER, "example-agent"]}},
    "/pipe": {"pipe": {"command": ["cat"]}},
    "/shared": {"pipe": {"command": ["cat"], "shared": True}},
    "/terminal": {"terminal": {"command": ["cat"]}},
    "/process/...": {"processes": {}},
}
OPTIONS = ["--ping-interval", "2s", "--ping-timeout", "3s", "--handshake-timeout", "3s", "--close-timeout", "2s", "--resume-grace", "2s"]
OPTIONS += ["--log-format", "json", "--idle-timeout", "0"]


class Book:
    """What the log of a server and the events of an app say."""

    def __init__(self, server, path, events):
        self.server, self.path, self.events = server, path, events
        self.opened = {}

    def records(self):
        for line in self.server.log().splitlines():
            with contextlib.suppress(ValueError):
                yield json.loads(line)

    def connected(self):
        return [record["client"] for record in self.records() if record["message"] == "connected"]

    def ended(self):
        """The causes with which each client has ended."""
        ended = collections.defaultdict(list)
        for record in self.records():
            if record["message"] == "disconnected":
                ended[record["client"]].append(record["cause"])
        return ended

    def note(self, way):
        """The client that has connected last goes this way."""
        news = eventually(f"{way.name} is in the log", lambda: [one for one in self.connected() if one not in self.opened])
        assert len(news) == 1, news
        self.opened[news[0]] = way

    def missing(self):
        """Who has not ended, although the server need not stop for that."""
        ended = self.ended()
        return [way.name for client, way in self.opened.items() if client not in ended and "shutdown" not in way.causes]

    def problems(self):
        connected, ended = collections.Counter(self.connected()), self.ended()
        for client in (connected.keys() | ended.keys()) - self.opened.keys():
            yield f"{client} was never opened"
        counts = collections.Counter()
        if self.path == "/app":
            with open(self.events) as file:
                counts.update((event["event"], event.get("client")) for event in map(json.loads, file))
        for client, way in self.opened.items():
            causes = ended.get(client, [])
            if connected[client] != 1 or len(causes) != 1 or causes[0] not in way.causes:
                yield f"{way.name}: connected {connected[client]} times, ended as {causes}"
            told = counts["connect", client], counts["disconnect", client]
            if self.path == "/app" and told != (1, 1):
                yield f"{way.name}: {told} events of connect and disconnect"


def replace_program(server, book):
    def count():
        return sum(record["message"].startswith("upgraded") for record in book.records())

    before = count()
    os.kill(server.pid, signal.SIGUSR2)
    eventually("the program has replaced itself", lambda: count() > before)


def take_token_away(server):
    tokens = os.path.join(server.files.name, "tokens")
    with open(tokens) as file:
        kept = [line for line in file if REVOKED not in line]
    with open(tokens, "w") as file:
        file.writelines(kept)
    os.kill(server.pid, signal.SIGHUP)


def path_of_client(server, path):
    if path != "/process/...":
        return path
    with connect(server.port) as caller:
        caller.sendall(post("/process/spawn", b'{"command":"cat","allocate_tty":true}'))
        response = http.client.HTTPResponse(caller)
        response.begin()
        return f"/process/{json.loads(response.read())['process_id']}/attach"


def run(mode, path, folder):
    """Returns what is wrong."""
    events = os.path.join(folder, f"events{MODES.index(mode)}")
    route = json.loads(json.dumps(SERVICES[path]).replace("$EVENTS", events))
    server = Server(OUTRIGGER, {path: route}, OPTIONS, more_tokens=[REVOKED])
    book = Book(server, path, events)
    try:
        if mode == MODES[1]:
            replace_program(server, book)
        peers = []
        for way in WAYS:
            if way.only and path not in way.only:
                continue
            peer = connect(server.port)
            token = bearer(way.token) if way.token else AUTHORIZATION
            peer.sendall(upgrade(path_of_client(server, path), token + way.fields))
            head = read_head(peer)
            assert head.startswith(b"HTTP/1.1 101"), (way.name, head)
            book.note(way)
            peers.append((peer, way))
            if way.begin:
                way.begin(peer)
        if mode == MODES[2]:
            replace_program(server, book)
        for peer, way in peers:
            way.end(peer)
        for _, sent, end in NOTHING:
            peer = connect(server.port)
            peer.sendall(sent)
            end(peer)
        take_token_away(server)

        def have_ended():
            for peer, way in peers:
                if "shutdown" in way.causes:
                    peer.sendall(frame(PONG, b""))
            return not book.missing(), book.missing()

        eventually("everything has ended", have_ended)
        wrong = server.stop()
        return [f"{path} {mode}: {problem}" for problem in [*filter(None, [wrong]), *book.problems()]]
    except (AssertionError, OSError) as error:
        return [f"{path} {mode}: {error!r} {server.log()[-300:]!r}"]
    finally:
        server.process.kill()
        server.process.wait()
        server.files.cleanup()


def main():
    if "--list" in sys.argv:
        for way in WAYS:
            print(f"{way.name:45} {' or '.join(way.causes)}")
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="outrigger-ends-") as folder, concurrent.futures.ThreadPoolExecutor(6) as pool:
        runs = [pool.submit(run, mode, path, folder) for mode in MODES for path in SERVICES]
        problems = [problem for one in runs for problem in one.result()]
    print("\n".join(problems))
    print(
        f"kinds of ends: {len(WAYS)} kinds and {len(NOTHING)} of no connection, {len(SERVICES)} services, {len(MODES)} modes:"
        f" {len(problems)} failed, {time.monotonic() - began:.0f} s"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

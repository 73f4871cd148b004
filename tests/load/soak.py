#!/usr/bin/env python3
"""Puts a mixed load on two servers, one of them over TLS, and checks that nothing is lost and nothing grows.

usage: tests/load/soak.py MINUTES [--clients N] [--seed N] [--break WAY]      30 clients and a random seed by default
env:   OUTRIGGER=target/release/outrigger

The load of each server:
- N clients that can resume, in shifts of a few seconds, use an agent, an app, terminals, processes, a program of `pipe` and echo,
  through the proxy of tests/load/cuts.py, which cuts their connections at random bytes. Each checks every message that it gets.
- Other clients end in every way: CLOSE, FIN, RST, a protocol error, no answer to a PING, an operator, a program that exits or is
  killed, a handshake that is not completed, and a resumable client that does not come back.
- Callers of two MCP servers complete and abandon calls and sessions. One server knows only older revisions: its calls are translated, and
  its sessions share a process, which is stopped when it is idle.
- The agent is killed before each stop of the load.

The load stops after each tenth of the run, until all clients have left. In a run of less than 3 minutes, it stops after 18 seconds, which
count as the first tenth, and two more times. Then the run fails

- if a message or a byte was lost, duplicated or changed, or an answer did not come, which the clients and the programs check;
- if the end of a client was reported twice or never: no client id has two `connected` or `disconnected` lines in the log, the
  causes in `/metrics` add up to the number of clients, each way of ending has its cause, and the app got one `disconnect` for
  each `connect`;
- if, at a later stop, the server has more descriptors or processes than at the first stop, or more anonymous memory than then
  plus ALLOWED. The servers are idle at a stop, so these figures do not depend on the load. The allocator of glibc is set to
  return freed memory, because what it would keep depends on the largest messages so far.

--break makes the run fail, to show that each check works: `byte` changes a byte on its way, `message` drops a message, `untold`
hides a `disconnect` from the app, `twice` repeats one, `memory` makes the server keep the output of ended processes, `client` leaves
a client connected each second, `descriptor` leaves an HTTP connection open each second, and `process`
leaves a process running.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import logging
import os
import random
import re
import resource
import shlex
import signal
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
import cuts
import mcp_http
from cutting import BINARY, CLOSE, KIB, MIB, PATIENCE, TEXT, Ended, Link, Proxy, content, drain, reset

ALLOWED = 2 * MIB  # of memory, for tables that fill up to their limits, and fragments of the allocator
GRACE = 15  # seconds, --resume-grace
SESSION_GRACE = 5  # seconds, --grace: how long a session without a client keeps its history
PERIOD = 18  # seconds, the shortest time of load: a client that does not come back needs it
RETENTION = 10  # seconds, how long an ended process is kept
PINGS = 11  # seconds, --ping-interval and --ping-timeout
LASTING = 3  # programs that last as long as the server: agent, app and MCP server
WINDOW = 128 * KIB  # maximum bytes that a client has in flight
SHIFT = 12  # seconds, the longest shift of a client
WAYS = 11  # in which clients end
BREAKS = ["byte", "message", "untold", "twice", "memory", "client", "descriptor", "process"]
KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
PROTOCOL_ERRORS = {1002: b"\xff\xff\xff\xff", 1007: b"\x81\x81\0\0\0\0\xff", 1009: b"\x82\xff\0\0\0\1\0\0\0\0\0\0\0\0"}


class Pipe(cuts.Client):
    """Sends lines to a program that returns them."""

    path = "/pipe"

    async def work(self):
        link, on_way, back = self.link, 0, 0
        while self.run.goes_on() or back < link.sent:
            while self.run.goes_on() and (on_way < WINDOW or back == link.sent):
                message = content(self.name, link.sent)
                on_way += len(message)
                link.send(message)
            opcode, got = await link.receive()
            assert opcode == TEXT and got == content(self.name, back), f"{self.name}: {got[:40]} is not message {back}"
            on_way -= len(got)
            back += 1
            link.confirm(back)


class Short:
    """Terminals and processes with less output, so that a shift ends soon."""

    async def use(self, sizes, total):
        await super().use(sizes, total // 16)


class Terminal(Short, cuts.Terminal):
    pass


class Attach(Short, cuts.Attach):
    pass


# Passes on the events of an app, but the tenth `disconnect` not at all or twice.
FILTER = """
import sys
ends = 0
for line in sys.stdin:
    ends += '"event":"disconnect"' in line
    times = 1 if ends != 10 or '"event":"disconnect"' not in line else 0 if sys.argv[1] == "untold" else 2
    sys.stdout.write(line * times)
    sys.stdout.flush()
"""
KINDS = [cuts.Agent, cuts.App, Terminal, cuts.Echo, Attach, Pipe]


class Shift(cuts.Run):
    """A client of one kind, from its connection to its CLOSE."""

    def __init__(self, load, kind, number):
        super().__init__(0, 1, f"{load.seed}-{number}")
        self.server, self.proxy_port, self.first_port = load.server, load.proxy_port, load.first_port
        # The agent is killed at any time.
        self.killed = True
        self.until = min(load.until, time.monotonic() + random.uniform(1, SHIFT))
        self.client = kind(self, number)

    def goes_on(self):
        return time.monotonic() < self.until

    async def execute(self):
        await self.client.work()
        await self.client.close()
        if not isinstance(self.client, cuts.Terminal):
            self.count(self.client.link)
        assert self.prompts == self.answers + self.failed.total(), (self.prompts, self.answers, self.failed)


class BreakingProxy(Proxy):
    """Changes or drops bytes from the server, once."""

    way = None

    async def pump(self, reader, writer, budget, data):
        if self.way and not data:
            reader = self.Reader(self, reader)
        return await super().pump(reader, writer, budget, data)

    class Reader:
        def __init__(self, proxy, reader):
            self.proxy, self.reader = proxy, reader

        async def read(self, most):
            data = await self.reader.read(most)
            if self.proxy.way and data[:1] in b"\x81\x82" and 32 < len(data) == data[1] + 2:
                way, self.proxy.way = self.proxy.way, None
                data = b"" if way == "message" else data[:-1] + bytes([data[-1] ^ 1])
                return data or await self.reader.read(most)
            return data


class Load:
    """A server and everything that uses it."""

    def __init__(self, tls, clients, seed, broken):
        self.name, self.clients, self.seed, self.broken = "TLS" if tls else "plain", clients, f"{seed} {tls}", broken
        self.random = random.Random(self.seed)
        app = cuts.program("app")
        if broken in ("untold", "twice"):
            app = ["sh", "-c", f"{shlex.join([sys.executable, '-c', FILTER, broken])} | {shlex.join(app)}"]
        routes = {
            "/acp": {"agent": {"command": cuts.program("agent"), "restart-limit": "1000/60s", "grace": f"{SESSION_GRACE}s"}},
            "/app": {"app": {"command": app}},
            "/terminal": {"terminal": {"command": cuts.program("terminal")}},
            "/process/...": {"processes": {"retention": "1h" if broken == "memory" else f"{RETENTION}s"}},
            "/echo": {"echo": {}},
            "/pipe": {"pipe": {"command": ["cat"]}},
            "/exits": {"pipe": {"command": ["sh", "-c", "read line; exit 3"]}},
            "/killed": {"pipe": {"command": ["sh", "-c", "read line; kill -9 $$"]}},
            "/mcp": {"mcp": {"command": mcp_http.SERVER, "restart-limit": "1000/60s"}},
            "/older": {"mcp": {"command": [*mcp_http.SERVER, "sessions"], "share": "all", "process-idle": "2s", "input-timeout": "1s"}},
        }
        options = ["--log", "info", "--ping-interval", "1s", "--ping-timeout", "10s", "--handshake-timeout", "10s"]
        options += ["--close-timeout", "1s", "--resume-grace", f"{GRACE}s"]
        self.server = cuts.Server(routes, *options, tls=tls)
        self.shifts, self.ends, self.figures = 0, collections.Counter(), collections.Counter()
        self.tenths, self.calls, self.left = [], collections.Counter(), []

    async def start(self):
        self.proxy = BreakingProxy(self.server.port, 1 << 60, self.seed)
        self.proxy.way = self.broken if self.broken in ("byte", "message") else None
        self.proxy_port = self.first_port = await self.proxy.start()
        if self.server.tls:
            self.first_port = await self.proxy.listen(Proxy.SPARED_TLS)

    def goes_on(self, seconds=0):
        """Whether the load goes on for at least so long."""
        return time.monotonic() + seconds < self.until

    async def carry(self, seconds):
        """Puts the load on the server for a time, and waits until all clients have left."""
        self.until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for number in range(self.clients):
                group.create_task(self.work_in_shifts(KINDS[number % len(KINDS)]))
            for number in range(4):
                group.create_task(self.end_clients(number))
            if not self.server.tls:
                for number in range(2):
                    for path in "/mcp", "/older":
                        group.create_task(asyncio.to_thread(self.call_mcp, number, path))
            group.create_task(self.kill_the_agent())
            if self.broken in ("memory", "client", "descriptor", "process"):
                group.create_task(self.leave())
        while self.proxy.connections:
            await asyncio.wait(self.proxy.connections, timeout=PATIENCE)

    async def work_in_shifts(self, kind):
        while self.goes_on():
            self.shifts += 1
            shift = Shift(self, kind, self.shifts)
            await shift.execute()
            self.figures.update(shift.figures)
            self.figures.update(prompts=shift.prompts)

    async def kill_the_agent(self):
        while self.goes_on():
            await asyncio.sleep(0.1)
            if not self.goes_on(max(0.0, self.until - time.monotonic()) / 2 + 1):
                break
        for pid in self.server.children():
            if cuts.command_of(pid)[-1] == "agent":
                os.kill(pid, signal.SIGKILL)
                self.figures["agents killed"] += 1

    async def leave(self):
        """Breaks the run."""
        while self.goes_on():
            if self.broken == "client":
                # It answers PINGs.
                link = Link(self.server.port, "/echo", f"left {len(self.left)}", self.server.tls)
                self.left.append(asyncio.create_task(link.receive()))
            elif self.broken == "descriptor":
                self.left.append(asyncio.create_task(self.call_again_and_again()))
            elif self.broken == "memory":
                for _ in range(10):
                    self.server.spawn(command="head", args=["-c", "200000", "/dev/zero"])
            else:
                self.server.spawn(command="sleep", args=["3600"])
            await asyncio.sleep(1)

    async def call_again_and_again(self):
        reader, writer = await self.dial()
        while True:
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b"}")
            await asyncio.sleep(1)

    # Clients that end.

    async def dial(self):
        return await asyncio.open_connection(
            "127.0.0.1", self.server.port, ssl=self.server.tls, server_hostname="localhost" if self.server.tls else None
        )

    async def open(self, path):
        reader, writer = await self.dial()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{KEY}\r\n".encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        assert head.startswith(b"HTTP/1.1 101 "), head
        return reader, writer

    async def end_clients(self, number):
        ways = {
            self.close: 5, self.fin: 5, self.rst: 5, self.protocol_error: 3, self.operator: 2, self.program_ends: 2, self.leave_terminal: 1,
            self.handshake: 3, self.unfinished: 1, self.silent: 1, self.abandon: 1,
        }
        # The four tasks share the ways, so that each way comes at least once. The slow ones are the rare ones, and come first.
        missing = sorted(ways, key=ways.get, reverse=True)[number::4]
        while self.goes_on():
            way = missing.pop() if missing else self.random.choices(list(ways), ways.values())[0]
            if self.goes_on({self.silent: PINGS, self.unfinished: PINGS, self.abandon: GRACE}.get(way, 0)):
                self.ends[way.__name__] += 1
                await asyncio.wait_for(way(), PATIENCE)
            await asyncio.sleep(self.random.random() * 0.05)

    async def code(self, reader):
        """Reads to the CLOSE of the server and the end of the connection. Returns the code, and the messages before it."""
        data, messages = await reader.read(), []
        while data:
            first, length, begin = data[0], data[1], 2
            if length == 126:
                length, begin = int.from_bytes(data[2:4]), 4
            payload, data = data[begin : begin + length], data[begin + length :]
            if first == 0x80 | CLOSE:
                assert not data, f"{data[:40]} after the CLOSE"
                return int.from_bytes(payload[:2]), messages
            if first & 15 in (TEXT, BINARY, 0):
                messages.append(payload)
        raise AssertionError(f"no CLOSE, but {messages}")

    async def close(self):
        reader, writer = await self.open("/app")
        writer.write(b"\x81\x85\0\0\0\0ender" + b"\x88\x82\0\0\0\0\x03\xe8")
        assert (await self.code(reader))[0] == 1000
        writer.close()

    async def fin(self):
        """Sends a message and then FIN. The message must arrive, and its echo must come."""
        reader, writer = await self.open("/echo")
        text = b"%08d" % self.random.randrange(10**8)
        writer.write(b"\x81\x88\0\0\0\0" + text)
        while (await reader.readexactly(1))[0] != 0x80 | TEXT:
            # A PING.
            await reader.readexactly((await reader.readexactly(1))[0])
        assert await reader.readexactly(9) == b"\x08" + text
        writer.close()

    async def rst(self):
        _, writer = await self.open(self.random.choice(["/app", "/echo", "/pipe", "/acp"]))
        reset(writer)

    async def protocol_error(self):
        code, data = self.random.choice(list(PROTOCOL_ERRORS.items()))
        reader, writer = await self.open(self.random.choice(["/app", "/echo"]))
        writer.write(data)
        got, _ = await self.code(reader)
        assert got == code, (got, code)
        writer.close()

    async def operator(self):
        reader, writer = await self.open(self.random.choice(["/app", "/echo"]))
        # `/status` is read before an await, so the client cannot be gone.
        host, port = writer.get_extra_info("sockname")
        (id,) = [client["id"] for client in self.server.status()["clients"] if client["remote"] == f"{host}:{port}"]
        request = cuts.urllib.request.Request(
            self.server.url(f"/.outrigger/clients/{id}/close"), b"{}", {"Content-Type": "application/json"}
        )
        with self.server.open(request) as answer:
            assert json.load(answer) == {"ok": True}
        assert (await self.code(reader))[0] == 1008
        writer.close()

    async def program_ends(self):
        reader, writer = await self.open(self.random.choice(["/exits", "/killed"]))
        writer.write(b"\x81\x82\0\0\0\0go")
        await self.code(reader)
        writer.close()

    async def leave_terminal(self):
        _, writer = await self.open("/terminal")
        reset(writer)

    async def handshake(self):
        _, writer = await self.begin()
        reset(writer)

    async def unfinished(self):
        reader, writer = await self.begin()
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        writer.close()

    async def begin(self):
        """Sends the beginning of a request."""
        reader, writer = await self.dial()
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n"[: self.random.randrange(1, 30)])
        return reader, writer

    async def silent(self):
        """Answers no PING. It gets nothing else, because a client that takes output is not silent."""
        reader, writer = await self.open("/echo")
        assert b"\x89" in await reader.read()
        writer.close()

    async def abandon(self):
        """Never comes back."""
        link = Link(self.server.port, "/app", f"abandoned {self.ends['abandon']}", self.server.tls)
        await asyncio.wait_for(link.connect(), PATIENCE)
        link.lose()

    def call_mcp(self, number, path):
        count = 0
        while self.goes_on():
            with mcp_http.Connection(self.server.port) as connection:
                for _ in range(50):
                    what = f"{number}/{count}"
                    count += 1
                    status, messages = mcp_http.tool(connection, "echo", 1, "t", path=path, what=what, steps=2)
                    assert status == 200 and len(messages) == 3 and mcp_http.text_of(messages[-1]) == what, (status, messages)
                fields, message = mcp_http.stateless("tools/call", {"name": "wait", "arguments": {}}, id=1, token="t")
                connection.send("POST", path, fields, json.dumps(message).encode())
                connection.head()
                connection.reset()
            session = mcp_http.Session(self.server.port, path=path)
            status, messages = session.tool("echo", what=str(count))
            assert status == 200 and mcp_http.text_of(messages[-1]) == str(count), (status, messages)
            assert session.delete() in (200, 202, 204)
            session.connection.socket.close()
            self.calls.update({"calls": 51, "calls abandoned": 1, "sessions": 1})

    # What is checked when the load has stopped.

    def held(self):
        """What the server holds. There are no clients, calls or sessions."""
        pid = self.server.process.pid
        with open(f"/proc/{pid}/smaps_rollup") as file:
            memory = int(re.search(r"^Anonymous:\s+(\d+) kB", file.read(), re.MULTILINE)[1]) * KIB
        return memory, len(os.listdir(f"/proc/{pid}/fd")), len(descendants(pid))

    def come_to_rest(self):
        """Waits for the server to be idle. Returns what it holds then."""
        first = self.tenths[0] if self.tenths else None
        deadline = time.monotonic() + PATIENCE
        while True:
            status = self.server.status()
            busy = {name: status[name] for name in ("client_count", "detached", "pending_requests", "kept_bytes")}
            busy["MCP sessions"] = sum(status["routes"][path]["sessions"] for path in ("/mcp", "/older"))
            busy["bytes of histories"] = status["routes"]["/acp"]["history_bytes"]
            # Sessions of the agent stay until it ends.
            held, children = self.held(), self.server.children()
            if not any(busy.values()) and (held[2] <= first[2] if first else len(children) == LASTING):
                break
            programs = [" ".join(cuts.command_of(pid)) for pid in children]
            assert time.monotonic() < deadline, f"{self.name}: still there: {busy}, {programs}"
            time.sleep(0.1)
        # Ended processes, timers, and connections of clients that the kernel still closes.
        deadline = time.monotonic() + RETENTION + 10
        while first and (held[0] > first[0] + ALLOWED or held[1] > first[1]) and time.monotonic() < deadline:
            time.sleep(0.2)
            held = self.held()
        return held

    def check_held(self):
        self.tenths.append(self.come_to_rest())
        for what, now, first, allowed in zip(("memory", "descriptors", "processes"), self.tenths[-1], self.tenths[0], (ALLOWED, 0, 0)):
            assert now <= first + allowed, f"{self.name}: {what} grew from {first} to {now}"

    def check_endings(self, seconds):
        """Each client has one beginning and one end, wherever they are told."""
        counts = {"connected": collections.Counter(), "disconnected": collections.Counter()}
        with open(self.server.log_path, errors="replace") as file:
            for line in file:
                if found := re.match(r"\S+ \S+ +(c[\d.]+) (connected|disconnected):", line):
                    counts[found[2]][found[1]] += 1
        connected, disconnected = counts["connected"], counts["disconnected"]
        assert connected and disconnected, f"{self.name}: no line of the log names a client"
        wrong = {id: (connected[id], disconnected[id]) for id in connected | disconnected if max(connected[id], disconnected[id]) > 1}
        assert not wrong, f"{self.name}: clients with their numbers of beginnings and endings: {list(wrong.items())[:9]}"
        causes = {
            cause: int(count) for cause, count in re.findall(r'disconnects_total\{cause="(\w+)"\} (\d+)', self.server.get("/metrics"))
        }
        # The log suppresses similar lines, so a client without an ending is found in the counters. A resumed client has another 101.
        began = self.server.metric('outrigger_responses_total{code="101"}') - self.server.metric("outrigger_resumes_total")
        assert self.server.status()["client_count"] == 0 and sum(causes.values()) == began, f"{self.name}: {began} clients, {causes}"
        assert seconds < 3 * PERIOD or len(self.ends) == WAYS, self.ends
        for way, cause in ("operator", "operator"), ("protocol_error", "protocol_error"), ("abandon", "not_resumed"):
            assert causes[cause] == self.ends[way], f"{self.name}: {way}: {self.ends[way]}, {cause}: {causes[cause]}"
        for way, cause in ("close", "close"), ("silent", "ping_timeout"), ("program_ends", "service"):
            assert causes[cause] >= self.ends[way], f"{self.name}: {way}: {self.ends[way]}, {cause}: {causes[cause]}"
        report = cuts.report_of(self.server)
        assert report["connects"] == report["disconnects"] + 1 and not report["doubled"], f"{self.name}: the app was told {report}"
        return causes, report

    def stop(self):
        return self.server.stop()


def descendants(pid):
    """The processes below one, without those that have ended."""
    found = []
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        for child in map(int, file.read().split()):
            found += [child, *descendants(child)]
    return found


async def soak(loads, seconds):
    for load in loads:
        await load.start()
    began = time.monotonic()
    for end in [seconds * tenth / 10 for tenth in range(1, 11)] if seconds / 10 >= PERIOD else [PERIOD, (PERIOD + seconds) / 2, seconds]:
        share = max(1.0, began + end - time.monotonic())
        async with asyncio.TaskGroup() as group:
            for load in loads:
                group.create_task(load.carry(share))
        for load in loads:
            # In a thread, because it waits.
            await asyncio.to_thread(load.check_held)
            memory, descriptors, processes = load.tenths[-1]
            print(f"  {end / 60:.1f} minutes, {load.name}: {memory // KIB} KiB, {descriptors} descriptors, {processes} processes", flush=True)
    return time.monotonic() - began


def summary(load, causes, report):
    figures, ways = load.figures, ", ".join(f"{count} {way}" for way, count in sorted(causes.items()) if count)
    first, last = load.tenths[0], load.tenths[-1]
    return {
        "clients": sum(causes.values()), "endings": {cause: count for cause, count in sorted(causes.items()) if count},
        "cuts": load.proxy.cuts.total(), "resumes": load.server.metric("outrigger_resumes_total"),
        "messages": figures["in"] + figures["out"], "bytes": figures["bytes in"] + figures["bytes out"], "prompts": figures["prompts"],
        "MCP calls": load.calls["calls"], "MCP sessions": load.calls["sessions"], "agents killed": figures["agents killed"],
        "memory": [tenth[0] for tenth in load.tenths], "descriptors": [first[1], last[1]], "processes": [first[2], last[2]],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--break", choices=BREAKS, dest="broken")
    parser.add_argument("--json", help="also write the summary to this file")
    arguments = parser.parse_args()
    cuts.WINDOW = WINDOW
    os.environ["MALLOC_TRIM_THRESHOLD_"] = os.environ["MALLOC_MMAP_THRESHOLD_"] = str(128 * KIB)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    loads = []
    try:
        for tls in False, True:
            loads.append(Load(tls, arguments.clients // 2, arguments.seed, arguments.broken))
        seconds = asyncio.run(soak(loads, arguments.minutes * 60))
        summaries = {}
        for load in loads:
            summaries[load.name] = summary(load, *load.check_endings(arguments.minutes * 60))
    except BaseException:
        for load in loads:
            print(f"the end of the log of the server, {load.name}:\n{load.server.log_tail()[-1500:]}", file=sys.stderr)
        print(f"seed {arguments.seed}", file=sys.stderr)
        raise
    finally:
        codes = [load.stop() for load in loads]
    assert codes == [0, 0], codes
    for name, figures in summaries.items():
        print(f"  {name}, {seconds / 60:.1f} minutes, seed {arguments.seed}:")
        for what, value in figures.items():
            print(f"    {what}: {value}")
    print("  no byte was lost, each ending was told once, and nothing grew")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"minutes": round(seconds / 60, 1), **summaries}, file)


if __name__ == "__main__":
    main()

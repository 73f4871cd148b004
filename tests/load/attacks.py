#!/usr/bin/env python3
"""Attacks by one peer on the others. Each attack runs against a server of its own while a bystander measures how long its
echoes take. The table has these times and the server's peak memory for each attack.

usage: tests/load/attacks.py [BINARY] [--only NAME,...] [--list] [--tries N] [--json FILE]
       BINARY is target/release/outrigger by default. --list lists the attacks. --tries is 3 by default: an attack that
       fails is run again, because a busy machine delays every process, and the best run counts.

An attack fails if the bystander waits once for more than 50 ms and what the bystander of an idle server beside it waits (the
noise of the machine), if the server's peak memory is above
the maximum in docs/costs.md under "Memory", if a process is left, or if a check of the attack itself fails.
Every attack is bounded in time and number, and uses the loopback only. As root, the server and the bystander have a higher
priority than the attacking processes and the programs that the server starts.

Columns: p50, p99 and max are the bystander's milliseconds. `ran` and `queued` are parts of the worst wait: for how long
the server used a processor, and for how long it or the bystander was ready to run but had none, as the kernel counts it.
The machine causes a long `queued`, not the server. `noise` is the longest wait at the idle server. `peak` and `allowed` are MiB of the server alone. The first two lines
show the machine without an attack.
"""

import argparse
import contextlib
import fcntl
import json
import os
import random
import re
import select
import selectors
import shutil
import signal
import socket
import ssl
import struct
import sys
import tempfile
import time
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
import mcp_http
from tls_peers import Certificates
from peers import (
    AUTHORIZATION, KIB, LIBC, MIB, PATIENCE, TOKEN, TOKENS, Server, Worker, bearer, children_of, client_count, connect, descriptors_for,
    end_left_processes, frame, get, open_client, open_clients, post, prepare, read_fragment, read_frame, read_head, results,
    upgrade,
)

GOAL = 50  # ms, and what a server without an attack needs at the same time
PAUSE = 0.01
PYTHON = sys.executable
PTRACE_SEIZE, PTRACE_O_TRACEEXIT = 0x4206, 0x40

# The server's defaults, which the formula in docs/costs.md uses.
MAX_MESSAGE, MAX_OUTBOUND, MAX_HEAD, TURN_BYTES = 16 * MIB, 8 * MIB, 16 * KIB, 512 * KIB
MAX_PATH = 1 * KIB
DEFLATE_MEMORY = 64 * MIB
CAPTURE = 64 * MIB  # --max-exec-output
MAX_LOG = 20_000  # bytes a second


def allowed(connections=0, held=0, long_messages=False, deflate=False, programs=0):
    """The maximum of memory by the formula in docs/costs.md, but with `held`, what all connections hold together, in place
    of --memory. `programs` is what the limits of an agent, an app and processes add."""
    most = 6 * MIB + TURN_BYTES + connections * 512 + 2 * held + programs
    if long_messages:
        most += 16 * MIB
    if deflate:
        most += DEFLATE_MEMORY + 2 * MIB + MAX_MESSAGE * 5 // 2
    return most


# The bystander.


def scheduling(pid):
    """Nanoseconds in which the process ran, and in which it was ready to run but had no processor."""
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            ran, queued, _ = file.read().split()
        return int(ran), int(queued)
    except (OSError, ValueError):
        return 0, 0


def bystand(pipe, port, server, path, pings, tls=None):
    """Sends a message (or a PING) every 10 ms and waits for its answer, until SIGTERM. Returns each wait with the server's
    share of it, in milliseconds. `tls` is the context of a TLS client."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    # Another address than that of the proxies of an attack.
    connection = open_client(port, path, bearer(TOKENS["bystander"]), tls=tls, source="127.0.0.1" if tls is None else "127.0.0.2")
    connection.setblocking(False)
    opcode, answer, buffer, number, waits = (9, 0x8A, b"", 0, []) if pings else (2, 0x82, b"", 0, [])
    pipe.send(("ready", None))
    while not stopped:
        number += 1
        payload = b"%020d" % number
        wanted = bytes([answer, 20]) + payload
        ran, queued = scheduling(server)
        own = scheduling("self")[1]
        lost, begin = None, time.perf_counter()
        try:
            connection.send(frame(opcode, payload))
            while wanted not in buffer and not stopped:
                if select.select([connection], [], [], 0.05)[0]:
                    try:
                        data = connection.recv(1 << 16)
                    except ssl.SSLWantReadError:
                        continue
                    if not data:
                        raise ConnectionError("the end of the connection")
                    buffer = (buffer + data)[-65536:]
        except OSError as error:
            lost = str(error)
        # A message without an answer at the end has waited at least this long.
        took = (time.perf_counter() - begin) * 1e3
        ran, queued = (after - before for after, before in zip(scheduling(server), (ran, queued)))
        waits.append((took, ran / 1e6, (queued + scheduling("self")[1] - own) / 1e6))
        if lost:
            return waits, lost
        buffer = buffer.partition(wanted)[2]
        time.sleep(PAUSE)
    return waits, None


def summarize(waits):
    """p50, p99, and the longest wait with its parts. Counts the messages that would have been sent during a long wait, too."""
    pause = PAUSE * 1e3
    due = sorted(took - missed * pause for took, _, _ in waits for missed in range(max(1, int(took / pause))))
    took, ran, queued = max(waits)
    return due[len(due) // 2], due[len(due) * 99 // 100], took, ran, queued


class Run:
    """One run of one attack: its server and bystander, and its results."""

    def __init__(self, binary, name):
        self.binary, self.name = binary, name
        self.server = self.control = None
        self.bystanders = []
        self.failures, self.notes, self.allowed = [], [], allowed(1)

    def serve(self, routes=None, *options, more_tokens=(), has_tokens=True):
        self.control = Server(self.binary, {}, [])
        self.server = Server(self.binary, routes or {}, options, more_tokens, has_tokens)
        return self.server.port

    def begin(self, path="/echo", pings=False, tls=None):
        """Starts the bystander's measurement."""
        watched = [(self.server, path, pings, tls), (self.control, "/echo", False, None)]
        for server, *how in watched:
            self.bystanders.append(Worker(bystand, server.port, server.pid, *how, nice=0))
        for bystander in self.bystanders:
            bystander.hear()
        self.log_at_begin, self.began = self.server.log_size(), time.monotonic()

    def end_bystander(self):
        bystanders, self.bystanders = self.bystanders, []
        for bystander in bystanders:
            os.kill(bystander.pid, signal.SIGTERM)
        heard = [bystander.hear() for bystander in bystanders]
        for bystander in bystanders:
            bystander.kill()
        if heard:
            (waits, lost), (calm, _) = heard
            if lost:
                self.failures.append(f"the bystander lost its connection: {lost}")
            self.figures = (*summarize(waits), summarize(calm)[2])

    def log_rate(self):
        return (self.server.log_size() - self.log_at_begin) / (time.monotonic() - self.began)

    def check(self, true, what):
        if not true and what not in self.failures:
            self.failures.append(what)

    def note(self, what):
        self.notes.append(what)

    def observe(self, seconds):
        """Lets the bystander measure for this long."""
        time.sleep(seconds)

    def wait_for(self, what, is_true, seconds=PATIENCE):
        deadline = time.monotonic() + seconds
        while not is_true():
            if time.monotonic() > deadline:
                self.failures.append(f"not within {seconds} s: {what}")
                return
            time.sleep(0.05)

    def execute(self, attack):
        """Returns the row of the table."""
        began = time.monotonic()
        peak = left = 0
        self.figures = None
        try:
            try:
                attack(self)
                if self.bystanders:
                    self.observe(0.2)
                self.end_bystander()
            except (OSError, RuntimeError, AssertionError, TypeError, ValueError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                with contextlib.suppress(OSError, RuntimeError):
                    self.end_bystander()
            if self.server and self.server.process.poll() is None:
                peak = self.server.memory("VmHWM")
            elif self.server:
                self.failures.append(f"the server is gone: {self.server.process.returncode}")
        finally:
            for worker in list(Worker.running):
                worker.kill()
            if self.server:
                wrong = self.server.stop()
                if wrong:
                    self.failures.append(wrong)
                if self.control:
                    self.control.stop()
                    self.control.files.cleanup()
                left = end_left_processes()
                self.server.files.cleanup()
        if left:
            self.failures.append(f"{left} processes were left")
        if peak > self.allowed:
            self.failures.append("memory")
        figures = self.figures or (float("nan"),) * 6
        if self.figures is None:
            self.failures.append("the bystander measured nothing")
        elif self.figures[2] > GOAL + self.figures[5]:
            self.failures.append(f"a wait over {GOAL} ms")
        return {
            "attack": self.name,
            **dict(zip(["p50", "p99", "max", "ran", "queued", "noise"], figures)),
            "peak": peak / MIB,
            "allowed": self.allowed / MIB,
            "all_ended": not left,
            "seconds": time.monotonic() - began,
            "notes": self.notes,
            "failures": self.failures,
        }


# Parts of several attacks.


def pipeline(pipe, port, request, connections, seconds):
    """Sends a request repeatedly on `connections` connections and reads the answers. Replaces a connection that was closed.
    Returns the number of bytes read."""
    batch = request * max(1, 4096 // len(request))
    came, rests = 0, {}
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        while time.monotonic() < deadline:
            for _ in range(connections - len(rests)):
                try:
                    connection = connect(port)
                except OSError:
                    break  # no free port at the moment
                # Leaves no port in TIME_WAIT.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.setblocking(False)
                rests[connection] = batch
                selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
            for key, events in selector.select(0.1):
                connection = key.fileobj
                try:
                    if events & selectors.EVENT_READ:
                        data = connection.recv(1 << 18)
                        if not data:
                            raise ConnectionError
                        came += len(data)
                    if events & selectors.EVENT_WRITE:
                        # Starts the next request after the last one.
                        rests[connection] = rests[connection][connection.send(rests[connection]) :] or batch
                except BlockingIOError:
                    pass
                except OSError:
                    selector.unregister(connection)
                    connection.close()
                    del rests[connection]
    return came


def exchange(pipe, port, path, messages, connections, seconds, fields=AUTHORIZATION):
    """Sends messages on `connections` connections and reads what comes. Returns the number of bytes read."""
    frames = [memoryview(message) for message in messages]
    came, states = 0, {}
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for number in range(connections):
            connection = open_client(port, path, fields)
            connection.setblocking(False)
            states[connection] = [number, frames[number % len(frames)]]
            selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while time.monotonic() < deadline and states:
            for key, events in selector.select(0.1):
                connection = key.fileobj
                try:
                    if events & selectors.EVENT_READ:
                        data = connection.recv(MIB)
                        if not data:
                            raise ConnectionError
                        came += len(data)
                    if events & selectors.EVENT_WRITE:
                        state = states[connection]
                        state[1] = state[1][connection.send(state[1][: 4 * MIB]) :]
                        if not state[1]:
                            state[0] += 1
                            state[1] = frames[state[0] % len(frames)]
                except BlockingIOError:
                    pass
                except OSError:
                    selector.unregister(connection)
                    connection.close()
                    del states[connection]
    return came


def newcomer(port, path, source):
    """Connects a client with a token. Returns the first line of the answer."""
    try:
        with connect(port, source) as client:
            client.settimeout(3)
            client.sendall(upgrade(path))
            return client.recv(4096).split(b"\r\n")[0].decode() or "the end of the connection"
    except OSError as error:
        return str(error)


# The attacks. The docstring of each one is its description in --list.


def status_pipelining(run):
    """4 connections pipeline /status with a token while 5,000 clients are connected"""
    port = run.serve()
    count = descriptors_for(5000)
    clients = open_clients(port, ["/echo"] * count)
    run.allowed = allowed(count + 5, held=4 * (MAX_OUTBOUND + TURN_BYTES + MAX_HEAD))
    run.begin()
    came = results([Worker(pipeline, port, get("/status", AUTHORIZATION), 1, 5) for _ in range(4)])
    run.note(f"{sum(came) / MIB:.0f} MiB of status")
    run.end_bystander()
    for client in clients:
        client.close()


def readyz_pipelining(run):
    """64 connections pipeline /readyz without a token"""
    port = run.serve()
    run.allowed = allowed(65, held=64 * (256 * KIB + TURN_BYTES + MAX_HEAD))
    run.begin()
    came = results([Worker(pipeline, port, get("/readyz"), 16, 4) for _ in range(4)])
    run.note(f"{sum(came) / MIB:.0f} MiB of answers")


def initialize_again(pipe, port, messages, seconds):
    done, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionError), open_client(port, "/acp") as client:
            client.sendall(messages[done % len(messages)])
            read_frame(client)  # the answer, or CLOSE if it is refused
        done += 1
    return done


def big_initialize(run):
    """two clients send `initialize`s of 16 MiB to a shared agent: a long string, and many short keys"""
    port = run.serve({"/acp": {"agent": {"command": [run.binary, "example-agent"]}}})
    head = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,'
    string = head + b'"x":"%s"}}' % (b"x" * (MAX_MESSAGE - 200))
    keys, size = [], len(head)
    while size < MAX_MESSAGE - 200:
        keys.append(b'"k%d":0' % len(keys))
        size += len(keys[-1]) + 1
    keys = head + b",".join(keys) + b"}}"
    messages = [frame(1, string), frame(1, keys)]
    # The agent's input queue holds 1 MiB and one message more.
    run.allowed = allowed(3, held=2 * (MAX_MESSAGE + TURN_BYTES), long_messages=True, programs=2 * (MAX_MESSAGE + MIB))
    run.begin()
    done = results([Worker(initialize_again, port, order, 5) for order in (messages, messages[::-1])])
    run.note(f"{sum(done)} times")


def upgrade_crowd(pipe, port, count, path):
    connections = [connect(port) for _ in range(count)]
    begin = time.monotonic()
    for connection in connections:
        connection.sendall(upgrade(path))
    refused = 0
    for connection in list(connections):
        if b" 101 " in read_head(connection):
            connection.sendall(frame(2, b"x\n"))
        else:
            refused += 1
            connections.remove(connection)
    # The first output shows that the program runs.
    for connection in connections:
        read_frame(connection)
    pipe.send(("opened", (time.monotonic() - begin, refused)))
    signal.pause()


def terminal_crowd(run):
    """1,000 clients open terminals at once, and disconnect at once"""
    port = run.serve({"/terminal": {"terminal": {"command": ["cat"]}}})
    count = min(1000, descriptors_for(3000) // 3)
    run.allowed = allowed(count + 1, held=count * 512, programs=count * 16 * KIB)
    run.begin()
    workers = [Worker(upgrade_crowd, port, count // 4, "/terminal") for _ in range(4)]
    opened = results(workers)
    run.note(f"open after {max(seconds for seconds, _ in opened):.1f} s")
    refused = sum(refused for _, refused in opened)
    run.check(refused == 0, f"{refused} were refused")
    for worker in workers:
        worker.kill()
    run.wait_for("all terminals have ended", lambda: not run.server.children())


# Leaves orphans in sessions of their own, and becomes `cat`.
FORKER = """
import os, signal, sys
if sys.argv[2] == "ignore":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            null = os.open("/dev/null", os.O_RDWR)
            for stream in range(3):
                os.dup2(null, stream)
            os.execvp("sleep", ["sleep", "300"])
        os._exit(0)
    os.wait()
print("ready", flush=True)
os.execvp("cat", ["cat"])
"""


def storm(run, count, orphans, hup):
    command = [PYTHON, "-I", "-S", "-c", FORKER, str(orphans), hup]
    port = run.serve({"/terminal": {"terminal": {"command": command}}})
    run.allowed = allowed(count + 1, held=count * 512, programs=count * (16 + 4 * orphans) * KIB)
    terminals = open_clients(port, ["/terminal"] * count)
    for terminal in terminals:
        while b"ready" not in terminal.recv(4096):
            pass
    children = len(run.server.children())
    run.check(children == count * (orphans + 1), f"there are only {children} children")
    run.begin()
    run.observe(0.1)
    begin = time.monotonic()
    for terminal in terminals:
        terminal.close()
    run.wait_for("all of them have ended", lambda: not run.server.children())
    run.note(f"all ended after {time.monotonic() - begin:.1f} s")


def orphan_storm(run):
    """the clients of 200 terminals with ten orphans each disconnect at once"""
    storm(run, 200, 10, "obey")


def hup_proof(run):
    """the clients of 200 terminals with three orphans each that ignore HUP disconnect at once"""
    storm(run, 200, 3, "ignore")


def slow_exec_starts(run):
    """a client starts 40 programs from a file system that does not answer, in four ways"""
    folder = tempfile.TemporaryDirectory()
    # A lease holds up whoever executes the file until its owner gives it up.
    leases = []
    for name in ["terminal", "called"]:
        path = f"{folder.name}/{name}"
        shutil.copy("/bin/cat", path)
        leases.append(os.open(path, os.O_WRONLY))
        fcntl.fcntl(leases[-1], fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(leases[-1], fcntl.F_SETLEASE, fcntl.F_WRLCK)
    run.serve({"/process/...": {"processes": {}}, "/terminal": {"terminal": {"command": [f"{folder.name}/terminal"]}}})
    body = json.dumps({"command": path}).encode()
    run.allowed = allowed(41, programs=40 * 64 * KIB)
    run.begin()
    callers = open_clients(run.server.port, ["/terminal"] * 10)
    for number in range(10):
        name = post(f"/process/by-name/{number}", body).replace(b"POST", b"PUT", 1)
        for request in [post("/process/spawn", body), post("/process/exec", body), name]:
            callers.append(connect(run.server.port))
            callers[-1].sendall(request)
    run.wait_for("all have been started", lambda: len(run.server.children()) == len(callers))
    run.observe(1)
    # After 3 s they are given up, and the callers get errors.
    for caller in callers[10:]:
        answer = caller.recv(4096)
        run.check(b"could not be executed within 3s" in answer, f"a caller got {answer!r}")
    for file in leases:
        os.close(file)
    folder.cleanup()


def trace(pipe, server, count):
    """Has the kernel stop the server's children at their exit, so that a killed child ends only when the tracer is gone."""
    traced, deadline = set(), time.monotonic() + 20
    while len(traced) < count and time.monotonic() < deadline:
        for child in children_of(server):
            if child not in traced and LIBC.ptrace(PTRACE_SEIZE, child, None, PTRACE_O_TRACEEXIT) == 0:
                traced.add(child)
        time.sleep(0.02)
    pipe.send(("traced", len(traced)))
    signal.pause()


def unkillable_exec(run):
    """8 callers of `exec` disconnect while a debugger keeps their processes from ending"""
    port = run.serve({"/process/...": {"processes": {}}})
    # PR_SET_PTRACER, PR_SET_PTRACER_ANY: for systems on which only a parent can trace.
    code = "import ctypes,time;ctypes.CDLL(None).prctl(0x59616d61,ctypes.c_ulong(-1),0,0,0);time.sleep(60)"
    body = json.dumps({"command": PYTHON, "args": ["-c", code]}).encode()
    callers = []
    for _ in range(8):
        caller = connect(port)
        caller.sendall(post("/process/exec", body))
        callers.append(caller)
    tracer = Worker(trace, run.server.pid, len(callers), nice=0)
    traced = tracer.hear()
    run.check(traced == len(callers), f"only {traced} of {len(callers)} processes could be traced")
    run.allowed = allowed(len(callers) + 1, programs=len(callers) * 256 * KIB)
    run.begin()
    run.observe(0.2)
    for caller in callers:
        caller.close()
    run.observe(3)
    tracer.kill()
    run.wait_for("all processes were reaped", lambda: not run.server.children(), 20)


def call_again(pipe, port, requests, seconds):
    """Makes calls, each on its own connection, and returns the answers."""
    answers, deadline, done = {}, time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        with connect(port) as caller:
            with contextlib.suppress(ConnectionError):
                caller.sendall(requests[done % len(requests)])
            try:
                status = caller.recv(4096)[9:12].decode()
            except ConnectionError:
                status = "reset"
        answers[status] = answers.get(status, 0) + 1
        done += 1
    return answers


def tiny_keys_spawn(run):
    """three callers of `spawn` send bodies of 16 MB of tiny keys and words"""
    port = run.serve({"/process/...": {"processes": {}}})
    pairs = b",".join(b'"%x":0' % number for number in range(1_500_000))
    inner = b",".join(b'"%x":""' % number for number in range(1_300_000))
    bodies = [
        b"{%s}" % pairs,
        b'{"command":"true","env":{%s}}' % inner,
        b'{"command":"true","args":[%s""]}' % (b'"",' * 5_000_000),
        b'{"command":"true","x":%s0%s}' % (b"[" * 100, b",0" * 7_000_000 + b"]" * 100),
    ]
    assert all(10 * MIB < len(body) < MAX_MESSAGE for body in bodies), [len(body) for body in bodies]
    requests = [post("/process/spawn", body) for body in bodies]
    run.allowed = allowed(4, held=3 * (MAX_MESSAGE + TURN_BYTES), long_messages=True)
    run.begin()
    answers = results([Worker(call_again, port, requests[n:] + requests[:n], 4) for n in range(3)])
    total = {}
    for statuses in answers:
        for status, count in statuses.items():
            total[status] = total.get(status, 0) + count
    run.note(f"answers {show_counts(total)}")


BROADCASTER = """
import json, sys
for line in sys.stdin:
    event = json.loads(line)
    if event["event"] == "message":
        sys.stdout.write('{"cmd":"broadcast","text":"tick"}\\n' * int(event["text"]))
        sys.stdout.flush()
"""


def listen_all(pipe, port, path, count, wanted):
    """Connects `count` clients that read until each has the given number of bytes."""
    came = {}
    with selectors.EpollSelector() as selector:
        for _ in range(count):
            client = open_client(port, path)
            client.setblocking(False)
            came[client] = 0
            selector.register(client, selectors.EVENT_READ)
        pipe.send(("ready", None))
        missing = count
        while missing:
            for key, _ in selector.select(1):
                client = key.fileobj
                data = client.recv(1 << 16)
                if not data:
                    raise RuntimeError(f"a client was cut off after {came[client]} bytes")
                came[client] += len(data)
                if came[client] >= wanted:
                    selector.unregister(client)
                    missing -= 1
    return time.monotonic()


def broadcast(run, commands):
    port = run.serve({"/app": {"app": {"command": [PYTHON, "-c", BROADCASTER]}}})
    count = descriptors_for(1000)
    run.allowed = allowed(count + 2, held=count * commands * 6, programs=2 * MIB)
    listeners = Worker(listen_all, port, "/app", count, commands * 6)
    listeners.hear()
    run.begin()
    run.observe(0.1)
    begin = time.monotonic()
    with open_client(port, "/app") as client:
        client.sendall(frame(1, b"%d" % commands))
        run.note(f"all had it after {listeners.hear() - begin:.1f} s")


def broadcast_commands(run):
    """a program writes 500 broadcasts of 4 bytes to 1,000 clients at once"""
    broadcast(run, 500)


def broadcast_commands_2000(run):
    """a program writes 2,000 broadcasts of 4 bytes to 1,000 clients at once"""
    broadcast(run, 2000)


PUBLISHER = """
import json, sys
for line in sys.stdin:
    event = json.loads(line)
    if event["event"] == "connect":
        sys.stdout.write(json.dumps({"cmd": "subscribe", "client": event["client"], "topic": "news"}) + "\\n")
        sys.stdout.write(json.dumps({"cmd": "send", "client": event["client"], "text": "ready"}) + "\\n")
    elif event["event"] == "message":
        count, size = map(int, event["text"].split())
        command = json.dumps({"cmd": "publish", "topic": "news", "text": "x" * size})
        sys.stdout.write((command + "\\n") * count)
    sys.stdout.flush()
"""
PUBLISHED = 4 + 1024  # bytes of a frame
READY = 2 + 5


def serve_publisher(run):
    return run.serve({"/app": {"app": {"command": [PYTHON, "-c", PUBLISHER]}}}, "--max-clients", "20000")


def publish(port, messages, size=1024):
    """Lets the program publish. The client that asks for it is a member, too."""
    client = open_client(port, "/app")
    client.sendall(frame(1, b"%d %d" % (messages, size)))
    return client


def publish_to_10000(run):
    """a program publishes 20 messages of 1 KiB at once to 10,000 members"""
    messages = 20
    port = serve_publisher(run)
    count = descriptors_for(10_000)
    # Each member has a block of its own for what all share.
    run.allowed = allowed(count + 3, held=messages * PUBLISHED + count * 512, programs=3 * MIB)
    listeners = Worker(listen_all, port, "/app", count, READY + messages * PUBLISHED)
    listeners.hear()
    run.begin()
    run.observe(0.1)
    begin = time.monotonic()
    with publish(port, messages):
        run.note(f"all {count} had it after {listeners.hear() - begin:.1f} s")


def listen_not(pipe, port, path, count):
    """Connects `count` clients that read nothing but their first message."""
    clients = [open_client(port, path, receive_buffer=4096) for _ in range(count)]
    for client in clients:
        read_frame(client)
    pipe.send(("ready", None))
    signal.pause()


def publish_unread(run):
    """a program publishes 6,000 messages of 1 KiB to 100 members that read nothing: they are kept once"""
    messages = 6000
    port = serve_publisher(run)
    # The kernel takes up to 2.6 MB for each of them.
    count = 100
    # Each member has a block of 32 bytes for each message, in a list that grows by doubling.
    run.allowed = allowed(count + 3, held=messages * PUBLISHED + count * messages * 32, programs=3 * MIB)
    members = Worker(listen_not, port, "/app", count)
    members.hear()
    run.begin()
    with publish(port, messages) as client:
        read_frame(client)
        for _ in range(messages):
            assert len(read_frame(client)[1]) == 1024
        run.observe(2)
        with connect(port) as caller:
            caller.sendall(get("/metrics", AUTHORIZATION + b"Connection: close\r\n"))
            metrics = caller.makefile("rb").read()
        queued = next(line for line in metrics.splitlines() if line.startswith(b"outrigger_queued_bytes "))
        run.note(f"{float(queued.split()[1]) / MIB:.0f} MiB of output are unread by {client_count(port)} clients")
    members.kill()


def publish_large_unread(run):
    """a program publishes 32 messages of 1 MiB to 500 members that read nothing"""
    messages, count = 32, 500
    port = serve_publisher(run)
    run.allowed = allowed(count + 3, held=messages * MIB + count * messages * 32, long_messages=True, programs=4 * MIB)
    members = Worker(listen_not, port, "/app", count)
    members.hear()
    run.begin()
    with publish(port, messages, MIB) as client:
        read_frame(client)
        for _ in range(messages):
            assert len(read_frame(client)[1]) == MIB
        run.observe(1)
        run.note(f"{client_count(port)} clients are left")
    members.kill()


def deflate_bombs(run):
    """three clients echo compressed messages of 16 MiB: zeros, lines of JSON, random letters"""
    port = run.serve({}, "--deflate")
    source = random.Random(1)
    lines = "".join('{"id":%d,"name":"user %d","ok":true}\n' % (n, source.randrange(10**6)) for n in range(20_000))
    letters = bytes(source.choices(b"acgt", k=MIB))
    messages = []
    for data in [bytes(MAX_MESSAGE), (lines.encode() * 30)[:MAX_MESSAGE], letters * 16]:
        compressor = zlib.compressobj(1, zlib.DEFLATED, -15)
        data = compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)
        messages.append(frame(2, data[:-4], first=0xC0))
    held = 3 * (MAX_MESSAGE * 5 // 4 + MAX_MESSAGE + TURN_BYTES)
    run.allowed = allowed(4, held=held, long_messages=True, deflate=True)
    run.begin()
    done = results([Worker(bomb, port, message, 5) for message in messages])
    run.note(f"{' + '.join(map(str, done))} messages")


def bomb(pipe, port, message, seconds):
    client = connect(port)
    client.sendall(upgrade("/echo", AUTHORIZATION + b"Sec-WebSocket-Extensions: permessage-deflate\r\n"))
    head = read_head(client)
    assert b"permessage-deflate" in head, head
    done, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        client.sendall(message)
        # The server compresses a long message as it sends it, in fragments.
        expected, final = 2, False
        while not final:
            opcode, _, final = read_fragment(client)
            if opcode != expected:
                raise RuntimeError(f"a frame of type {opcode} came")
            expected = 0
        done += 1
    return done


def read_slowly(pipe, port, request, count, rate, seconds):
    callers = []
    for _ in range(count):
        caller = connect(port, receive_buffer=4096)
        caller.sendall(request)
        caller.setblocking(False)
        callers.append(caller)
    came, ended, statuses, deadline = 0, 0, {}, time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.1)
        for caller in list(callers):
            try:
                data = caller.recv(rate // 10)
                came += len(data)
                if data.startswith(b"HTTP/1.1 "):
                    status = data[9:12].decode()
                    statuses[status] = statuses.get(status, 0) + 1
                if not data:
                    raise ConnectionError
            except BlockingIOError:
                pass
            except OSError:
                ended += 1
                callers.remove(caller)
    return came, ended, statuses


def show_counts(statuses):
    return " ".join(f"{status}:{count}" for status, count in sorted(statuses.items())) or "none"


def exec_readers(run, held, **fields):
    port = run.serve({"/process/...": {"processes": {}}})
    body = json.dumps({"command": "head", "args": ["-c", "16000000", "/dev/zero"], **fields}).encode()
    run.allowed = allowed(31, held=30 * (held + MAX_HEAD), programs=CAPTURE)
    run.begin()
    came, ended, statuses = Worker(read_slowly, port, post("/process/exec", body), 30, 2000, 8).hear()
    run.note(f"answers {show_counts(statuses)}; {came / KIB:.0f} KiB were read, {ended} ended")


def slow_exec_readers(run):
    """30 callers of `exec` read 2 kB/s of 16 MB each"""
    exec_readers(run, MAX_OUTBOUND)


def greedy_exec_readers(run):
    """30 callers of `exec` ask for 16 MB each and read 2 kB/s"""
    exec_readers(run, MAX_OUTBOUND, max_output_bytes=MAX_MESSAGE)


def send_big_ids(pipe, port, count):
    client = open_client(port, "/rpc")
    sent = 0
    for number in range(count):
        text = b'{"jsonrpc":"2.0","id":%d,"method":"ask","params":{"sessionId":"%s"}}' % (number, b"x" * 15_000_000)
        try:
            client.sendall(frame(1, text))
        except OSError:
            break
        sent += 1
    return sent


def jsonrpc_ids(run):
    """100 requests with a `params.sessionId` of 15 MB each wait for a shared agent of plain JSON-RPC"""
    silent = "import os\nwhile os.read(0, 1 << 20): pass"
    port = run.serve({"/rpc": {"agent": {"command": [PYTHON, "-c", silent], "protocol": "jsonrpc"}}})
    run.allowed = allowed(2, held=MAX_MESSAGE + TURN_BYTES, long_messages=True, programs=2 * (MAX_MESSAGE + MIB))
    run.begin()
    sent = Worker(send_big_ids, port, 100).hear()
    run.note(f"{sent} were sent")
    run.observe(0.5)


def check_log(run):
    rate = run.log_rate()
    run.note(f"log {rate / 1000:.1f} kB/s")
    run.check(rate < MAX_LOG, f"the log takes {rate / 1000:.0f} kB/s, over {MAX_LOG // 1000}")


def log_flood(run):
    """32 connections without a token send requests at full speed"""
    port = run.serve({"/process/...": {"processes": {}}})
    run.allowed = allowed(33, held=32 * (256 * KIB + TURN_BYTES + MAX_HEAD))
    run.begin()
    requests = [
        get("/process"),
        upgrade("/echo", b""),
        get("/status", b"Authorization: Bearer wrong\r\n"),
        upgrade("/echo", b"Origin: http://elsewhere.example\r\n"),
    ]
    results([Worker(pipeline, port, request, 8, 3) for request in requests])
    check_log(run)


def log_flood_token(run):
    """32 clients with a token send invalid messages to a terminal and call paths that do not exist"""
    port = run.serve({"/process/...": {"processes": {}}, "/terminal": {"terminal": {"command": ["cat"]}}})
    run.allowed = allowed(33, held=32 * (256 * KIB + TURN_BYTES + MAX_HEAD), programs=32 * 256 * KIB)
    text = frame(1, b"my password is swordfish " + b"x" * 100)
    run.begin()
    workers = [Worker(exchange, port, "/terminal", [text * 100], 16, 3)]
    workers += [Worker(pipeline, port, get("/process/nothing/status", AUTHORIZATION), 16, 3)]
    results(workers)
    check_log(run)
    run.check(b"swordfish" not in run.server.log(), "what was typed is in the log")


def stray_print(run):
    """a program prints an invalid command for each line that it reads"""
    code = "import sys\nfor line in sys.stdin: print('hello', flush=True)"
    port = run.serve({"/app": {"app": {"command": [PYTHON, "-c", code]}}})
    run.begin()
    with open_client(port, "/app") as client:
        client.sendall(frame(1, b"x") * 1000)
        run.observe(1)
        before = run.server.processor_time()
        run.observe(2)
        share = (run.server.processor_time() - before) / 2
    check_log(run)
    run.note(f"{share * 100:.0f} % of a processor")
    run.check(share < 0.25, f"{share * 100:.0f} % of a processor, over 25 %")


def long_paths(run):
    """4,000 clients connect with paths of 1 kB, and others try longer ones"""
    port = run.serve({"/long/...": {"echo": {}}})
    count = descriptors_for(4000)
    path = "/long/".ljust(MAX_PATH - 4, "x")
    run.allowed = allowed(count + 1, held=count * MAX_PATH + 8 * MAX_HEAD)
    run.begin()
    # Each path is different, so that the server cannot share them.
    clients = open_clients(port, (f"{path}{number:04}" for number in range(count)))
    longer = upgrade(path.ljust(MAX_HEAD // 2, "x"))
    for _ in range(500):
        with connect(port) as client:
            client.sendall(longer)
            head = read_head(client)
            run.check(head.startswith(b"HTTP/1.1 414 "), f"a path of 8 kB got {head[:40]}")
    run.observe(0.2)
    run.end_bystander()
    for client in clients:
        client.close()


def hoard(port, count, source, first):
    connections = []
    for number in range(count):
        with contextlib.suppress(OSError):
            connection = connect(port, source.format(number // 250, number % 250 + 1))
            connections.append(connection)
            # A server that accepts no more connections does not answer.
            connection.settimeout(0.05)
            connection.sendall(first)
            if first.endswith(b"\r\n\r\n"):
                connection.recv(4096)
    return connections


def handshake_hoarding(run):
    """300 connections without a token stay in their handshake or between calls while a client with a token connects"""
    port = run.serve({}, "--max-clients", "100", "--max-clients-per-address", "10", "--handshake-timeout", "60s")
    run.allowed = allowed(302, held=300 * 64)
    run.begin()
    descriptors = run.server.descriptors()
    for what, source, first in [
        ("half a request each from one address", "127.0.0.1", b"GET / HTTP/1.1\r\n"),
        ("kept after /healthz from one address", "127.0.0.1", get("/healthz")),
        ("kept after /healthz from many addresses", "127.1.{}.{}", get("/healthz")),
    ]:
        hoarded = hoard(port, 300, source, first)
        came = newcomer(port, "/echo", "127.0.0.2")
        run.check("101" in came, f"{what}: the token's owner got {came}")
        for connection in hoarded:
            connection.close()
        run.wait_for("the closed connections are gone", lambda: run.server.descriptors() <= descriptors)


def stuck_program(run):
    """one client floods an app that reads slowly; the app's other clients connect, get PONGs, and disconnect"""
    code = "import os, time\nwhile os.read(0, 65536): time.sleep(0.05)"
    port = run.serve({"/app": {"app": {"command": [PYTHON, "-c", code]}}})
    run.allowed = allowed(3, held=MIB + TURN_BYTES, programs=4 * MIB)
    run.begin("/app", pings=True)
    leaver = open_client(port, "/app")
    flood = Worker(exchange, port, "/app", [frame(1, b"x" * 1000) * 100], 1, 6)
    run.observe(3)
    came = newcomer(port, "/app", "127.0.0.1")
    run.check("101" in came, f"a newcomer got {came}")
    count = client_count(port)
    leaver.close()
    run.wait_for("the client that disconnected is not counted any more", lambda: client_count(port) < count, 2)
    flood.hear()


def tty_resumes(run):
    """the writer and 16 viewers of a program that prints without end pause and resume it at full speed, as ttyd's page can"""
    port = run.serve({"/process/...": {"processes": {}}})
    spawned = json.dumps({"command": "yes", "args": ["x" * 100], "allocate_tty": True}).encode()
    with connect(port) as caller:
        caller.sendall(post("/process/spawn", spawned))
        answer = b""
        while b"}" not in answer:
            answer += caller.recv(4096)
    process = json.loads(answer.partition(b"\r\n\r\n")[2])["process_id"]
    path = f"/process/{process}/attach"
    subprotocol = b"Sec-WebSocket-Protocol: tty\r\n"
    run.allowed = allowed(18, held=17 * (MAX_OUTBOUND + TURN_BYTES), programs=2 * MIB)
    run.begin()
    # "2" pauses and "3" resumes. Most have no effect: they resume what is not paused.
    some, pairs = frame(2, b"3") * 20_000, (frame(2, b"2") + frame(2, b"3")) * 10_000
    workers = []
    for mode, count in [("writer", 1), ("viewer", 16)]:
        workers.append(Worker(exchange, port, f"{path}?mode={mode}", [some, pairs], count, 4, AUTHORIZATION + subprotocol))
    came = results(workers)
    run.note(f"the writer read {came[0] / MIB:.0f} MiB, the viewers {came[1] / MIB:.0f} MiB")
    run.check(came[0] and came[1], "nothing was read")


def idle_after_storm(run):
    """8 clients echo messages of 16 MiB; the server returns the memory when no client is left"""
    port = run.serve({"/process/...": {"processes": {}}})
    messages = [frame(2, bytes(size)) for size in (MAX_MESSAGE, MIB, 300 * KIB, 5 * MIB)]
    run.allowed = allowed(9, held=8 * (MAX_MESSAGE + MAX_MESSAGE + TURN_BYTES), long_messages=True)
    run.begin()
    # At normal priority, because at a lower one a busy machine would prevent the storm.
    came = results([Worker(exchange, port, "/echo", messages, 4, 4, nice=0) for _ in range(2)])
    run.end_bystander()
    most = allowed(1)
    run.wait_for(f"{most / MIB:.1f} MiB with no client", lambda: run.server.memory("VmRSS") <= most, 8)
    run.note(f"{sum(came) / MIB:.0f} MiB were echoed, {run.server.memory('VmRSS') / MIB:.1f} MiB held with no client")


# Attacks by one person with 1, 64 and 400 connections. More connections must not make anyone else wait longer.


def pour(pipe, port, path, first, message, connections, seconds, fields, reads, comes_back):
    """Sends `first` once and then `message` again and again on many connections. Reads what comes, or nothing. Replaces connections
    that the server closes, if `comes_back`. Returns the number of bytes sent."""
    data, sent, states, missing = memoryview(message), 0, {}, 0
    with selectors.DefaultSelector() as selector:

        def add():
            connection = open_client(port, path, fields) if path else connect(port)
            try:
                connection.sendall(first)
            except OSError:
                # The server has ended it to save memory.
                return connection.close()
            connection.setblocking(False)
            states[connection] = 0
            selector.register(connection, selectors.EVENT_WRITE | (selectors.EVENT_READ if reads else 0))

        for _ in range(connections):
            add()
        pipe.send(("ready", None))
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and (states or missing):
            if missing:
                # The server may refuse it for a while, because the program has not read what was sent before.
                with contextlib.suppress(OSError, AssertionError):
                    add()
                    missing -= 1
            for key, events in selector.select(0.1):
                connection = key.fileobj
                try:
                    if events & selectors.EVENT_READ and not connection.recv(MIB):
                        raise ConnectionError
                    if events & selectors.EVENT_WRITE:
                        at = states[connection]
                        count = connection.send(data[at : at + MIB])
                        sent += count
                        states[connection] = (at + count) % len(data)
                except BlockingIOError:
                    pass
                except OSError:
                    selector.unregister(connection)
                    connection.close()
                    del states[connection]
                    missing += comes_back
    return sent


def pours(run, connections, message, path="/echo", first=b"", fields=AUTHORIZATION, reads=True, seconds=4, comes_back=False):
    """The bystander measures while two processes pour."""
    port = run.server.port
    workers = [
        Worker(pour, port, path, first, message, share, seconds, fields, reads, comes_back)
        for share in ((connections + 1) // 2, connections // 2)
        if share
    ]
    results(workers)
    run.begin()
    run.note(f"{sum(results(workers)) / MIB:.0f} MiB sent")


def scaled(attack):
    """The attack with each number of connections."""
    variants = []
    for count in (1, 64, 400):

        def variant(run, count=count):
            return attack(run, min(count, descriptors_for(count)))

        variant.__name__ = f"{attack.__name__}_{count}"
        variant.__doc__ = f"{count} connections of one person: {attack.__doc__}"
        variants.append(variant)
    return variants


def fragments(run, connections):
    """fragments of one byte"""
    run.serve()
    run.allowed = allowed(connections + 1, held=connections * (TURN_BYTES + MAX_OUTBOUND))
    message = frame(2, b"x", 0) + frame(0, b"x", 0) * 10_000 + frame(0, b"x")
    pours(run, connections, message)


def empty_pings(run, connections):
    """empty PINGs"""
    run.serve()
    run.allowed = allowed(connections + 1, held=connections * (TURN_BYTES + MAX_OUTBOUND))
    pours(run, connections, frame(9, b"") * 10_000)


def empty_messages(run, connections):
    """empty messages to `echo`"""
    run.serve()
    run.allowed = allowed(connections + 1, held=connections * (TURN_BYTES + MAX_OUTBOUND))
    pours(run, connections, frame(2, b"") * 10_000)


def deflated(run, connections):
    """compressed messages of 60 kB to `echo`"""
    run.serve({}, "--deflate")
    run.allowed = allowed(connections + 1, held=connections * (TURN_BYTES + MAX_OUTBOUND), deflate=True)
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = squeeze.compress(b"some words that repeat " * 2600) + squeeze.flush(zlib.Z_SYNC_FLUSH)
    message = frame(2, data[:-4], 0xC0)
    fields = AUTHORIZATION + b"Sec-WebSocket-Extensions: permessage-deflate; client_no_context_takeover\r\n"
    pours(run, connections, message * 20, fields=fields)


def unread_status(run, connections):
    """`GET /status` with the scope `metrics`, whose answers are not read"""
    run.serve()
    clients = open_clients(run.server.port, ["/echo"] * 200)
    run.allowed = allowed(connections + 201, held=connections * (MAX_OUTBOUND + TURN_BYTES + MAX_HEAD))
    pours(run, connections, get("/status", bearer(TOKENS["meter"])) * 50, path=None, reads=False)
    for client in clients:
        client.close()


def long_echoes(run, connections):
    """messages of 16 MB to `echo`"""
    connections = min(connections, 200)
    run.serve()
    run.allowed = allowed(connections + 1, held=connections * (2 * MAX_MESSAGE + TURN_BYTES), long_messages=True)
    pours(run, connections, frame(2, bytes(16_000_000)))


BUDGET = 64 * MIB


def within_budget(connections):
    """The formula of docs/costs.md with --memory."""
    return 22 * MIB + TURN_BYTES + connections * 512 + 2 * BUDGET


def victim(run):
    """A client of somebody else who has sent a part of a message. Returns what checks that it can send the rest."""
    message = frame(2, bytes(range(256)) * 4096)
    client = open_client(run.server.port, "/echo", bearer(TOKENS["bystander"]))
    client.sendall(message[: MIB // 2])

    def check():
        client.sendall(message[MIB // 2 :])
        try:
            opcode, came = read_frame(client)[:2]
            run.check(len(came) == MIB, f"the other client got {opcode} {came[:40]}")
        except OSError as error:
            run.check(False, f"the other client lost its connection: {error}")

    return check


def unended_messages(run, connections):
    """messages of 15 MB that do not end, with --memory 64MiB"""
    run.serve({}, "--memory", "64MiB")
    run.allowed = within_budget(connections + 2)
    check = victim(run)
    pours(run, connections, frame(9, b""), first=frame(2, bytes(15 * MIB), 0))
    check()


def hoarded_output(run, connections):
    """messages of 1 MB to `echo` whose answers are not read, with --memory 64MiB"""
    run.serve({}, "--memory", "64MiB")
    run.allowed = within_budget(connections + 2)
    check = victim(run)
    pours(run, connections, frame(2, bytes(MIB)), reads=False)
    check()


def viewers(run):
    """2,000 viewers of `yes`"""
    port = run.serve({"/process/...": {"processes": {}}})
    count = descriptors_for(2000)
    with connect(port) as caller:
        caller.sendall(post("/process/spawn", json.dumps({"command": "yes", "args": ["x" * 100], "allocate_tty": True}).encode()))
        answer = b""
        while b"}" not in answer:
            answer += caller.recv(4096)
    process = json.loads(answer.partition(b"\r\n\r\n")[2])["process_id"]
    run.allowed = allowed(count + 2, held=count * MIB, programs=2 * MIB)
    pours(run, count, frame(9, b""), path=f"/process/{process}/attach?mode=viewer", seconds=5)


def call(connection, path, **fields):
    """Posts on a connection that stays open. Returns the status and the answer."""
    connection.sendall(post(path, json.dumps(fields).encode()))
    head, _, body = read_head_and_rest(connection).partition(b"\r\n\r\n")
    length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
    while len(body) < length:
        body += connection.recv(1 << 16)
    return int(head.split()[1]), json.loads(body)


def read_head_and_rest(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        came = connection.recv(1 << 16)
        if not came:
            raise ConnectionError("the end of the connection")
        data += came
    return data


def grow_screens(pipe, port, count, redraw):
    """Starts terminals, resizes each to the largest screen and has it redrawn, twice: the alternate screen doubles the memory.
    Returns the statuses of the starts and of the resizes."""
    begun, resized, processes = {}, {}, []
    with connect(port) as caller:
        for _ in range(count):
            fields = {"command": "sh", "args": ["-c", f"while read x; do {redraw}; done"], "allocate_tty": True}
            status, answer = call(caller, "/process/spawn", **fields)
            begun[status] = begun.get(status, 0) + 1
            if status == 200:
                processes.append(answer["process_id"])
        for process in processes:
            status, _ = call(caller, f"/process/{process}/resize", rows=500, cols=400)
            resized[status] = resized.get(status, 0) + 1
            call(caller, f"/process/{process}/stdin", data_b64="Cg==")
        # Those who were given up have no screen, and those who were refused can ask again.
        for process in processes:
            call(caller, f"/process/{process}/resize", rows=500, cols=400)
            call(caller, f"/process/{process}/stdin", data_b64="Cg==")
    return begun, resized


def come_and_go(pipe, port, fields):
    """Connects and echoes a message, again and again, until SIGTERM. Returns how often, and the answers that were no echoes."""
    stopped, came, failed = [], 0, []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    pipe.send(("ready", None))
    while not stopped:
        try:
            with connect(port) as client:
                client.sendall(upgrade("/echo", fields))
                head = read_head(client)
                if b" 101 " not in head:
                    raise OSError(head.split(b"\r\n")[0].decode())
                client.sendall(frame(2, b"x" * 100))
                read_frame(client)
                came += 1
        except OSError as error:
            failed.append(str(error))
        time.sleep(0.005)
    return came, failed


def grown_screens(run):
    """250 terminals of one person are resized to 500 x 400 and redrawn, with --memory 64MiB, while others come and go"""
    port = run.serve({"/process/...": {"processes": {"max-processes": 512}}}, "--memory", "64MiB")
    run.allowed = within_budget(300)
    path = os.path.join(run.server.files.name, "screen")
    with open(path, "w") as file:
        for screen in "\033[?1049l", "\033[?1049h":
            file.write(screen + "".join(f"\033[{row};400H*" for row in range(1, 501)))
    detached = open_client(port, "/echo?resume=new", bearer(TOKENS["bystander"]))
    detached.close()
    run.begin()
    others = Worker(come_and_go, port, bearer(TOKENS["bystander"]), nice=0)
    others.hear()
    begun, resized = Worker(grow_screens, port, 250, f"cat {path}").hear()
    run.observe(1)
    os.kill(others.pid, signal.SIGTERM)
    came, failed = others.hear()
    run.note(f"starts {show_counts(begun)}; resizes {show_counts(resized)}; the others came {came} times")
    run.check(not failed, f"{len(failed)} others did not get in: {failed[:1]}")
    run.check(came > 10, "the others did not come")
    run.check(resized.get(200) and resized.get(503) and len(resized) == 2, "the resizes")
    lost = [name for name in (b"evicted", b"ending c") if name in run.server.log()]
    run.check(not lost, f"clients were ended: {lost}")


# Messages that cost more than they weigh.


def rpc(method, params, number=1):
    """The text of a JSON-RPC request. `params` is the text of an object."""
    return b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":%s}' % (number, method.encode(), params)


INITIALIZE = rpc("initialize", b'{"protocolVersion":1}')
# What an attacker can put into a JSON text, and the end of the text.
DENSE = [(b"0,", b"0"), (b'"\\n",', b"0"), (b'{"a":0},', b"0"), (b" ", b"0")]


def size_for(connections):
    """The size of a message, so that the messages of all connections fit into memory."""
    return min(MAX_MESSAGE, 256 * MIB // connections) - 4 * KIB


def watch_prompts(pipe, port, observers, seconds):
    """A client and its observers, which prompt and read. Returns the number of prompts."""
    def ask(client, text):
        client.sendall(frame(1, text))
        while True:
            answer = json.loads(read_frame(client)[1])
            if answer.get("id") == 1:
                return answer

    clients = open_clients(port, ["/acp"] * (observers + 1))
    for client in clients:
        ask(client, INITIALIZE)
    owner, *watching = clients
    session = ask(owner, rpc("session/new", b'{"cwd":"/","mcpServers":[]}'))["result"]["sessionId"].encode()
    for client in watching:
        role = ask(client, rpc("session/attach", b'{"sessionId":"%s"}' % session))
        assert "result" in role, role
    pipe.send(("ready", None))
    texts = [b'{"sessionId":"%s","prompt":[%s0]}' % (session, b"0," * count) for count in (20_000, 20_000, 240_000, 990_000)]
    prompts = [memoryview(frame(1, rpc("session/prompt", text))) for text in texts]
    done, rest, deadline = 0, prompts[0], time.monotonic() + seconds
    with selectors.EpollSelector() as selector:
        for client in clients:
            client.setblocking(False)
            selector.register(client, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            for key, _ in selector.select(0.005):
                with contextlib.suppress(OSError):
                    key.fileobj.recv(MIB)
            with contextlib.suppress(BlockingIOError):
                rest = rest[owner.send(rest) :]
                if not rest:
                    done += 1
                    rest = prompts[done % len(prompts)]
    return done


def watched_prompt(run):
    """prompts with up to 990,000 blocks in a session with 64 observers"""
    port = run.serve({"/acp": {"agent": {"command": [run.binary, "example-agent"]}}})
    run.allowed = allowed(66, held=65 * (MAX_OUTBOUND + TURN_BYTES), long_messages=True, programs=4 * MIB)
    worker = Worker(watch_prompts, port, 64, 6)
    worker.hear()
    run.begin()
    run.note(f"{worker.hear()} prompts")


def dense(size, unit, end):
    return unit * ((size - 400) // len(unit)) + end


def big_json(run, connections, route, path, messages, *options, first=b"", fields=AUTHORIZATION, long=True):
    run.serve({path or "/mcp": route}, *options)
    largest = max(map(len, messages))
    run.allowed = allowed(
        connections + 1, held=connections * (2 * largest + TURN_BYTES + MAX_OUTBOUND), long_messages=long,
        deflate="--deflate" in options, programs=8 * MIB + 2 * largest,
    )
    pours(run, connections, b"".join(messages), path=path, first=first, fields=fields, comes_back=True)


def prompts_of(connections):
    size = size_for(connections)
    params = (b'{"sessionId":"x","prompt":[%s]}' % dense(size, *unit) for unit in DENSE)
    return [rpc("session/prompt", text) for text in params]


def agent_of(run):
    return {"agent": {"command": [run.binary, "example-agent"]}}


def big_json_agent(run, connections):
    """prompts for an agent, full of values, escapes, keys and spaces"""
    messages = [frame(1, text) for text in prompts_of(connections)]
    big_json(run, connections, agent_of(run), "/acp", messages, first=frame(1, INITIALIZE))


def big_json_deflate(run, connections):
    """prompts for an agent that are compressed to a thousandth"""
    connections = min(connections, 32)
    messages = []
    for text in prompts_of(connections):
        squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
        messages.append(frame(1, (squeeze.compress(text) + squeeze.flush(zlib.Z_SYNC_FLUSH))[:-4], 0xC0))
    run.note(f"{max(map(len, messages)) / KIB:.0f} KiB each")
    fields = AUTHORIZATION + b"Sec-WebSocket-Extensions: permessage-deflate; client_no_context_takeover\r\n"
    first = frame(1, INITIALIZE)
    big_json(run, connections, agent_of(run), "/acp", messages, "--deflate", first=first, fields=fields)


def big_json_mcp(run, connections):
    """messages for an MCP server, full of values, escapes, keys and spaces"""
    size = size_for(connections)
    bodies = (rpc("tools/call", b'{"name":"echo","arguments":{"x":[%s]}}' % dense(size, *unit)) for unit in DENSE)
    accept = b"Accept: application/json, text/event-stream\r\nHost:"
    messages = [post("/mcp", body).replace(b"Host:", accept, 1) for body in bodies]
    big_json(run, connections, {"mcp": {"command": [run.binary, "example-mcp"]}}, None, messages)


def big_json_app(run, connections):
    """messages for an app in which each byte must be escaped"""
    size = size_for(connections)
    sizes = (size, min(size, 4 * MIB), min(size, 2 * MIB))
    messages = [frame(1, unit * size) for unit, size in zip((b"x", b'"', b"\1"), sizes)]
    # A message that closes the connection is the last.
    messages.sort(key=len)
    big_json(run, connections, {"app": {"command": ["sh", "-c", "exec cat > /dev/null"]}}, "/app", messages)


def long_paths_tokens(run, connections):
    """paths of 8 kB without a token, while the server has 254 tokens"""
    source = random.Random(1)
    tokens = [f"{source.getrandbits(256):064x}" for _ in range(251)]
    run.serve(more_tokens=tokens)
    run.allowed = allowed(connections + 1, held=connections * (TURN_BYTES + MAX_HEAD))
    requests = [get(path) for path in ("/" + "0123456789abcdef" * 500, "/" + "0123456789abcdef/" * 60)]
    workers = [
        Worker(pipeline, run.server.port, request, (connections + 1) // 2, 4) for request in requests
    ]
    run.begin()
    run.note(f"{sum(results(workers)) / KIB:.0f} KiB of answers")


def storm_initialize(pipe, port, connections, seconds):
    """Begins sessions on many connections at once, again and again. Returns their number."""
    body = rpc("initialize", b'{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}')
    accept = b"Accept: application/json, text/event-stream\r\nHost:"
    request = post("/mcp", body).replace(b"Host:", accept, 1)
    done, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        callers = [connect(port) for _ in range(connections)]
        for caller in callers:
            caller.sendall(request)
        done += len(callers)
        time.sleep(1 if connections > 1 else 0.05)
        for caller in callers:
            caller.close()
    return done


def mcp_initialize_storm(run, connections):
    """`initialize` for an MCP server, each of which starts a process"""
    connections = min(connections, 250)
    port = run.serve({"/mcp": {"mcp": {"command": ["sh", "-c", "exec cat > /dev/null"]}}})
    run.allowed = allowed(connections + 1, held=connections * (TURN_BYTES + MAX_HEAD), programs=256 * 64 * KIB)
    run.begin()
    run.note(f"{Worker(storm_initialize, port, connections, 5).hear()} sessions")


DEAF = """
import sys, time
line = sys.stdin.readline()
print('{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":1,"agentCapabilities":{}}}' % line.split('"id":')[1].split(",")[0], flush=True)
time.sleep(60)
"""


def initialize_all(pipe, port, count):
    clients = open_clients(port, ["/acp"] * count)
    first = clients[0]
    first.sendall(frame(1, INITIALIZE))
    read_frame(first)
    # The agent's pipe is full, and its clients are held.
    note = frame(1, b'{"jsonrpc":"2.0","method":"_x","params":{"x":"%s"}}' % (b"x" * 100_000))
    for _ in range(14):
        first.sendall(note)
    pipe.send(("ready", None))
    time.sleep(1)
    for client in clients[1:]:
        client.sendall(frame(1, INITIALIZE))
    time.sleep(2)
    for client in clients:
        client.close()
    return count


def agent_not_reading(run):
    """8,000 clients of an agent that does not read send `initialize` and leave"""
    port = run.serve({"/acp": {"agent": {"command": [PYTHON, "-c", DEAF]}}})
    count = descriptors_for(8000)
    run.allowed = allowed(count + 1, held=count * KIB, programs=8 * MIB)
    worker = Worker(initialize_all, port, count)
    worker.hear()
    run.begin()
    worker.hear()


# A server of an older revision. Each call of `echo` is answered after answers and progress that belong to nobody, questions without
# end and changes, and then once more. After 100 calls that it does not answer, it exits.
HOSTILE = """
import json, os, sys
waiting = 0
def send(**message): print(json.dumps({"jsonrpc": "2.0", **message}))
for line in sys.stdin:
    message = json.loads(line)
    id, method = message.get("id"), message.get("method")
    if id is None or method is None:
        continue
    if method == "initialize":
        send(id=id, result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}})
    elif method != "tools/call":
        send(id=id, error={"code": -32601, "message": "Method not found"})
    elif message["params"]["name"] == "wait":
        waiting += 1
        if waiting == 100:
            os._exit(3)
    else:
        for foreign in 10**9, "t", -1, None, [id]:
            send(id=foreign, result={"content": [{"type": "text", "text": "foreign"}]})
            send(method="notifications/progress", params={"progressToken": foreign, "progress": 1, "message": "foreign"})
            send(method="notifications/cancelled", params={"requestId": foreign})
        for number in range(300):
            send(id=number, method="sampling/createMessage", params={"messages": [], "maxTokens": 1, "x": "x" * 100})
            send(method="notifications/message", params={"level": "info", "data": "foreign"})
            send(method="notifications/tools/list_changed")
        for _ in range(2):
            send(id=id, result={"content": [{"type": "text", "text": message["params"]["arguments"]["what"]}]})
    sys.stdout.flush()
"""


def use_hostile(pipe, port, number, seconds):
    """Calls the hostile server as both generations of clients. Returns the number of calls, which all got an answer of their own."""
    authorization = {"Authorization": f"Bearer {TOKEN}"}
    done, deadline = 0, time.monotonic() + seconds

    def own(messages, what):
        assert "foreign" not in json.dumps(messages), messages
        last = messages[-1]
        assert last["id"] == 1, last
        if "error" in last:
            assert last["error"]["message"] in ("MCP server exited", "Too many waiting requests"), last
        elif last["result"].get("resultType") != "input_required":
            assert mcp_http.text_of(last) == what, (last, what)

    while time.monotonic() < deadline:
        session = mcp_http.Session(port, authorization)
        for tool in ["echo"] * 4 + ["wait"]:
            what = f"{number}/{done}"
            done += 1
            call = {"name": tool, "arguments": {"what": what}}
            with mcp_http.Connection(port) as connection:
                if done % 2:
                    fields, message = mcp_http.stateless("tools/call", call, token="t", **authorization)
                    capabilities = {"sampling": {}} if done % 4 == 1 else {}
                    message["params"]["_meta"][mcp_http.PREFIX + "clientCapabilities"] = capabilities
                else:
                    fields, message = session.fields, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
                connection.send("POST", "/mcp", fields, json.dumps(message).encode())
                # The client leaves a call that waits, unless the server exits because of it.
                if tool == "echo" and connection.head() == 200:
                    own(list(connection.messages()), what)
        session.delete()
        session.connection.socket.close()
    return done


def hostile_mcp(run):
    """an MCP server of an older revision, behind a shared process and translation, that says what belongs to nobody"""
    route = {"command": [PYTHON, "-c", HOSTILE], "share": "principal", "input-timeout": "1s"}
    port = run.serve({"/mcp": {"mcp": route}})
    run.allowed = allowed(17, held=16 * (TURN_BYTES + MAX_HEAD) + 4 * MIB, programs=8 * MIB)
    workers = [Worker(use_hostile, port, number, 4) for number in range(8)]
    run.begin()
    run.note(f"{sum(results(workers))} calls")

    def left():
        with mcp_http.Connection(port) as connection:
            connection.send("GET", "/status", {"Authorization": f"Bearer {TOKEN}"})
            connection.head()
            status = json.loads(connection.body())
        return status["pending_requests"] + status["kept_bytes"] + status["routes"]["/mcp"]["sessions"]

    run.wait_for("nothing of the calls is kept", lambda: left() == 0)


def assail(pipe, port, members, seconds):
    """Connects all members, each with its address, and sends what each has to say on all connections at once; again and again.
    Returns how many have spoken."""
    done, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        connections = []
        for source, preface, _ in members:
            connection = connect(port, source)
            # Leaves no port in TIME_WAIT.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(preface)
            connection.setblocking(False)
            connections.append(connection)
        time.sleep(0.1)
        for connection, (_, _, message) in zip(connections, members):
            with contextlib.suppress(OSError):
                connection.send(message)
        done += len(connections)
        time.sleep(0.5)
        for connection in connections:
            connection.close()
    return done


def multitude(run, members):
    """The bystander measures while two processes assail."""
    run.allowed = allowed(len(members) + 2, held=len(members) * (TURN_BYTES // 4 + MAX_HEAD))
    workers = [Worker(assail, run.server.port, members[half::2], 5) for half in range(2)]
    run.note(f"{sum(results(workers))} came")


def client_hello():
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(theirs, ours, server_hostname="localhost").do_handshake()
    return ours.read()


def hello_crowd(run, addresses):
    """The bystander is behind a proxy like everyone else, and has a TLS connection."""
    with tempfile.TemporaryDirectory(prefix="outrigger-attacks-") as folder:
        certificates = Certificates(folder)
        run.serve(None, *certificates.options(), "--proxy-protocol", "127.0.0.1/32", "--max-clients", "20000")
        run.begin(tls=certificates.context())
        hello = client_hello()
        proxied = (b"PROXY TCP%d %s %s 4000 443\r\n" % (6 if b":" in ip else 4, ip, ip) for ip in addresses)
        multitude(run, [("127.0.0.1", preface, hello) for preface in proxied])


def hellos_from_10000_addresses(run):
    """TLS handshakes from 10,000 addresses in 40 networks of 24 bits begin at once"""
    hello_crowd(run, [b"10.1.%d.%d" % divmod(number, 250) for number in range(descriptors_for(10_000))])


def hellos_from_one_site(run):
    """TLS handshakes from 10,000 IPv6 networks of 64 bits in one of 48 bits begin at once"""
    hello_crowd(run, [b"2001:db8:1:%x::1" % number for number in range(descriptors_for(10_000))])


def guests_from_5000_addresses(run):
    """without access control, clients from 5,000 addresses connect and send 100 kB at once"""
    run.serve(None, "--max-clients", "20000", has_tokens=False)
    run.begin()
    message = upgrade("/echo", b"") + frame(2, b"x" * 1000) * 100
    addresses = ("127.1.%d.%d" % divmod(number, 250) for number in range(descriptors_for(5000)))
    multitude(run, [(ip, b"", message) for ip in addresses])


def people_254(run):
    """252 people with names, besides the bystander, connect 8 times each and send 100 kB at once"""
    source = random.Random(1)
    tokens = [f"{source.getrandbits(256):064x}" for _ in range(251)]
    run.serve(more_tokens=tokens)
    run.begin()
    messages = [upgrade("/echo", bearer(token)) + frame(2, b"x" * 1000) * 100 for token in tokens]
    multitude(run, [("127.0.0.1", b"", message) for message in messages * 8])


CROWDS = [
    fragments, empty_pings, empty_messages, deflated, unread_status, long_echoes, unended_messages, hoarded_output,
]
COSTLY = [big_json_agent, big_json_deflate, big_json_mcp, big_json_app, long_paths_tokens, mcp_initialize_storm]

ATTACKS = [
    *(variant for attack in CROWDS + COSTLY for variant in scaled(attack)),
    hellos_from_10000_addresses,
    hellos_from_one_site,
    guests_from_5000_addresses,
    people_254,
    watched_prompt,
    agent_not_reading,
    hostile_mcp,
    viewers,
    grown_screens,
    status_pipelining,
    readyz_pipelining,
    big_initialize,
    terminal_crowd,
    orphan_storm,
    hup_proof,
    unkillable_exec,
    slow_exec_starts,
    tiny_keys_spawn,
    broadcast_commands,
    broadcast_commands_2000,
    publish_to_10000,
    publish_unread,
    publish_large_unread,
    deflate_bombs,
    slow_exec_readers,
    greedy_exec_readers,
    jsonrpc_ids,
    log_flood,
    log_flood_token,
    stray_print,
    stuck_program,
    tty_resumes,
    long_paths,
    handshake_hoarding,
    idle_after_storm,
]


def idle_baseline(run):
    """no attack"""
    run.serve()
    run.begin()
    run.observe(2)


def spin(pipe, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pass


def busy_baseline(run):
    """no attack, but processes of lower priority keep every processor busy"""
    run.serve()
    run.begin()
    results([Worker(spin, 2) for _ in range(os.cpu_count())])


HEAD = f"{'attack':24} {'p50':>7} {'p99':>8} {'max':>8} {'ran':>8} {'queued':>8} {'noise':>6} {'peak':>7} {'allowed':>7} {'s':>4}"


def show(row, tries=1):
    figures = f" {row['p50']:7.2f}" + "".join(f" {row[name]:8.1f}" for name in ("p99", "max", "ran", "queued"))
    figures += f" {row['noise']:6.1f} {row['peak']:7.1f} {row['allowed']:7.1f} {row['seconds']:4.0f}"
    verdict = "ok" if not row["failures"] else "FAILED: " + "; ".join(row["failures"])
    if tries > 1:
        verdict += f" (the best of {tries} runs)"
    notes = f" [{', '.join(row['notes'])}]" if row["notes"] else ""
    print(f"{row['attack']:24}{figures}  {verdict}{notes}", flush=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("binary", nargs="?", default=os.environ.get("OUTRIGGER", "target/release/outrigger"))
    parser.add_argument("--only", type=lambda text: text.split(","))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.list:
        for attack in ATTACKS:
            print(f"{attack.__name__:24} {attack.__doc__}")
        return 0
    names = [attack.__name__ for attack in ATTACKS]
    unknown = set(options.only or []) - set(names)
    if unknown:
        parser.error(f"no such attack: {', '.join(sorted(unknown))}")
    prepare()
    binary = os.path.abspath(options.binary)
    began, rows = time.monotonic(), []
    print(f"{os.cpu_count()} processors; load {os.getloadavg()[0]:.1f}; times in ms, memory in MiB\n{HEAD}")
    for baseline in (idle_baseline, busy_baseline):
        show(Run(binary, baseline.__name__).execute(baseline))
    for attack in ATTACKS:
        if options.only and attack.__name__ not in options.only:
            continue
        best = None
        for tries in range(1, options.tries + 1):
            row = Run(binary, attack.__name__).execute(attack)
            if best is None or (len(row["failures"]), row["max"]) < (len(best["failures"]), best["max"]):
                best = row
            if not best["failures"]:
                break
        best["tries"] = tries
        rows.append(best)
        show(best, tries)
    failed = [row["attack"] for row in rows if row["failures"]]
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)
    print(
        f"attacks: {len(rows)}, {len(failed)} failed, {time.monotonic() - began:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        for worker in list(Worker.running):
            worker.kill()

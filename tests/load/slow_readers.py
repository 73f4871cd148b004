#!/usr/bin/env python3
"""Slow readers that send PINGs and input must lose nothing. Each of many terminals must end with its last byte, its exit code
and CLOSE 1000; so must apps that send and close, and long answers over HTTP. The server must disconnect peers that stop
reading within its time limits.

usage: tests/load/slow_readers.py [BINARY] [--runs N]
       BINARY is target/release/outrigger by default; N terminals, 400 by default, and a tenth as many of the others

Readers read 300 kB/s in pieces of varying size, half of them with a small receive buffer, and keep sending after the program
has ended. An output has 1 byte to 512 KiB, and one in 200 has 5 MB. The timeouts are short, so the server would disconnect a
reader by mistake within a second.
"""

import argparse
import heapq
import itertools
import json
import os
import random
import re
import sys
import tempfile
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
from peers import (
    KIB, MIB, Worker, client_count, connect, end_left_processes, frame, open_client, post, prepare, read_head, serving,
    upgrade,
)

PYTHON = sys.executable
RATE = 300_000
AT_ONCE = 120  # of each of two processes
PATTERN = b"".join(b"%08d\n" % number for number in range(700_000))

# The size of the output is rows times columns; columns are the exit code.
TERMINAL = """set -- $(stty raw -echo size); head -c $(($1 * $2)) "$PATTERN"; exit $2"""
APP = """
import json, os, sys
pattern = open(os.environ["PATTERN"]).read()
def write(**command):
    sys.stdout.write(json.dumps(command) + "\\n")
for line in sys.stdin:
    event = json.loads(line)
    if event["event"] == "connect":
        size = int(event["query"])
        for at in range(0, size, 100_000):
            write(cmd="send", client=event["client"], text=pattern[at : min(size, at + 100_000)])
        write(cmd="close", client=event["client"], reason="all said")
        sys.stdout.flush()
"""


class Wrong(Exception):
    """A reader got something other than expected."""


class Reader:
    """A client that reads slowly and keeps sending. `step` does what is due and returns when the next step is due."""

    def __init__(self, source, port, number, kind):
        self.source, self.kind, self.number = source, kind, number
        self.buffer, self.output, self.events = bytearray(), 0, []
        self.closed = None
        size = 5_000_000 if number % 200 == 100 else int(2 ** source.uniform(0, 19))
        # Rows have 16 bits.
        self.code = source.randrange(size // 65535 + 1, 120)
        self.size = max(1, round(size / self.code)) * self.code if kind == "terminal" else size
        self.socket = connect(port, receive_buffer=source.choice([None, None, 2304, 4096, 16384, 65536]))
        self.socket.sendall(getattr(self, f"request_{kind}")())
        if kind != "exec":
            head = read_head(self.socket)
            if b" 101 " not in head:
                raise Wrong(f"the answer is {head!r}")
        self.socket.setblocking(False)
        now = time.monotonic()
        self.began, self.next_read, self.next_send = now, now, now + source.uniform(0, 0.2)
        self.deadline = now + 30 + 4 * self.size / RATE

    def request_terminal(self):
        return upgrade(f"/terminal?rows={self.size // self.code}&cols={self.code}")

    def request_app(self):
        return upgrade(f"/app?{self.size}")

    def request_exec(self):
        body = {"command": "head", "args": ["-c", str(self.size), os.environ["PATTERN"]], "max_output_bytes": 6_000_000}
        request = post("/process/exec", json.dumps(body).encode())
        return request.replace(b"Host:", b"Connection: close\r\nHost:", 1)

    def step(self, now):
        """Returns the time of the next step, or None at the end."""
        if now > self.deadline:
            raise Wrong("it did not end")
        if now >= self.next_send:
            self.next_send = now + self.source.uniform(0.02, 1)
            self.send_something()
        if now >= self.next_read:
            try:
                data = self.socket.recv(self.source.choice([100, 1000, 5000, 16_000, 30_000]))
            except BlockingIOError:
                self.next_read = now + 0.005
                return min(self.next_read, self.next_send)
            except OSError as error:
                raise Wrong(f"{error} after {self.output} of {self.size} bytes, {self.events}, CLOSE {self.closed}")
            self.next_read = now + len(data) / RATE
            self.buffer += data
            if not data:
                self.check_end()
                return None
            if self.kind != "exec":
                self.read_frames()
        return min(self.next_read, self.next_send)

    def send_something(self):
        if self.closed:
            return
        if self.kind == "exec":
            # An empty line before the next request, which the server must ignore.
            self.send(b"\r\n")
        elif self.output and self.source.random() < 0.3:
            # Not before the terminal has stopped echoing.
            self.send(frame(2, b"x"))
        else:
            self.send(frame(9, b"ping"))

    def send(self, data):
        try:
            self.socket.send(data)
        except OSError:
            pass  # input that has arrived can still be read

    def read_frames(self):
        while len(self.buffer) >= 2:
            start, length = 2, self.buffer[1]
            if length >= 126:
                start += 2 if length == 126 else 8
                length = int.from_bytes(self.buffer[2:start])
            if len(self.buffer) < start + length:
                return
            opcode, payload = self.buffer[0] & 15, bytes(self.buffer[start : start + length])
            del self.buffer[: start + length]
            if self.closed:
                raise Wrong("there is more after CLOSE")
            if opcode == 9:
                self.send(frame(10, payload))
            elif opcode == 8:
                self.closed = int.from_bytes(payload[:2])
                self.send(frame(8, payload[:2]))
            elif opcode == 1 and self.kind == "terminal":
                event = json.loads(payload)
                if event["type"] not in ("role", "size"):
                    self.events.append(event)
            elif opcode in (1, 2):
                if self.events:
                    raise Wrong("there is output after the exit code")
                if payload != PATTERN[self.output : self.output + length]:
                    raise Wrong(f"{payload[:40]!r} is not what the program wrote after {self.output} bytes")
                self.output += length

    def check_end(self):
        if self.kind == "exec":
            head, _, body = bytes(self.buffer).partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            if not length or len(body) != int(length[1]):
                raise Wrong(f"{len(body)} bytes came of {length and length[1]}")
            answer = json.loads(body)
            self.output = len(answer["stdout_b64"].rstrip("=")) * 3 // 4
            self.closed, wanted, self.events = 1000, [], []
            if answer["exit_code"]:
                raise Wrong(f"the answer says {dict(answer, stdout_b64='...')}")
        else:
            wanted = [{"type": "exit", "exitCode": self.code}] if self.kind == "terminal" else []
        if (self.output, self.events, self.closed) != (self.size, wanted, 1000):
            raise Wrong(f"{self.output} of {self.size} bytes, {self.events}, CLOSE {self.closed}")


def read_all(pipe, port, seed, kinds):
    """Runs a reader of each kind in the list, some at a time. Returns the errors, how many bytes were lost, and by how much
    a reader was late at most."""
    source = random.Random(seed)
    order, waiting, wrong, lost, late = itertools.count(), [], [], 0, 0
    todo = list(enumerate(kinds))[::-1]

    def note(number, kind, what):
        wrong.append(f"{kind} {number}: {what}")

    while todo or waiting:
        now = time.monotonic()
        # Starts another reader while no step is due.
        if todo and len(waiting) < AT_ONCE and (not waiting or waiting[0][0] > now):
            number, kind = todo.pop()
            try:
                reader = Reader(source, port, number, kind)
                heapq.heappush(waiting, (reader.began, next(order), reader))
            except (OSError, Wrong) as error:
                note(number, kind, error)
            continue
        due, _, reader = heapq.heappop(waiting)
        time.sleep(max(0, due - now))
        now = max(now, due)
        late = max(late, now - due)
        try:
            due = reader.step(now)
        except (OSError, Wrong) as error:
            note(reader.number, reader.kind, f"after {now - reader.began:.1f} s {error}")
            lost += reader.size - reader.output
            due = None
        if due is None:
            reader.socket.close()
        else:
            heapq.heappush(waiting, (due, next(order), reader))
    return wrong, lost, late


# Readers that the server must keep or disconnect, each with its own server.


def seconds_until_gone(port, most):
    begin = time.monotonic()
    while client_count(port):
        if time.monotonic() - begin > most:
            return None
        time.sleep(0.05)
    return time.monotonic() - begin


def read_at(client, rate, most):
    """Reads at a steady rate, up to `most` bytes, and sends nothing."""
    came, step = bytearray(), rate // 20
    begin = time.monotonic()
    while len(came) < most:
        data = client.recv(min(step, most - len(came)))
        if not data:
            break
        came += data
        time.sleep(max(0, begin + len(came) / rate - time.monotonic()))
    return bytes(came)


SHORT = ["--ping-interval", "1s", "--ping-timeout", "2s"]


def steady_reader_stays(binary):
    """a client that reads 1.2 MB from a terminal at 60 kB/s gets all of it, although PINGs are queued behind the output"""
    # This output fits into the kernel's buffers, and no more follows until a key is pressed.
    script = TERMINAL.replace("exit", "read -r key; exit")
    with serving(binary, {"/terminal": {"terminal": {"command": ["sh", "-c", script]}}}, SHORT) as server:
        client = open_client(server.port, "/terminal?rows=60000&cols=20", receive_buffer=16384)
        came = read_at(client, 60_000, 1_200_000)
        assert len(came) == 1_200_000, f"{len(came)} bytes came"
        client.sendall(frame(2, b"\n"))
        rest = read_at(client, 60_000, MIB)
        client.close()
        assert b'{"type":"exit","exitCode":20}' in rest, f"at the end came {rest[-40:]!r}"
    return "all of it and the exit code came"


def stopped_reader_goes(binary):
    """a client that stops reading a terminal is disconnected after --ping-interval and --ping-timeout"""
    routes = {"/terminal": {"terminal": {"command": ["cat", "/dev/zero"]}}}
    with serving(binary, routes, SHORT) as server:
        client = open_client(server.port, "/terminal", receive_buffer=16384)
        read_at(client, 300_000, 300_000)
        took = seconds_until_gone(server.port, 15)
        client.close()
        # The server sends the unanswered PING up to one interval later.
        assert took and took < 3 + 1 + 0.7, f"gone after {took} s"
    return f"gone after {took:.1f} s, 3 s asked for"


TICKS = """
import os, sys, threading, time
def tick():
    text = '{"cmd":"broadcast","text":"%s"}\\n' % ("x" * SIZE)
    while True:
        sys.stdout.write(text)
        sys.stdout.flush()
        time.sleep(0.01)
threading.Thread(target=tick, daemon=True).start()
while os.read(0, 65536): pass
os._exit(0)
"""


def vanished_client_goes(binary):
    """a client that never reads is disconnected after --ping-interval and --ping-timeout, at any rate of output"""
    said = []
    for size in (100, 5_000, 15_000):
        routes = {"/app": {"app": {"command": [PYTHON, "-c", TICKS.replace("SIZE", str(size))]}}}
        with serving(binary, routes, ["--ping-interval", "2s", "--ping-timeout", "2s"]) as server:
            client = open_client(server.port, "/app", receive_buffer=2304)
            took = seconds_until_gone(server.port, 15)
            client.close()
        said.append(f"gone after {took:.1f} s with {100 * size} B/s" if took else f"not gone with {100 * size} B/s")
        assert took and took < 4 + 1, said
    return f"{', '.join(said)}; 4 s asked for"


def read_after_close(binary, rate, seconds):
    """Reads at a rate while CLOSE is queued behind 5 MB. Returns after how many seconds the server disconnected it, or None."""
    routes = {"/app": {"app": {"command": [PYTHON, "-c", APP]}}}
    with serving(binary, routes, ["--close-timeout", "2s", "--ping-interval", "0"]) as server:
        client = open_client(server.port, "/app?5000000", receive_buffer=2304)
        client.setblocking(False)
        begin, took = time.monotonic(), None
        while took is None and time.monotonic() < begin + seconds:
            time.sleep(0.1)
            try:
                client.recv(rate // 10)
            except BlockingIOError:
                pass
            except OSError:
                took = time.monotonic() - begin
            # The table may skip an entry while others change, so it is read again.
            if not any(is_open(client) for _ in range(5)):
                took = time.monotonic() - begin
        client.close()
    return took


def is_open(client):
    """Returns whether a process has the server's end of a connection open. The kernel may keep sending after it is closed."""
    _, port = client.getsockname()
    with open("/proc/net/tcp") as file:
        for line in file:
            fields = line.split()
            if fields[2] == f"0100007F:{port:04X}":
                return fields[9] != "0"
    return False


def trickle_after_close_goes(binary):
    """a client that reads 300 B/s after CLOSE, less than 1 KiB/s, is disconnected after at most two --close-timeout"""
    took = read_after_close(binary, 300, 15)
    assert took and took < 2 * 2 + 2, f"given up after {took} s"
    return f"given up after {took:.1f} s, 2 s asked for"


def progress_after_close_stays(binary):
    """a client that reads 8 KiB/s after CLOSE is not disconnected, although it needs minutes"""
    took = read_after_close(binary, 8 * KIB, 10)
    assert took is None, f"given up after {took} s"
    return "there after 10 s"


SCENARIOS = [
    steady_reader_stays,
    stopped_reader_goes,
    vanished_client_goes,
    trickle_after_close_goes,
    progress_after_close_stays,
]


def play(pipe, scenario, binary):
    """Runs one check. Returns whether it passed, and its message."""
    try:
        return True, scenario(binary)
    except AssertionError as error:
        return False, str(error)
    except Exception:
        return False, traceback.format_exc()


def read_all_kinds(binary, runs):
    """Returns the errors, and how many bytes were lost."""
    routes = {
        "/terminal": {"terminal": {"command": ["sh", "-c", TERMINAL]}},
        "/app": {"app": {"command": [PYTHON, "-c", APP]}},
        "/process/...": {"processes": {}},
    }
    kinds = ["terminal"] * runs + ["app", "exec"] * (runs // 10)
    random.Random(1).shuffle(kinds)
    wrong, lost, late = [], 0, 0
    with serving(binary, routes, ["--close-timeout", "1s", "--log", "warn"]) as server:
        readers = [Worker(read_all, server.port, half, kinds[half::2], nice=0) for half in range(2)]
        for reader in readers:
            more, bytes_lost, lateness = reader.hear(880)
            wrong += more
            lost += bytes_lost
            late = max(late, lateness)
            reader.kill()
    return wrong, lost, late


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("binary", nargs="?", default=os.environ.get("OUTRIGGER", "target/release/outrigger"))
    parser.add_argument("--runs", type=int, default=400)
    options = parser.parse_args()
    prepare()
    binary, began = os.path.abspath(options.binary), time.monotonic()
    with tempfile.NamedTemporaryFile() as pattern:
        pattern.write(PATTERN)
        pattern.flush()
        os.environ["PATTERN"] = pattern.name
        # These mostly wait, so they run at the same time.
        failed = 0
        players = [(scenario, Worker(play, scenario, binary, nice=0)) for scenario in SCENARIOS]
        for scenario, player in players:
            good, said = player.hear(120)
            player.kill()
            failed += not good
            print(f"  {scenario.__name__}: {'ok' if good else 'FAILED'}: {said}", flush=True)
        wrong, lost, late = read_all_kinds(binary, options.runs)
    left = end_left_processes()
    for line in wrong[:10]:
        print(f"  {line}")
    print(
        f"slow readers: {options.runs} terminals and {options.runs // 10 * 2} others, {len(wrong)} wrong, {lost} bytes lost, "
        f"{left} processes left; {time.monotonic() - began:.0f} s, no reader was more than {late:.2f} s late"
    )
    return 1 if wrong or failed or left else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        for worker in list(Worker.running):
            worker.kill()

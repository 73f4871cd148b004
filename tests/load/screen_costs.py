#!/usr/bin/env python3
"""What the screen of a terminal costs while a program writes at full speed and nobody looks.

usage: tests/load/screen_costs.py [OUTRIGGER] [--megabytes N] [--runs N] [--only KIND...]
       target/release/outrigger, and 20 runs of 10 MB of each kind of output by default

A terminal writes each kind of output to a server with screens and to one with --no-screen, in turns. The table has the processor time of
both servers (user and system), of the fastest run, and their ratio. The fastest run counts, because other load of the machine only adds
time; on a busy machine, take more runs. Fails if a ratio is above its goal: 1.15 for text and colors, 3 for anything else. The last part asks for a screen of 40 x 120
cells with a style each, 200 times, which has to take less than 1 ms more than a call that has nothing to do.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
from peers import AUTHORIZATION, connect, get, post, prepare, read_exactly, read_head, serving

# The size of the output that terminals write again and again.
FILE = 1 << 20
PLAIN, OTHER = 1.15, 3.0


def routes(without_screen):
    return {"/process/...": {"processes": {"no-screen": without_screen}}}


def lines(line):
    """Output of numbered lines."""
    made, number, size = [], 0, 0
    while size < FILE:
        made.append(line(number))
        size += len(made[-1])
        number += 1
    return b"".join(made)


def words(source, known, count):
    return " ".join(source.choice(known) for _ in range(count))


UNICODE = "the quick brown fox über façade naïve 漢字 かな 한국어 Привет Ελλάδα 👍 ─│┌ résumé".split()
TOP = b"%7d root      20   0 \x1b[32m%6d\x1b[m %6d S  %4.1f   0.1   0:07.10 process-%d\x1b[K\r\n"


def kinds():
    source = random.Random(36)
    pick = source.randrange
    yield "seq", PLAIN, lines(lambda number: b"%d\n" % number)
    yield "colored text", PLAIN, lines(
        lambda number: b"\x1b[1;32m%8d\x1b[m a line of output, in colors \x1b[31m!\x1b[m\n" % number
    )
    yield "text in many scripts", PLAIN, lines(lambda _: words(source, UNICODE, pick(3, 12)).encode() + b"\n")
    # As grep and compilers write colors.
    yield "colors and erased ends", PLAIN, lines(
        lambda number: b"\x1b[35m\x1b[Ksrc/%d.c\x1b[m\x1b[K: \x1b[01;31m\x1b[Kerror\x1b[m\x1b[K in a line\n" % number
    )
    yield "random moves, one letter", OTHER, lines(
        lambda _: b"\x1b[%d;%dH%c" % (pick(1, 25), pick(1, 81), pick(33, 127))
    )
    yield "random moves, colored words", OTHER, lines(
        lambda _: b"\x1b[%d;%dH\x1b[%dm%s"
        % (pick(1, 25), pick(1, 75), source.choice([0, 1, 31, 32, 44]), source.choice([b"word", b"12.5%", b"S"]))
    )
    yield "a style for each cell", OTHER, lines(
        lambda number: (b"\x1b[H" if number % 1920 == 0 else b"")
        + b"\x1b[38;5;%d;48;5;%d;1;3;4m%c" % (pick(16, 232), pick(16, 232), 65 + number % 26)
    )
    yield "an editor that scrolls", OTHER, lines(
        lambda number: (b"" if number else b"\x1b[?1049h")
        + b"\x1b[1;23r\x1b[23;1H\n\x1b[1;24r\x1b[23;1H\x1b[33m%6d \x1b[mint main(void) \x1b[35m{\x1b[m return 0; }"
        b"\x1b[24;63H%d,1\x1b[9C%d%%\x1b[23;8H" % (number, number, number % 100)
    )
    yield "a table that is drawn again", OTHER, lines(
        lambda number: (b"\x1b[H" if number % 23 == 0 else b"")
        + TOP % (pick(99999), pick(99999), pick(99999), pick(999) / 10, pick(99))
    )
    # The margins are set again, because the plain output of a file of this size would be skipped.
    yield "short lines in margins", OTHER, lines(
        lambda number: (b"\x1b[2;23r\x1b[23;1H" if number % 1000 == 0 else b"") + b"y\n"
    )
    yield "long lines in margins", OTHER, lines(
        lambda number: (b"\x1b[2;23r\x1b[23;1H" if number % 100 == 0 else b"")
        + b"%6d a line of a log that scrolls between a title and a status\n" % number
    )
    yield "lines inserted and deleted", OTHER, lines(
        lambda number: b"\x1b[%d;1H\x1b[%sa line that comes and goes" % (pick(1, 24), source.choice([b"L", b"M", b"2L", b"P"]))
    )


class Caller:
    """Calls over one connection."""

    def __init__(self, port):
        self.connection = connect(port)

    def call(self, request):
        self.connection.sendall(request)
        head = read_head(self.connection).decode()
        length = next(line.split(": ")[1] for line in head.splitlines() if line.startswith("Content-Length"))
        answer = read_exactly(self.connection, int(length))
        assert head.split()[1] == "200", answer
        return answer

    def spawn(self, rows, cols, command, *args):
        body = {"command": command, "args": args, "allocate_tty": True, "rows": rows, "cols": cols}
        return "/process/" + json.loads(self.call(post("/process/spawn", json.dumps(body).encode())))["process_id"]


class Terminal:
    """A terminal that writes a file when it is told to, so that neither a start nor a call is part of what is measured."""

    def __init__(self, server, directory, name):
        self.server = server
        self.output, self.go, self.done = (os.path.join(directory, part + name) for part in ("output-", "go-", "done-"))
        for fifo in (self.go, self.done):
            os.mkfifo(fifo)
        script = 'while read times <"$1"; do for time in $(seq $times); do cat "$0"; done; echo >"$2"; done'
        Caller(server.port).spawn(24, 80, "sh", "-c", script, self.output, self.go, self.done)

    def write(self, times):
        """Writes the file some times. Returns the processor time of the server in seconds."""
        before = used(self.server)
        with open(self.go, "w") as go:
            go.write(f"{times}\n")
        with open(self.done) as done:
            done.read()
        # The last output is still in the terminal.
        time.sleep(0.03)
        return used(self.server) - before


def used(server):
    """The processor time of the server's threads in seconds. That of /proc/PID/stat has steps of 10 ms."""
    nanoseconds = 0
    for thread in os.listdir(f"/proc/{server.pid}/task"):
        with open(f"/proc/{server.pid}/task/{thread}/schedstat") as file:
            nanoseconds += int(file.read().split()[0])
    return nanoseconds / 1e9


def compare(options, directory):
    """Prints a line for each kind of output. Returns whether a ratio is above its goal."""
    is_above = False
    with serving(options.binary, routes(False), ["--log", "warn"]) as with_screen, \
         serving(options.binary, routes(True), ["--log", "warn"]) as without:
        for name, goal, data in kinds():
            if options.only and not any(part in name for part in options.only):
                continue
            # No kind is measured with the modes and margins of another one.
            terminals = [Terminal(with_screen, directory, f"{name}-with"), Terminal(without, directory, f"{name}-without")]
            for terminal in terminals:
                with open(terminal.output, "wb") as file:
                    file.write(data)
            times = max(1, round(options.megabytes * 1e6 / len(data)))
            costs = [[], []]
            for run in range(options.runs):
                for which in (0, 1) if run % 2 else (1, 0):
                    signal.alarm(60)
                    costs[which].append(terminals[which].write(times) * 1e8 / (times * len(data)))
            signal.alarm(0)
            shown, base = (min(runs) for runs in costs)
            is_above |= shown / base > goal
            print(
                f"{name:28} {shown:6.3f} s for 100 MB, {base:5.3f} s without a screen: {shown / base:5.2f} times, goal {goal}",
                flush=True,
            )
    return is_above


def snapshot(options):
    """Compares calls that ask for a screen with calls that do not. Returns whether they take 1 ms more."""
    # A style for each cell.
    script = (
        "import sys\nsys.stdout.write(''.join('\\033[38;5;%d;4%dmx' % (16 + i % 200, i % 8) for i in range(40 * 120 - 1)))\n"
        "sys.stdout.flush()\ninput()\n"
    )
    with serving(options.binary, routes(False), ["--log", "warn"]) as server:
        caller = Caller(server.port)
        process = caller.spawn(40, 120, sys.executable, "-c", script)
        wait = {"text": "x" * 119, "timeout_ms": 60_000}
        caller.call(post(f"{process}/wait", json.dumps(wait).encode()))
        caller.call(post(f"{process}/wait", b'{"idle_ms":200,"timeout_ms":60000}'))
        times = {"screen?format=ansi": [], "status": []}
        for _ in range(200):
            for path, taken in times.items():
                began = time.perf_counter()
                caller.call(get(f"{process}/{path}", AUTHORIZATION))
                taken.append(time.perf_counter() - began)
        caller.call(post(f"{process}/kill", b'{"signal":"KILL"}'))
    whole, empty = (statistics.median(taken) * 1e3 for taken in times.values())
    print(f"a screen of 40 x 120 cells with a style each: {whole:.2f} ms, a call with nothing to do {empty:.2f} ms")
    return whole - empty > 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", nargs="?", default="target/release/outrigger")
    parser.add_argument("--megabytes", type=int, default=10)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=[], help="kinds of output, by a part of their names")
    chosen = parser.parse_args()
    prepare()
    with tempfile.TemporaryDirectory(prefix="outrigger-screens-") as made:
        is_too_much = compare(chosen, made)
    if not chosen.only:
        is_too_much |= snapshot(chosen)
    sys.exit(is_too_much)

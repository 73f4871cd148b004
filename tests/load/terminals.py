#!/usr/bin/env python3
"""Runs many terminals. However a client reads, no byte may be lost or out of order, and the exit code must come last.

usage: tests/load/terminals.py OUTRIGGER [RUNS] [BURSTS] [CUTS]      400, 40 and 60 by default

* RUNS terminals wait 10 ms, print 200 lines and exit with 7;
* BURSTS terminals print the hash of a random MiB, then the MiB, and exit with 7;
  half of the readers of both read slowly;
* CUTS times a client loses its connection to a process that prints all the time, and attaches again where it stopped.

At the end no process may be left and every descriptor must be closed. Needs the package websockets.
"""

import asyncio
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import time
import urllib.request

import websockets

AT_ONCE = 25
LINES = "".join(f"line {number}\r\n" for number in range(1, 201)).encode()
RUN = "sleep 0.01; i=1; while [ $i -le 200 ]; do printf 'line %d\\n' $i; i=$((i+1)); done; exit 7"
BURST = (
    "stty raw; file=$(mktemp); head -c 1048576 /dev/urandom >$file; sha256sum <$file; cat $file; rm $file; exit 7"
)
STREAM = """
import os, sys, time
os.system("stty raw")
number = 0
while True:
    sys.stdout.write("".join("%08d\\n" % n for n in range(number, number + 2000)))
    sys.stdout.flush()
    number += 2000
    time.sleep(0.005)
"""


# The events that tell a client what it attaches to.
GREETING = ("role", "size", "clients")

PATIENCE = 60  # seconds, the deadline of every wait


class Server:
    def __init__(self, *args):
        self.process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = re.search(r"ws://\S+", self.process.stdout.readline())[0]
        # An answer shows that the loop runs and has closed the descriptor through which it printed the line.
        with urllib.request.urlopen(re.sub("^ws(://[^/]+).*", r"http\1/healthz", self.url), timeout=PATIENCE) as answer:
            answer.read()

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def descriptors_at_rest(self):
        """Returns the number of descriptors once it has not changed for 0.2 s."""
        count, deadline = self.descriptors(), time.monotonic() + PATIENCE
        while True:
            time.sleep(0.2)
            before, count = count, self.descriptors()
            if count == before:
                return count
            assert time.monotonic() < deadline, (before, count)

    def children(self):
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as children:
            return children.read().split()

    def expect_calm(self, descriptors):
        deadline = time.monotonic() + PATIENCE
        while self.children() or self.descriptors() != descriptors:
            assert time.monotonic() < deadline, (self.children(), self.descriptors(), descriptors)
            time.sleep(0.05)

    def stop(self):
        self.process.terminate()
        assert self.process.wait(30) == 0


async def read_all(url, slowly):
    """Returns the output, events and close code of one terminal."""
    output, events = [], []
    async with websockets.connect(url, max_queue=1 if slowly else 16, max_size=None, compression=None) as socket:
        try:
            while True:
                message = await asyncio.wait_for(socket.recv(), PATIENCE)
                if isinstance(message, str):
                    event = json.loads(message)
                    if event["type"] not in GREETING:
                        events.append(event)
                else:
                    assert not events, "output after the end"
                    output.append(message)
                if slowly:
                    await asyncio.sleep(random.random() * 0.01)
        except websockets.ConnectionClosed as closed:
            return b"".join(output), events, closed.rcvd.code if closed.rcvd else 1006


async def many(url, count, check):
    """Runs `count` terminals, some at a time. Returns how many failed the check."""
    turn, wrong = asyncio.Semaphore(AT_ONCE), 0

    async def one(number):
        nonlocal wrong
        async with turn:
            output, events, code = await read_all(url, number % 2)
        good = check(output) and events == [{"type": "exit", "exitCode": 7}] and code == 1000
        if not good:
            wrong += 1
            print(f"run {number}: {len(output)} bytes to {output[-20:]}, {events}, {code}", file=sys.stderr)

    await asyncio.gather(*(one(number) for number in range(count)))
    return wrong


def is_burst(output):
    told, rest = output[:64].decode(), output.split(b"\n", 1)[1]
    return len(rest) == 1 << 20 and hashlib.sha256(rest).hexdigest() == told


def call(url, path, body):
    request = urllib.request.Request(
        url.replace("ws://", "http://") + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return json.load(urllib.request.urlopen(request))


def expected(start, end):
    """The bytes of the stream of numbers, nine per number."""
    text = "".join("%08d\n" % number for number in range(start // 9, end // 9 + 1)).encode()
    return text[start % 9 :][: end - start]


async def cut_and_return(url, cuts):
    """Returns how many bytes arrived and how many were announced as missing."""
    process = call(url, "/spawn", {"command": "python3", "args": ["-c", STREAM], "allocate_tty": True})["process_id"]
    offset = missing = 0
    for _ in range(cuts):
        while True:
            try:
                socket = await websockets.connect(f"{url}/{process}/attach?since={offset}", compression=None)
                break
            except websockets.InvalidStatus as refused:
                # The server has not noticed the lost connection yet.
                assert refused.response.status_code == 409
        until = time.monotonic() + random.random() * 0.1
        while time.monotonic() < until:
            message = await socket.recv()
            if isinstance(message, str):
                gap = json.loads(message)
                if gap["type"] in GREETING:
                    continue
                assert gap["type"] == "gap" and gap["from"] == offset, (gap, offset)
                missing += gap["to"] - offset
                offset = gap["to"]
            else:
                assert message == expected(offset, offset + len(message)), offset
                offset += len(message)
        socket.transport.abort()
        await asyncio.sleep(random.random() * 0.02)
    call(url, f"/{process}/kill", {"signal": "KILL"})
    return offset - missing, missing


async def main(program, runs, bursts, cuts):
    for name, script, count, check in [("runs", RUN, runs, LINES.__eq__), ("bursts", BURST, bursts, is_burst)]:
        server = Server(program, "terminal", "--listen", "127.0.0.1:0", "--log", "warn", "--no-auth", "--", "bash", "-c", script)
        descriptors = server.descriptors_at_rest()
        began = time.monotonic()
        wrong = await many(server.url, count, check)
        server.expect_calm(descriptors)
        server.stop()
        print(f"{name}: {count}, {wrong} wrong, {time.monotonic() - began:.1f} s")
        assert wrong == 0
    server = Server(program, "processes", "--listen", "127.0.0.1:0", "--log", "warn", "--no-auth", "--retention", "100ms")
    descriptors = server.descriptors_at_rest()
    came, missing = await cut_and_return(server.url, cuts)
    server.expect_calm(descriptors)
    server.stop()
    print(f"cuts: {cuts}, {came} bytes came in order, {missing} were announced as missing")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    numbers = [int(word) for word in sys.argv[2:]]
    asyncio.run(main(sys.argv[1], *(numbers + [400, 40, 60][len(numbers) :])))

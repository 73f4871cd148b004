#!/usr/bin/env python3
"""Upgrades a server again and again under load. No client may notice: no byte and no message may be lost, doubled or out of
order, no process may end, every exit code must arrive, and memory and descriptors must not grow.

usage: tests/load/upgrades.py [UPGRADES] [PLAIN] [RESUMABLE] [TERMINALS]      100, 1000, 200 and 100 by default
env:   OUTRIGGER=target/release/outrigger

* PLAIN clients exchange numbered messages with echo;
* RESUMABLE clients do the same, and are cut at random times;
* TERMINALS print numbers, a fifth of them as fast as they can to readers that read slowly, and exit at the end;
* a bystander measures its echo, and the server how long it stood still.
"""

import asyncio
import json
import os
import random
import re
import statistics
import sys
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "common"))
import peers  # noqa: E402

UPGRADES, PLAIN, RESUMABLE, TERMINALS = [int(arg) for arg in sys.argv[1:]] + [100, 1000, 200, 100][len(sys.argv) - 1 :]
OUTRIGGER = os.environ.get("OUTRIGGER", "target/release/outrigger")
PATIENCE = 120
PAUSE = 0.1  # seconds between two upgrades
COUNTER = "stty raw -echo; n=0; while [ ! -e $1 ]; do n=$((n + 1)); echo $n; sleep 0.2; done; exit 7"
FLOOD = "stty raw -echo; n=0; while [ ! -e $1 ]; do n=$((n + 1)); echo $n; done; exit 7"


class Link:
    """A WebSocket connection."""

    def __init__(self, reader, writer, head):
        self.reader, self.writer, self.head = reader, writer, head

    @classmethod
    async def open(cls, port, path, limit=1 << 16):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
        writer.write(peers.upgrade(path))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        assert head.startswith(b"HTTP/1.1 101 "), head
        return cls(reader, writer, head.decode())

    def send(self, payload, opcode=2):
        self.writer.write(peers.frame(opcode, payload))

    async def receive(self):
        """Returns the opcode and the payload of the next message. Answers PINGs."""
        while True:
            first, length = await asyncio.wait_for(self.reader.readexactly(2), PATIENCE)
            if length >= 126:
                length = int.from_bytes(await self.reader.readexactly(2 if length == 126 else 8))
            payload = await asyncio.wait_for(self.reader.readexactly(length), PATIENCE)
            if first & 15 == 9:
                self.send(payload, 10)
            else:
                return first & 15, payload


def message(name, number):
    """A message of up to 20 KiB that says which one it is."""
    length = random.Random(name * 1_000_003 + number).choice([0, 5, 200, 200, 3000, 20_000])
    return b"%d %d " % (name, number) + b"x" * length


class Load:
    def __init__(self, port):
        self.port = port
        self.over = asyncio.Event()
        self.messages = self.bytes = self.cuts = 0
        self.slowest = 0.0

    async def plain(self, name):
        link = await Link.open(self.port, "/echo")
        sent = received = 0
        while not self.over.is_set() or received < sent:
            if not self.over.is_set():
                for _ in range(random.randrange(3)):
                    link.send(message(name, sent))
                    sent += 1
            while received < sent:
                opcode, payload = await link.receive()
                assert (opcode, payload) == (2, message(name, received)), (name, received, opcode, payload[:40])
                received += 1
            await asyncio.sleep(random.random())
        self.messages += received
        link.writer.close()

    async def resumable(self, name):
        sent = received = taken = 0
        query, waiting = "resume=new", []
        while True:
            link = await Link.open(self.port, f"/echo?{query}")
            token, _, count = re.search(r"Outrigger-Resume: (\S+?)(; received=(\d+))?\r\n", link.head).groups()
            count = int(count or 0)
            # What the server has not taken is sent again.
            for number in range(count, sent):
                link.send(message(name, number))
            until = time.monotonic() + random.random() * 3
            try:
                while time.monotonic() < until or self.over.is_set():
                    if not self.over.is_set():
                        link.send(message(name, sent))
                        sent += 1
                    elif received == sent:
                        self.messages += received
                        link.writer.close()
                        return
                    opcode, payload = await asyncio.wait_for(link.receive(), PATIENCE)
                    assert (opcode, payload) == (2, message(name, received)), (name, received, opcode, payload[:40])
                    received += 1
                    if random.random() < 0.3:
                        await asyncio.sleep(random.random() / 3)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                raise AssertionError(f"{name}: the server has ended the connection: {error}") from error
            link.writer.transport.abort()
            self.cuts += 1
            query = f"resume={token}&received={received}"

    async def terminal(self, number, ending):
        floods = number % 5 == 0
        script = FLOOD if floods else COUNTER
        body = {"command": "bash", "args": ["-c", script, "bash", ending], "allocate_tty": True}
        process = await asyncio.to_thread(call, self.port, "POST", "/process/spawn", body)
        pid, path = process["pid"], f"/process/{process['process_id']}"
        link = await Link.open(self.port, f"{path}/attach")
        expected, rest, exited = 1, b"", None
        while True:
            opcode, payload = await link.receive()
            if opcode == 1:
                event = json.loads(payload)
                assert event["type"] in ("role", "size", "clients", "exit"), event
                exited = event.get("exitCode", exited)
            elif opcode == 8:
                break
            else:
                assert exited is None, "output after the exit"
                *lines, rest = (rest + payload).split(b"\n")
                for line in lines:
                    assert int(line) == expected, (number, line, expected)
                    expected += 1
                self.bytes += len(payload)
            if floods:
                await asyncio.sleep(random.random() / 50)
        assert (exited, int.from_bytes(payload[:2])) == (7, 1000), (exited, payload)
        status = await asyncio.to_thread(call, self.port, "GET", f"{path}/status")
        assert status["exit_code"] == 7, status
        return pid

    async def bystander(self):
        link = await Link.open(self.port, "/echo")
        while not self.over.is_set():
            before = time.perf_counter()
            link.send(b"hello")
            assert await link.receive() == (2, b"hello")
            self.slowest = max(self.slowest, time.perf_counter() - before)
            await asyncio.sleep(0.005)
        link.writer.close()


def call(port, method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {peers.TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
    for _ in range(100):
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            # A call that is pending during an upgrade is refused, and can be made again.
            assert error.code == 503, (error.code, error.read())
            time.sleep(0.05)
    raise AssertionError(f"{path} was refused 100 times")


async def run(server):
    load = Load(server.port)
    ending = os.path.join(server.files.name, "end")
    tasks = [asyncio.create_task(load.terminal(number, ending)) for number in range(TERMINALS)]
    tasks += [asyncio.create_task(load.plain(name)) for name in range(PLAIN)]
    tasks += [asyncio.create_task(load.resumable(PLAIN + name)) for name in range(RESUMABLE)]
    tasks.append(asyncio.create_task(load.bystander()))
    await asyncio.sleep(3)
    children = sorted(server.children())
    pauses, cuts, closed = [], 0, 0
    memory = descriptors = None
    for number in range(UPGRADES):
        failed = [task for task in tasks if task.done()]
        for task in failed:
            task.result()
        answer = await asyncio.to_thread(call, server.port, "POST", "/upgrade", {})
        pauses.append(answer["pause_ms"])
        cuts, closed = cuts + answer["cut"], closed + answer["closed"]
        await asyncio.sleep(PAUSE)
        if number == 0:
            memory, descriptors = server.memory("VmRSS"), server.descriptors()
    assert sorted(server.children()) == children, "a process has ended"
    grown, opened = server.memory("VmRSS") - memory, server.descriptors() - descriptors
    open(ending, "w").close()
    load.over.set()
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
    pauses.sort()
    assert closed == 0 and cuts == 0, (closed, cuts)
    print(
        f"upgrades: {UPGRADES} with {PLAIN} plain and {RESUMABLE} resumable clients ({load.cuts} cuts) and {TERMINALS} terminals: "
        f"{load.messages} messages and {load.bytes / 1e6:.0f} MB of output, 0 lost, doubled or out of order"
    )
    print(
        f"  pause p50 {statistics.median(pauses):.1f} ms, p99 {pauses[len(pauses) * 99 // 100 - 1]:.1f} ms, "
        f"max {pauses[-1]:.1f} ms; the longest echo of a bystander {load.slowest * 1e3:.0f} ms"
    )
    print(f"  between the first upgrade and the last: memory {grown / 1e6:+.1f} MB, descriptors {opened:+d}")


def main():
    peers.descriptors_for(PLAIN + RESUMABLE + 3 * TERMINALS)
    routes = {"/process": {"processes": {"max-processes": TERMINALS + 1}}}
    options = ["--allow-upgrade", "--max-clients", str(2 * (PLAIN + RESUMABLE + TERMINALS) + 100), "--log", "warn"]
    with peers.serving(OUTRIGGER, routes, options) as server:
        asyncio.run(run(server))
        log = server.log().decode()
        assert "ERROR" not in log, log[-2000:]


main()

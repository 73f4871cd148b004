#!/usr/bin/env python3
"""Upgrades a server again and again under load. No client may notice: no byte and no message may be lost, doubled or out of
order, no process may end, every exit code and the answer of every turn must arrive, and memory and descriptors must not grow.

usage: tests/load/upgrades.py [NAME=NUMBER ...]      such as upgrades=3 plain=50; the numbers below by default
env:   OUTRIGGER=target/release/outrigger
       OTHER=another program, which takes turns with the first one

* upgrades=100;
* plain=1000: clients that exchange numbered messages, half with echo, half with an app;
* resumable=200: clients of echo that are cut at random times;
* terminals=100: print numbers, a fifth of them as fast as they can to readers that read slowly, and exit at the end;
* agents=50: clients of two kinds, each with a turn that runs at any time; a fifth of the sessions have an observer;
* mcp=50: calls of an MCP server that wait at any time, half of them in sessions and half in the pool;
* pipes=20: clients with a program of their own;
* tls=20: clients over TLS, half of them resumable. The others get 1012 and connect again;
* a bystander in a process of its own measures its echo, and the server how long it stood still.
"""

import asyncio
import logging
import os
import re
import shutil
import statistics
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "common"))
import peers  # noqa: E402
import tls_peers  # noqa: E402
from mcp_http import SERVER as MCP_SERVER  # noqa: E402
from upgrade_clients import AGENT, APP, PATIENCE, PIPE, PYTHON, Load, bystander, call, mcp_calls  # noqa: E402

COUNTS = {"upgrades": 100, "plain": 1000, "resumable": 200, "terminals": 100, "agents": 50, "mcp": 50, "pipes": 20, "tls": 20}
OUTRIGGER = os.environ.get("OUTRIGGER", "target/release/outrigger")
PROGRAMS = [OUTRIGGER, os.environ.get("OTHER", OUTRIGGER)]
PAUSE = 0.1  # seconds between two upgrades
# What the server keeps grows with the time: output of terminals, histories of sessions, events of MCP sessions. If each upgrade left
# the state of the clients behind, it would be more. Connections come and go at any time.
MOST_MEMORY, MOST_DESCRIPTORS = 100 << 20, 90
# asyncio warns of each message that is written to a connection that an upgrade has ended.
logging.getLogger("asyncio").setLevel(logging.ERROR)


def clients(load, counts):
    """The clients, as coroutines."""
    names = iter(range(1 << 30))
    several = lambda count, run: [run(next(names)) for _ in range(count)]  # noqa: E731
    return [
        *several(counts["terminals"], load.terminal),
        *several(counts["plain"] // 2, load.plain),
        *several(counts["plain"] - counts["plain"] // 2, lambda name: load.plain(name, "/app")),
        *several(counts["resumable"], load.resumable),
        *several(counts["agents"], load.agent),
        *several(counts["pipes"], lambda name: load.plain(name, "/pipe")),
        *several(counts["tls"] // 2, lambda name: load.resumable(name, load.tls)),
        *several(counts["tls"] - counts["tls"] // 2, load.over_tls),
    ]


def place(program, path):
    """Puts a program at the path at which a server finds it."""
    shutil.copy(program, path + ".new")
    os.replace(path + ".new", path)


async def run(server, path, load, counts, workers):
    tasks = [asyncio.create_task(client) for client in clients(load, counts)]
    for worker in workers:
        await asyncio.to_thread(worker.hear)
    async with asyncio.timeout(PATIENCE):
        while load.ready < len(tasks):
            await asyncio.sleep(0.1)
            for task in tasks:
                if task.done():
                    task.result()
    children = sorted(server.children())
    pauses, total = [], dict.fromkeys(("cut", "closed"), 0)
    memory = descriptors = None
    fewest_turns = counts["agents"]
    for number in range(counts["upgrades"]):
        for task in tasks:
            if task.done():
                task.result()
        for worker in workers:
            assert not worker.pipe.poll(), worker.hear()
        if len(set(PROGRAMS)) > 1:
            place(PROGRAMS[(number + 1) % 2], path)
        fewest_turns = min(fewest_turns, load.running_turns)
        answer = await asyncio.to_thread(call, server.port, "POST", "/upgrade", {})
        pauses.append(answer["pause_ms"])
        for what in total:
            total[what] += answer[what]
        await asyncio.sleep(PAUSE)
        if number == 0:
            memory, descriptors = server.memory("VmRSS"), server.descriptors()
    assert sorted(server.children()) == children, "a process has ended"
    grown, opened = server.memory("VmRSS") - memory, server.descriptors() - descriptors
    load.end()
    for worker in workers:
        worker.pipe.send("over")
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*tasks)
        slowest, *mcp_calls = [await asyncio.to_thread(worker.hear) for worker in workers]
    assert grown < MOST_MEMORY and opened < MOST_DESCRIPTORS, (grown, opened)
    # Nobody but the clients over TLS may be closed or cut.
    assert total["closed"] + total["cut"] <= counts["tls"] * counts["upgrades"], total
    assert load.restarts >= total["closed"], (load.restarts, total)
    report(counts, load, sum(mcp_calls), pauses, fewest_turns, slowest)
    print(f"  between the first upgrade and the last: memory {grown / 1e6:+.1f} MB, descriptors {opened:+d}")


def report(counts, load, mcp_calls, pauses, fewest_turns, slowest):
    pauses.sort()
    numbers = ", ".join(f"{name}={number}" for name, number in counts.items())
    print(
        f"upgrades: {numbers}\n"
        f"  {load.messages} messages, {load.bytes / 1e6:.0f} MB of output, {mcp_calls} MCP calls, {load.turns} turns, and at least "
        f"{fewest_turns} at each upgrade: 0 lost, doubled or out of order; {load.cuts} cuts, {load.restarts} returns over TLS\n"
        f"  pause p50 {statistics.median(pauses):.1f} ms, p99 {pauses[len(pauses) * 99 // 100]:.1f} ms, "
        f"max {pauses[-1]:.1f} ms; the longest echo of a bystander {slowest * 1e3:.0f} ms"
    )


def port_of_tls(server):
    """The port for TLS."""
    line = b""
    while b" wss://" not in line:
        line = server.process.stdout.readline()
        assert line, server.log()
    return int(re.search(rb":(\d+)/", line)[1])


def main():
    counts = {**COUNTS, **{name: int(number) for name, number in (part.split("=") for part in sys.argv[1:])}}
    assert counts.keys() == COUNTS.keys(), f"unknown: {counts.keys() - COUNTS.keys()}"
    expected = sum(counts.values())
    peers.prepare()
    routes = {
        "/process": {"processes": {"max-processes": 2 * (counts["terminals"] + 1)}},
        "/app": {"app": {"command": [*PYTHON, APP]}},
        "/pipe": {"pipe": {"command": [*PYTHON, PIPE]}},
        "/agent": {"agent": {"command": [*PYTHON, AGENT]}},
        "/mcp": {"mcp": {"command": MCP_SERVER, "share": "all"}},
    }
    options = ["--allow-upgrade", "--max-clients", str(2 * expected + 100), "--log", "warn"]
    options += ["--listen", "plain:127.0.0.1:0", "--listen", "tls:127.0.0.1:0"]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "outrigger")
        place(OUTRIGGER, path)
        certificates = tls_peers.Certificates(folder)
        options += certificates.options()
        with peers.serving(path, routes, options) as server:
            load = Load(server.port, port_of_tls(server), certificates.context(), os.path.join(server.files.name, "end"))
            halves = [(True, counts["mcp"] // 2), (False, counts["mcp"] - counts["mcp"] // 2)]
            workers = [peers.Worker(bystander, server.port, nice=0)]
            workers += [peers.Worker(mcp_calls, server.port, *half) for half in halves]
            asyncio.run(run(server, path, load, counts, workers))
            log = server.log().decode()
        assert "ERROR" not in log, log[-2000:]


main()

#!/usr/bin/env python3
"""One route whose program always fails must not end the others: three processes behind examples/cluster/haproxy.cfg.

usage: tests/deploy/cluster_failing.py OUTRIGGER [MINUTES]

Each process serves /acp, whose agent exits at once, /echo and /terminal. For MINUTES (1), TERMINALS terminals run a command each second,
and every 100 ms a client opens /echo, /terminal or /acp. No handshake of /echo and /terminal may be refused, no terminal may end, and
/acp is refused with 503, except while its agent is being started. Needs the package websockets, and haproxy.
"""

import asyncio
import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import websockets

CLUSTER = pathlib.Path(__file__).resolve().parent.parent.parent / "examples/cluster"
ROUTES = {
    "/acp": {"agent": {"command": ["sh", "-c", "exit 1"]}},
    "/echo": {"echo": {}},
    "/terminal": {"terminal": {"command": ["sh"]}},
}
TERMINALS = 12
PATIENCE = 60  # seconds, the deadline of every wait
NODES = ("ONE", "TWO", "THREE")


def status(url):
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def wait_until(what, is_true):
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError):
            if is_true():
                return
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


async def read_until(link, text):
    """Reads the output of a terminal until it has a text."""
    output = b""
    while text not in output:
        message = await asyncio.wait_for(link.recv(), PATIENCE)
        output += message if isinstance(message, bytes) else b""


async def use_terminal(url, number, until, counts):
    try:
        async with websockets.connect(f"{url}/terminal") as link:
            counts["terminals"] += 1
            commands = 0
            while time.monotonic() < until:
                await link.send(f"echo $(({number}*100000+{commands}))x\n".encode())
                await read_until(link, f"{number * 100000 + commands}x".encode())
                commands += 1
                counts["commands"] += 1
                await asyncio.sleep(1)
    except websockets.WebSocketException as error:
        counts["ended"].append(f"{number}: {error}")


async def open_routes(url, until, counts):
    number = 0
    while time.monotonic() < until:
        path = ("/echo", "/acp", "/echo", "/terminal")[number % 4]
        number += 1
        try:
            async with websockets.connect(f"{url}{path}") as link:
                if path == "/echo":
                    await link.send("hello")
                    assert await asyncio.wait_for(link.recv(), PATIENCE) == "hello"
            counts["opened"][path] = counts["opened"].get(path, 0) + 1
        except websockets.InvalidStatus as error:
            key = f"{path} {error.response.status_code}"
            counts["refused"][key] = counts["refused"].get(key, 0) + 1
        except (OSError, websockets.WebSocketException) as error:
            counts["refused"][f"{path} {error}"] = 1
        await asyncio.sleep(0.1)


async def run(url, seconds):
    counts = {"terminals": 0, "commands": 0, "ended": [], "opened": {}, "refused": {}}
    until = time.monotonic() + seconds
    users = [use_terminal(url, number, until, counts) for number in range(1, TERMINALS + 1)]
    await asyncio.gather(open_routes(url, until, counts), *users)
    return counts


def main(outrigger, minutes="1"):
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    with tempfile.TemporaryDirectory() as folder:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(5)]
        web, stats, *places = (f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
        for one in sockets:
            one.close()
        settings = pathlib.Path(folder) / "serve.json"
        settings.write_text(json.dumps({"routes": ROUTES}))
        children = []
        try:
            with open(pathlib.Path(folder) / "log", "w") as log:
                for place in places:
                    command = [outrigger, "serve", "--config", settings, "--no-auth", "--listen", place]
                    children.append(subprocess.Popen(command, stdout=log, stderr=log))
                names = {"WEB": web, "STATS": stats, **dict(zip(NODES, places))}
                command = ["haproxy", "-f", CLUSTER / "haproxy.cfg"]
                children.append(subprocess.Popen(command, env={**environment, **names}, stdout=log, stderr=log))
            for place in places:
                wait_until(f"{place} is ready", lambda: status(f"http://{place}/readyz") == 200)
            wait_until("HAProxy runs", lambda: status(f"http://{web}/readyz") == 200)
            counts = asyncio.run(run(f"ws://{web}", 60 * float(minutes)))
            assert all(child.poll() is None for child in children), "a process has ended"
            for place in places:
                wait_until("the route is not ready", lambda: status(f"http://{place}/readyz?route=/acp") == 503)
                assert status(f"http://{place}/readyz") == status(f"http://{place}/readyz?route=/echo") == 200
        finally:
            for child in children:
                if child.poll() is None:
                    child.terminate()
                    child.wait(PATIENCE)
    refused = {key: count for key, count in counts["refused"].items() if key != "/acp 503"}
    print(f"  {counts['terminals']} terminals ran {counts['commands']} commands, {len(counts['ended'])} ended;")
    print(f"  handshakes: {counts['opened']}; refused: {counts['refused']}")
    assert counts["terminals"] == TERMINALS and not counts["ended"], counts["ended"]
    assert not refused, refused
    assert counts["refused"].get("/acp 503"), "the agent fails"


if __name__ == "__main__":
    main(*sys.argv[1:])

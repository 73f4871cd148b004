#!/usr/bin/env python3
"""Measures one, two and three processes on one machine, in turn: an echo on a shared port, and the rooms of examples/cluster.

usage: benches/cluster.py OUTRIGGER [ROUNDS] [SECONDS]      3 rounds of 3 seconds by default

* echo: CONNECTIONS connections to processes that share a port (--reuse-port) send DEPTH messages of 100 bytes at once, and wait
  for their echoes;
* rooms: through HAProxy, MEMBERS members of ROOMS rooms. Each of TALKERS talkers in each room sends its next message when its
  last one is stored.

Prints messages per second, CPU time of each program for each message, and the memory of its largest process. In rooms, each
message that reaches a member counts. The load takes CPU time of the same machine, so compare the ratios of one run. Needs the
packages nats-py and websockets, and nats-server, haproxy, curl and openssl.
"""

import asyncio
import json
import os
import pathlib
import re
import select
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import websockets

CLUSTER = pathlib.Path(__file__).resolve().parent.parent / "examples/cluster"
CONNECTIONS, DEPTH, SIZE = 48, 16, 100
ROOMS, MEMBERS, TALKERS = 6, 240, 4
NODES = ("one", "two", "three")
TICKS = os.sysconf("SC_CLK_TCK")


def cpu(pid):
    """Seconds of CPU time that a process has used."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory(pid):
    """Megabytes of resident memory."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1000


def handshake(port, path, head=""):
    link = socket.create_connection(("127.0.0.1", port))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.sendall(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==\r\nSec-WebSocket-Version: 13\r\n{head}\r\n".encode()
    )
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += link.recv(4096)
    assert answer.startswith(b"HTTP/1.1 101"), answer
    return link, answer.partition(b"\r\n\r\n")[2]


def frame(payload, opcode=1):
    # A mask of zeros leaves the payload as it is.
    length = bytes([128 | len(payload)]) if len(payload) < 126 else bytes([128 | 126]) + struct.pack(">H", len(payload))
    return bytes([128 | opcode]) + length + bytes(4) + payload


def echo(outrigger, count, seconds):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [outrigger, "echo", "--listen", f"127.0.0.1:{port}", "--reuse-port", "--log", "error"]
    servers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        for server in servers:
            assert "listening" in server.stdout.readline()
        links = [handshake(port, "/")[0] for _ in range(CONNECTIONS)]
        batch, expected = frame(b"x" * SIZE, 2) * DEPTH, (SIZE + 2) * DEPTH
        poll, got = select.epoll(), {}
        by_number = {link.fileno(): link for link in links}
        for number, link in by_number.items():
            poll.register(number, select.EPOLLIN)
            got[number] = 0
            link.sendall(batch)
        used, begin, batches = sum(cpu(server.pid) for server in servers), time.monotonic(), 0
        while (elapsed := time.monotonic() - begin) < seconds:
            for number, _ in poll.poll(1):
                link = by_number[number]
                got[number] += len(link.recv(1 << 16))
                if got[number] == expected:
                    got[number] = 0
                    batches += 1
                    link.sendall(batch)
        used = sum(cpu(server.pid) for server in servers) - used
        messages = batches * DEPTH
        for link in links:
            link.close()
        return {"per_s": messages / elapsed, "outrigger": used / messages * 1e6}
    finally:
        for server in servers:
            server.terminate()
            server.wait()
            server.stdout.close()


def children(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def programs(run):
    """The processes of the cluster by program."""
    found, queue = {"outrigger": [], "chat.py": [], "haproxy": [], "nats": []}, [run]
    while queue:
        pid = queue.pop()
        queue += children(pid)
        command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"app" in command[:2]:
            found["outrigger"].append(pid)
        elif command[-2].endswith(b"/chat.py"):
            found["chat.py"].append(pid)
        elif command[0].endswith(b"haproxy"):
            found["haproxy"].append(pid)
        elif command[0].endswith(b"nats-server"):
            found["nats"].append(pid)
    return found


async def talk(url, room, seconds):
    """Sends messages to a room, one after the other, and returns how many were stored."""
    begin, stored = None, 0
    async with websockets.connect(url) as talker:
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            await talker.send(json.dumps({"room": room, "say": "x" * SIZE}))
            while "stored" not in json.loads(await talker.recv()):
                pass
            stored += 1
    return stored


def rooms(outrigger, count, seconds):
    environment = {**os.environ, "OUTRIGGER": outrigger, "PYTHON": sys.executable, "NODES": " ".join(NODES[:count])}
    with tempfile.TemporaryDirectory() as state:
        run = subprocess.Popen([CLUSTER / "run.sh", state], stdout=subprocess.PIPE, env=environment, text=True)
        try:
            url = re.search(r"ws://127.0.0.1:(\d+)(\S+)", run.stdout.readline() + run.stdout.readline())
            links = []
            for number in range(MEMBERS):
                link, _ = handshake(int(url[1]), url[2])
                link.sendall(frame(json.dumps({"join": f"room-{number % ROOMS}"}).encode()))
                assert b"joined" in link.recv(4096)
                links.append(link)
            found = programs(run.pid)
            assert len(found["outrigger"]) == len(found["chat.py"]) == count, found
            # A process of its own sends, and this one counts what arrives.
            talkers = subprocess.Popen([sys.executable, __file__, "talk", url[0], str(seconds)], stdout=subprocess.PIPE, text=True)
            poll, by_number, arrived = select.epoll(), {link.fileno(): link for link in links}, 0
            for number in by_number:
                poll.register(number, select.EPOLLIN)
            used = {name: sum(map(cpu, pids)) for name, pids in found.items()}
            first = last = None
            while talkers.poll() is None or last and time.monotonic() - last < 1:
                for number, _ in poll.poll(0.2):
                    # Each message of a room has this once.
                    arrived += by_number[number].recv(1 << 20).count(b'"seq"')
                    last = time.monotonic()
                    first = first or last
            used = {name: sum(map(cpu, pids)) - used[name] for name, pids in found.items()}
            stored = int(talkers.communicate()[0])
            assert arrived == stored * MEMBERS // ROOMS, (arrived, stored)
            for link in links:
                link.close()
            sizes = {f"{name} MB": max(map(memory, pids)) for name, pids in found.items()}
            costs = {name: value / arrived * 1e6 for name, value in used.items()}
            return {"per_s": arrived / (last - first), "stored_per_s": stored / (last - first), **costs, **sizes}
        finally:
            run.terminate()
            run.wait()
            run.stdout.close()


def main(outrigger, rounds=3, seconds=3):
    rows = {}
    for _ in range(int(rounds)):
        for measure in (echo, rooms):
            for count in (1, 2, 3):
                rows.setdefault((measure.__name__, count), []).append(measure(os.path.abspath(outrigger), count, float(seconds)))
    for (name, count), results in rows.items():
        middle = {key: statistics.median(result[key] for result in results) for key in results[0]}
        times = ", ".join(f"{key} {value:.2f}" for key, value in middle.items() if key != "per_s")
        ratio = statistics.median(result["per_s"] / one["per_s"] for result, one in zip(results, rows[name, 1]))
        print(f"{name} with {count}: {middle['per_s']:,.0f} messages/s, {ratio:.2f} times one; CPU us for each and more: {times}")


async def talk_everywhere(url, seconds):
    talkers = [talk(url, f"room-{number}", float(seconds)) for number in range(ROOMS) for _ in range(TALKERS)]
    print(sum(await asyncio.gather(*talkers)))


if __name__ == "__main__":
    if sys.argv[1] == "talk":
        asyncio.run(talk_everywhere(*sys.argv[2:]))
    else:
        main(*sys.argv[1:])

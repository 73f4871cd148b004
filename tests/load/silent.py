#!/usr/bin/env python3
"""Opens thousands of connections that never finish their request: they send nothing, half a request head, or a byte now and
then. Meanwhile the server must serve a client, keep its memory within the formula in docs/costs.md, and answer heads without
end with 431. The handshake timeout must close all of them.

usage: tests/load/silent.py [COUNT]      connections, 10,000 by default; OUTRIGGER=target/release/outrigger
"""

import multiprocessing
import os
import re
import resource
import socket
import subprocess
import sys
import time
import urllib.request

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
OUTRIGGER = os.environ.get("OUTRIGGER", "target/release/outrigger")
PATIENCE = 120
REQUEST = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
HALF = REQUEST[:-2] + b"X: " + b"x" * 8000


def connect(port, first=b""):
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    connection.sendall(first)
    return connection


def metric(port, name):
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE).read().decode()
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)
    return float(found[1]) if found else 0.0


def wait_for(what, is_true):
    deadline = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def round_trips(port, count):
    """Returns the times of `count` echoes in microseconds, sorted."""
    client = connect(port, REQUEST)
    while not client.recv(4096).endswith(b"\r\n\r\n"):
        pass
    times = []
    for _ in range(count):
        before = time.perf_counter()
        client.sendall(b"\x81\x85\0\0\0\0hello")
        assert client.recv(7, socket.MSG_WAITALL) == b"\x81\x05hello"
        times.append((time.perf_counter() - before) * 1e6)
    client.close()
    return sorted(times)


def trickle(connections):
    while True:
        time.sleep(0.5)
        for connection in connections:
            try:
                connection.send(b"/")
            except OSError:
                pass  # the handshake timeout has closed it


def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(COUNT, hard - 500)
    options = ["--listen", "127.0.0.1:0", "--log", "off", "--handshake-timeout", "20s", "--max-clients", str(count)]
    server = subprocess.Popen([OUTRIGGER, "echo", *options], stdout=subprocess.PIPE)
    port = int(re.search(rb":(\d+)/", server.stdout.readline())[1])
    try:
        quiet = round_trips(port, 5000)
        silent = [connect(port) for _ in range(count // 2)]
        half = [connect(port, HALF) for _ in range(count * 4 // 10)]
        slow = [connect(port, b"GET ") for _ in range(count - len(silent) - len(half))]
        # In its own process, so that it does not slow the measurement.
        trickling = multiprocessing.get_context("fork").Process(target=trickle, args=[slow], daemon=True)
        trickling.start()
        for _ in range(10):
            endless = connect(port, b"GET /")
            try:
                endless.sendall(b"x" * (1 << 20))
                assert b" 431 " in endless.recv(4096)
            except ConnectionError:
                pass  # the reset for the rest of the bytes has destroyed the answer
            endless.close()
        wait_for("all are there", lambda: metric(port, "outrigger_connections") >= count)
        assert metric(port, 'outrigger_refusals_total{reason="head_size"}') == 10
        resident = metric(port, "process_resident_memory_bytes")
        bound = (6 << 20) + count * 512 + 2 * len(half) * len(HALF) + 2 * len(slow) * 64
        busy = round_trips(port, 5000)
        assert resident <= bound, (resident, bound)
        wait_for("their time is up", lambda: metric(port, "outrigger_connections") <= 2)
        trickling.terminate()
        gone = metric(port, 'outrigger_refusals_total{reason="handshake_timeout"}')
        assert gone == count, gone
        p99 = [times[len(times) * 99 // 100] for times in (quiet, busy)]
        print(
            f"silent: {count} connections, {resident / 2**20:.1f} MiB resident of {bound / 2**20:.1f} allowed, "
            f"an echo meanwhile in {p99[1]:.0f} us (p99), alone in {p99[0]:.0f} us"
        )
    finally:
        server.terminate()
        assert server.wait(PATIENCE) == 0


main()

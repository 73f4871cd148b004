#!/usr/bin/env python3
"""Ends thousands of connections in each of seven ways. In the events of `outrigger app` every `connect` must have exactly
one `disconnect`. Afterwards `status` must report 0 clients, and the process must have as many descriptors as at the start.

usage: tests/load/endings.py [COUNT]      connections for each way, 2000 by default; OUTRIGGER=target/release/outrigger
"""

import collections
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
OUTRIGGER = os.environ.get("OUTRIGGER", "target/release/outrigger")
PATIENCE = 120
REQUEST = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class App:
    def __init__(self):
        args = ["--listen", "127.0.0.1:0", "--ping-interval", "3s", "--ping-timeout", "2s", "--handshake-timeout", "3s"]
        command = [OUTRIGGER, "app", *args, "--no-auth", "--log", "warn", "--max-clients", "100000"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.port = self.event()["port"]
        self.connects, self.causes = collections.Counter(), collections.Counter()
        self.disconnects = collections.Counter()

    def event(self):
        return json.loads(self.process.stdout.readline())

    def note(self, event):
        if event["event"] == "connect":
            self.connects[event["client"]] += 1
        elif event["event"] == "disconnect":
            assert self.connects[event["client"]] == 1, event
            self.disconnects[event["client"]] += 1
            self.causes[event["cause"], event["code"]] += 1

    def status(self):
        self.process.stdin.write(b'{"cmd":"status","id":1}\n')
        self.process.stdin.flush()
        while (event := self.event())["event"] != "status":
            self.note(event)
        return event

    def wait_for(self, connects, disconnects):
        """Waits for these numbers of events. Queries the status in between, so that there is always an event to read."""
        deadline = time.monotonic() + PATIENCE
        while True:
            status = self.status()
            if sum(self.connects.values()) >= connects and sum(self.disconnects.values()) >= disconnects:
                return status
            assert time.monotonic() < deadline, (len(self.connects), len(self.disconnects))
            time.sleep(0.02)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def connect(port, upgrade=True):
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    if upgrade:
        connection.sendall(REQUEST)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += connection.recv(1)
        assert head.startswith(b"HTTP/1.1 101 "), head
    return connection


def close(connection):
    connection.sendall(b"\x88\x82\0\0\0\0\x03\xe8")
    while connection.recv(4096):
        pass
    connection.close()


def fin(connection):
    connection.close()


def rst(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def protocol_error(connection):
    connection.sendall(b"\xff\xff\xff")
    while connection.recv(4096):
        pass
    connection.close()


def silent(connection):
    """The server ends it after a PING without an answer."""


def check(app, way, opened):
    wrong = {client: count for client, count in app.disconnects.items() if count != 1}
    assert not wrong, wrong
    assert set(app.connects) == set(app.disconnects), "each connect has its disconnect"
    assert len(app.connects) == opened, (len(app.connects), opened)
    print(f"  {way}: {opened} connects, {len(app.disconnects)} disconnects, {dict(app.causes)}")


def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    app = App()
    descriptors = app.descriptors()
    for way in [close, fin, rst, protocol_error, silent]:
        app.connects.clear(), app.disconnects.clear(), app.causes.clear()
        # All are connected before the first one disconnects.
        connections = [connect(app.port) for _ in range(COUNT)]
        for connection in connections:
            way(connection)
        status = app.wait_for(COUNT, COUNT)
        assert status["client_count"] == 0 and status["clients"] == [], status
        check(app, way.__name__, COUNT)
        for connection in connections:
            connection.close()

    app.connects.clear(), app.disconnects.clear(), app.causes.clear()
    half = [connect(app.port, upgrade=False) for _ in range(COUNT)]
    for number, connection in enumerate(half):
        connection.sendall(REQUEST[: number % len(REQUEST)])
        if number % 2:
            connection.close()
    for connection in half[::2]:
        while connection.recv(4096):  # the 408
            pass
        connection.close()
    check(app, "abandoned handshake", 0)
    deadline = time.monotonic() + PATIENCE
    while app.descriptors() != descriptors:
        assert time.monotonic() < deadline, (app.descriptors(), descriptors)
        time.sleep(0.02)
    assert app.status()["client_count"] == 0
    print(f"  descriptors: {descriptors} before, {app.descriptors()} after")

    connections = [connect(app.port) for _ in range(COUNT)]
    app.wait_for(COUNT, 0)
    app.process.send_signal(signal.SIGTERM)
    for connection in connections:
        close(connection)
    for line in app.process.stdout:
        app.note(json.loads(line))
    assert app.process.wait(PATIENCE) == 0
    check(app, "SIGTERM", COUNT)


main()

#!/usr/bin/env python3
"""Uses an installed program as its users do: a session on a terminal, and a prompt to an agent. Needs only Python.

usage: packaging/talk.py [--shell SHELL] [--connect PORT PATH TOKEN] -- PROGRAM [ARGS...]

PROGRAM is the command that starts outrigger, such as `npx outrigger` or `chroot ROOT /usr/bin/outrigger`. Without --shell, the
terminal runs the program itself. --in-place is the path of the program as its terminal sees it, by default the last word of
PROGRAM. With --connect, it only exchanges messages with the echo service of a server that already runs.
"""

import argparse
import base64
import json
import os
import re
import secrets
import signal
import socket
import struct
import subprocess
import sys

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
DEADLINE = 60


class Client:
    """A WebSocket client."""

    def __init__(self, port, path, token=None):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
        self.file = self.socket.makefile("rb")
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        bearer = f"Authorization: Bearer {token}\r\n" if token else ""
        self.socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{bearer}"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        status = self.file.readline()
        assert b" 101 " in status, status
        while self.file.readline() != b"\r\n":
            pass

    def send(self, opcode, payload):
        mask = secrets.token_bytes(4)
        length = struct.pack("!B", 0x80 | len(payload)) if len(payload) < 126 else struct.pack("!BH", 0xFE, len(payload))
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
        self.socket.sendall(bytes([0x80 | opcode]) + length + mask + masked)

    def receive(self):
        """The opcode and the payload of the next message that is not a PING."""
        while True:
            first, length = self.file.read(2)
            if length == 126:
                (length,) = struct.unpack("!H", self.file.read(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", self.file.read(8))
            payload = self.file.read(length)
            if first & 15 != PING:
                return first & 15, payload
            self.send(PONG, payload)


class Server:
    """A server that runs until the end of the block."""

    def __init__(self, command):
        self.command = command

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        for line in self.process.stdout:
            if found := re.search(r"listening on ws://127\.0\.0\.1:(\d+)/", line):
                return int(found[1])
        raise AssertionError(f"{self.command} does not listen")

    def __exit__(self, *_):
        # npx and chroot are between this program and the server.
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(DEADLINE)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)


OPTIONS = ["--listen", "127.0.0.1:0", "--no-auth", "--log", "warn", "--path", "/"]


def use_terminal(program, shell, inside):
    run = [shell] if shell else [inside, "--version"]
    with Server([*program, "terminal", *OPTIONS, "--", *run]) as port:
        client = Client(port, "/")
        if shell:
            client.send(BINARY, b"echo $((6 * 7))-$((6 * 7)); exit 3\n")
        output, events = b"", []
        while not events or events[-1]["type"] != "exit":
            opcode, payload = client.receive()
            if opcode == TEXT:
                events.append(json.loads(payload))
            else:
                assert opcode == BINARY, (opcode, payload, output)
                output += payload
        expected, code = (b"42-42", 3) if shell else (b"features:", 0)
        assert expected in output and events[-1]["exitCode"] == code, (output, events)
        assert events[0] == {"type": "role", "role": "writer"}, events


def use_agent(program, inside):
    with Server([*program, "agent", *OPTIONS, "--", inside, "example-agent"]) as port:
        client = Client(port, "/")

        def call(id, method, **params):
            client.send(TEXT, json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode())
            while True:
                message = json.loads(client.receive()[1])
                if message.get("id") == id and "method" not in message:
                    assert "result" in message, message
                    return message["result"]

        assert call(1, "initialize", protocolVersion=1, clientCapabilities={})["protocolVersion"] == 1
        session = call(2, "session/new", cwd="/", mcpServers=[])["sessionId"]
        answer = call(3, "session/prompt", sessionId=session, prompt=[{"type": "text", "text": "hello"}])
        assert answer["stopReason"] == "end_turn", answer


def use_echo(port, path, token):
    client = Client(int(port), path, token)
    for opcode, payload in (TEXT, b"hello"), (BINARY, bytes(range(256))):
        client.send(opcode, payload)
        assert client.receive() == (opcode, payload)
    client.send(CLOSE, struct.pack("!H", 1000))
    assert client.receive()[0] == CLOSE


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shell")
    parser.add_argument("--in-place")
    parser.add_argument("--connect", nargs=3)
    parser.add_argument("program", nargs="*")
    given = parser.parse_args()
    if given.connect:
        use_echo(*given.connect)
        return
    inside = given.in_place or given.program[-1]
    version = subprocess.run([*given.program, "--version"], capture_output=True, text=True, check=True).stdout
    assert version.startswith("outrigger ") and " web" in version, version
    use_terminal(given.program, given.shell, inside)
    use_agent(given.program, inside)
    print(f"  {version.splitlines()[0]}: a terminal and an agent work")


if __name__ == "__main__":
    sys.exit(main())

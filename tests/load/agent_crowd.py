#!/usr/bin/env python3
"""Runs 32 clients with equal request ids (numbers and strings) behind one agent, which answers in random order with updates
in between. Every answer and update must reach its own client, and every id must come back byte for byte.

usage: tests/load/agent_crowd.py [CALLS]      calls in all, 200000 by default; OUTRIGGER=target/release/outrigger
       tests/load/agent_crowd.py agent        the agent itself, on standard streams
"""

import asyncio
import json
import os
import random
import re
import struct
import subprocess
import sys
import time

OUTRIGGER = os.environ.get("OUTRIGGER", "target/release/outrigger")
CLIENTS, IN_FLIGHT = 32, 16


def agent():
    """Collects prompts until there are 64 or no more input is ready, then answers them in random order."""
    out, held, sessions, buffer = sys.stdout.buffer, [], 0, b""
    source = random.Random(1)
    while chunk := os.read(0, 1 << 20):
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message["method"] == "initialize":
                out.write(b'{"jsonrpc":"2.0","id":%d,"result":{"protocolVersion":1}}\n' % message["id"])
            elif message["method"] == "session/new":
                sessions += 1
                out.write(b'{"jsonrpc":"2.0","id":%d,"result":{"sessionId":"s%d"}}\n' % (message["id"], sessions))
            else:
                held.append((message["id"], message["params"]["sessionId"], message["params"]["tag"]))
        source.shuffle(held)
        for number, session, tag in held:
            params = json.dumps({"sessionId": session, "update": {"tag": tag}})
            out.write(b'{"jsonrpc":"2.0","method":"session/update","params":%s}\n' % params.encode())
            out.write(b'{"jsonrpc":"2.0","id":%d,"result":{"tag":%s}}\n' % (number, json.dumps(tag).encode()))
        held.clear()
        out.flush()


class Client:
    def __init__(self, number):
        self.number, self.waiting, self.answers, self.updates = number, {}, 0, 0

    async def connect(self, port):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        self.writer.write(
            b"GET /acp HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert b" 101 " in await self.reader.readuntil(b"\r\n\r\n")
        self.say(b'{"jsonrpc":"2.0","id":"i","method":"initialize","params":{}}')
        assert json.loads(await self.hear())["id"] == "i"
        self.say(b'{"jsonrpc":"2.0","id":0,"method":"session/new","params":{}}')
        self.session = json.loads(await self.hear())["result"]["sessionId"]

    def say(self, text):
        head = struct.pack("!BB", 0x81, 0x80 | len(text)) if len(text) < 126 else struct.pack("!BBH", 0x81, 0xFE, len(text))
        self.writer.write(head + b"\0\0\0\0" + text)

    async def hear(self):
        while True:
            first, length = await self.reader.readexactly(2)
            if length == 126:
                (length,) = struct.unpack("!H", await self.reader.readexactly(2))
            payload = await self.reader.readexactly(length)
            if first & 15 == 1:
                return payload
            assert first & 15 == 9, (first, payload)

    def ask(self, call):
        # 1, "1", 2, "2", ...: equal in every client.
        number = call // 2 + 1
        written = b"%d" % number if call % 2 == 0 else b'"%d"' % number
        tag = f"{self.number}/{call}"
        self.waiting[written] = tag
        params = json.dumps({"sessionId": self.session, "tag": tag}).encode()
        self.say(b'{"jsonrpc":"2.0","id":%s,"method":"session/prompt","params":%s}' % (written, params))

    async def run(self, calls):
        asked = 0
        while self.answers < calls:
            while asked < calls and len(self.waiting) < IN_FLIGHT:
                self.ask(asked)
                asked += 1
            text = await self.hear()
            message = json.loads(text)
            if message.get("method"):
                assert message["params"]["sessionId"] == self.session, "an update that is another's"
                assert message["params"]["update"]["tag"].startswith(f"{self.number}/"), "an update that is another's"
                self.updates += 1
            else:
                written = re.match(rb'\{"jsonrpc":"2.0","id":("?\d+"?),', text)[1]
                assert self.waiting.pop(written) == message["result"]["tag"], "an answer that is another's"
                self.answers += 1
        assert self.updates == calls
        self.writer.close()


async def main(calls):
    command = [OUTRIGGER, "agent", "--listen", "127.0.0.1:0", "--log", "warn", "--no-auth", "--", sys.executable, __file__, "agent"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    port = int(re.search(r":(\d+)/", process.stdout.readline())[1])
    clients = [Client(number) for number in range(CLIENTS)]
    for client in clients:
        await client.connect(port)
    begin = time.monotonic()
    await asyncio.gather(*(client.run(calls // CLIENTS) for client in clients))
    answers, updates = sum(client.answers for client in clients), sum(client.updates for client in clients)
    process.terminate()
    assert process.wait(30) == 0
    elapsed = time.monotonic() - begin
    print(f"  {answers} answers and {updates} updates to {CLIENTS} clients in {elapsed:.0f}s, none misdelivered")


if sys.argv[1:] == ["agent"]:
    agent()
else:
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000))

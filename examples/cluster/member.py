#!/usr/bin/env python3
"""A member of a chat room, in a terminal: lines of the standard input go to the room. Needs the package websockets.

    member.py 'ws://127.0.0.1:8080/rooms?token=...' garden ada

It comes back after a lost connection and after a restart of the server. It presents the cookie that leads to the same process,
asks for the messages after the last one that it has, and sends what was not stored again, with the same ids. So each message
is stored once, and arrives once.
"""

import asyncio
import contextlib
import json
import random
import secrets
import sys
from urllib.parse import quote

import websockets


class Member:
    def __init__(self, url, room, name):
        self.url = url + ("&" if "?" in url else "?") + "name=" + quote(name)
        self.room = room
        self.last = 0  # the number of the last message
        self.server = None  # the process that serves this member
        self.cookie = None
        self.socket = None
        self.unstored = {}  # id -> request
        self.sending = asyncio.Lock()
        self.prefix, self.count = secrets.token_hex(16), 0

    # For subclasses.
    def received(self, message):
        """A message of the room has arrived."""

    def stored(self, answer):
        """A message of this member was stored."""

    def connected(self):
        """The connection was established. `server` may be another one."""

    def failed(self, error):
        """The connection could not be established."""

    def lost(self, error):
        """The connection has ended."""

    async def say(self, text):
        # The lock keeps messages in order while others are sent again.
        async with self.sending:
            self.count += 1
            message_id = f"{self.prefix}-{self.count}"
            self.unstored[message_id] = json.dumps({"room": self.room, "say": text, "id": message_id})
            if self.server:
                await self.send(self.unstored[message_id])

    async def send(self, text):
        with contextlib.suppress(websockets.ConnectionClosed):
            await self.socket.send(text)

    async def converse(self):
        """Stays in the room until it is cancelled."""
        failures = 0
        while True:
            fields = {"Cookie": self.cookie} if self.cookie else {}
            try:
                # Retries are made here, not by the library.
                self.socket = await websockets.connect(self.url, additional_headers=fields)
            except (OSError, websockets.InvalidHandshake) as error:
                self.failed(error)
                failures += 1
                await asyncio.sleep(random.uniform(0, min(10, 0.1 * 2**failures)))
                continue
            failures = 0
            for cookie in self.socket.response.headers.get_all("Set-Cookie"):
                self.cookie = cookie.partition(";")[0]
            try:
                await self.send(json.dumps({"join": self.room, "since": self.last}))
                while True:
                    await self.handle(json.loads(await self.socket.recv()))
            except websockets.ConnectionClosed as closed:
                self.lost(closed)
            finally:
                self.server = None
                await self.socket.close()

    async def handle(self, message):
        if "joined" in message:
            # The room has fewer messages if its stream was lost.
            self.last = min(self.last, message["seq"])
            async with self.sending:
                self.server = message["server"]
                self.connected()
                for request in list(self.unstored.values()):
                    await self.send(request)
        elif "seq" in message and "room" in message:
            self.last = message["seq"]
            self.received(message)
        elif "stored" in message:
            self.unstored.pop(message["stored"], None)
            self.stored(message)
        elif "error" in message:
            self.unstored.pop(message.get("id"), None)
            print(message["error"], file=sys.stderr)


class Terminal(Member):
    def received(self, message):
        # Other members have written it, and it must not control the terminal.
        said = f"{message['seq']} {message['name']}: {message['text']}"
        print("".join(char if char.isprintable() else " " for char in said), flush=True)

    def connected(self):
        print(f"* in the room, on {self.server}", file=sys.stderr)

    def failed(self, error):
        print(f"* {error}", file=sys.stderr)


async def main(url, room, name):
    member = Terminal(url, room, name)
    conversation = asyncio.create_task(member.converse())
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        await member.say(line.decode().rstrip("\n"))
    while member.unstored:
        await asyncio.sleep(0.1)
    conversation.cancel()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: member.py URL ROOM NAME")
    try:
        asyncio.run(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        pass

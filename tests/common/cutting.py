"""Helpers for tests/load/cuts.py: a proxy that cuts connections, a client that resumes them, and message contents to check."""

import asyncio
import collections
import functools
import hashlib
import json
import random
import socket
import ssl
import struct

PATIENCE = 60  # seconds, the deadline of every wait
KIB, MIB = 1 << 10, 1 << 20
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
TAKEN_OVER = 4001
LOST = (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError)  # what a cut connection raises

BLOCK = hashlib.shake_256(b"outrigger").hexdigest(MIB).encode()  # 2 MiB


def size(name, number, most=MIB):
    """The size of a message: from 1 byte to `most`, each order of magnitude with the same probability."""
    return int(most ** random.Random(f"{name} {number}").random())


def content(name, number, most=MIB):
    """The content of a message: ASCII that shows the number of the message."""
    length = size(name, number, most)
    if length < 8:
        return b"%07d" % number if length == 7 else (b"%d" % number)[-length:].rjust(length, b"0")
    begin = number * 7919 % MIB
    return (b"%07d " % number + BLOCK[begin : begin + length])[:length]


@functools.cache
def numbers():
    return b"".join(b"%07d\n" % number for number in range(MIB // 4))


def stream(begin, length):
    """A piece of an endless stream of numbers."""
    period = len(numbers())
    begin %= period
    return (numbers() + numbers())[begin : begin + length] if begin + length > period else numbers()[begin : begin + length]


def reset(writer):
    """Ends a connection with a TCP reset."""
    raw = writer.get_extra_info("socket")
    if raw and not writer.transport.is_closing():
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def drain(reader):
    """Reads to the end. Returns the last bytes."""
    tail = b""
    try:
        while data := await reader.read(64 * KIB):
            tail = (tail + data)[-256:]
    except ConnectionError:
        pass
    return tail


class Proxy:
    """Passes bytes on and cuts each connection after a random number of them, in a random direction.

    The ways of a cut: `reset` resets both sides, `fin` ends both sides without CLOSE, and `silence` resets the client's side,
    but leaves the server's side open, so that the client's next connection takes over.
    """

    WAYS = {"reset": 6, "fin": 3, "silence": 2}
    # A client whose first response is lost has no token and cannot come back. It would stay detached for the grace period.
    SPARED = 1000
    # The same over TLS, where the proxy cannot see which connections these are. They use a port of their own.
    SPARED_TLS = 4000
    UPWARD = 0.5

    def __init__(self, port, cuts, seed):
        self.server_port, self.wanted, self.random = port, cuts, random.Random(f"proxy {seed}")
        self.cuts, self.taken_over, self.connections = collections.Counter(), 0, set()

    async def start(self):
        self.servers = []
        return await self.listen(0)

    async def listen(self, spared):
        """Returns a port. Its connections are cut after at least so many bytes."""

        async def accept(reader, writer):
            await self.accept(reader, writer, spared)

        self.servers.append(await asyncio.start_server(accept, "127.0.0.1", 0, limit=256 * KIB))
        return self.servers[-1].sockets[0].getsockname()[1]

    async def stop(self):
        """Waits for the connections to end."""
        for server in self.servers:
            server.close()
        while self.connections:
            await asyncio.wait(self.connections, timeout=PATIENCE)

    async def accept(self, reader, writer, spared):
        self.connections.add(asyncio.current_task())
        try:
            await self.serve(reader, writer, spared)
        except ConnectionError:
            reset(writer)
        finally:
            self.connections.discard(asyncio.current_task())

    def plan(self):
        """The number of bytes before the cut. Some cuts are within the handshake, some within a long message."""
        most = self.random.choice([400, 64 * KIB, 2 * MIB, 2 * MIB])
        return self.random.randrange(1, most) if most < MIB else int(most ** self.random.uniform(0.5, 1))

    async def serve(self, reader, writer, spared):
        try:
            upstream, to_server = await asyncio.open_connection("127.0.0.1", self.server_port, limit=256 * KIB)
        except OSError:
            return reset(writer)
        first = await reader.read(64 * KIB)
        budget = self.plan() + spared + (self.SPARED if b"esume: new" in first or b"resume=new" in first else 0)
        is_upward = self.random.random() < self.UPWARD
        pumps = [
            asyncio.create_task(self.pump(reader, to_server, budget if is_upward else None, first)),
            asyncio.create_task(self.pump(upstream, writer, None if is_upward else budget, b"")),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        cut = any(pump.done() and pump.result() for pump in pumps)
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)
        if not cut:
            # The peers have ended the connection themselves. The proxy passes on what has arrived.
            writer.close()
            to_server.close()
            return
        way = self.random.choices(list(self.WAYS), self.WAYS.values())[0]
        self.cuts[way, "up" if is_upward else "down"] += 1
        if way == "fin":
            for end in (writer, to_server):
                if end.can_write_eof() and not end.transport.is_closing():
                    end.write_eof()
            # Closing a socket with unread bytes would reset the connection.
            await asyncio.wait([asyncio.create_task(drain(end)) for end in (reader, upstream)], timeout=PATIENCE)
        reset(writer)
        if way == "silence":
            await asyncio.sleep(self.random.random() * 0.1)
            tail = await asyncio.wait_for(drain(upstream), PATIENCE)
            self.taken_over += struct.pack("!H", TAKEN_OVER) in tail
        reset(to_server)

    async def pump(self, reader, writer, budget, data):
        """Returns whether the connection is to be cut."""
        try:
            while data or (data := await reader.read(64 * KIB)):
                if budget is not None:
                    if len(data) >= budget and self.cuts.total() < self.wanted:
                        writer.write(data[:budget])
                        return True
                    budget = max(1, budget - len(data))
                writer.write(data)
                await writer.drain()
                data = b""
        except ConnectionError:
            pass
        return False


class Ended(Exception):
    """The server has sent CLOSE."""

    def __init__(self, code):
        super().__init__(f"CLOSE {code}")
        self.code = code


class Refused(Exception):
    """The server has answered a handshake with a status other than 101."""

    def __init__(self, status, answer):
        super().__init__(answer)
        self.status = status


class Link:
    """A resumable connection. `send` and `receive` survive cuts.

    `first_port` is the port for the first connection. With the TLS settings `tls`, connections are encrypted.
    """

    def __init__(self, port, path, name, tls=None, first_port=None):
        self.port, self.path, self.random = port, path, random.Random(f"link {name}")
        self.tls, self.first_port = tls, first_port or port
        self.token, self.writer, self.cuts, self.leaving = "new", None, 0, False
        self.received = self.sent = self.taken = 0
        self.kept = collections.deque()  # the messages after number `taken`
        self.bytes_in = self.bytes_out = 0

    def send(self, payload, opcode=TEXT):
        self.sent += 1
        self.kept.append((opcode, payload))
        self.bytes_out += len(payload)
        if self.writer:
            self.write(opcode, payload)

    def confirm(self, taken):
        """Records that the server has received this many messages."""
        assert taken <= self.sent, (taken, self.sent)
        while self.taken < taken:
            self.kept.popleft()
            self.taken += 1

    async def receive(self):
        """Returns the opcode and the payload of the next message."""
        while True:
            try:
                if not self.writer:
                    await asyncio.wait_for(self.connect(), PATIENCE)
                return await asyncio.wait_for(self.read_message(), PATIENCE)
            except LOST:
                self.lose()
            except TimeoutError:
                state = f"received {self.received}, sent {self.sent}, the server has taken {self.taken} or more"
                raise TimeoutError(f"{self.path} {self.token.split('-')[0]}: nothing came; {state}") from None

    async def close(self, ignored=()):
        """Leaves with CLOSE 1000. Messages that begin with `ignored` may still come."""
        self.leaving = True
        while True:
            try:
                if not self.writer:
                    await asyncio.wait_for(self.connect(), PATIENCE)
                self.write(CLOSE, b"\x03\xe8")
                while True:
                    opcode, payload = await asyncio.wait_for(self.read_message(), PATIENCE)
                    assert payload.startswith(ignored), f"a message after the last one: {opcode} {payload[:80]}"
            except LOST:
                self.lose()
            except Refused as refused:
                # The answer to our CLOSE was lost.
                assert refused.status == 410, refused
                return
            except Ended as ended:
                assert ended.code == 1000, ended
                return self.writer.close()

    def lose(self):
        self.cuts += 1
        if self.writer:
            reset(self.writer)
            self.writer = None

    def write(self, opcode, payload):
        length = len(payload)
        if length < 126:
            head = struct.pack("!BB", 0x80 | opcode, 0x80 | length)
        elif length < 1 << 16:
            head = struct.pack("!BBH", 0x80 | opcode, 0xFE, length)
        else:
            head = struct.pack("!BBQ", 0x80 | opcode, 0xFF, length)
        self.writer.write(head + b"\0\0\0\0")  # the mask
        self.writer.write(payload)

    async def connect(self):
        """Connects with the latest token that has arrived, and resends what the server has not received."""
        in_field, notice = self.random.random() < 0.5, self.random.random() < 0.5
        field = f"Outrigger-Resume: {self.token}; received={self.received}\r\n" if in_field else ""
        query = [] if in_field else [f"resume={self.token}", f"received={self.received}"]
        query = "&".join(query + ["notice=1"] * notice)
        port = self.first_port if self.token == "new" else self.port
        self.reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, limit=MIB, ssl=self.tls, server_hostname="localhost" if self.tls else None
        )
        try:
            writer.write(
                f"GET {self.path}?{query} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{field}\r\n".encode()
            )
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            if not head.startswith("HTTP/1.1 101 "):
                raise Refused(int(head.split()[1]), f"{self.path}, {self.token[:8]}, received {self.received}: {head}")
            (value,) = [line.partition(": ")[2] for line in head.split("\r\n") if line.lower().startswith("outrigger-resume:")]
            token, _, taken = value.partition("; received=")
            taken = int(taken or 0)
            if notice:
                first, length = await self.reader.readexactly(2)
                told = json.loads(await self.reader.readexactly(length))
                assert first == 0x81 and told == {"outrigger": {"resume": token, "received": taken}}, told
        except BaseException:
            reset(writer)
            raise
        assert self.taken <= taken <= self.sent, f"the server has taken {taken} of {self.taken} to {self.sent}"
        self.token, self.writer = token, writer
        self.confirm(taken)
        for opcode, payload in self.kept:
            self.write(opcode, payload)

    async def read_frame(self):
        first, length = await self.reader.readexactly(2)
        if length == 126:
            (length,) = struct.unpack("!H", await self.reader.readexactly(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", await self.reader.readexactly(8))
        return first, await self.reader.readexactly(length)

    async def read_message(self):
        opcode, parts = None, []
        while True:
            first, payload = await self.read_frame()
            if first == 0x80 | PING:
                assert payload == b"%d" % self.received, f"PING {payload} after {self.received} messages"
                self.write(PONG, payload)
            elif first == 0x80 | CLOSE:
                if not self.leaving:
                    self.write(CLOSE, payload)
                    self.writer.close()
                raise Ended(int.from_bytes(payload[:2]) if payload else None)
            else:
                assert first & 0x70 == 0 and (first & 15 == 0) == (opcode is not None), first
                opcode = opcode or first & 15
                parts.append(payload)
                if first & 0x80:
                    payload = b"".join(parts)
                    self.received += 1
                    self.bytes_in += len(payload)
                    return opcode, payload

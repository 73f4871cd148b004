"""Checks of tests/tls/stress.py: what happens after the handshake, from single bytes to slow readers."""

import contextlib
import hashlib
import itertools
import os
import random
import re
import select
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

from peers import KIB, MIB, PATIENCE, connect, frame, get, open_client, read_fragment, serving, upgrade
from handshakes import in_threads
from tls_peers import (
    BINARY, CLOSE, PING, PONG, TEXT, VERSIONS, Bystander, converse, dial, echo, ends, join, leave, open_tls, read_message,
    watching,
)

PATTERN = hashlib.shake_256(b"tls").digest(MIB)


def fragments(payload, sizes, opcode=BINARY):
    """The frames of a message. `sizes` yields the lengths of the fragments."""
    frames, at = bytearray(), 0
    if not payload:
        return frame(opcode, payload)
    while at < len(payload):
        size = min(next(sizes), len(payload) - at)
        frames += frame(0 if at else opcode, payload[at : at + size], 0x80 if at + size == len(payload) else 0)
        at += size
    return bytes(frames)


def read_whole(client):
    """Returns a message that may come in fragments, and answers the PINGs before and within it."""
    kind, parts = None, []
    while True:
        opcode, payload, last = read_fragment(client)
        if opcode == PING:
            client.sendall(frame(PONG, payload))
            continue
        kind = kind or opcode
        parts.append(payload)
        if last:
            return kind, b"".join(parts)


def small_pieces(binary, certificates):
    """conversations in records of a byte, in segments of a byte, in both, and messages of 1 MiB in fragments"""
    with watching(binary, certificates) as server:
        for version in VERSIONS:
            context = certificates.context(version)

            def talk(pieces):
                record, segment, longest = pieces
                source = random.Random(repr(pieces))
                with open_tls(server.port, context, record=record, segment=segment) as client:
                    sizes = [0, 1, 125, 126, 127, longest // 7, longest]
                    for number, size in enumerate(sizes):
                        payload = PATTERN[:size] if number % 2 else PATTERN[:size].hex()[:size].encode()
                        opcode = BINARY if number % 2 else TEXT
                        lengths = iter(lambda: source.randrange(1, max(2, size // 5)), None)
                        client.sendall(fragments(payload, lengths, opcode))
                        got = read_whole(client)
                        assert got == (opcode, payload), f"record {record}, segment {segment}: {size} bytes came back wrong"
                    # Many messages that wait for nothing.
                    several = [PATTERN[at : at + at % 200] for at in range(50)]
                    client.sendall(b"".join(frame(BINARY, payload) for payload in several))
                    for payload in several:
                        assert read_whole(client) == (BINARY, payload)
                    assert leave(client), "the server ended without close_notify"

            kinds = [(1, None, 2000), (16384, 1, 20_000), (1, 1, 1000), (7, 13, 5000), (16384, None, MIB), (5000, 1460, MIB)]
            with Bystander(server.port, server.context):
                in_threads(talk, kinds)


def long_messages(binary, certificates):
    """16 messages of 1 MiB in random fragments at once, both directions compared"""
    with watching(binary, certificates) as server:
        def talk(number):
            source = random.Random(number)
            with open_tls(server.port, certificates.context(VERSIONS[number % 2])) as client:
                for _ in range(2):
                    payload = PATTERN[number:] + PATTERN[:number]
                    client.sendall(fragments(payload, iter(lambda: source.randrange(1, 200_000), None)))
                    assert read_whole(client) == (BINARY, payload), "a message of 1 MiB came back wrong"
                leave(client)

        in_threads(talk, range(8))


def many_records(binary, certificates):
    """messages of up to 1 MiB in records of 20 to 5000 bytes that arrive at once, and thousands of short messages"""
    with watching(binary, certificates) as server:
        for version in VERSIONS:
            context = certificates.context(version)

            def talk(size):
                with open_tls(server.port, context, record=size) as client:
                    client.settimeout(10)
                    for length in 20_000, 140_000, 600_000, MIB:
                        client.raw.sendall(client.encrypt(frame(BINARY, PATTERN[:length])))
                        assert read_whole(client) == (BINARY, PATTERN[:length]), f"{length} bytes in records of {size}"
                    several = [b"%d" % number for number in range(3000)]
                    client.raw.sendall(client.encrypt(b"".join(frame(TEXT, text) for text in several)))
                    for text in several:
                        assert read_whole(client) == (TEXT, text), f"message {text!r} in records of {size}"
                    assert leave(client), "the server ended without close_notify"

            with Bystander(server.port, server.context):
                in_threads(talk, [20, 64, 200, 1000, 5000])


# `openssl s_client`, whose commands renegotiate and change keys.


class OpenSsl:
    def __init__(self, port, certificates, *options):
        self.messages = tempfile.NamedTemporaryFile(prefix="outrigger-tls-")
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-CAfile", certificates.path("ca.pem")]
        command += ["-alpn", "http/1.1", "-msg", "-msgfile", self.messages.name, *options]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.said = b""

    def say(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def wait_for(self, text):
        """Reads until this text. Drops what came before it."""
        while text not in self.said:
            assert self.more(), f"openssl ended without {text!r}: {self.said[-400:]!r}"
        self.said = self.said.partition(text)[2]

    def more(self):
        assert select.select([self.process.stdout], [], [], 20)[0], f"openssl says nothing more: {self.said[-400:]!r}"
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        self.said += data
        return data

    def echo(self, text):
        self.say(frame(TEXT, text))
        self.wait_for(bytes([0x80 | TEXT, len(text)]) + text)

    def join(self):
        self.say(upgrade())
        self.wait_for(b"HTTP/1.1 101 ")
        self.wait_for(b"\r\n\r\n")

    def count(self, pattern):
        with open(self.messages.name) as file:
            return len(re.findall(pattern, file.read()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.messages.close()


def renegotiation(binary, certificates):
    """a client of TLS 1.2 that renegotiates is refused, and the others notice nothing"""
    with watching(binary, certificates) as server, Bystander(server.port, server.context):
        for rounds in 1, 3:
            with OpenSsl(server.port, certificates, "-tls1_2") as client:
                client.join()
                for number in range(rounds):
                    client.echo(b"before %d" % number)
                hellos = r">>> .*Handshake.*ClientHello"
                before = client.count(hellos)
                client.say(b"R\n")
                client.wait_for(b"RENEGOTIATING")
                # It ends when it is refused.
                while client.more():
                    pass
                assert client.count(hellos) == before + 1, "openssl did not try to renegotiate"
                assert client.count(r"<<< .*Handshake.*ServerHello\n") == 1, "the server renegotiated"


class Relay:
    """Passes the bytes of one connection on. While `limit` is set, it holds back what the client sends after so many bytes."""

    def __init__(self, port):
        self.listener, self.limit, self.count = socket.create_server(("127.0.0.1", 0)), None, 0
        self.port = self.listener.getsockname()[1]
        self.changed = threading.Condition()
        self.ends, self.server = [], connect(port)
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        client, _ = self.listener.accept()
        self.ends = [client, self.server]
        threading.Thread(target=self.downward, args=(client,), daemon=True).start()
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                with self.changed:
                    while self.limit is not None and data:
                        part, data = data[: self.limit], data[self.limit :]
                        self.limit -= len(part)
                        self.server.sendall(part)
                        if data:
                            self.changed.wait()
                    self.server.sendall(data)
            self.server.shutdown(socket.SHUT_WR)

    def downward(self, client):
        with contextlib.suppress(OSError):
            while data := self.server.recv(1 << 16):
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)

    def hold(self, limit):
        with self.changed:
            self.limit = limit
            self.changed.notify_all()

    def close(self):
        self.listener.close()
        for end in self.ends:
            with contextlib.suppress(OSError):
                # This ends the threads, too.
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def split_handshake(binary, certificates):
    """a ClientHello after the handshake that comes in pieces while the server sends PINGs"""
    # Such a ClientHello takes more than one record.
    long = ["-tls1_2", "-max_send_frag", "512", "-servername", ".".join(["x" * 50] * 4), "-cipher", "ALL:COMPLEMENTOFALL@SECLEVEL=0"]
    with watching(binary, certificates, "--ping-interval", "1s", "--ping-timeout", "10s") as server:

        def split(limit):
            relay = Relay(server.port)
            with OpenSsl(relay.port, certificates, *long) as client:
                client.join()
                client.echo(b"before")
                relay.hold(limit)
                client.say(b"R\n")
                client.wait_for(b"RENEGOTIATING")
                # OpenSSL gives up at the first PING, which it does not expect now.
                time.sleep(2.5)
                relay.hold(None)
                while client.more():
                    pass
            relay.close()

        # The first record has 541 bytes.
        in_threads(split, [3, 100, 540, 541, 542, 560])
        server.serves_quickly()


def key_updates(binary, certificates):
    """KeyUpdate of TLS 1.3, with and without a request for one of the server"""
    with watching(binary, certificates) as server, OpenSsl(server.port, certificates, "-tls1_3") as client:
        client.join()
        client.echo(b"first")
        for number in range(40):
            # A line that begins with one of these letters is a command.
            client.say(b"K\n" if number % 2 else b"k\n")
            client.wait_for(b"KEYUPDATE")
            client.echo(b"after %d" % number)
        sent, came = client.count(r">>> .*KeyUpdate"), client.count(r"<<< .*KeyUpdate")
        assert (sent, came) == (40, 20), f"{sent} were sent, and {came} came"
        return f"{sent} of the client, {came} of the server"


# The end of a connection.


def endings(binary, certificates):
    """with and without close_notify, half-closed, reset; the server sends close_notify before FIN"""
    with watching(binary, certificates) as server:
        causes = {}

        def count():
            metrics = server.settle()
            name = "outrigger_disconnects_total"
            now = {key.partition('"')[2].rstrip('"}'): value for key, value in metrics.items() if key.startswith(name)}
            changed = {cause: value - causes.get(cause, 0) for cause, value in now.items() if value != causes.get(cause, 0)}
            causes.update(now)
            return changed

        count()
        for version in VERSIONS:
            context = certificates.context(version)
            name = version.name
            # FIN after a message, and after a part of a record.
            for part in None, 3, 40:
                client = open_tls(server.port, context)
                echo(client)
                if part:
                    client.raw.sendall(client.encrypt(frame(TEXT, b"x" * 100))[:part])
                client.raw.shutdown(socket.SHUT_WR)
                ends(client)
                client.close()
                assert count() in ({"eof": 1}, {"read_error": 1}), f"{name}: FIN without close_notify: {causes}"
            # close_notify, and then nothing.
            client = open_tls(server.port, context)
            client.notify()
            ends(client)
            assert client.notified, f"{name}: no close_notify in answer to one"
            client.close()
            got = count()
            assert got == {"eof": 1}, f"{name}: close_notify without CLOSE: {got}"
            # RST.
            client = open_tls(server.port, context)
            client.reset()
            got = count()
            assert got in ({"eof": 1}, {"read_error": 1}), f"{name}: RST: {got}"
            # CLOSE.
            client = open_tls(server.port, context)
            assert leave(client), f"{name}: no close_notify after CLOSE"
            got = count()
            assert got == {"close": 1}, f"{name}: CLOSE: {got}"
            # CLOSE and close_notify at once, without waiting.
            client = open_tls(server.port, context)
            client.sendall(frame(CLOSE, b"\x03\xe8"))
            client.notify()
            assert ends(client) == b"\x88\x02\x03\xe8" and client.notified, f"{name}: CLOSE and close_notify at once"
            client.close()
            got = count()
            assert got == {"close": 1}, f"{name}: CLOSE and close_notify: {got}"
            # A fatal alert instead of an end.
            client = open_tls(server.port, context)
            client.raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
            ends(client.raw)
            client.close()
            got = count()
            assert list(got.values()) == [1], f"{name}: a record with a wrong tag: {got}"
            # HTTP.
            with dial(server.port, context) as client:
                client.sendall(get("/healthz", b"Connection: close\r\n"))
                answer = ends(client)
                assert answer.startswith(b"HTTP/1.1 200 ") and client.notified, f"{name}: {answer[:40]!r}, {client.notified}"
            with dial(server.port, context) as client:
                client.sendall(get("/healthz"))
                client.notify()
                assert ends(client).startswith(b"HTTP/1.1 200 ") and client.notified, f"{name}: a call and close_notify"
        return f"in all: {({cause: int(value) for cause, value in causes.items() if value})}"


def half_closed(binary, certificates):
    """a client that sends 200 messages and close_notify or FIN at once gets what a plain client gets that sends FIN"""
    payloads = [PATTERN[at : at + 1000] for at in range(200)]
    messages = b"".join(frame(BINARY, payload) for payload in payloads)

    def echoes(client):
        came = []
        with contextlib.suppress(ConnectionError):
            while True:
                opcode, payload = read_message(client)
                if opcode == CLOSE:
                    break
                came.append(payload)
        return came

    with serving(binary, {}, []) as server:
        with open_client(server.port) as client:
            client.sendall(messages)
            client.shutdown(socket.SHUT_WR)
            plain = len(echoes(client))
    with watching(binary, certificates) as server:
        for version, size, notifies in itertools.product(VERSIONS, [16384, 1000, 50], [True, False]):
            with open_tls(server.port, certificates.context(version), record=size) as client:
                data = client.encrypt(messages)
                if notifies:
                    with contextlib.suppress(ssl.SSLWantReadError):
                        client.tls.unwrap()
                    data += client.outgoing.read()
                client.raw.sendall(data)
                client.raw.shutdown(socket.SHUT_WR)
                came, case = echoes(client), f"{version.name}, records of {size}, {'close_notify' if notifies else 'FIN'}"
                assert came == payloads[: len(came)] and len(came) == plain, f"{case}: {len(came)} echoes, plain {plain}"
                assert client.recv(1) == b"" and client.notified, f"{case}: no close_notify at the end"
    return f"{plain} echoes"


# Clients that cost memory.

FLOOD = """
import json, sys
for line in sys.stdin:
    event = json.loads(line)
    if event["event"] == "message":
        for number in range(int(event["text"])):
            print(json.dumps({"cmd": "send", "client": event["client"], "text": "x" * 65536}), flush=True)
"""


def slow_reader(binary, certificates):
    """a client that does not read meets --max-outbound as a plain one does, and memory stays bounded"""
    routes = {"/app": {"app": {"command": [sys.executable, "-c", FLOOD]}}}
    most = ["--max-outbound", "4MiB", "--ping-interval", "0", "--close-timeout", "1s"]
    peaks = {}

    def hold_back(client, server):
        client.sendall(frame(TEXT, b"1000"))
        deadline = time.monotonic() + 30
        while b"slow_consumer" not in server.log():
            assert time.monotonic() < deadline, "the client was not disconnected for its unread output"
            time.sleep(0.05)
        came = ends(client)
        client.close()
        return came

    with serving(binary, routes, most) as server:
        before = server.memory("VmHWM")
        hold_back(open_client(server.port, "/app", receive_buffer=16384), server)
        peaks["plain"] = server.memory("VmHWM") - before
    for version in VERSIONS:
        with watching(binary, certificates, *most, routes=routes) as server:
            converse(server.port, server.context)
            before = server.server.memory("VmHWM")
            context = certificates.context(version)
            client = join(dial(server.port, context, receive_buffer=16384), "/app")
            hold_back(client, server.server)
            peaks[version.name] = server.server.memory("VmHWM") - before
            metrics = server.settle()
            assert metrics['outrigger_disconnects_total{cause="slow_consumer"}'] == 1, "the cause is not slow_consumer"
    told = ", ".join(f"{name} {peak / MIB:.1f} MiB" for name, peak in peaks.items())
    assert max(peaks.values()) < peaks["plain"] + 4 * MIB, told
    return told


def slow_echoes(binary, certificates):
    """a client that sends 16 MiB and reads no echo is not read either; when it reads, it gets everything"""
    payload = PATTERN[: 256 * KIB]
    with watching(binary, certificates, "--ping-interval", "0") as server:
        converse(server.port, server.context)
        before = server.server.memory("VmHWM")
        for version in VERSIONS:
            client = open_tls(server.port, certificates.context(version), receive_buffer=16384)
            data, sent = client.encrypt(frame(BINARY, payload) * 64), 0
            client.raw.setblocking(False)
            quiet = time.monotonic()
            while sent < len(data) and time.monotonic() < quiet + 1:
                with contextlib.suppress(BlockingIOError):
                    sent += client.raw.send(data[sent : sent + 65536])
                    quiet = time.monotonic()
                time.sleep(0.001)
            assert sent < len(data), "the server takes 16 MiB from a client that reads nothing"
            came = bytearray()
            while len(came) < 64 * len(payload):
                if sent < len(data) and select.select([], [client.raw], [], 0)[1]:
                    sent += client.raw.send(data[sent : sent + 65536])
                elif select.select([client.raw], [], [], PATIENCE)[0]:
                    client.incoming.write(client.raw.recv(65536))
                    with contextlib.suppress(ssl.SSLWantReadError):
                        while True:
                            came += client.tls.read(65536)
                # The frames have heads of 10 bytes.
                if len(came) >= 64 * (len(payload) + 10):
                    break
            wanted = (b"\x82\x7f" + len(payload).to_bytes(8) + payload) * 64
            assert bytes(came) == wanted, f"{version.name}: the echoes are not what was sent"
            client.raw.setblocking(True)
            leave(client)
        grown = server.server.memory("VmHWM") - before
        assert grown < 4 * MIB, f"it cost {grown / MIB:.1f} MiB"
        return f"{grown / MIB:.1f} MiB"


def stalled(binary, certificates):
    """200 clients that send 10,000 bytes of a record of 16 KiB and stall cost at most 24 KiB each, until the ping timeout"""
    with watching(binary, certificates, "--ping-interval", "2s", "--ping-timeout", "2s") as server:
        for version in VERSIONS:
            context = certificates.context(version)
            converse(server.port, context)
            clients = [open_tls(server.port, context) for _ in range(200)]
            before = server.server.memory("VmRSS")
            begin = time.monotonic()
            for client in clients:
                client.raw.sendall(client.encrypt(frame(BINARY, PATTERN[:16_000]))[:10_000])
            time.sleep(0.3)
            grown = (server.server.memory("VmRSS") - before) / len(clients)
            assert grown < 24 * KIB, f"{version.name}: each costs {grown / KIB:.1f} KiB"
            for client in clients:
                ends(client)
                client.close()
            took = time.monotonic() - begin
            assert took < 2 * 2 + 4, f"{version.name}: they ended after {took:.1f} s"
        metrics = server.settle()
        ended = metrics['outrigger_disconnects_total{cause="ping_timeout"}']
        assert ended == 400, f"{ended:.0f} of 400 ended by the ping timeout"
        return f"{grown / KIB:.1f} KiB each with TLS 1.3, ended after {took:.1f} s"

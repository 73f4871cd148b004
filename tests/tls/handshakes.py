"""Checks of tests/tls/stress.py: handshakes, whole, abandoned, changed and absurd."""

import itertools
import json
import random
import re
import socket
import ssl
import struct
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

from peers import KIB, MIB, connect, get, open_client, serving, upgrade
from tls_peers import (
    TLS12, TLS13, VERSIONS, Abandoned, Bystander, Tls, Watched, converse, dial, echo, ends, join, leave, open_tls, reset,
    watching,
)

SHORT = ["--handshake-timeout", "2s"]
AT_ONCE = 32


def alert_of(port, context):
    """Tries to connect. Returns the error that tells which alert the server has sent."""
    try:
        dial(port, context).close()
    except ssl.SSLError as error:
        return str(error).lower()
    raise AssertionError("the handshake succeeded")


def versions(binary, certificates):
    """TLS 1.2 and 1.3 with ALPN http/1.1; a client that offers only h2, and one of TLS 1.1, are refused"""
    with watching(binary, certificates) as server:
        for version in VERSIONS:
            for protocols, chosen in (("http/1.1",), "http/1.1"), (("h2", "http/1.1"), "http/1.1"), ((), None):
                with open_tls(server.port, certificates.context(version, protocols=protocols)) as client:
                    got = client.tls.selected_alpn_protocol()
                    assert got == chosen, f"{version.name}: of {protocols} the server chose {got}"
                    assert client.tls.version() == version.name.replace("_", "."), client.tls.version()
                    name, _, bits = client.tls.cipher()
                    assert "ECDHE" in name or version == TLS13, name
                    assert client.tls.compression() is None
                    echo(client)
                    assert leave(client), "the server ended without close_notify"
            got = alert_of(server.port, certificates.context(version, protocols=["h2"]))
            assert "no application protocol" in got, f"{version.name}: a client of h2 got {got}"
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            old = certificates.context(ssl.TLSVersion.TLSv1_1)
        old.set_ciphers("ALL:@SECLEVEL=0")
        got = alert_of(server.port, old)
        assert "alert protocol version" in got or "alert handshake failure" in got, f"a client of TLS 1.1 got {got}"
        metrics = server.settle()
        failed = metrics['outrigger_tls_handshakes_total{outcome="failed"}']
        assert failed == 3, f"{failed:.0f} failed handshakes were counted, not 3"


def resumption(binary, certificates):
    """a session is resumed with TLS 1.2 and 1.3, and counted; a server that starts anew does not know it"""
    with watching(binary, certificates) as server:
        before, sessions = server.metrics(), {}
        for version in VERSIONS:
            context = certificates.context(version)
            session, resumed = converse(server.port, context)
            assert not resumed
            for _ in range(5):
                session, resumed = converse(server.port, context, session=session)
                assert resumed, f"{version.name}: a session was not resumed"
            sessions[version] = context, session
        after = server.metrics()
        name = 'outrigger_tls_handshakes_total{outcome="resumed"}'
        assert after[name] - before[name] == 10, f"{after[name] - before[name]:.0f} resumed handshakes were counted, not 10"
        name = 'outrigger_tls_handshakes_total{outcome="full"}'
        # The metrics are asked for with a new connection each time.
        assert after[name] - before[name] == 3, f"{after[name] - before[name]:.0f} full handshakes were counted, not 3"
    with watching(binary, certificates) as server:
        for context, session in sessions.values():
            assert not converse(server.port, context, session=session)[1], "a session of another process was resumed"


class Recorder(Tls):
    """Keeps what it sends."""

    sent = b""

    def send_raw(self, data):
        self.sent += data
        super().send_raw(data)


def flights(port, context):
    """Returns the ClientHello, and all that a client sends in a handshake."""
    with connect(port) as raw:
        client = Recorder(raw, context)
        try:
            client.tls.do_handshake()
        except ssl.SSLWantReadError:
            client.flush()
        hello = client.sent
        both = client.handshake().sent
        echo(join(client))
        leave(client)
    return hello, both


def close(raw):
    raw.close()


def half_close(raw):
    raw.shutdown(socket.SHUT_WR)
    ends(raw)
    raw.close()


def in_threads(function, *lists):
    """Calls a function in threads. Raises what it raises first."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(function, *lists))


def abandoned(binary, certificates):
    """a handshake is abandoned after each of its bytes: with FIN, RST and half-close"""
    with watching(binary, certificates, *SHORT) as server:
        count = 0
        for version in VERSIONS:
            context = certificates.context(version)
            length = len(flights(server.port, context)[1])
            with Bystander(server.port, server.context):
                for way in close, reset, half_close:

                    def abandon(limit):
                        raw = connect(server.port)
                        if limit:
                            try:
                                # The last limit abandons the complete handshake.
                                Tls(raw, context, limit=limit).handshake()
                            except Abandoned:
                                pass
                        way(raw)

                    in_threads(abandon, range(length + 1))
                    count += length + 1
            server.settle()
        server.serves_quickly()
        failed = server.metrics()['outrigger_tls_handshakes_total{outcome="failed"}']
        return f"{count} handshakes, of which the server counts {failed:.0f} as failed"


def silent(binary, certificates):
    """a handshake that stops after any of its bytes is ended by --handshake-timeout, and costs little"""
    with watching(binary, certificates, "--handshake-timeout", "3s") as server:
        context = certificates.context(TLS13)
        hello, _ = flights(server.port, context)
        memory = server.server.memory("VmRSS")
        begin, waiting = time.monotonic(), []
        for at in range(1, len(hello) + 1):
            raw = connect(server.port)
            raw.sendall(hello[:at])
            waiting.append(raw)
        grown = server.server.memory("VmRSS") - memory
        for raw in waiting:
            ends(raw)
            raw.close()
        took = time.monotonic() - begin
        assert 2.5 < took < 3 + 3, f"they ended after {took:.1f} s"
        assert grown < len(waiting) * 8 * KIB + MIB, f"{len(waiting)} of them cost {grown / KIB:.0f} KiB"
        return f"{len(waiting)} of them cost {grown / len(waiting) / KIB:.1f} KiB each"


def flipped(binary, certificates):
    """a handshake with other bits in any of its bytes fails, or succeeds only where the protocol ignores the bit"""
    with watching(binary, certificates, *SHORT) as server:
        count, harmless = 0, []
        for version in VERSIONS:
            context = certificates.context(version)
            _, sent = flights(server.port, context)
            unchecked, at = set(), 0
            while at < len(sent):
                # The version in the head of a plaintext record, and the type in that of an encrypted one (RFC 8446 section 5).
                unchecked |= {at, at + 1, at + 2} if sent[at] == 23 else {at + 1, at + 2}
                at += 5 + int.from_bytes(sent[at + 3 : at + 5])
            for mask in (0xFF, None):

                def change(at):
                    flip = at, mask or 1 << at % 8
                    raw = connect(server.port)
                    client = Tls(raw, context, flip=flip)
                    try:
                        client.handshake()
                        echo(join(client))
                    except (ssl.SSLError, ConnectionError):
                        raw.close()
                        return
                    harmless.append(at)
                    assert at in unchecked, f"{version.name}: byte {at} had {flip[1]:#x} flipped, and nobody noticed"
                    leave(client)

                with Bystander(server.port, server.context):
                    in_threads(change, range(len(sent)))
                count += len(sent)
            server.settle()
        server.serves_quickly()
        return f"{count} handshakes, {len(harmless)} of them succeeded, with another version or type in the head of a record"


# Garbage.


def record(kind, payload, version=b"\x03\x03", length=None):
    return bytes([kind]) + version + struct.pack("!H", len(payload) if length is None else length) + payload


def huge_hello(hello, size):
    """A ClientHello with so much padding."""
    body = bytearray(hello[9:])
    at = 2 + 32
    at += 1 + body[at]
    at += 2 + int.from_bytes(body[at : at + 2])
    at += 1 + body[at]
    extensions = bytes(body[at + 2 :]) + struct.pack("!HH", 0xFAFA, size) + bytes(size)
    body = bytes(body[:at]) + struct.pack("!H", len(extensions)) + extensions
    return b"\x01" + len(body).to_bytes(3) + body


def garbage_kinds(hello):
    """Returns, by name, what is sent first and what is then sent again and again."""
    source = random.Random(20)
    handshake = huge_hello(hello, 40_000)
    pieces = b"".join(record(22, handshake[at : at + 1], b"\x03\x01") for at in range(len(handshake)))
    large = b"".join(record(22, handshake[at : at + 16384], b"\x03\x01") for at in range(0, len(handshake), 16384))
    return {
        "random bytes": (source.randbytes(5000), b""),
        "random bytes without end": (b"", source.randbytes(16384)),
        "zeros": (b"", bytes(16384)),
        "a record of 65,535 bytes": (record(22, b"", b"\x03\x01", 0xFFFF), bytes(16384)),
        "a record of 18,433 bytes": (record(22, b"", b"\x03\x01", 18_433), bytes(16384)),
        "a full record without sense": (record(22, source.randbytes(16384), b"\x03\x01"), b""),
        "a ClientHello of 16 MiB": (record(22, b"\x01\xff\xff\xff" + bytes(16000)), record(22, bytes(16384))),
        "a ClientHello of 64 KiB that never ends": (record(22, b"\x01\x00\xff\xff"), record(22, b"\0") * 1000),
        "a ClientHello of 40 KB in pieces of a byte": (pieces, b""),
        "a ClientHello of 40 KB": (large, b""),
        "a ClientHello again and again": (hello, hello),
        "empty handshake records": (b"", record(22, b"") * 1000),
        "empty records of data": (b"", record(23, b"") * 1000),
        "data before the handshake": (record(23, source.randbytes(1000)), b""),
        "empty records of data after a ClientHello": (hello, record(23, b"") * 1000),
        "ChangeCipherSpec without end": (b"", record(20, b"\x01") * 1000),
        "ChangeCipherSpec without end after a ClientHello": (hello, record(20, b"\x01") * 1000),
        "warnings without end": (b"", record(21, b"\x01\x5a") * 1000),
        "warnings without end after a ClientHello": (hello, record(21, b"\x01\x5a") * 1000),
        "close_notify": (record(21, b"\x01\x00"), b""),
        "a fatal alert": (record(21, b"\x02\x28"), b""),
        "a heartbeat": (record(24, b"\x01\x40\x00" + bytes(16)), b""),
        "handshake messages without end": (b"", record(22, b"\x0b\0\0\x01\0" * 3000)),
        "a ClientHello of SSL 2": (b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10" + bytes(100), b""),
        "a ClientHello of SSL 3": (record(22, b"\x01\0\0\x29\x03\x00" + bytes(32) + b"\0\0\2\0\x35\1\0", b"\x03\x00"), b""),
        "SSH": (b"SSH-2.0-OpenSSH_9.2\r\n", b""),
        "HTTP/2 without TLS": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""),
    }


def garbage(binary, certificates):
    """garbage on the TLS port is ended, costs no memory, and delays nobody"""
    with watching(binary, certificates, *SHORT, "--close-timeout", "2s") as server:
        hello, _ = flights(server.port, certificates.context(TLS12))
        kinds = garbage_kinds(hello)
        memory = server.server.memory("VmRSS")
        with Bystander(server.port, server.context):

            def send(name):
                first, again = kinds[name]
                with connect(server.port) as raw:
                    raw.settimeout(10)
                    # The server discards what follows its alert, so that a reset does not destroy it, for a while.
                    deadline = time.monotonic() + 5
                    try:
                        raw.sendall(first)
                        while again:
                            raw.sendall(again)
                            assert time.monotonic() < deadline, f"{name}: taken for 5 s"
                    except ConnectionError:
                        return
                    try:
                        ends(raw)
                    except AssertionError as error:
                        raise AssertionError(f"{name}: {error}") from None

            for _ in range(3):
                in_threads(send, kinds)
        server.settle()
        server.serves_quickly()
        grown = server.server.memory("VmHWM") - memory
        assert grown < 8 * MIB, f"it cost {grown / MIB:.1f} MiB"
        return f"{len(kinds)} kinds, {grown / MIB:.1f} MiB"


def fragmented(binary, certificates):
    """a ClientHello in records of 1 to 100 bytes succeeds, and may end after each record in any way"""
    ways = {
        "FIN": lambda raw: raw.shutdown(socket.SHUT_WR),
        "an alert": lambda raw: raw.sendall(record(21, b"\x02\x28")),
        "close_notify": lambda raw: raw.sendall(record(21, b"\x01\x00")),
        "data": lambda raw: raw.sendall(record(23, bytes(50))),
        "ChangeCipherSpec": lambda raw: raw.sendall(record(20, b"\x01")),
        "a bad record": lambda raw: raw.sendall(record(22, b"", length=0xFFFF)),
        "plain text": lambda raw: raw.sendall(get("/")),
        "nothing": lambda raw: None,
    }
    with watching(binary, certificates, *SHORT) as server, Bystander(server.port, server.context):

        def send(version, size, way):
            context = certificates.context(version)
            limit = None if way is None else 0
            while True:
                with connect(server.port) as raw:
                    client = Tls(raw, context)
                    try:
                        client.tls.do_handshake()
                    except ssl.SSLWantReadError:
                        hello = client.outgoing.read()[5:]
                    pieces = [record(22, hello[at : at + size], b"\x03\x01") for at in range(0, len(hello), size)]
                    raw.sendall(b"".join(pieces[:limit]))
                    if limit is None:
                        echo(join(client.handshake()))
                        leave(client)
                        return 1
                    try:
                        ways[way](raw)
                        ends(raw)
                    except ConnectionError:
                        pass
                # The server waits for what is silent, so that is tried a few times only.
                limit += 1 + len(pieces) // 3 if way in ("nothing", "ChangeCipherSpec") else 1
                if limit > len(pieces):
                    return limit

        cases = list(itertools.product(VERSIONS, [1, 3, 4, 7, 100], [None, *ways]))
        return f"{sum(in_threads(send, *zip(*cases)))} handshakes"


# The PROXY protocol.

PROXIED = "203.0.113.9"
PROXY_V1 = b"PROXY TCP4 %s 198.51.100.1 4000 443\r\n" % PROXIED.encode()
PROXY_V2 = (
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11" + struct.pack("!H", 12) + socket.inet_aton(PROXIED) + socket.inet_aton("198.51.100.1")
    + struct.pack("!HH", 4000, 443)
)


def proxy_protocol(binary, certificates):
    """a PROXY header of either version before the ClientHello, split after each byte of both"""
    proxy = "127.0.0.2"
    with watching(binary, certificates, *SHORT, "--proxy-protocol", proxy) as server:
        count = 0
        for version, header in (TLS12, PROXY_V1), (TLS13, PROXY_V2), (TLS13, PROXY_V1), (TLS12, PROXY_V2):
            context = certificates.context(version)

            def split(at):
                raw = connect(server.port, proxy)
                client = Tls(raw, context)
                try:
                    client.tls.do_handshake()
                except ssl.SSLWantReadError:
                    first = header + client.outgoing.read()
                if at < len(first):
                    raw.sendall(first[:at])
                    time.sleep(0.002)
                    raw.sendall(first[at:])
                else:
                    for byte in first:
                        raw.sendall(bytes([byte]))
                echo(join(client.handshake()))
                leave(client)

            length = len(header) + len(flights(server.port, context)[0])
            in_threads(split, range(1, length + 1))
            count += length
        with open_tls(server.port, server.context, source=proxy, first=PROXY_V2) as client:
            status = server.call("/status")
            assert f'"{PROXIED}:4000"' in status, f"the status lacks {PROXIED}: {status}"
            leave(client)
        # Without the header, or with the header within TLS, nothing is served.
        for first in b"", b"PROXY UNKNOWN", PROXY_V1[:-2] + b"x" * 200:
            try:
                open_tls(server.port, server.context, source=proxy, first=first)
                raise AssertionError(f"a connection of the proxy with {first[:20]!r} was served")
            except (ssl.SSLError, ConnectionError):
                pass
        # Nobody else may send the header.
        try:
            open_tls(server.port, server.context, first=PROXY_V1)
            raise AssertionError("the header of a peer that is no proxy was taken")
        except (ssl.SSLError, ConnectionError):
            pass
        server.settle()
        return f"{count} handshakes"


# Plain text where TLS is spoken, and TLS where plain text is spoken.


def wrong_scheme(binary, certificates):
    """plain HTTP on a TLS port gets an unencrypted 400; TLS on a plain port is named in the log"""
    with watching(binary, certificates, "--log", "debug") as server:
        for request in upgrade(), get("/healthz"), get("/x" * 300), b"POST / HTTP/1.1\r\n", b"G":
            with connect(server.port) as raw:
                raw.sendall(request)
                head, _, body = ends(raw).partition(b"\r\n\r\n")
            lines = head.decode().split("\r\n")
            fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
            assert lines[0] == "HTTP/1.1 400 Bad Request", f"{request[:20]!r} got {lines[0]!r}"
            assert fields["content-type"].startswith("application/json"), fields
            assert int(fields["content-length"]) == len(body) and fields["connection"].lower() == "close", fields
            told = json.loads(body)
            assert told["type"] == "error" and ("TLS" in body.decode() or "https" in body.decode()), told
            server.settle()
    plain_and_tls = ["--listen", "plain:127.0.0.1:0", "--listen", "127.0.0.1:0", *certificates.options()]
    for options in [], plain_and_tls:
        with serving(binary, {}, ["--log", "debug", *options]) as server:
            begin = server.log_size()
            with connect(server.port) as raw:
                try:
                    Tls(raw, certificates.context()).handshake()
                    raise AssertionError("a plain port spoke TLS")
                except (ssl.SSLError, ConnectionError):
                    pass
            Watched(server, certificates).log_since(begin, "TLS")
            # Plain clients are still served.
            with open_client(server.port) as client:
                echo(client)
            if options:
                (port,) = re.findall(rb"wss://127.0.0.1:(\d+)/", server.process.stdout.readline())
                converse(int(port), certificates.context())

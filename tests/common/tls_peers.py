"""Helpers for tests/tls/stress.py: certificates, TLS clients that control every byte that they send, and a server with its metrics."""

import contextlib
import os
import re
import socket
import ssl
import struct
import subprocess
import threading
import time

from peers import AUTHORIZATION, PATIENCE, connect, frame, get, read_frame, read_head, serving, upgrade

TLS12, TLS13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
VERSIONS = (TLS12, TLS13)
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
SECONDS = 1.0  # within which other clients must be served
CONFIG = """
[req]
distinguished_name = name
prompt = no
[name]
commonName = unused
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
[ca_old]
database = ${ENV::FOLDER}/index
new_certs_dir = ${ENV::FOLDER}
rand_serial = yes
default_md = sha256
policy = any
[any]
commonName = supplied
[named]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
subjectAltName = ${ENV::NAMES}
"""


class Certificates:
    """A folder with certificates. A certificate is NAME.pem and its key is NAME.key."""

    def __init__(self, folder):
        self.folder = folder
        with open(self.path("openssl.cnf"), "w") as file:
            file.write(CONFIG)
        self.authority("ca")
        self.issue("server", "localhost", "DNS:localhost,IP:127.0.0.1")

    def path(self, file):
        return os.path.join(self.folder, file)

    def authority(self, name):
        self.request(name, name, "ca")

    def issue(self, name, subject, names=None, authority="ca", days=30):
        signer = ["-CA", self.path(f"{authority}.pem"), "-CAkey", self.path(f"{authority}.key")]
        self.request(name, subject, "named" if names else "leaf", *signer, names=names or "", days=days)

    def expired(self, name, subject):
        """A certificate that was valid years ago."""
        self.issue(name, subject)
        request = ["openssl", "x509", "-x509toreq", "-in", self.path(f"{name}.pem"), "-signkey", self.path(f"{name}.key")]
        self.run([*request, "-out", self.path("request")])
        with open(self.path("index"), "w"):
            pass
        command = ["openssl", "ca", "-batch", "-notext", "-config", self.path("openssl.cnf"), "-name", "ca_old"]
        command += ["-extensions", "leaf", "-cert", self.path("ca.pem"), "-keyfile", self.path("ca.key")]
        command += ["-startdate", "20200101000000Z", "-enddate", "20200201000000Z"]
        self.run([*command, "-in", self.path("request"), "-out", self.path(f"{name}.pem")])

    def run(self, command, names=""):
        environment = {**os.environ, "NAMES": names, "FOLDER": self.folder}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def request(self, name, subject, extensions, *more, names="", days=30):
        command = ["openssl", "req", "-x509", "-config", self.path("openssl.cnf"), "-extensions", extensions, "-newkey", "ec"]
        command += ["-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={subject}", "-days", str(days)]
        command += ["-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.pem"), *more]
        self.run(command, names)
        os.chmod(self.path(f"{name}.key"), 0o600)

    def options(self, name="server"):
        return ["--tls-cert", self.path(f"{name}.pem"), "--tls-key", self.path(f"{name}.key")]

    def der(self, name):
        with open(self.path(f"{name}.pem")) as file:
            return ssl.PEM_cert_to_DER_cert(file.read())

    def context(self, version=None, client=None, protocols=("http/1.1",), authority="ca"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.path(f"{authority}.pem"))
        if version:
            context.minimum_version = context.maximum_version = version
        if client:
            context.load_cert_chain(self.path(f"{client}.pem"), self.path(f"{client}.key"))
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context


class Abandoned(Exception):
    """As many bytes were sent as should be."""


class Tls:
    """A TLS connection with the methods of a socket.

    A record has at most `record` bytes of plaintext, and a write to the socket at most `segment` bytes. `limit` is the number
    of bytes after which sending raises `Abandoned`, and `flip` the number of a byte that is sent with other bits, and which bits these are.
    """

    def __init__(self, raw, context, session=None, record=16384, segment=None, limit=None, flip=None):
        self.raw, self.record, self.segment, self.limit, self.flip = raw, record, segment, limit, flip
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost", session=session)
        # How many bytes were sent, and whether the server has ended with close_notify.
        self.count, self.notified = 0, False

    def handshake(self):
        self.perform(self.tls.do_handshake)
        return self

    def perform(self, function, *arguments):
        while True:
            try:
                result = function(*arguments)
                self.flush()
                return result
            except ssl.SSLWantReadError:
                self.flush()
                data = self.raw.recv(1 << 16)
                if data:
                    self.incoming.write(data)
                else:
                    self.incoming.write_eof()
            except ssl.SSLError:
                # The alert that tells the server.
                with contextlib.suppress(OSError):
                    self.flush()
                raise

    def flush(self):
        self.send_raw(self.outgoing.read())

    def send_raw(self, data):
        begin, end = self.count, self.count + len(data)
        if self.flip and begin <= self.flip[0] < end:
            data = bytearray(data)
            data[self.flip[0] - begin] ^= self.flip[1]
        self.count = end
        if self.limit is not None and end >= self.limit:
            self.raw.sendall(data[: self.limit - begin])
            raise Abandoned
        step = self.segment or max(1, len(data))
        for at in range(0, len(data), step):
            self.raw.sendall(data[at : at + step])

    def sendall(self, data):
        for at in range(0, len(data), self.record):
            self.perform(self.tls.write, data[at : at + self.record])

    def encrypt(self, data):
        """Returns the bytes of records without sending them."""
        for at in range(0, len(data), self.record):
            self.tls.write(data[at : at + self.record])
        return self.outgoing.read()

    def recv(self, count):
        """Returns nothing at the end. `notified` says whether close_notify came before it."""
        try:
            data = self.perform(self.tls.read, count)
            self.notified = not data
            return data
        except ssl.SSLZeroReturnError:
            self.notified = True
        except ssl.SSLEOFError:
            pass
        return b""

    def notify(self):
        """Sends close_notify. The server may still send."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.unwrap()
        self.flush()

    def settimeout(self, seconds):
        self.raw.settimeout(seconds)

    def getsockname(self):
        return self.raw.getsockname()

    def close(self):
        self.raw.close()

    def reset(self):
        reset(self.raw)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def reset(raw):
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


def dial(port, context, source="127.0.0.1", first=b"", receive_buffer=None, **options):
    """Connects, sends `first` in plain text, and completes the TLS handshake."""
    raw = connect(port, source, receive_buffer)
    try:
        raw.sendall(first)
        return Tls(raw, context, **options).handshake()
    except BaseException:
        raw.close()
        raise


def join(client, path="/echo", extra=AUTHORIZATION):
    """Completes the handshake of WebSocket."""
    client.sendall(upgrade(path, extra))
    head = read_head(client)
    assert head.startswith(b"HTTP/1.1 101 "), head
    return client


def open_tls(port, context, path="/echo", **options):
    return join(dial(port, context, **options), path)


def echo(client, payload=b"hello", opcode=TEXT):
    client.sendall(frame(opcode, payload))
    got = read_message(client)
    assert got == (opcode, payload), f"the echo of {payload[:40]!r} is {got[0]} {got[1][:40]!r}, {len(got[1])} bytes"


def read_message(client):
    """Returns the next message, and answers the PINGs before it."""
    while True:
        opcode, payload = read_frame(client)
        if opcode != PING:
            return opcode, payload
        client.sendall(frame(PONG, payload))


def leave(client):
    """Completes the closing handshake. Returns whether the server ended with close_notify."""
    client.sendall(frame(CLOSE, b"\x03\xe8"))
    opcode, payload = read_message(client)
    assert (opcode, payload) == (CLOSE, b"\x03\xe8"), (opcode, payload)
    rest = client.recv(100)
    assert rest == b"", f"{rest!r} came after CLOSE"
    client.close()
    return client.notified


def converse(port, context, **options):
    """A short conversation. Returns its TLS session and whether that was resumed."""
    with open_tls(port, context, **options) as client:
        echo(client)
        session, resumed = client.tls.session, client.tls.session_reused
        assert leave(client), "the server ended without close_notify"
    return session, resumed


def ends(raw):
    """Reads to the end of a connection. Returns what came."""
    came = bytearray()
    try:
        while data := raw.recv(1 << 16):
            came += data
    except ConnectionError:
        pass
    except TimeoutError:
        raise AssertionError(f"the server does not end the connection; {bytes(came[:100])!r} came") from None
    return bytes(came)


class Bystander:
    """A client that measures how long its echoes take while something else happens."""

    def __init__(self, port, context):
        self.client, self.longest, self.wrong = open_tls(port, context), 0, None
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        try:
            while not self.stopped.wait(0.01):
                begin = time.monotonic()
                echo(self.client, b"bystander")
                self.longest = max(self.longest, time.monotonic() - begin)
            leave(self.client)
        except Exception as error:
            self.wrong = error

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.stopped.set()
        self.thread.join(PATIENCE)
        if not kind:
            assert not self.wrong, f"the bystander: {self.wrong!r}"
            assert self.longest < SECONDS, f"the bystander waited for {self.longest:.1f} s"


class Watched:
    """A server and what it counts."""

    def __init__(self, server, certificates, client=None):
        self.server, self.port, self.certificates = server, server.port, certificates
        self.context = certificates.context(client=client)
        self.at_begin = None

    def call(self, path="/metrics", extra=b""):
        with dial(self.port, self.context) as client:
            client.sendall(get(path, AUTHORIZATION + b"Connection: close\r\n" + extra))
            answer = ends(client)
            assert client.notified, f"the answer to {path} ended without close_notify"
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        return body.decode()

    def metrics(self):
        """Returns the metrics by name with labels."""
        lines = [line for line in self.call().splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def log_since(self, begin, pattern):
        """Waits for a line of the log that matches."""
        deadline = time.monotonic() + 10
        while True:
            said = self.server.log()[begin:].decode(errors="replace")
            if found := re.search(pattern, said):
                return found
            assert time.monotonic() < deadline, f"the log lacks {pattern!r}: {said[-600:]!r}"
            time.sleep(0.02)

    def settle(self):
        """Waits until no connection is left, and checks that each one ended once. Returns the metrics."""
        deadline = time.monotonic() + PATIENCE
        while True:
            metrics = self.metrics()
            descriptors = self.server.descriptors()
            # The connection that asks is still open, or was a moment ago.
            if metrics["outrigger_connections"] == 1 and metrics["outrigger_clients"] == 0:
                if self.at_begin is None or descriptors <= self.at_begin:
                    break
            assert time.monotonic() < deadline, (
                f"left: {metrics['outrigger_connections']:.0f} connections, {metrics['outrigger_clients']:.0f} clients, "
                f"{descriptors} descriptors after {self.at_begin}"
            )
            time.sleep(0.05)
        if self.at_begin is None:
            # Whatever the server opens with its first connection is open by now.
            time.sleep(0.1)
            self.at_begin = self.server.descriptors()
        accepted, ended = metrics["outrigger_connections_accepted_total"], total(metrics, "outrigger_connections_ended_total")
        assert accepted == ended + 1, f"{accepted:.0f} connections were accepted, and {ended:.0f} ended"
        upgraded = metrics.get('outrigger_responses_total{code="101"}', 0)
        disconnects = total(metrics, "outrigger_disconnects_total")
        assert upgraded == disconnects, f"{upgraded:.0f} clients connected, and {disconnects:.0f} disconnected"
        used = metrics['outrigger_connections_ended_total{outcome="websocket"}']
        assert upgraded == used, f"{upgraded:.0f} clients connected, and {used:.0f} connections were upgraded"
        return metrics

    def serves_quickly(self):
        begin = time.monotonic()
        converse(self.port, self.context)
        took = time.monotonic() - begin
        assert took < SECONDS, f"a conversation takes {took:.1f} s"


def total(metrics, name):
    return sum(value for key, value in metrics.items() if key.startswith(name + "{"))


@contextlib.contextmanager
def watching(binary, certificates, *options, routes=None, client=None, name="server"):
    """Runs a server with TLS. At the end, every connection must have ended once, and no descriptor may be left."""
    with serving(binary, routes or {}, [*certificates.options(name), *options]) as server:
        watched = Watched(server, certificates, client)
        watched.settle()
        yield watched
        watched.settle()

"""The check of tests/tls/stress.py with thousands of connections: nothing may be left of them."""

import collections
import contextlib
import random
from concurrent.futures import ThreadPoolExecutor

from peers import KIB, MIB, Worker, connect, frame, get, results
from tls_peers import VERSIONS, Abandoned, Tls, dial, echo, ends, leave, open_tls, reset, watching

WARM_UP = 2000
PROCESSES, THREADS = 2, 8
SESSIONS = {}


class Visitor:
    """One connection. Each method returns with how the server should account for it."""

    def __init__(self, port, context, version, source):
        self.port, self.context, self.version, self.source = port, context, version, source

    def complete(self):
        client = open_tls(self.port, self.context)
        for _ in range(self.source.randrange(3)):
            echo(client, self.source.randbytes(self.source.choice([1, 200, 20_000])), 2)
        SESSIONS[self.version] = client.tls.session
        assert leave(client), "the server ended without close_notify"
        return "closed"

    def resumed(self):
        session = SESSIONS.get(self.version)
        client = open_tls(self.port, self.context, session=session)
        echo(client)
        assert client.tls.session_reused or not session, "a session was not resumed"
        assert leave(client), "the server ended without close_notify"
        return "closed resumed" if session else "closed"

    def http(self):
        with dial(self.port, self.context) as client:
            client.sendall(get("/healthz", b"Connection: close\r\n"))
            assert ends(client).startswith(b"HTTP/1.1 200 ") and client.notified
        return "http"

    def abandoned(self):
        raw = connect(self.port)
        try:
            Tls(raw, self.context, limit=self.source.randrange(1, 600)).handshake()
        except Abandoned:
            pass
        self.source.choice([reset, lambda raw: raw.close()])(raw)
        return "unused"

    def garbage(self):
        with connect(self.port) as raw:
            with contextlib.suppress(ConnectionError):
                raw.sendall(self.source.choice([b"\x16\x03\x01\xff\xff", b"\x80\x2e\x01\x03\x01", b"\x17\x03\x03\0\x05"]) + bytes(500))
                ends(raw)
        return "unused"

    def plain(self):
        with connect(self.port) as raw:
            raw.sendall(get("/healthz"))
            assert ends(raw).startswith(b"HTTP/1.1 400 ")
        return "unused"

    def cut(self):
        """FIN without close_notify, or RST, within a record or after one."""
        client = open_tls(self.port, self.context)
        echo(client)
        data = client.encrypt(frame(2, bytes(3000)))
        client.raw.sendall(data[: self.source.choice([0, 4, 1000, len(data)])])
        if self.source.random() < 0.5:
            client.reset()
        else:
            client.close()
        return "cut"

    def half_closed(self):
        client = open_tls(self.port, self.context)
        client.sendall(frame(1, b"last words"))
        client.notify()
        assert ends(client).startswith(b"\x81\x0alast words") and client.notified
        client.close()
        return "cut"


KINDS = [
    (Visitor.complete, 25), (Visitor.resumed, 20), (Visitor.http, 10), (Visitor.abandoned, 20), (Visitor.garbage, 5),
    (Visitor.plain, 5), (Visitor.cut, 10), (Visitor.half_closed, 5),
]


def visit(pipe, port, certificates, seed, count):
    """Connects so often. Returns how the server should account for the connections."""
    contexts = {version: certificates.context(version) for version in VERSIONS}
    kinds, weights = zip(*KINDS)

    def one(number):
        source = random.Random(f"{seed} {number}")
        version = source.choice(VERSIONS)
        kind = source.choices(kinds, weights)[0]
        try:
            return kind(Visitor(port, contexts[version], version, source))
        except Exception as error:
            raise AssertionError(f"{kind.__name__}, {version.name}: {error!r}") from error

    with ThreadPoolExecutor(THREADS) as pool:
        return collections.Counter(pool.map(one, range(count)))


def crowd(binary, certificates, connections=20_000):
    """thousands of connections end in every way: each is counted once, and no descriptor and no memory is left"""
    with watching(binary, certificates, "--log", "warn", "--max-clients", "1000") as server:

        def many(count, seed):
            workers = [Worker(visit, server.port, certificates, f"{seed} {part}", count // PROCESSES) for part in range(PROCESSES)]
            counts = sum(results(workers, 600), collections.Counter())
            for worker in workers:
                worker.kill()
            return counts

        first = many(min(WARM_UP, connections // 2), "warm-up")
        server.settle()
        memory = server.server.memory("VmRSS")
        counts = first + many(connections - first.total(), "crowd")
        metrics = server.settle()
        grown = server.server.memory("VmRSS") - memory

        def counted(name, **label):
            ((label, value),) = label.items()
            return int(metrics.get(f'{name}{{{label}="{value}"}}', 0))

        closed = counted("outrigger_disconnects_total", cause="close")
        ended = closed + sum(
            counted("outrigger_disconnects_total", cause=cause) for cause in ("eof", "read_error", "write_error")
        )
        wanted = counts["closed"] + counts["closed resumed"]
        assert closed == wanted, f"{closed} clients are counted as closed, not {wanted}"
        assert ended == wanted + counts["cut"], f"{ended} clients are counted as ended, not {wanted + counts['cut']}"
        resumed = counted("outrigger_tls_handshakes_total", outcome="resumed")
        assert resumed == counts["closed resumed"], f"{resumed} of {counts['closed resumed']} resumed sessions are counted"
        accepted = int(metrics["outrigger_connections_accepted_total"])
        assert accepted >= counts.total(), f"{accepted} connections are counted"
        # A leaked connection would cost kilobytes. The allocator's own needs vary.
        assert grown < MIB + 50 * counts.total(), f"memory has grown by {grown / KIB:.0f} KiB after the first {first.total()} connections"
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        return f"{counts.total()} connections ({told}); memory {grown / KIB:+.0f} KiB; {server.at_begin} descriptors"

#!/usr/bin/env python3
"""Tests TLS with correct and faulty clients, against `outrigger serve --tls-cert`. Prints a line for each check.

usage: tests/tls/stress.py [BINARY] [--only NAME,...] [--list] [--connections N]
       BINARY is target/release/outrigger by default. --list lists the checks. The check `crowd` makes N connections in all,
       20,000 by default.

Each check has a server of its own. At the end of nearly every check, the server's metrics must say that each connection ended
once, and no connection and no descriptor may be left. `openssl` must be installed. `tests/load/cuts.py --tls` cuts resumable
connections over TLS.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
import certificates
import conversations
import crowd
import handshakes
import records
from peers import Worker, prepare
from tls_peers import Certificates

CHECKS = [
    handshakes.versions,
    handshakes.resumption,
    handshakes.wrong_scheme,
    handshakes.abandoned,
    handshakes.silent,
    handshakes.flipped,
    handshakes.fragmented,
    handshakes.garbage,
    handshakes.proxy_protocol,
    conversations.small_pieces,
    conversations.long_messages,
    conversations.many_records,
    conversations.renegotiation,
    conversations.split_handshake,
    conversations.key_updates,
    records.odd_records,
    records.wrong_records,
    conversations.endings,
    conversations.half_closed,
    conversations.slow_reader,
    conversations.slow_echoes,
    conversations.stalled,
    certificates.reload,
    certificates.expiry,
    certificates.exposed_key,
    certificates.listeners,
    certificates.mutual,
    certificates.revocation,
    certificates.self_signed,
    crowd.crowd,
]


def describe(error):
    """What went wrong and where, in a line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = [frame for frame in frames if os.path.basename(frame.filename).startswith("tls_")][-1:] or frames[-1:]
    what = str(error) if isinstance(error, AssertionError) and str(error) else f"{type(error).__name__}: {error}"
    return f"{what} ({os.path.basename(place[0].filename)}:{place[0].lineno})".replace("\n", " ")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("binary", nargs="?", default=os.environ.get("OUTRIGGER", "target/release/outrigger"))
    parser.add_argument("--only", type=lambda text: text.split(","))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--connections", type=int, default=20_000)
    options = parser.parse_args()
    if options.list:
        for check in CHECKS:
            print(f"{check.__name__:16} {check.__doc__}")
        return 0
    unknown = set(options.only or []) - {check.__name__ for check in CHECKS}
    if unknown:
        parser.error(f"no such check: {', '.join(sorted(unknown))}")
    prepare()
    binary, failed, began = os.path.abspath(options.binary), 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="outrigger-tls-") as folder:
        certificates = Certificates(folder)
        for check in CHECKS:
            if options.only and check.__name__ not in options.only:
                continue
            more = [options.connections] if check is crowd.crowd else []
            since = time.monotonic()
            try:
                said, verdict = check(binary, certificates, *more), "ok"
            except Exception as error:
                said, verdict = describe(error), "FAILED"
            failed += verdict != "ok"
            took = f"{time.monotonic() - since:.1f} s"
            print(f"  {check.__name__:16} {verdict:6} {took:>7}  {said or check.__doc__}", flush=True)
    print(f"tls: {failed} failed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        for worker in list(Worker.running):
            worker.kill()

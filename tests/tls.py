#!/usr/bin/env python3
"""Tests TLS with correct and faulty clients, against `outrigger serve --tls-cert`. Prints a line for each check.

usage: tests/tls.py [BINARY] [--only NAME,...] [--list] [--connections N]
       BINARY is target/release/outrigger by default. --list lists the checks. The check `crowd` makes N connections in all,
       20,000 by default.

Each check has a server of its own. At the end of nearly every check, the server's metrics must say that each connection ended
once, and no connection and no descriptor may be left. `openssl` must be installed. `tests/cuts.py --tls` cuts resumable
connections over TLS.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback

import tls_certificates
import tls_conversations
import tls_crowd
import tls_handshakes
import tls_records
from peers import Worker, prepare
from tls_peers import Certificates

CHECKS = [
    tls_handshakes.versions,
    tls_handshakes.resumption,
    tls_handshakes.wrong_scheme,
    tls_handshakes.abandoned,
    tls_handshakes.silent,
    tls_handshakes.flipped,
    tls_handshakes.fragmented,
    tls_handshakes.garbage,
    tls_handshakes.proxy_protocol,
    tls_conversations.small_pieces,
    tls_conversations.long_messages,
    tls_conversations.many_records,
    tls_conversations.renegotiation,
    tls_conversations.split_handshake,
    tls_conversations.key_updates,
    tls_records.odd_records,
    tls_records.wrong_records,
    tls_conversations.endings,
    tls_conversations.half_closed,
    tls_conversations.slow_reader,
    tls_conversations.slow_echoes,
    tls_conversations.stalled,
    tls_certificates.reload,
    tls_certificates.expiry,
    tls_certificates.exposed_key,
    tls_certificates.listeners,
    tls_certificates.mutual,
    tls_certificates.revocation,
    tls_certificates.self_signed,
    tls_crowd.crowd,
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
            more = [options.connections] if check is tls_crowd.crowd else []
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

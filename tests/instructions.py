#!/usr/bin/env python3
"""How many instructions of its own `outrigger` needs for a message, counted by callgrind in fixed conversations, and
whether that is what it was. A count is the same on every machine and in every run but for a little, so it shows what a
timed test cannot.

The figures belong to a compiler and a kind of processor (which of its vector instructions are used); for others there
is nothing to compare with until they are kept too.

Two conversations of different length are had with each service; what the longer one needs more is divided by the messages
it has more, so that start and end do not count. What the kernel does is not counted.

usage: tests/instructions.py [--write] [NAME...]      --write makes the present figures those to be kept
env:   OUTRIGGER=target/release/outrigger
"""

import json
import os
import pathlib
import platform
import re
import socket
import subprocess
import sys
import tempfile

OUTRIGGER = os.environ.get("OUTRIGGER", "target/release/outrigger")
KEPT = pathlib.Path(__file__).with_suffix(".json")
# What comes in several reads may come in more or fewer of them, and what is read first differs.
TOLERANCE, SPLIT_TOLERANCE = 0.04, 0.2
REQUEST = (
    b"GET %s HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def frame(payload, opcode):
    length = len(payload)
    if length < 126:
        head = bytes([0x80 | opcode, 0x80 | length])
    elif length < 65536:
        head = bytes([0x80 | opcode, 0xFE]) + length.to_bytes(2)
    else:
        head = bytes([0x80 | opcode, 0xFF]) + length.to_bytes(8)
    mask = bytes([1, 2, 3, 4])
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def reply_size(length):
    return length + (2 if length < 126 else 4 if length < 65536 else 10)


def echo(size, depth, opcode=2, payload=b"hello wo"):
    """Batches of `depth` messages of `size` bytes that come back."""
    payload = (payload * (size // len(payload) + 1))[:size]
    batch = frame(payload, opcode) * depth
    size = reply_size(len(payload)) * depth

    def run(client, rounds):
        for _ in range(rounds):
            client.sendall(batch)
            left = size
            while left:
                came = len(client.recv(left))
                assert came, "the server stays"
                left -= came
        return rounds * depth

    return ["echo"], b"/", run


CONVERSATIONS = {
    "echo of 20 bytes, one by one": (echo(20, 1), 200, 1200, TOLERANCE),
    "echo of 20 bytes, 32 at once": (echo(20, 32), 20, 120, TOLERANCE),
    "echo of 20 bytes of text, 32 at once": (echo(20, 32, 1), 20, 120, TOLERANCE),
    "echo of 1 KiB, 16 at once": (echo(1024, 16), 20, 120, TOLERANCE),
    "echo of 16 KiB": (echo(16384, 1), 20, 120, TOLERANCE),
    "echo of 16 KiB of text": (echo(16384, 1, 1), 20, 120, TOLERANCE),
    "echo of 16 KiB of Greek": (echo(16384, 1, 1, "κόσμε ".encode()[:8]), 20, 120, TOLERANCE),
    "echo of 1 MiB": (echo(1 << 20, 1), 3, 13, SPLIT_TOLERANCE),
}


def count(arguments, path, run, rounds):
    """Instructions of a whole run with one conversation, and how many messages that has."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out"
        valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "-q"]
        options = ["--listen", "127.0.0.1:0", "--log", "off", "--no-auth"]
        command = [*valgrind, OUTRIGGER, arguments[0], *options, *arguments[1:]]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            port = int(re.search(rb":(\d+)/", server.stdout.readline())[1])
            with socket.create_connection(("127.0.0.1", port), timeout=120) as client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client.sendall(REQUEST % path)
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    head += client.recv(1)
                messages = run(client, rounds)
            server.terminate()
            assert server.wait(60) == 0
        finally:
            server.kill()
            server.wait()
        text = pathlib.Path(out).read_text()
        return int(re.search(r"^(?:summary|totals): (\d+)", text, re.M)[1]), messages


def machine():
    """What the figures depend on beside the code."""
    compiler = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    return f"{platform.machine()}, {'AVX2' if 'avx2' in flags else 'no AVX2'}, rustc {compiler}"


def main():
    arguments = sys.argv[1:]
    write = "--write" in arguments
    names = [name for name in arguments if not name.startswith("--")] or list(CONVERSATIONS)
    all_kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    kept = all_kept.setdefault(machine(), {})
    compares = bool(kept) and not write
    if not compares and not write:
        print(f"  nothing is kept for {machine()}: not compared")
    worse = []
    for name in names:
        conversation, fewer, more, tolerance = CONVERSATIONS[name]
        (before, few), (after, many) = (count(*conversation, rounds) for rounds in (fewer, more))
        each = round((after - before) / (many - few))
        change = each / kept[name] - 1 if name in kept else 0.0
        print(f"  {name}: {each} instructions a message ({change:+.1%})", flush=True)
        if write:
            kept[name] = each
        elif compares and (name not in kept or abs(change) > tolerance):
            worse.append(name)
    if write:
        KEPT.write_text(json.dumps(all_kept, indent=2) + "\n")
    if worse:
        print(f"not what it was, which is to be mended or kept with --write: {', '.join(worse)}", file=sys.stderr)
        sys.exit(1)


main()

#!/usr/bin/env python3
"""Filters whose input ends: sort, tar x and wc, over HTTP, over a WebSocket and with `outrigger attach`. No byte of their output may be
lost, and the exit code must come last, however slowly the reader reads.

usage: tests/load/filters.py [OUTRIGGER] [RUNS]      target/release/outrigger and 1000 by default

Half of the readers read slowly. The output of a run has up to 300 KB, and 3 MB in every twentieth run: more than the server keeps.
"""

import base64
import concurrent.futures
import contextlib
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
from peers import (
    AUTHORIZATION, PATIENCE, TOKEN, connect, frame, get, open_client, post, prepare, read_exactly, read_frame, read_head, serving,
)

AT_ONCE = 8
PIECE = 40_000  # bytes of input in one call or message


def prepare_run(number):
    """A program, its arguments, its input and the output that is expected."""
    chance = random.Random(number)
    length = 3_000_000 if number % 20 == 19 else chance.randrange(300_000)
    if number % 3 == 0:
        lines = [b"%012x\n" % chance.randrange(1 << 48) for _ in range(length // 13)]
        return "sort", [], b"".join(lines), b"".join(sorted(lines))
    data = chance.randbytes(length)
    if number % 3 == 1:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            entry = tarfile.TarInfo("data")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        return "tar", ["xOf", "-"], archive.getvalue(), data
    return "wc", ["-c"], data, b"%d\n" % len(data)


def pieces(data):
    return [data[at : at + PIECE] for at in range(0, len(data), PIECE)]


def request(port, head):
    """The status and the JSON of an answer."""
    with connect(port) as caller:
        caller.sendall(head)
        head = read_head(caller).decode()
        length = next(line.split(": ")[1] for line in head.splitlines() if line.startswith("Content-Length"))
        return int(head.split()[1]), json.loads(read_exactly(caller, int(length)))


def call(port, path, body):
    while True:
        status, answer = request(port, post(path, json.dumps(body).encode()))
        if status == 503 and path.endswith("/stdin"):
            # The process does not read its input, because its reader is slow.
            time.sleep(0.002)
            continue
        # tar exits at the end of the archive, before its input ends.
        has_exited = path.endswith("/stdin") and "eof" in body and status in (400, 404)
        assert status == 200 or has_exited, (path, status, answer)
        return answer


def spawn(port, program, args):
    answer = call(port, "/process/spawn", {"command": program, "args": args, "env": {"LC_ALL": "C"}})
    return f"/process/{answer['process_id']}"


def pause(slow):
    if slow:
        time.sleep(random.random() * 0.004)


def over_http(port, binary, program, args, data, slow):
    """Gives input with `stdin`, and reads the stream of events."""
    process = spawn(port, program, args)
    output, exits = [], []

    def read():
        with connect(port, receive_buffer=4096 if slow else None) as caller:
            # HTTP/1.0, so that the stream has no chunks.
            caller.sendall(get(process + "/stdout/stream", AUTHORIZATION).replace(b"HTTP/1.1", b"HTTP/1.0"))
            read_head(caller)
            rest = b""
            while piece := caller.recv(1 << 14):
                *events, rest = (rest + piece).split(b"\n\n")
                for event in events:
                    for line in event.split(b"\n"):
                        assert not line.startswith(b": gap"), line
                        if line.startswith(b"data: "):
                            value = json.loads(line[6:])
                            assert not exits, "something follows the exit"
                            if "data_b64" in value:
                                assert value["stream"] == "stdout", value
                                output.append(base64.b64decode(value["data_b64"]))
                            else:
                                exits.append(value["exit_code"])
                pause(slow)

    reader = threading.Thread(target=read)
    reader.start()
    for piece in pieces(data):
        call(port, process + "/stdin", {"data_b64": base64.b64encode(piece).decode()})
    call(port, process + "/stdin", {"eof": True})
    reader.join(PATIENCE)
    return b"".join(output), exits


def over_websocket(port, binary, program, args, data, slow):
    """Gives input in binary messages and ends it with a text message."""
    process = spawn(port, program, args)
    client = open_client(port, process + "/attach", receive_buffer=4096 if slow else None)

    def write():
        with contextlib.suppress(OSError):  # tar has exited
            for piece in pieces(data):
                client.sendall(frame(2, piece))
            client.sendall(frame(1, b'{"type":"eof"}'))

    writer = threading.Thread(target=write)
    writer.start()
    output, exits = [], []
    with client:
        while True:
            opcode, payload = read_frame(client)
            if opcode == 8:
                break
            if opcode == 2:
                assert not exits, "output after the exit"
                output.append(payload)
            elif opcode == 1:
                event = json.loads(payload)
                assert event["type"] not in ("gap", "stderr"), event
                exits += [event["exitCode"]] if event["type"] == "exit" else []
            pause(slow)
        writer.join(PATIENCE)
    return b"".join(output), exits


def with_attach(port, binary, program, args, data, slow):
    """The pipe of a shell: `outrigger attach` has the standard streams and the exit code of the program."""
    process = spawn(port, program, args)
    url = f"ws://127.0.0.1:{port}{process}/attach"
    environment = {**os.environ, "OUTRIGGER_TOKEN": TOKEN}
    with subprocess.Popen([binary, "attach", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as client:
        def write():
            with contextlib.suppress(OSError):  # tar has exited
                client.stdin.write(data)
                client.stdin.close()

        writer = threading.Thread(target=write)
        writer.start()
        output = []
        while piece := client.stdout.read1(1 << 14):
            output.append(piece)
            pause(slow)
        writer.join(PATIENCE)
        return b"".join(output), [client.wait(PATIENCE)]


WAYS = [over_http, over_websocket, with_attach]


def main(binary="target/release/outrigger", runs="1000"):
    prepare()
    runs, began = int(runs), time.monotonic()
    lost, wrong, came = dict.fromkeys(WAYS, 0), 0, 0

    def one(number):
        program, args, data, expected = prepare_run(number)
        way = WAYS[number // 3 % 3]
        output, exits = way(port, binary, program, args, data, slow=number % 2 == 1)
        return number, way, program, expected, output, exits

    options = ["--log", "warn"]
    routes = {"/process/...": {"processes": {"wait-for-readers": True, "retention": "1s"}}}
    with serving(binary, routes, options) as server, concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
        port = server.port
        for number, way, program, expected, output, exits in threads.map(one, range(runs)):
            came += len(output)
            missing = len(expected) - len(output)
            if output != expected or exits != [0]:
                wrong += 1
                lost[way] += max(missing, 0)
                print(f"run {number}, {way.__name__}, {program}: {missing} bytes missing, exits {exits}", file=sys.stderr)
    counts = ", ".join(f"{way.__name__} {count}" for way, count in lost.items())
    print(f"filters: {runs} runs, {wrong} wrong, {came} bytes came, lost: {counts}; {time.monotonic() - began:.1f} s")
    return wrong != 0


if __name__ == "__main__":
    if "--help" in sys.argv or len(sys.argv) > 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))

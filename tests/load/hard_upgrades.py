#!/usr/bin/env python3
"""Upgrades in a bad moment or a bad place. Each one either takes place and loses nothing, or changes nothing and says why.

usage: tests/load/hard_upgrades.py [PART...]      all parts by default
env:   OUTRIGGER=target/release/outrigger
"""

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "common"))
import peers  # noqa: E402
from peers import MIB, eventually  # noqa: E402
from upgrade_clients import call  # noqa: E402

OUTRIGGER = os.path.abspath(os.environ.get("OUTRIGGER", "target/release/outrigger"))

# Starts a program that cannot create files in memory: memfd_create (319) fails with EPERM.
SANDBOX = f"""
import ctypes, os, platform, struct, sys
number = {{"x86_64": 319, "aarch64": 279}}[platform.machine()]
def step(code, yes, no, value):
    return struct.pack("HBBI", code, yes, no, value)
load, equals, answer = 0x20, 0x15, 0x06
steps = step(load, 0, 0, 0) + step(equals, 0, 1, number) + step(answer, 0, 0, 0x00050001) + step(answer, 0, 0, 0x7fff0000)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer := ctypes.create_string_buffer(steps))))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
os.execv({OUTRIGGER!r}, sys.argv)
"""


@contextlib.contextmanager
def serving(routes=None, options=(), binary=OUTRIGGER):
    with peers.serving(binary, routes or {}, ["--allow-upgrade", "--log", "info", *options]) as server:
        yield server


@contextlib.contextmanager
def script(text):
    """An executable file with this text."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = os.path.join(folder, "program")
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o755)
        yield path


def connect(server, path="/echo"):
    return peers.open_client(server.port, path)


def echo(connection, payload):
    connection.sendall(peers.frame(2, payload))
    assert peers.read_frame(connection) == (2, payload)


def upgrade(server):
    return call(server.port, "POST", "/upgrade", {})


def logged(server, text):
    return server.log().decode().count(text)


def kept():
    """A GiB of output that is kept, half of it of programs that still write."""
    count, each = 16, 64 * MIB
    settings = {"scrollback": f"{each}", "max-processes": 2 * count}
    numbers = f"seq 1 99999999 | head -c {each}"
    lines = f'stty raw; {numbers}; [ $1 = once ] || while echo more; do sleep 0.01; done; read stop'
    with serving({"/process": {"processes": settings}}, ["--memory", "4GiB"]) as server:
        ids = []
        for number in range(count):
            args = ["-c", lines, "bash", "once" if number % 2 else "more"]
            body = {"command": "bash", "args": args, "allocate_tty": True, "cwd": "/"}
            ids.append(call(server.port, "POST", "/process/spawn", body)["process_id"])
        eventually("all have written", lambda: server.memory("VmRSS") > count * each)
        connection = connect(server)
        answers = []
        for _ in range(5):
            answers.append(upgrade(server)["pause_ms"])
            echo(connection, b"hello")
        last = connect(server, f"/process/{ids[1]}/attach?since=0")
        seen, length = hashlib.sha256(), 0
        while length < each:
            opcode, payload = peers.read_frame(last)
            if opcode == 2:
                seen.update(payload)
                length += len(payload)
        written = subprocess.run(["bash", "-c", numbers], capture_output=True, check=True).stdout
        assert seen.digest() == hashlib.sha256(written).digest()
    print(f"  {count * each / MIB:.0f} MiB: the pause is {min(answers):.0f} to {max(answers):.0f} ms")


def descriptors():
    """A table of descriptors that is full. The upgrade fails, or takes place, and the server goes on."""
    with script(f"#!/bin/bash\nulimit -n 96\nexec {OUTRIGGER} \"$@\"\n") as limited, serving(binary=limited) as server:
        first = connect(server)
        connections = []
        with contextlib.suppress(AssertionError, OSError):
            while len(connections) < 200:
                connections.append(connect(server))
        for _ in range(20):
            before = logged(server, "SIGUSR2 received")
            os.kill(server.pid, signal.SIGUSR2)
            eventually("it begins", lambda: logged(server, "SIGUSR2 received") > before)  # noqa: B023
            eventually("it ends", lambda: logged(server, "upgraded from") + logged(server, "the upgrade has failed") > before)  # noqa: B023
            for connection in (first, *connections[:-1]):
                echo(connection, b"hello")
        failed = logged(server, "the upgrade has failed")
        for connection in connections:
            connection.close()
        assert upgrade(server)["passed"] >= 1
        echo(first, b"hello")
    print(f"  {len(connections)} connections, 20 upgrades: {failed} failed, and no connection")


def sandbox():
    """A sandbox without files in memory: the state is in a file that has no name."""
    with script(f"#!{sys.executable}\n{SANDBOX}") as sandboxed, tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        try:
            with serving(options=["--log", "debug"], binary=sandboxed) as server:
                connection = connect(server)
                for _ in range(5):
                    assert upgrade(server)["passed"] >= 1
                    echo(connection, b"hello")
                assert logged(server, "memfd_create failed") >= 10
                assert os.listdir(folder) == []
        finally:
            del os.environ["XDG_RUNTIME_DIR"]


def stopped():
    """SIGTERM at any time of an upgrade: the server stops cleanly, and its programs end."""
    runs = 60
    for run in range(runs):
        with serving({"/process": {"processes": {}}}) as server:
            body = {"command": "sleep", "args": ["1000"], "cwd": "/"}
            pid = call(server.port, "POST", "/process/spawn", body)["pid"]
            connection = connect(server)
            os.kill(server.pid, signal.SIGUSR2)
            time.sleep(run / runs * 0.04)
            server.process.terminate()
            connection.close()
            assert server.process.wait(peers.PATIENCE) == 0
            eventually("the program has ended", lambda: not os.path.exists(f"/proc/{pid}"))  # noqa: B023
    print(f"  {runs} servers")


def repeated():
    """SIGUSR2 as often as can be."""
    with serving() as server:
        connection = connect(server)
        until = time.monotonic() + 5
        sent = 0
        while time.monotonic() < until:
            os.kill(server.pid, signal.SIGUSR2)
            sent += 1
            echo(connection, b"%d" % sent)
        eventually("no child is left", lambda: not server.children())
        print(f"  {sent} signals, {logged(server, 'upgraded from')} upgrades")
        assert logged(server, "upgraded from") > 10


def flood():
    """A client that floods, and programs that write at full speed."""
    with serving({"/process": {"processes": {}}}) as server:
        for _ in range(4):
            call(server.port, "POST", "/process/spawn", {"command": "yes", "allocate_tty": True, "cwd": "/"})
        flooding = peers.Worker(keep_sending, server.port)
        connection = connect(server)
        for _ in range(20):
            upgrade(server)
            echo(connection, b"hello")
        flooding.pipe.send("over")
        print(f"  {flooding.hear()} messages of a client, 20 upgrades")


def keep_sending(pipe, port):
    """Sends messages without a pause, and checks each answer. Returns their number."""
    connection = peers.connect(port)
    connection.sendall(peers.upgrade())
    peers.read_head(connection)
    sent = 0
    while not pipe.poll():
        payloads = [b"%d " % number + b"x" * 1000 for number in range(sent, sent + 100)]
        connection.sendall(b"".join(peers.frame(2, payload) for payload in payloads))
        for payload in payloads:
            assert peers.read_frame(connection) == (2, payload)
        sent += 100
    return sent


def crash():
    """A new program that passes the rehearsal and then fails: everything ends, as the documentation says."""
    with script(f'#!/bin/bash\n[ -z "$OUTRIGGER_STATE" ] || exit 9\nexec {OUTRIGGER} "$@"\n') as broken:
        server = peers.Server(OUTRIGGER, {"/process": {"processes": {}}}, ["--allow-upgrade", "--log", "info", "--program", broken])
        try:
            pid = call(server.port, "POST", "/process/spawn", {"command": "cat", "allocate_tty": True, "cwd": "/"})["pid"]
            connection = connect(server)
            os.kill(server.pid, signal.SIGUSR2)
            assert server.process.wait(peers.PATIENCE) == 9, server.log()
            assert connection.recv(1) == b""
            eventually("the terminal has ended", lambda: not os.path.exists(f"/proc/{pid}") or is_zombie(pid))
        finally:
            server.stop()
            server.files.cleanup()


def is_zombie(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def user():
    """Another user without capabilities, who can gain none."""
    if os.geteuid() != 0:
        print("  not tried: only root can become another user")
        return
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        copy = os.path.join(folder, "outrigger")
        subprocess.run(["cp", OUTRIGGER, copy], check=True)
        run = f"exec setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all --no-new-privs {copy}"
        with script(f'#!/bin/bash\n{run} echo --no-auth --listen 127.0.0.1:0 --allow-upgrade 2>/dev/null\n') as dropped:
            process = subprocess.Popen([dropped], stdout=subprocess.PIPE)
            try:
                port = int(process.stdout.readline().rsplit(b":", 1)[1].split(b"/")[0])
                connection = peers.connect(port)
                connection.sendall(peers.upgrade("/"))
                peers.read_head(connection)
                for _ in range(5):
                    assert call(port, "POST", "/upgrade", {})["passed"] >= 1
                    echo(connection, b"hello")
                with open(f"/proc/{process.pid}/status") as file:
                    status = file.read()
                assert "CapEff:\t0000000000000000" in status and "Uid:\t65534" in status, status
            finally:
                process.kill()
                process.wait()


PARTS = [kept, descriptors, sandbox, stopped, repeated, flood, crash, user]


def main():
    peers.prepare()
    chosen = sys.argv[1:]
    unknown = set(chosen) - {part.__name__ for part in PARTS}
    assert not unknown, f"unknown: {unknown}"
    for part in PARTS:
        if chosen and part.__name__ not in chosen:
            continue
        print(f"{part.__name__}: {part.__doc__}", flush=True)
        since = time.monotonic()
        part()
        print(f"  {time.monotonic() - since:.1f} s")


main()

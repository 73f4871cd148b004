#!/usr/bin/env python3
"""Runs a server in a control group with the memory limit of examples/deploy/kubernetes.yaml while its clients try to make it hold more.

usage: tests/deploy/memory_limit.py [OUTRIGGER]

* 8 clients each send 15 MB of a message that does not end.
* 38 clients that can resume are cut while their terminals write 20 MB each.

The kernel ends no process of the group, and a new client is served. Needs root and control groups that can be written; elsewhere it
says that it checks nothing.
"""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
from peers import MIB, PATIENCE, bearer, connect, frame, get, open_client, read_fragment, read_head, upgrade

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOKEN = "the-token-of-the-pod-that-is-long-enough"


def limit_of_example():
    """The limit in bytes."""
    text = (ROOT / "examples/deploy/kubernetes.yaml").read_text()
    return int(re.search(r"limits: \{memory: (\d+)Mi\}", text)[1]) * MIB


class Group:
    """A control group for a server, of version 1 or 2."""

    def __init__(self, limit):
        v1 = pathlib.Path("/sys/fs/cgroup/memory")
        self.is_v1 = v1.is_dir()
        self.folder = (v1 if self.is_v1 else pathlib.Path("/sys/fs/cgroup")) / f"outrigger-{os.getpid()}"
        self.folder.mkdir()
        (self.folder / ("memory.limit_in_bytes" if self.is_v1 else "memory.max")).write_text(str(limit))

    def killed(self):
        """The number of processes that the kernel has ended because of the limit."""
        text = (self.folder / ("memory.oom_control" if self.is_v1 else "memory.events")).read_text()
        return int(re.search(r"^oom_kill (\d+)$", text, re.M)[1])

    def peak(self):
        return int((self.folder / ("memory.max_usage_in_bytes" if self.is_v1 else "memory.peak")).read_text())

    def remove(self):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self.folder.rmdir()
            except OSError:
                assert time.monotonic() < deadline, "processes are left in the group"
                time.sleep(0.05)


class Server:
    def __init__(self, binary, group):
        # What a container does: the process is in the group from its first moment.
        command = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        terminal = ["sh", "-c", "head -c 20000000 /dev/zero; exec sleep 1000"]
        arguments = [binary, "terminal", "-p", "0", "--log", "warn", "--", *terminal]
        environment = {**os.environ, "OUTRIGGER_TOKEN": TOKEN}
        self.process = subprocess.Popen(
            ["sh", "-c", command, str(group.folder), *arguments], stdout=subprocess.PIPE, text=True, env=environment,
            start_new_session=True,
        )
        self.port = int(re.search(r":(\d+)/", self.process.stdout.readline())[1])

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def expect_service(server):
    """A new client gets a terminal."""
    with connect(server.port) as caller:
        caller.sendall(get("/healthz"))
        assert b" 200 " in read_head(caller)
    with open_client(server.port, "/terminal", bearer(TOKEN)) as client:
        client.settimeout(PATIENCE)
        assert read_fragment(client)[1], "the first message of a terminal"


def long_messages(server):
    begun = frame(2, bytes(16 * MIB))[: 15 * MIB]
    clients = [open_client(server.port, "/terminal", bearer(TOKEN)) for _ in range(8)]
    for client in clients:
        client.settimeout(10)
        # The server closes those for which it holds too much, and does not read input that its program does not take.
        with contextlib.suppress(OSError):
            client.sendall(begun)
    return clients


def cut_clients(server):
    for _ in range(38):
        with connect(server.port) as client:
            client.settimeout(PATIENCE)
            client.sendall(upgrade("/terminal?resume=new", bearer(TOKEN)))
            assert b" 101 " in read_head(client)
            # The first output shows that the program writes.
            while read_fragment(client)[0] != 2:
                pass
    # Meanwhile the programs write, as far as the server takes it.
    time.sleep(5)


def main():
    binary = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "target/release/outrigger")
    limit = limit_of_example()
    try:
        group = Group(limit)
    except OSError as error:
        print(f"memory_limit: not checked: no control group can be made here ({error})")
        return
    server = None
    try:
        server = Server(binary, group)
        clients = long_messages(server)
        expect_service(server)
        for client in clients:
            client.close()
        cut_clients(server)
        expect_service(server)
        assert group.killed() == 0 and server.process.poll() is None
        print(f"memory_limit: nothing was killed; peak {group.peak() / MIB:.0f} MiB of {limit / MIB:.0f} MiB, with the programs")
    finally:
        if server:
            server.stop()
        group.remove()


main()

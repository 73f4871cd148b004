"""Helpers for tests/load/attacks.py and tests/load/slow_readers.py: requests and frames, a server with its log, and worker
processes.
"""

import contextlib
import ctypes
import json
import multiprocessing
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

PATIENCE = 60
KIB, MIB = 1 << 10, 1 << 20
# The tokens of different persons.
TOKEN = "a-token-that-nobody-else-would-guess"
TOKENS = {"bystander": "the-token-of-the-bystander-alone", "meter": "a-token-that-only-opens-the-status"}


def bearer(token):
    return f"Authorization: Bearer {token}\r\n".encode()


AUTHORIZATION = bearer(TOKEN)
LIBC = ctypes.CDLL(None)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
PR_SET_CHILD_SUBREAPER = 36


def prepare():
    """Raises the descriptor limit, becomes the subreaper of what a server leaves behind, and has SIGTERM clean up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def upgrade(path="/echo", extra=AUTHORIZATION):
    return (
        b"GET %s HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n%s\r\n" % (path.encode(), extra)
    )


def get(path, extra=b""):
    return b"GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % (path.encode(), extra)


def post(path, body):
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n"
    return head % (path.encode(), len(body), AUTHORIZATION) + body


def frame(opcode, payload, first=0x80):
    """A client's frame, with a mask of zeros."""
    length = len(payload)
    if length < 126:
        size = bytes([0x80 | length])
    elif length < 1 << 16:
        size = b"\xfe" + length.to_bytes(2)
    else:
        size = b"\xff" + length.to_bytes(8)
    return bytes([first | opcode]) + size + b"\0\0\0\0" + payload


def connect(port, source="127.0.0.1", receive_buffer=None):
    connection = socket.socket()
    connection.settimeout(PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    if source != "127.0.0.1":
        connection.bind((source, 0))
    connection.connect(("127.0.0.1", port))
    return connection


def read_head(connection):
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            raise ConnectionError(f"the connection ended in its head: {head!r}")
        head += byte
    return head


def open_client(port, path="/echo", fields=AUTHORIZATION, tls=None, **options):
    connection = connect(port, **options)
    if tls:
        connection = tls.wrap_socket(connection, server_hostname="localhost")
    connection.sendall(upgrade(path, fields))
    head = read_head(connection)
    assert head.startswith(b"HTTP/1.1 101 "), head
    return connection


def read_exactly(connection, count):
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(count - len(data), MIB))
        if not piece:
            raise ConnectionError("the connection ended")
        data += piece
    return bytes(data)


def read_frame(connection):
    opcode, payload, _ = read_fragment(connection)
    return opcode, payload


def read_fragment(connection):
    """Returns a frame's opcode and payload, and whether it is the last one of its message."""
    first, length = read_exactly(connection, 2)
    if length == 126:
        length = int.from_bytes(read_exactly(connection, 2))
    elif length == 127:
        length = int.from_bytes(read_exactly(connection, 8))
    return first & 15, read_exactly(connection, length), first & 0x80 != 0


def open_clients(port, paths):
    clients = []
    for path in paths:
        clients.append(open_client(port, path))
    return clients


def client_count(port):
    with connect(port) as caller:
        caller.sendall(get("/status", AUTHORIZATION + b"Connection: close\r\n"))
        answer = b""
        while data := caller.recv(1 << 16):
            answer += data
    return json.loads(answer.partition(b"\r\n\r\n")[2])["client_count"]


def descriptors_for(count):
    return min(count, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500)


class Worker:
    """A function in its own process. `hear` returns what it yields, `result` its return value."""

    running = []

    def __init__(self, function, *args, keep=(), nice=10):
        self.pipe, theirs = multiprocessing.Pipe()
        # A descriptor that stayed open here would keep a connection that the attack closes.
        spared = {0, 1, 2, theirs.fileno(), *keep}
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                for descriptor in map(int, os.listdir("/proc/self/fd")):
                    if descriptor not in spared:
                        with contextlib.suppress(OSError):
                            os.close(descriptor)
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.nice(nice)
                theirs.send(("result", function(theirs, *args)))
            except BaseException:
                with contextlib.suppress(OSError):
                    theirs.send(("error", traceback.format_exc()))
            finally:
                os._exit(0)
        theirs.close()
        Worker.running.append(self)

    def hear(self, seconds=PATIENCE):
        if not self.pipe.poll(seconds):
            raise TimeoutError(f"a process that attacks said nothing for {seconds} s")
        kind, value = self.pipe.recv()
        if kind == "error":
            raise RuntimeError(f"a process that attacks failed:\n{value}")
        return value

    def kill(self):
        if self in Worker.running:
            Worker.running.remove(self)
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pipe.close()


def results(workers, seconds=PATIENCE):
    return [worker.hear(seconds) for worker in workers]


class Server:
    def __init__(self, binary, routes, options, more_tokens=(), has_tokens=True):
        self.files = tempfile.TemporaryDirectory(prefix="outrigger-attacks-")
        config = os.path.join(self.files.name, "config.json")
        self.log_path = os.path.join(self.files.name, "log")
        with open(config, "w") as file:
            json.dump({"listen": ["127.0.0.1:0"], "routes": {"/echo": {"echo": {}}, **routes}}, file)
        tokens = os.path.join(self.files.name, "tokens")
        with open(tokens, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(f"attacker all {TOKEN}\nbystander all {TOKENS['bystander']}\nmeter metrics {TOKENS['meter']}\n")
            file.writelines(f"person{number} use {token}\n" for number, token in enumerate(more_tokens))
        access = ["--token-file", tokens] if has_tokens else ["--no-auth"]
        command = [binary, "serve", "--config", config, *access, *options]
        environment = {name: value for name, value in os.environ.items() if name not in ("RUST_LOG", "OUTRIGGER_TOKEN")}
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment, process_group=0
            )
        self.pid = self.process.pid
        # What is measured is to be the server, and not who else uses the machine; its programs have no such privilege.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(self.pid, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, self.pid, -10)
        line = self.process.stdout.readline()
        found = re.search(rb":(\d+)/", line)
        if not found:
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"the server did not start: {line!r} {self.log()[-1000:]!r}")
        self.port = int(found[1])

    def log(self):
        with open(self.log_path, "rb") as file:
            return file.read()

    def log_size(self):
        return os.path.getsize(self.log_path)

    def memory(self, field):
        with open(f"/proc/{self.pid}/status") as file:
            return int(re.search(rf"{field}:\s+(\d+) kB", file.read())[1]) * KIB

    def processor_time(self):
        with open(f"/proc/{self.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def children(self):
        return children_of(self.pid)

    def stop(self):
        """Stops the server with a signal, or else kills it. Returns an error if it did not stop as it should."""
        self.process.terminate()
        try:
            code = self.process.wait(20)
            return None if code == 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "it did not end within 20 s of SIGTERM"
        finally:
            self.process.stdout.close()


@contextlib.contextmanager
def serving(binary, routes, options):
    server = Server(binary, routes, options)
    try:
        yield server
    finally:
        wrong = server.stop()
        server.files.cleanup()
    assert not wrong, f"the server: {wrong}"


def eventually(what, check, seconds=PATIENCE):
    """Waits until `check` returns something true, and returns it. `check` may return a pair of that and what it has seen."""
    deadline = time.monotonic() + seconds
    while True:
        found = check()
        seen = None
        if isinstance(found, tuple):
            found, seen = found
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: {seen}"
        time.sleep(0.02)


def children_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def end_left_processes():
    """Kills what the server has left, which are children of this process by now. Returns how many there were."""
    left = set()
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline + 10:
        known = {worker.pid for worker in Worker.running}
        found = [child for child in children_of(os.getpid()) if child not in known]
        if not found:
            break
        for child in found:
            if os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() > deadline:
                left.add(child)
                os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    return len(left)

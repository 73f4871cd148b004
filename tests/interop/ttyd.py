"""ttyd's protocol, against `outrigger terminal`, a process of `outrigger processes`, and ttyd itself.

The same client talks to all three, so that it cannot differ from ttyd's own clients without failing against ttyd. Another
person's client, `ttyd-client`, opens a shell on `outrigger terminal` too.

usage: tests/interop/ttyd.py TTYD      the path of ttyd's program
"""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import pty
import re
import select
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.request

import websockets
from server import TLS, Server

PATIENCE = 60

# The output is raw, so that its checksum is known.
LINES = 1_450_000
SCRIPT = (
    "stty -echo; echo ready; read line; echo \"$line $(stty size)\"; read line; stty size; "
    f"stty raw; echo begin; seq 1 {LINES}; read line; exit 3"
)
COMMAND = ["sh", "-c", SCRIPT]
EXPECTED = "".join(f"{line}\n" for line in range(1, LINES + 1)).encode()


class Client:
    """A client of ttyd's protocol."""

    def __init__(self, connection):
        self.connection, self.output = connection, b""

    async def send(self, command, content=""):
        await self.connection.send(f"{command}{content}".encode())

    async def size(self, command, cols, rows):
        await self.send(command, json.dumps({"columns": cols, "rows": rows}))

    async def receive(self):
        """Returns the command and the content of the next message."""
        message = await asyncio.wait_for(self.connection.recv(), PATIENCE)
        assert isinstance(message, bytes), message
        return message[:1], message[1:]

    async def until(self, text):
        """Waits for output, and drops what comes before the end of it."""
        while text not in self.output:
            command, content = await self.receive()
            assert command == b"0", (command, content)
            self.output += content
        before, self.output = self.output.split(text, 1)
        return before

    async def rest(self):
        """Adds the output that comes before an answer to a PING."""
        answer = await self.connection.ping()
        while not answer.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    self.output += (await self.receive())[1]


async def converse(url, name, token=None):
    """Goes through the protocol. Returns the title, and the code and reason of the CLOSE."""
    options = {"subprotocols": ["tty"], "max_size": None, "compression": None, "max_queue": 4}
    async with websockets.connect(url, **options) as connection:
        assert connection.subprotocol == "tty"
        client = Client(connection)
        # ttyd starts its program when it has this message.
        await connection.send(json.dumps({"AuthToken": "", "columns": 81, "rows": 25}).encode())
        command, title = await client.receive()
        assert command == b"1", command
        command, preferences = await client.receive()
        assert command == b"2" and isinstance(json.loads(preferences), dict), (command, preferences)
        await client.until(b"ready\r\n")
        await client.send("0", "typed\n")
        await client.until(b"typed 25 81\r\n")
        await client.size("1", 132, 50)
        await client.send("0", "\n")
        await client.until(b"50 132\r\n")
        # A program that writes 10 MB is stopped three times.
        await client.until(b"begin\n")
        for _ in range(3):
            await client.send("2")
            await client.rest()
            await client.send("3")
            wanted = len(client.output) + 500_000
            while len(client.output) < wanted:
                client.output += (await client.receive())[1]
        while len(client.output) < len(EXPECTED):
            client.output += (await client.receive())[1]
        assert hashlib.sha256(client.output).digest() == hashlib.sha256(EXPECTED).digest(), "other output"
        await client.send("0", "\n")
        try:
            while True:
                print(f"more output: {await client.receive()}")
        except websockets.ConnectionClosed as closed:
            code, reason = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")
    print(f"  {name}: {len(EXPECTED)} bytes, title {title.decode()[:9]!r}..., CLOSE {code} {reason!r} ok")
    return title.decode(), code, reason


def spawn(url):
    body = json.dumps({"command": COMMAND[0], "args": COMMAND[1:], "allocate_tty": True}).encode()
    request = urllib.request.Request(f"http{url[2:]}/spawn", body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=PATIENCE))["process_id"]


@contextlib.contextmanager
def ttyd(program):
    """Runs ttyd, and returns the URL of its WebSocket."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [program, "-i", "127.0.0.1", "-p", str(port), "--writable", *COMMAND]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert time.monotonic() < deadline and process.poll() is None, "ttyd does not listen"
                time.sleep(0.05)
        yield f"ws://127.0.0.1:{port}/ws"
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)


def ttyd_client(url):
    """Runs `ttyd-client` on a terminal of its own. It asks the server for a page first, which is not part of the protocol."""
    base = "http" + url.removeprefix("ws").removesuffix("/ws")
    code = (
        "import ttyd_cli.client as client; client.authenticate = lambda *_: None; "
        f"client.TTYDClient({base!r}).run_forever()"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", code])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
    shown, deadline = b"", time.monotonic() + PATIENCE

    def until(pattern, line=b""):
        """Types a line until the pattern is shown."""
        nonlocal shown
        os.write(terminal, line)
        while not re.search(pattern, shown):
            assert time.monotonic() < deadline, shown
            if select.select([terminal], [], [], 3)[0]:
                shown += os.read(terminal, 65536)
            else:
                os.write(terminal, line)

    try:
        until(rb"prompt>")
        # The client drops what is typed before it has handled output, and sends the size of its terminal first or last.
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 111, 0, 0))
        until(rb"size-42", b"until [ \"$(stty size)\" = '44 111' ]; do sleep 0.1; done; echo size-$((6*7))\r")
        os.write(terminal, b"exit\r")
        assert os.waitpid(pid, 0)[1] == 0, shown
        pid = None
    finally:
        if pid:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        os.close(terminal)


async def main(program):
    host = os.uname().nodename
    expected = (f"sh -c {SCRIPT} ({host})", 1000, "exited with code 3")
    with ttyd(program) as url:
        title, code, _ = await converse(url, "ttyd")
        # ttyd reports an exit code other than 0 in this way, if at all.
        assert title == expected[0] and code in (1006, 1011), (title, code)
    with Server("terminal", "--no-auth", "--", *COMMAND) as server:
        assert await converse(server.url, "outrigger terminal") == expected
    with Server("processes", "--no-auth") as server:
        url = server.url.rstrip("/")
        assert await converse(f"{url}/{spawn(url)}/attach", "outrigger processes") == expected
    with Server("terminal", "--no-auth", "--path", "/ws", "--env", "PS1=prompt>", "--", "sh", "-i") as server:
        ttyd_client(server.url)
        print("  ttyd-client ok")


assert not TLS, "ttyd has no certificate here"
asyncio.run(main(sys.argv[1]))

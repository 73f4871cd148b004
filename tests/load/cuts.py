#!/usr/bin/env python3
"""Cuts the connections of resumable clients at random points. Every message must arrive once and in order, both ways.

usage: tests/load/cuts.py [--cuts N] [--clients N] [--seed N] [--tls]      1000 cuts, 32 clients and a random seed by default
       tests/load/cuts.py --memory [--clients N]                   1000 detached clients with full buffers
env:   OUTRIGGER=target/release/outrigger

The clients use the services `agent`, `app`, `terminal`, `processes` and `echo` of one server, through a proxy that cuts their
connections: with TCP resets, with FIN and no CLOSE, and silently, so that the next connection takes over. A cut may come at any
byte of the handshake or of a message, in either direction, and with --tls at any byte of a TLS handshake or record. Messages have from 1 byte to 1 MiB and are numbered in both
directions. Halfway through, the agent is killed with SIGKILL. At the end, no client and no process of a client may be left.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import logging
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
from cut_programs import updates_of
from cutting import BINARY, KIB, MIB, PATIENCE, TEXT, Ended, Link, Proxy, Refused, content, size, stream
from tls_peers import Certificates

OUTRIGGER = os.environ.get("OUTRIGGER", "target/release/outrigger")
WINDOW = MIB  # maximum bytes that a client has in flight, but at least one message


# The clients. Each one sends messages until the last cut, and then waits for the last answer.


class Client:
    def __init__(self, run, number):
        self.run, self.name = run, f"{type(self).__name__} {number} {run.seed}"
        self.link = run.link(self.path, self.name)

    async def close(self):
        await self.link.close()


class Echo(Client):
    path = "/echo"

    async def work(self):
        link, on_way, back = self.link, 0, 0
        while self.run.goes_on() or back < link.sent:
            while self.run.goes_on() and (on_way < WINDOW or back == link.sent):
                message = content(self.name, link.sent)
                on_way += len(message)
                link.send(message, TEXT if link.sent % 2 else BINARY)
            opcode, got = await link.receive()
            assert got == content(self.name, back), f"{self.name}: {got[:40]} is not message {back}"
            assert opcode == (TEXT if back % 2 else BINARY), (self.name, back)
            on_way -= len(got)
            back += 1
            link.confirm(back)


class App(Client):
    path = "/app"

    async def work(self):
        link, on_way, sent, back, broadcast = self.link, 0, 0, 0, None
        link.send(self.name.encode())
        while self.run.goes_on() or back < sent:
            while self.run.goes_on() and (on_way < WINDOW or back == sent):
                message = content(f"{self.name}/in", sent)
                on_way += len(message) + size(f"{self.name}/out", sent)
                link.send(message, BINARY if sent % 2 else TEXT)
                sent += 1
            opcode, got = await link.receive()
            if got.startswith(b"broadcast "):
                number = int(got.split()[1])
                assert broadcast in (None, number - 1), f"{self.name}: broadcast {number} after {broadcast}"
                broadcast = number
                continue
            assert got == content(f"{self.name}/out", back), f"{self.name}: {got[:80]} is not answer {back}"
            assert opcode == (BINARY if back % 2 else TEXT), (self.name, back)
            on_way -= len(got) + size(f"{self.name}/in", back)
            back += 1
            link.confirm(back + 1)

    async def close(self):
        await self.link.close(ignored=b"broadcast ")


class Terminal(Client):
    """Uses one terminal after another. Each ends with its last output, its exit code and CLOSE. These may be cut, too."""

    path = "/terminal"

    async def work(self):
        sizes, count = random.Random(self.name), 0
        while self.run.goes_on():
            self.link = self.run.link(self.open(), f"{self.name} {count}")
            await self.use(sizes, sizes.randrange(4 * MIB))
            self.run.count(self.link)
            count += 1

    def open(self):
        """The path of the next terminal."""
        return self.path

    async def use(self, sizes, total):
        link, sent, back, ready = self.link, 0, 0, b""
        while len(ready) < 6:
            opcode, got = await link.receive()
            # The text messages are the greeting.
            ready += got if opcode == BINARY else b""
        assert ready == b"ready\n", ready
        while back < total:
            while sent < total and (sent - back < WINDOW or back == sent):
                length = min(total - sent, int(MIB ** sizes.random()))
                link.send(stream(sent, length), BINARY)
                sent += length
            opcode, got = await link.receive()
            assert opcode == BINARY and got == stream(back, len(got)), f"{self.name}: {got[:80]} is not byte {back}"
            back += len(got)
        link.send(b".", BINARY)
        opcode, event = await link.receive()
        assert opcode == TEXT and json.loads(event) == {"type": "exit", "exitCode": 7}, event
        try:
            raise AssertionError(f"a message after the exit: {await link.receive()}")
        except Ended as ended:
            assert ended.code == 1000, ended

    async def close(self):
        """Nothing to do: the last terminal has ended by itself."""


class Attach(Terminal):
    """The same with processes."""

    def open(self):
        command, *args = program("terminal")
        return f"/process/{self.run.server.spawn(command=command, args=args, allocate_tty=True)}/attach"


class Agent(Client):
    path = "/acp"

    async def work(self):
        link, self.waiting, self.ids = self.link, {}, 0
        self.session = None
        self.ask("initialize", protocolVersion=1, clientCapabilities={})
        while self.run.goes_on() or self.waiting:
            while self.session and self.run.goes_on() and (self.on_way < WINDOW or not self.waiting):
                self.prompt()
            if not self.session and not self.waiting:
                self.ask("session/new", cwd="/", mcpServers=[])
            message = json.loads((await link.receive())[1])
            if "method" in message:
                self.hear(message)
            else:
                self.settle(message)

    def ask(self, method, **params):
        # 0, "0", 1, "1", ...: equal in every client.
        id = self.ids // 2 if self.ids % 2 == 0 else str(self.ids // 2)
        self.ids += 1
        self.waiting[repr(id)] = (method, params)
        self.link.send(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode())

    def prompt(self):
        text = content(f"{self.session}/prompt", self.prompts).decode()
        self.on_way += len(text) + MIB // 8 * updates_of(self.prompts)
        prompt = [{"type": "text", "text": text}]
        self.ask("session/prompt", sessionId=self.session, number=self.prompts, prompt=prompt)
        self.prompts += 1
        self.run.prompts += 1

    def hear(self, message):
        """Handles an update, or a permission request, which comes once for each prompt that needs it."""
        params = message["params"]
        assert params["sessionId"] == self.session, (self.name, params["sessionId"])
        if message["method"] == "session/update":
            text = params["update"]["content"]["text"].encode()
            assert text == content(f"{self.session}/update", self.updates, MIB // 4), f"{self.name}: update {self.updates}"
            self.updates += 1
        else:
            assert params["number"] not in self.permitted, (self.name, params)
            self.permitted.add(params["number"])
            result = {"outcome": {"outcome": "cancelled"}}
            self.link.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())

    def settle(self, message):
        """Handles the answer to a request. There is exactly one."""
        method, params = self.waiting.pop(repr(message["id"]))
        if "error" in message:
            # The agent was killed. Its sessions are lost.
            assert self.run.killed and message["error"]["code"] in (-32012, -32002), (self.name, method, message)
            self.run.failed[message["error"]["code"]] += method == "session/prompt"
            self.session = None
        elif method == "session/new":
            self.session = message["result"]["sessionId"]
            self.prompts = self.updates = self.on_way = 0
            self.permitted = set()
        elif method == "session/prompt":
            assert message["result"]["number"] == params["number"], (self.name, message, params["number"])
            self.on_way -= len(params["prompt"][0]["text"]) + MIB // 8 * updates_of(params["number"])
            self.run.answers += 1


class Run:
    """The server, the proxy and the clients, and what they count."""

    def __init__(self, cuts, clients, seed):
        self.cuts, self.clients, self.seed = cuts, clients, seed
        self.killed, self.prompts, self.answers, self.failed = False, 0, 0, collections.Counter()
        self.figures = collections.Counter()

    def link(self, path, name):
        return Link(self.proxy_port, path, name, self.server.tls, self.first_port)

    def goes_on(self):
        return self.proxy.cuts.total() < self.cuts

    def count(self, link):
        self.figures.update(
            {"in": link.received, "out": link.sent, "bytes in": link.bytes_in, "bytes out": link.bytes_out, "cuts": link.cuts}
        )

    async def execute(self, server):
        self.server, self.proxy = server, Proxy(server.port, self.cuts, self.seed)
        self.proxy_port = self.first_port = await self.proxy.start()
        if server.tls:
            self.first_port = await self.proxy.listen(Proxy.SPARED_TLS)
        kinds = [Agent, App, Terminal, Echo, Attach]
        clients = [kinds[number % len(kinds)](self, number) for number in range(self.clients)]
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.kill_the_agent())
            for client in clients:
                group.create_task(client.work())
        took = time.monotonic() - began
        for client in clients:
            await client.close()
            if not isinstance(client, Terminal):
                self.count(client.link)
        await self.proxy.stop()
        return took

    async def kill_the_agent(self):
        """Kills the agent halfway through, when it has prompts to answer."""
        while self.goes_on() and (self.proxy.cuts.total() < self.cuts // 2 or self.prompts == self.answers):
            await asyncio.sleep(0.01)
        self.killed = True
        (agent,) = [pid for pid in self.server.children() if command_of(pid)[-1] == "agent"]
        os.kill(agent, signal.SIGKILL)


def program(name):
    """The command of a program behind the server."""
    return [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "cut_programs.py"), name]


def command_of(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as file:
        return file.read().rstrip("\0").split("\0")
    return [""]


class Server:
    def __init__(self, routes, *options, tls=False):
        self.files = tempfile.TemporaryDirectory(prefix="outrigger-cuts-")
        self.tls = None
        if tls:
            certificates = Certificates(self.files.name)
            self.tls, options = certificates.context(), [*options, *certificates.options()]
        config = os.path.join(self.files.name, "config.json")
        with open(config, "w") as file:
            json.dump({"listen": ["127.0.0.1:0"], "routes": routes}, file)
        self.log_path = os.path.join(self.files.name, "log")
        with open(self.log_path, "ab") as log:
            command = [OUTRIGGER, "serve", "--config", config, "--no-auth", *options]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        self.port = int(re.search(rb":(\d+)/", self.process.stdout.readline())[1])

    def url(self, path):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}{path}"

    def open(self, request):
        return urllib.request.urlopen(request, timeout=PATIENCE, context=self.tls)

    def get(self, path):
        with self.open(self.url(path)) as answer:
            return answer.read().decode()

    def spawn(self, **body):
        fields = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url("/process/spawn"), json.dumps(body).encode(), fields)
        with self.open(request) as answer:
            return json.load(answer)["process_id"]

    def status(self):
        return json.loads(self.get("/status"))

    def metric(self, name):
        return int(re.search(rf"^{re.escape(name)} (\d+)$", self.get("/metrics"), re.MULTILINE)[1])

    def children(self):
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as file:
            return [int(pid) for pid in file.read().split()]

    def memory(self, field="VmRSS"):
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(rf"{field}:\s+(\d+) kB", file.read())[1]) * KIB

    def wait_for_calm(self, programs):
        """Waits until no client is left, and no processes except these."""
        deadline = time.monotonic() + PATIENCE
        while True:
            status, left = self.status(), sorted(command_of(pid)[-1] for pid in self.children())
            if status["client_count"] == 0 and left == programs:
                return
            assert time.monotonic() < deadline, (left, status)
            time.sleep(0.1)

    def stop(self):
        self.process.terminate()
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.process.stdout.close()

    def log_tail(self):
        with open(self.log_path, errors="replace") as file:
            return file.read()[-8000:]


def report_of(server):
    """What the app has counted."""

    async def ask():
        link = Link(server.port, "/app", "report", server.tls)
        link.send(b"report")
        report = json.loads((await link.receive())[1])
        await link.close()
        return report

    return asyncio.run(ask())


def cut(cuts, clients, seed, tls):
    """Returns after `cuts` cuts, or raises what went wrong."""
    routes = {
        "/acp": {"agent": {"command": program("agent")}},
        "/app": {"app": {"command": program("app")}},
        "/terminal": {"terminal": {"command": program("terminal")}},
        "/process/...": {"processes": {"retention": "1s"}},
        "/echo": {"echo": {}},
    }
    options = ["--log", "info", "--ping-interval", "1s", "--close-timeout", "1s", "--resume-grace", "20s"]
    server, run = Server(routes, *options, tls=tls), Run(cuts, clients, seed)
    try:
        took = asyncio.run(run.execute(server))
        server.wait_for_calm(["agent", "app"])
        resumes, takeovers = server.metric("outrigger_resumes_total"), server.metric("outrigger_takeovers_total")
        detached = server.metric("outrigger_detached_clients")
        report = report_of(server)
        assert server.stop() == 0
    except BaseException:
        with contextlib.suppress(OSError):
            print(f"seed {seed}; the status: {server.get('/status')}", file=sys.stderr)
        server.stop()
        print(f"the end of the log:\n{server.log_tail()}", file=sys.stderr)
        raise
    assert detached == 0 and resumes > 0, (detached, resumes)
    # The client that requests the report is still connected.
    assert report["connects"] == report["resumable"] == report["disconnects"] + 1 and not report["doubled"], report
    assert run.prompts == run.answers + run.failed.total(), (run.prompts, run.answers, run.failed)
    figures, ways = run.figures, ", ".join(f"{count} {way} {where}" for (way, where), count in sorted(run.proxy.cuts.items()))
    print(f"  {run.proxy.cuts.total()} cuts ({ways}) of {clients} clients in {took:.1f} s, seed {seed}")
    seen = "" if tls else f", {run.proxy.taken_over} of them seen with CLOSE 4001"
    print(f"  {resumes} resumes, {takeovers} connections taken over{seen}")
    for direction in ("out", "in"):
        print(f"  {figures[direction]} messages with {figures['bytes ' + direction] / MIB:.0f} MiB {direction}", end="")
        print(": none lost, doubled or out of order")
    failed = ", ".join(f"{count} with {code}" for code, count in sorted(run.failed.items()))
    print(f"  {run.prompts} prompts: {run.answers} answered, failed when the agent was killed: {failed or 'none'}")


# 1,000 detached clients.


def memory(clients):
    """Detached clients get almost as much as --memory allows, and then more. Those that are kept come back."""
    limit = 256 * MIB
    # A sixteenth is a reserve, because one turn can add as much.
    budget = limit - limit // 16
    # The formula of docs/costs.md, but messages that are kept take no more than they count.
    allowed = limit + 22 * MIB + 512 * KIB + clients * 512
    route = {"/app": {"app": {"command": program("flood")}}}
    server = Server(route, "--log", "warn", "--memory", "256MiB")

    async def fill():
        links = [Link(server.port, "/app", f"memory {number}") for number in range(clients)]
        for link in links:
            await link.connect()
        for link in links:
            link.lose()
        while server.metric("outrigger_detached_clients") < clients:
            await asyncio.sleep(0.05)
        control = Link(server.port, "/app", "control")
        for share, wanted in ("full", limit * 3 // 4), ("too full", limit // 2):
            control.send(str(wanted).encode())
            sent = int((await control.receive())[1])
            metrics = ("detached_clients", "kept_bytes", "held_memory_bytes")
            # The server ends a limited number of clients in a turn, and measures what the last messages added within a second.
            deadline = time.monotonic() + PATIENCE
            while (figures := [server.metric(f"outrigger_{name}") for name in metrics])[2] > budget:
                assert time.monotonic() < deadline, figures
                await asyncio.sleep(0.05)
            kept, bytes, memory = figures
            print(f"  {share}: {kept} of {clients} detached clients are kept, with {bytes / MIB:.1f} MiB of messages")
            peak = server.memory("VmHWM")
            print(f"    in {memory / MIB:.1f} MiB; peak memory {peak / MIB:.1f} MiB, allowed {allowed / MIB:.1f} MiB")
            assert peak <= allowed
            assert (kept == clients) == (share == "full"), kept
        back = 0
        for link in links:
            try:
                for number in range(sent):
                    opcode, got = await link.receive()
                    assert got == content("flood", number, 16 * KIB), (number, got[:40])
                await link.close()
                back += 1
            except Refused as refused:
                assert refused.status == 410, refused
        await control.close()
        return kept, back

    try:
        kept, back = asyncio.run(fill())
        server.wait_for_calm(["flood"])
        assert server.stop() == 0
    except BaseException:
        server.stop()
        print(f"the end of the log:\n{server.log_tail()}", file=sys.stderr)
        raise
    print(f"  {back} clients came back and got every message")
    assert 0 < back == kept, (back, kept)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--clients", type=int)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--memory", action="store_true")
    arguments = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if arguments.memory:
        memory(arguments.clients or 1000)
    else:
        cut(arguments.cuts, arguments.clients or 32, arguments.seed, arguments.tls)


if __name__ == "__main__":
    main()

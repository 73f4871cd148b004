#!/usr/bin/env python3
"""Restarts and kills the processes of examples/cluster while members talk. No connection may be refused, and every message of
a room must reach every member once and in order.

usage: tests/deploy/cluster.py OUTRIGGER [--without PART]

It starts examples/cluster/run.sh, lets members of several rooms join through HAProxy, and keeps sending messages while

* members lose their connections, some of them right after they have sent a message;
* restart.sh restarts the three processes, one after the other;
* each process is killed with SIGKILL.

Then it stops a process with SIGSTOP, and HAProxy must send its clients to another one.

While a process runs, the cookie must lead its members back to it, and a connection can be resumed there and at no other process.

With --without, the test must fail. It runs a copy of examples/cluster that lacks one of the parts in PARTS.

Needs the packages nats-py and websockets, and nats-server, haproxy, curl and openssl.
"""

import argparse
import asyncio
import csv
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import websockets

CLUSTER = pathlib.Path(__file__).resolve().parent.parent.parent / "examples/cluster"
# Part: the file that has it, a pattern, and what replaces each match.
PARTS = {
    # Members do not ask for the messages that they have missed.
    "since": ("member.py", r', "since": self.last', ""),
    # Members do not send messages again that may not have been stored.
    "resend": ("member.py", r"for request in list\(self.unstored.values\(\)\)", "for request in []"),
    # NATS does not know that a message was sent again.
    "id": ("chat.py", r"headers=headers", "headers=None"),
    # New messages reach a member that still gets earlier ones.
    "joining": (
        "chat.py",
        r"(?m)^    tell\(member, joined=",
        '    write(command("subscribe", client=member.client, topic=name))\n\\g<0>',
    ),
    # A member gets messages again that it has fetched before they were published. The consumer is slow, so that this happens.
    "ahead": (
        "chat.py",
        r"(?s)(async def publish.*?\n +try:)(.*?)if last >= seq\}",
        r"\1\n            await asyncio.sleep(0.01)\2if False}",
    ),
    # HAProxy does not repeat a handshake that a process has refused.
    "retries": ("haproxy.cfg", r"(?m)^  (retries .*|option redispatch.*|retry-on .*)$", "  retries 0"),
    # HAProxy does not look at the cookie.
    "cookie": ("haproxy.cfg", r"(?m)^  cookie node .*$", ""),
}


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("outrigger")
    parser.add_argument("--without", choices=PARTS)
    return parser.parse_args()


def copy_without(part, folder):
    """Copies the cluster without one of its parts."""
    shutil.copytree(CLUSTER, folder)
    name, pattern, replacement = PARTS[part]
    text, count = re.subn(pattern, replacement, (folder / name).read_text())
    assert count, f"{name} has no {pattern}"
    (folder / name).write_text(text)
    return folder


ARGUMENTS, STATE = parse_arguments(), tempfile.TemporaryDirectory()
if ARGUMENTS.without:
    CLUSTER = copy_without(ARGUMENTS.without, pathlib.Path(STATE.name) / "cluster")
sys.path.insert(0, str(CLUSTER))
sys.dont_write_bytecode = True
import member  # noqa: E402

NODES = ("one", "two", "three")
ROOMS = ("attic", "cellar", "garden")
MEMBERS = 12  # of each room; the first two talk
PACE = 0.02  # seconds between two messages of a talker
PATIENCE = 60  # seconds, the deadline of every wait


class Cluster:
    """examples/cluster/run.sh in a directory of its own."""

    def __init__(self, outrigger, state):
        self.state = pathlib.Path(state)
        self.disturbed = dict.fromkeys(NODES, 0)  # how often each process was stopped, or is being stopped
        self.unsettled = set()  # those that are being stopped
        environment = {**os.environ, "OUTRIGGER": outrigger, "PYTHON": sys.executable}
        self.process = subprocess.Popen([CLUSTER / "run.sh", state], stdout=subprocess.PIPE, env=environment, text=True)
        self.url = None

    def wait(self):
        """Waits until members can connect."""
        lines = [self.process.stdout.readline() for _ in range(2)]
        assert lines[1].startswith("members connect to"), lines
        self.url = re.search(r"ws://\S+", lines[1])[0]
        self.env = dict(line.split("=", 1) for line in (self.state / "env").read_text().splitlines())

    def pid(self, node):
        return int((self.state / f"{node}.pid").read_text())

    def stop(self):
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.process.stdout.close()

    def statistics(self, proxy, server):
        with urllib.request.urlopen(f"http://{self.env['STATS']}/;csv", timeout=PATIENCE) as answer:
            text = answer.read().decode().removeprefix("# ")
        rows = [row for row in csv.DictReader(text.splitlines()) if (row["pxname"], row["svname"]) == (proxy, server)]
        assert len(rows) == 1, text
        return rows[0]

    async def run(self, script, *args):
        process = await asyncio.create_subprocess_exec(CLUSTER / script, self.state, *args, stdout=subprocess.DEVNULL)
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0, script

    async def restart(self, node):
        self.disturbed[node] += 1
        self.unsettled.add(node)
        await self.run("restart.sh", node)
        self.unsettled.discard(node)

    async def kill(self, node):
        self.disturbed[node] += 1
        self.unsettled.add(node)
        pid = self.pid(node)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: self.pid(node) != pid, f"{node} is started again")
        await self.run("wait_up.sh", node)
        self.unsettled.discard(node)


class Member(member.Member):
    def __init__(self, cluster, room, name):
        super().__init__(cluster.url, room, name)
        self.cluster, self.name = cluster, name
        self.messages = []  # the received ones: (number, name, text)
        self.answers = {}  # text -> number
        self.said = []
        self.duplicates = self.comebacks = self.held = 0
        self.refused, self.codes, self.strays = [], [], []
        self.former = None  # the process that served this member, and how often it was disturbed by then

    def received(self, message):
        self.messages.append((message["seq"], message["name"], message["text"]))

    def stored(self, answer):
        self.duplicates += answer["duplicate"]
        text = self.said[int(answer["stored"].rpartition("-")[2]) - 1]
        self.answers[text] = answer["seq"]

    def connected(self):
        assert self.cookie == f"node={self.server}", (self.cookie, self.server)
        if self.former:
            self.comebacks += 1
            server, disturbed = self.former
            if disturbed == self.cluster.disturbed[server]:
                self.held += self.server == server
                if self.server != server:
                    self.strays.append((server, self.server))
        stable = self.server not in self.cluster.unsettled
        self.former = (self.server, self.cluster.disturbed[self.server]) if stable else None

    def failed(self, error):
        self.refused.append(repr(error))

    def lost(self, error):
        self.codes.append(error.rcvd.code if error.rcvd else 1006)

    def cut(self):
        """Ends the connection without CLOSE."""
        if self.socket:
            self.socket.transport.abort()


async def until(condition, what):
    """Waits until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.05)


async def talk(talker, over):
    while not over.is_set():
        text = f"{talker.name} {len(talker.said) + 1}"
        talker.said.append(text)
        await talker.say(text)
        # The server may have received the message, or not.
        if len(talker.said) % 40 == 0:
            talker.cut()
        await until(lambda: len(talker.unstored) < 20, "messages are stored")
        await asyncio.sleep(PACE)


async def cut_some(members, over):
    while not over.is_set():
        random.choice(members).cut()
        await asyncio.sleep(0.05)


async def resume(cluster, node, fields):
    """Handshakes with the cookie of a process, and fields; returns the status and the response's field for resuming."""
    try:
        fields = {"Cookie": f"node={node}", **fields}
        async with websockets.connect(cluster.url, additional_headers=fields) as socket:
            served = socket.response.headers["Set-Cookie"].partition(";")[0]
            assert served == f"node={node}", (served, node)
            token = socket.response.headers["Outrigger-Resume"]
            socket.transport.abort()
            return 101, token
    except websockets.InvalidStatus as error:
        return error.response.status_code, None


async def check_resumption(cluster):
    """A connection can be resumed with the cookie of its process, not at another one, and not after a restart."""
    for node, other in zip(NODES, NODES[1:] + NODES[:1]):
        status, token = await resume(cluster, node, {"Outrigger-Resume": "new"})
        assert status == 101 and token, (node, status)
        back = {"Outrigger-Resume": f"{token}; received=0"}
        status, _ = await resume(cluster, other, back)
        assert status == 421, (node, other, status)
        status, token = await resume(cluster, node, back)
        assert status == 101, (node, status)
    token = token.partition(";")[0]
    await cluster.restart(node)
    status, _ = await resume(cluster, node, {"Outrigger-Resume": f"{token}; received=0"})
    assert status == 410, status


async def check_hang(cluster, node):
    """While a process hangs, its clients go to another one."""
    pid = cluster.pid(node)
    os.kill(pid, signal.SIGSTOP)
    try:
        await until(lambda: cluster.statistics("outrigger", node)["status"] == "DOWN", f"HAProxy notices that {node} hangs")
        async with websockets.connect(cluster.url, additional_headers={"Cookie": f"node={node}"}) as socket:
            served = socket.response.headers["Set-Cookie"].partition(";")[0]
            assert served != f"node={node}", served
    finally:
        os.kill(pid, signal.SIGCONT)
    await cluster.run("wait_up.sh", node)


def check_messages(members):
    """Every message was stored once, and every member of its room has it once, in order."""
    total = 0
    for room in ROOMS:
        here = [m for m in members if m.room == room]
        stored = sorted((seq, m.name, text) for m in here for text, seq in m.answers.items())
        said = [(m.name, text) for m in here for text in m.said]
        assert sorted(said) == sorted((name, text) for _, name, text in stored), f"{room}: not stored, or not answered"
        for m in here:
            mine = [text for _, name, text in stored if name == m.name]
            assert mine == m.said, f"{m.name}: out of order"
            missed = set(stored) - set(m.messages)
            assert not missed, f"{m.name} in {room} misses {len(missed)} of {len(stored)}: {sorted(missed)[:5]}"
            extra = len(m.messages) - len(stored)
            assert m.messages == stored, f"{m.name} in {room} has {extra} too many of {len(stored)}, or another order"
        total += len(stored)
    return total


async def main(cluster):
    members = [Member(cluster, room, f"{room}-{number}") for room in ROOMS for number in range(MEMBERS)]
    conversations = [asyncio.create_task(m.converse()) for m in members]
    await until(lambda: all(m.server for m in members), "everybody has joined")
    places = {node: sum(m.server == node for m in members) for node in NODES}
    assert all(places.values()), places
    print(f"  {len(members)} members: {places}")

    over, talkers = asyncio.Event(), [m for m in members if int(m.name.rpartition("-")[2]) < 2]
    listeners = [m for m in members if m not in talkers]
    tasks = [asyncio.create_task(talk(m, over)) for m in talkers]

    def has_progressed():
        # Each talker's messages are stored, and everybody gets messages.
        marks = [(m, len(m.messages) + 20) for m in members]
        return lambda: all(len(m.messages) >= mark for m, mark in marks)

    # Cuts, while all processes run.
    await until(has_progressed(), "messages arrive")
    cutter_over = asyncio.Event()
    cutter = asyncio.create_task(cut_some(listeners, cutter_over))
    await until(lambda: sum(m.comebacks for m in members) >= 60, "members have come back")
    cutter_over.set()
    await cutter
    comebacks, held = sum(m.comebacks for m in members), sum(m.held for m in members)
    print(f"  cuts: {comebacks} members came back, {held} to their process")

    for what, disturb in (("restart", cluster.restart), ("kill", cluster.kill)):
        for m in members:
            m.codes.clear()
        before = sum(m.comebacks for m in members), sum(len(m.said) for m in talkers)
        since = time.monotonic()
        for node in NODES:
            there = sum(m.server == node for m in members)
            await disturb(node)
            await until(lambda: all(m.server for m in members), "everybody is back")
            await until(has_progressed(), "messages arrive")
            print(f"  {what} of {node}: {there} members were there")
        after = sum(m.comebacks for m in members), sum(len(m.said) for m in talkers)
        codes = [code for m in members for code in m.codes]
        counts = {code: codes.count(code) for code in sorted(set(codes))}
        print(f"  {what}: {after[1] - before[1]} messages in {time.monotonic() - since:.0f} s, connections ended with {counts}")
        expected = 1001 if what == "restart" else 1006
        assert counts.get(expected, 0) >= 10, counts

    over.set()
    await asyncio.gather(*tasks)
    await until(lambda: not any(m.unstored for m in members), "everything is stored")
    last = {room: max((seq for m in members if m.room == room for seq in m.answers.values()), default=0) for room in ROOMS}
    await until(lambda: all(m.last >= last[m.room] for m in members), "everybody has the last message")
    total = check_messages(members)
    duplicates = sum(m.duplicates for m in members)
    print(f"  {total} messages were stored once, and reached {MEMBERS} members each, once and in order")
    print(f"  {duplicates} were sent again after they had been stored")
    assert duplicates > 0, "no message was sent again after it had been stored"

    strays = [stray for m in members for stray in m.strays]
    assert not strays, f"members came to another process: {strays[:5]}"
    held = sum(m.held for m in members)
    assert held >= 60, held
    for conversation in conversations:
        conversation.cancel()
    await asyncio.gather(*conversations, return_exceptions=True)

    refused = [error for m in members for error in m.refused]
    assert not refused, f"{len(refused)} connections were refused: {refused[:3]}"
    web, backend = cluster.statistics("web", "FRONTEND"), cluster.statistics("outrigger", "BACKEND")
    assert int(web["hrsp_5xx"]) == 0 and int(web["hrsp_4xx"]) == 0, web
    print(f"  no connection of {web['req_tot']} was refused; HAProxy repeated {backend['wretr']} handshakes,"
          f" {backend['wredis']} at another process")
    await check_resumption(cluster)
    print("  connections were resumed at their process, and only there")
    await check_hang(cluster, NODES[0])
    print("  while a process was stopped, another one served its clients")


def run():
    cluster = Cluster(os.path.abspath(ARGUMENTS.outrigger), STATE.name)
    try:
        cluster.wait()
        asyncio.run(main(cluster))
    except BaseException:
        for log in sorted(pathlib.Path(STATE.name).glob("*.log")):
            print(f"-- {log.name}\n" + "".join(log.read_text().splitlines(keepends=True)[-15:]), file=sys.stderr)
        raise
    finally:
        cluster.stop()


with STATE:
    run()

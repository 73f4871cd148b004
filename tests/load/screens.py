#!/usr/bin/env python3
"""What screens cost under load.

usage: tests/load/screens.py [OUTRIGGER] [--waiters N] [--terminals N] [--viewers N] [--seconds N]
       target/release/outrigger, 1000 calls on 100 terminals, 200 viewers and 5 seconds by default

* Waiting: terminals write at full speed, and callers of `wait` look for a text, or for an expression, that never comes. The table has the
  server's processor time for each 100 MB of output, with the callers and without. Afterwards, each call is answered.
* Viewers: a terminal has written 1 MiB. All viewers attach at once, with ?replay=output and with ?replay=screen. The table has the bytes
  that they got, the time until the last one had all, and the longest wait of a bystander of another route, who sends a message every
  10 ms. It is to be less than 50 ms and what the machine delays the bystander of an idle server at the same time.
"""

import argparse
import json
import os
import selectors
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from attacks import GOAL, bystand, summarize
from peers import (
    AUTHORIZATION, Worker, connect, get, post, prepare, read_exactly, read_head, serving, upgrade,
)

LINES = "while :; do seq 100000; done"
# 1 MiB of colored lines, as compilers and test runners write them.
MEBIBYTE = r"""
for number in range(20164):
    print("\033[1;32m%8d\033[m a line of output, in colors \033[31m!\033[m" % number, end="\r\n")
print("ready", end="", flush=True)
input()
"""
ROUTES = {"/process/...": {"processes": {"max-processes": 1000}}}


def answer_of(caller):
    head = read_head(caller).decode()
    length = next(line.split(": ")[1] for line in head.splitlines() if line.startswith("Content-Length"))
    return int(head.split()[1]), json.loads(read_exactly(caller, int(length)))


def call(port, request):
    with connect(port) as caller:
        caller.sendall(request)
        status, answer = answer_of(caller)
        assert status == 200, answer
        return answer


def spawn(port, command, *args):
    body = {"command": command, "args": args, "allocate_tty": True}
    return "/process/" + call(port, post("/process/spawn", json.dumps(body).encode()))["process_id"]


def written(port, terminals):
    """The bytes of output of all terminals."""
    return sum(call(port, get(f"{terminal}/screen", AUTHORIZATION))["offset"] for terminal in terminals)


def cost(server, terminals, seconds):
    """The processor time for each 100 MB of output, and the rate."""
    output, used, began = written(server.port, terminals), server.processor_time(), time.monotonic()
    time.sleep(seconds)
    output, used = written(server.port, terminals) - output, server.processor_time() - used
    return used / (output / 1e8), output / 1e6 / (time.monotonic() - began)


def waiting(binary, terminals, waiters, seconds):
    with serving(binary, ROUTES, ["--log", "warn"]) as server:
        running = [spawn(server.port, "sh", "-c", LINES) for _ in range(terminals)]
        # In turns, so that a machine that becomes slower does not change the comparison.
        costs = {0: [], waiters: []}
        for turn in range(4):
            count = waiters * (turn % 2)
            callers = []
            for number in range(count):
                condition = [{"text": "what never comes"}, {"regex": "^never[a-z]+ (comes|goes)$"}][number % 2]
                body = json.dumps({**condition, "timeout_ms": 600_000}).encode()
                callers.append(connect(server.port))
                callers[-1].sendall(post(f"{running[number % terminals]}/wait", body))
            costs[count].append(cost(server, running, seconds))
            if turn < 3:
                for caller in callers:
                    caller.close()
        for process in running:
            call(server.port, post(f"{process}/kill", b'{"signal":"KILL"}'))
        reasons = [answer_of(caller)[1]["reason"] for caller in callers]
        assert reasons == ["exit"] * waiters, set(reasons)
    for count, runs in costs.items():
        shown = ", ".join(f"{used:.3f} s for 100 MB at {rate:.0f} MB/s" for used, rate in runs)
        print(f"waiting: {terminals} terminals, {count} callers: {shown}")
    factor = min(costs[waiters])[0] / min(costs[0])[0]
    print(f"waiting: {factor:.2f} times the processor time without callers")


def watch_all(pipe, port, path, count, wanted):
    """Connects viewers at once. Returns the bytes that they got until each has got the last bytes of the screen, and the seconds."""
    pipe.send(("ready", None))
    came, clients = 0, []
    for _ in range(count):
        clients.append(connect(port))
    began = time.monotonic()
    with selectors.EpollSelector() as selector:
        for client in clients:
            client.sendall(upgrade(path))
            client.setblocking(False)
            selector.register(client, selectors.EVENT_READ, [b""])
        missing = count
        while missing:
            for key, _ in selector.select(1):
                data = key.fileobj.recv(1 << 18)
                assert data, "a viewer was cut off"
                came += len(data)
                key.data[0] = (key.data[0] + data)[-4096:]
                if wanted in key.data[0]:
                    selector.unregister(key.fileobj)
                    missing -= 1
    return came, time.monotonic() - began


def viewers(binary, count):
    slow = False
    with serving(binary, ROUTES, ["--log", "warn"]) as server, serving(binary, {}, ["--log", "warn"]) as idle:
        terminal = spawn(server.port, sys.executable, "-c", MEBIBYTE)
        call(server.port, post(f"{terminal}/wait", json.dumps({"text": "ready", "timeout_ms": 60_000}).encode()))
        for replay in ["output", "screen", "screen&lines=500"]:
            bystanders = [Worker(bystand, which.port, which.pid, "/echo", False, nice=0) for which in (server, idle)]
            for bystander in bystanders:
                bystander.hear()
            path = f"{terminal}/attach?mode=viewer&replay={replay}"
            worker = Worker(watch_all, server.port, path, count, b"ready")
            worker.hear()
            used = server.processor_time()
            came, seconds = worker.hear()
            used = server.processor_time() - used
            worker.kill()
            waits = []
            for bystander in bystanders:
                os.kill(bystander.pid, signal.SIGTERM)
                found, lost = bystander.hear()
                assert not lost, lost
                waits.append(summarize(found)[2])
                bystander.kill()
            slow |= waits[0] > GOAL + waits[1]
            print(f"viewers: {count} with replay={replay}: {came / 1e6:.2f} MB in {seconds:.2f} s, {used:.2f} s of the processor; "
                  f"a bystander waits {waits[0]:.1f} ms at most, that of an idle server {waits[1]:.1f} ms")
        call(server.port, post(f"{terminal}/kill", b'{"signal":"KILL"}'))
    return slow


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", nargs="?", default="target/release/outrigger")
    for name, usual in [("waiters", 1000), ("terminals", 100), ("viewers", 200), ("seconds", 5)]:
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    prepare()
    waiting(options.binary, options.terminals, options.waiters, options.seconds)
    sys.exit(viewers(options.binary, options.viewers))

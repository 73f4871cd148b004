#!/usr/bin/env python3
"""Uses sessions through examples/cluster/haproxy-sessions.cfg: each request must reach the process that has the session.

usage: tests/deploy/cluster_sessions.py OUTRIGGER

Two processes serve MCP, an agent and processes. TRIES times,

* a client without cookies begins a session of MCP and uses it;
* a client without cookies loses its connection and resumes it;
* a client with cookies starts a process and finds it again.

Then HAProxy is reloaded, and nobody may be lost: neither CLIENTS clients without cookies that resume their connection, nor sessions
of MCP. Then one of the processes stops, and its clients must reach the other one. Needs the package websockets, and haproxy.
"""

import asyncio
import http.cookiejar
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import websockets

CLUSTER = pathlib.Path(__file__).resolve().parent.parent.parent / "examples/cluster"
TRIES = 6
CLIENTS = 60
PATIENCE = 60  # seconds, the deadline of every wait
INITIALIZE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def call(url, body=None, fields=None, opener=None):
    """Returns the status and the fields of an answer, and its text."""
    fields = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **(fields or {})}
    request = urllib.request.Request(url, body and json.dumps(body).encode(), fields)
    try:
        with (opener or urllib.request.build_opener()).open(request, timeout=PATIENCE) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def begin_session(url):
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
    status, fields, text = call(f"{url}/mcp", body)
    assert status == 200 and fields["Mcp-Session-Id"], (status, text)
    return fields["Mcp-Session-Id"]


def use_session(url, session):
    return call(f"{url}/mcp", {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, {"Mcp-Session-Id": session})[0]


async def resume(url, fields, query=""):
    try:
        async with websockets.connect(f"ws{url[4:]}/acp{query}", additional_headers=fields) as link:
            token = link.response.headers["Outrigger-Resume"].partition(";")[0]
            link.transport.abort()
            return token
    except websockets.InvalidStatus as error:
        return error.response.status_code


async def check_resumption(url, direct):
    places = set()
    for _ in range(TRIES):
        token = await resume(url, {"Outrigger-Resume": "new"})
        assert isinstance(token, str), token
        # Each time, there is a new token.
        for in_url in (False, True, False):
            back = ({}, f"?resume={token}&received=0&notice=1") if in_url else ({"Outrigger-Resume": f"{token}; received=0"},)
            token = await resume(url, *back)
            assert isinstance(token, str), f"the client could not come back: {token}"
        answers = [await resume(one, {"Outrigger-Resume": f"{token}; received=0"}) for one in direct]
        assert sorted(map(str, answers)).count("421") == 1, answers
        places.add(answers.index(421))
    assert places == {0, 1}, places


def check_mcp(url, direct):
    places = set()
    for _ in range(TRIES):
        session = begin_session(url)
        assert [use_session(url, session) for _ in range(4)] == [200] * 4
        statuses = [use_session(one, session) for one in direct]
        assert sorted(statuses) == [200, 404], statuses
        places.add(statuses.index(404))
    assert places == {0, 1}, places


def check_processes(url):
    places = set()
    for _ in range(TRIES):
        jar = http.cookiejar.CookieJar()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
        status, _, text = call(f"{url}/process/spawn", {"command": "sleep", "args": ["600"]}, opener=opener)
        assert status == 200, (status, text)
        process = json.loads(text)["process_id"]
        for _ in range(4):
            status, _, text = call(f"{url}/process/{process}/status", opener=opener)
            assert status == 200 and json.loads(text)["state"] == "running", (status, text)
        status, _, _ = call(f"{url}/process/{process}/kill", {"signal": "KILL"}, opener=opener)
        assert status == 200, status
        places.add(next(cookie.value for cookie in jar if cookie.name == "node"))
    assert places == {"one", "two"}, places


async def check_reload(url, reload):
    """Clients that are connected, and others that were cut, come back through the new process of HAProxy."""
    sessions = [begin_session(url) for _ in range(TRIES)]
    cut = [await resume(url, {"Outrigger-Resume": "new"}) for _ in range(CLIENTS // 2)]
    links = [await websockets.connect(f"ws{url[4:]}/acp", additional_headers={"Outrigger-Resume": "new"}) for _ in range(CLIENTS // 2)]
    await asyncio.to_thread(reload)
    connected = []
    for link in links:
        connected.append(link.response.headers["Outrigger-Resume"].partition(";")[0])
        link.transport.abort()
    # Not in the order in which a balancer would happen to choose the right process.
    tokens = sorted(cut + connected, key=lambda token: token.rpartition(".")[2])
    back = [await resume(url, {"Outrigger-Resume": f"{token}; received=0"}) for token in tokens]
    lost = [status for status in back if not isinstance(status, str)]
    assert not lost, f"{len(lost)} of {CLIENTS} clients were lost: {lost}"
    assert [use_session(url, session) for session in sessions] == [200] * TRIES
    return len(back)


def check_restart(url, direct, servers):
    """The clients of a process that has stopped reach the other one, which does not know their sessions."""
    sessions = [begin_session(url) for _ in range(TRIES)]
    lost = [session for session in sessions if use_session(direct[0], session) == 200]
    assert 0 < len(lost) < TRIES, lost
    servers[0].send_signal(signal.SIGTERM)
    servers[0].wait(PATIENCE)
    for session in sessions:
        assert use_session(url, session) == (404 if session in lost else 200), session
    begin_session(url)


def wait_until(is_true, proxy):
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if is_true():
                return
        except OSError:
            pass
        assert time.monotonic() < deadline and proxy.poll() is None, "HAProxy does not start"
        time.sleep(0.1)


def listens(pid, place):
    """Whether a process has a listening socket at a place."""
    host, _, port = place.partition(":")
    address = "".join(f"{int(part):02X}" for part in reversed(host.split("."))) + f":{int(port):04X}"
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{row[9]}]" for row in rows if row[1] == address and row[3] == "0A"}
    return any(os.readlink(one) in inodes for one in pathlib.Path(f"/proc/{pid}/fd").iterdir())


def main(outrigger):
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    with tempfile.TemporaryDirectory() as folder:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
        places = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
        for one in sockets:
            one.close()
        settings = pathlib.Path(folder) / "serve.json"
        settings.write_text((CLUSTER / "serve.json").read_text().replace('"outrigger"', json.dumps(os.path.abspath(outrigger))))
        servers = []
        proxies = []
        try:
            for name, place in zip(("one", "two"), places[1:]):
                command = [outrigger, "serve", "--config", settings, "--no-auth", "--listen", place, "--node", name, "--log", "warn"]
                servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
                assert "listening" in servers[-1].stdout.readline()
            names = {"WEB": places[0], "ONE": places[1], "TWO": places[2], "PEER": places[3]}
            url, direct = f"http://{places[0]}", [f"http://{place}" for place in places[1:3]]

            def start_proxy(*options):
                with open(pathlib.Path(folder) / "haproxy.log", "a") as log:
                    command = ["haproxy", "-f", CLUSTER / "haproxy-sessions.cfg", *options]
                    proxies.append(subprocess.Popen(command, env={**environment, **names}, stdout=log, stderr=log))
                wait_until(lambda: call(f"{url}/readyz")[0] == 200, proxies[-1])

            def reload():
                """Starts a new process. The old one serves its connections until they end."""
                old = proxies[-1]
                start_proxy("-sf", str(old.pid))
                wait_until(lambda: old.poll() is not None or not listens(old.pid, places[0]), proxies[-1])
                # The health checks of the new one begin.
                wait_until(lambda: call(f"{url}/readyz")[0] == 200, proxies[-1])

            start_proxy()
            check_mcp(url, direct)
            check_processes(url)
            asyncio.run(check_resumption(url, direct))
            came_back = asyncio.run(check_reload(url, reload))
            check_restart(url, direct, servers)
        finally:
            for process in [*servers, *proxies]:
                if process.poll() is None:
                    process.terminate()
                    process.wait(PATIENCE)
            for server in servers:
                server.stdout.close()
    print(f"  sessions, processes and resumed connections were found again through HAProxy; {came_back} of {CLIENTS} after a reload")


if __name__ == "__main__":
    main(*sys.argv[1:])

#!/usr/bin/env python3
"""Lets 20 clients use eight MCP servers at once, each client with a session for each server, and measures processes and memory:
`outrigger serve` with and without shared processes, supergateway and mcp-proxy, one after the other.

The servers are packages of npm and PyPI that speak revisions before 2026-07-28. Each client begins its sessions, asks for the tools and
stays. The memory is the proportional set size of the whole tree of processes. With shared processes, the idle time is measured too:
afterwards no server may run. Gateways that are not installed are skipped.

    npm install --prefix target/interop @modelcontextprotocol/server-{everything,filesystem,memory,sequential-thinking}
    python3 -m venv target/interop/mcp-servers
    target/interop/mcp-servers/bin/pip install mcp-server-{time,fetch,git}
    python3 -m venv target/interop/mcp-sqlite && target/interop/mcp-sqlite/bin/pip install mcp-server-sqlite 'mcp<2'
    npm install --prefix target/interop/supergateway supergateway@4.0.0
    python3 -m venv target/interop/mcp-proxy && target/interop/mcp-proxy/bin/pip install mcp-proxy==0.13.0

usage: tests/load/mcp_servers.py [CLIENTS [OTHERS]]      20 clients by default, and OTHERS of them where each session starts a server,
                                                         which are as many by default and need 40 MB for each of eight sessions;
                                                         OUTRIGGER=target/release/outrigger, TOOLS=target/interop
"""

import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
from mcp_http import BOTH, OUTRIGGER, Connection, eventually, post
from peers import end_left_processes, prepare

CLIENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 20
OTHERS = int(sys.argv[2]) if len(sys.argv) > 2 else CLIENTS
TOOLS = os.path.abspath(os.environ.get("TOOLS", "target/interop"))
VERSION = "2025-06-18"
# Longer than all clients need to begin.
IDLE = 60


def node(package):
    return ["node", f"{TOOLS}/node_modules/@modelcontextprotocol/{package}/dist/index.js"]


def servers(folder):
    python = f"{TOOLS}/mcp-servers/bin/"
    return {
        "everything": [*node("server-everything"), "stdio"],
        "filesystem": [*node("server-filesystem"), folder],
        "memory": node("server-memory"),
        "thinking": node("server-sequential-thinking"),
        "time": [f"{python}mcp-server-time", "--local-timezone", "UTC"],
        "fetch": [f"{python}mcp-server-fetch"],
        "git": [f"{python}mcp-server-git"],
        "sqlite": [f"{TOOLS}/mcp-sqlite/bin/mcp-server-sqlite", "--db-path", f"{folder}/db"],
    }


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def tree(roots):
    """The processes that descend from these, and these."""
    children = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parent = int(file.read().rpartition(") ")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(name))
    found = list(roots)
    for pid in found:
        found += children.get(pid, [])
    return found


def is_shell(pid):
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) in ("sh", "dash", "bash")
    except OSError:
        return True


def memory(pids):
    """The proportional set size in MB."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
        except OSError:
            pass
    return total * 1024 / 1e6


class Gateway:
    """One or several processes, and the port and the path of each server."""

    def __init__(self, commands, places):
        environment = {key: value for key, value in os.environ.items() if key != "OUTRIGGER_TOKEN"}
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.processes = [subprocess.Popen(command, env=environment, **quiet) for command in commands]
        self.places = places
        for port, _ in places.values():
            eventually("it listens", lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, 120)

    def pids(self):
        return tree(process.pid for process in self.processes)

    def servers(self):
        """The number of servers, without the shells that start some of them."""
        own = {process.pid for process in self.processes}
        return sum(pid not in own and not is_shell(pid) for pid in self.pids())

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def outrigger(programs, folder, share):
    routes = {}
    for name, command in programs.items():
        routes[f"/{name}"] = {"mcp": {"command": command, "share": share, "start": "lazy", "process-idle": f"{IDLE}s", "list-idle": "30m"}}
    port, path = free_port(), f"{folder}/serve-{share}.json"
    with open(path, "w") as file:
        json.dump({"listen": [f"127.0.0.1:{port}"], "no-auth": True, "routes": routes}, file)
    return Gateway([[OUTRIGGER, "serve", "--config", path]], {name: (port, f"/{name}") for name in programs})


def supergateway(programs, folder):
    places = {name: (free_port(), "/mcp") for name in programs}
    file = f"{TOOLS}/supergateway/node_modules/supergateway/dist/index.js"
    options = ["--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none"]
    return Gateway(
        [["node", file, "--stdio", shlex.join(command), *options, "--port", str(places[name][0])] for name, command in programs.items()], places)


def mcp_proxy(programs, folder):
    port, path = free_port(), f"{folder}/proxy.json"
    with open(path, "w") as file:
        json.dump({"mcpServers": {name: {"command": command[0], "args": command[1:]} for name, command in programs.items()}}, file)
    command = [f"{TOOLS}/mcp-proxy/bin/mcp-proxy", "--host", "127.0.0.1", "--port", str(port), "--log-level", "ERROR", "--named-server-config", path]
    return Gateway([command], {name: (port, f"/servers/{name}/mcp") for name in programs})


def use(port, path):
    """Begins a session and asks for the tools. Returns the connection, which stays open."""
    connection = Connection(port)
    connection.socket.settimeout(120)
    fields = {"Content-Type": "application/json", "Accept": BOTH}
    capabilities = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "load", "version": "1"}}
    status = post(connection, fields, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": capabilities}, path)
    assert status == 200, status
    session = connection.fields.get("mcp-session-id")
    answer = list(connection.messages())[-1]
    assert "result" in answer, (path, answer)
    fields |= {"MCP-Protocol-Version": VERSION, **({"Mcp-Session-Id": session} if session else {})}
    assert post(connection, fields, {"jsonrpc": "2.0", "method": "notifications/initialized"}, path) in (200, 202)
    connection.body()
    assert post(connection, fields, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, path) == 200
    assert list(connection.messages())[-1]["result"]["tools"], path
    return connection


def measure(name, gateway, clients):
    try:
        at_start = (gateway.servers(), memory(gateway.pids()))
        used = [use(*place) for _ in range(clients) for place in gateway.places.values()]
        time.sleep(2)
        pids = gateway.pids()
        with_clients = (gateway.servers(), memory(pids), memory(process.pid for process in gateway.processes))
        after = ""
        if "shared" in name:
            since = time.monotonic()
            eventually("no server runs", lambda: (gateway.servers() == 0, gateway.servers()), 180)
            after = f"{gateway.servers()} after {time.monotonic() - since:.0f} s without a request"
        print(f"{name:24} {clients:8} {at_start[0]:8} {at_start[1]:8.1f} {with_clients[0]:9} {with_clients[1]:9.1f} {with_clients[2]:10.1f}   {after}", flush=True)
        for connection in used:
            connection.socket.close()
    finally:
        gateway.stop()


def main():
    prepare()
    with tempfile.TemporaryDirectory() as folder:
        programs = servers(folder)
        print(f"{len(programs)} servers, each with a session of each client; MB of memory")
        print(f"{'':24} {'clients':>8} {'servers':>8} {'MB':>8} {'servers':>9} {'MB':>9} {'of it the':>10}")
        print(f"{'':24} {'':8} {'at first':>8} {'at first':>8} {'then':>9} {'then':>9} {'gateway':>10}")
        measure("outrigger, shared", outrigger(programs, folder, "principal"), CLIENTS)
        if os.path.exists(f"{TOOLS}/mcp-proxy/bin/mcp-proxy"):
            measure("mcp-proxy", mcp_proxy(programs, folder), CLIENTS)
        measure("outrigger, share none", outrigger(programs, folder, "none"), OTHERS)
        if os.path.exists(f"{TOOLS}/supergateway/node_modules/supergateway"):
            measure("supergateway", supergateway(programs, folder), OTHERS)
    assert not end_left_processes()


main()

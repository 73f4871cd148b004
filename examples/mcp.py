#!/usr/bin/env python3
"""An MCP server on standard streams, with one process for each client.

    outrigger pipe --path /mcp --subprotocol mcp -- python3 examples/mcp.py serve

Messages pass through unchanged, and a client's server ends with its connection. Any MCP server works. This one counts its
calls: each client has its own server, so each gets its own count. Without `serve`, this program starts Outrigger and two
clients.

    python3 -m pip install websockets
    python3 examples/mcp.py               OUTRIGGER=path/to/outrigger, if it is not in PATH
"""

import asyncio
import json
import os
import re
import subprocess
import sys

OUTRIGGER = os.environ.get("OUTRIGGER", "outrigger")
TOOL = {"name": "count", "description": "Counts its calls.", "inputSchema": {"type": "object", "properties": {}}}


def serve():
    calls = 0
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        if request["method"] == "initialize":
            result = {"protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}},
                      "serverInfo": {"name": "counter", "version": "1"}}
        elif request["method"] == "tools/list":
            result = {"tools": [TOOL]}
        else:
            calls += 1
            result = {"content": [{"type": "text", "text": str(calls)}]}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)


async def count(url, name, times):
    import websockets

    async with websockets.connect(url, subprotocols=["mcp"]) as socket:

        async def ask(id, method, params):
            await socket.send(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            answer = json.loads(await socket.recv())
            assert answer["id"] == id
            return answer["result"]

        server = await ask(0, "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": name, "version": "1"}})
        await socket.send(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        for id in range(1, times + 1):
            result = await ask(id, "tools/call", {"name": "count", "arguments": {}})
        counted = result["content"][0]["text"]
        print(f"{name}: {server['serverInfo']['name']} has counted to {counted}")
        assert counted == str(times)


async def main():
    command = [OUTRIGGER, "pipe", "--path", "/mcp", "--subprotocol", "mcp",
               "--listen", "127.0.0.1:0", "--log", "warn", "--", sys.executable, __file__, "serve"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = re.search(r"ws://\S+", server.stdout.readline())[0]
        await asyncio.gather(count(url, "Ann", 3), count(url, "Bob", 5))
    finally:
        server.terminate()
        server.wait()


if sys.argv[1:] == ["serve"]:
    serve()
else:
    asyncio.run(main())

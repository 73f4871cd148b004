#!/usr/bin/env python3
"""Two clients share one agent of the Agent Client Protocol. They use equal request ids, and each gets its own answers only.

The agent is `outrigger example-agent`, a program without a model. Any agent that speaks ACP on its standard streams works.

    python3 -m pip install websockets
    python3 examples/shared_agent.py      OUTRIGGER=path/to/outrigger, if it is not in PATH
"""

import asyncio
import json
import os
import re
import subprocess

import websockets

OUTRIGGER = os.environ.get("OUTRIGGER", "outrigger")


async def talk(url, name, count):
    """Runs one client's conversation. Returns the agent's text."""
    said = ""
    async with websockets.connect(url) as socket:

        async def ask(id, method, **params):
            nonlocal said
            await socket.send(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            while True:
                message = json.loads(await socket.recv())
                if message.get("method") == "session/update":
                    assert message["params"]["sessionId"] == session, "another's session"
                    said += message["params"]["update"]["content"]["text"]
                elif message.get("id") == id:
                    return message["result"]

        session = None
        await ask(1, "initialize", protocolVersion=1, clientCapabilities={})
        session = (await ask(2, "session/new", cwd="/", mcpServers=[]))["sessionId"]
        prompt = [{"type": "text", "text": f"/count {count}"}]
        result = await ask(3, "session/prompt", sessionId=session, prompt=prompt)
        print(f"{name}, session {session}: {said.strip()} ({result['stopReason']})")
    return said


async def main():
    command = [OUTRIGGER, "agent", "--listen", "127.0.0.1:0", "--log", "warn", "--", OUTRIGGER, "example-agent"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = re.search(r"ws://\S+", server.stdout.readline())[0]
        said = await asyncio.gather(talk(url, "Ann", 7), talk(url, "Bob", 12))
        assert said == [" ".join(map(str, range(1, most + 1))) + " " for most in (7, 12)]
    finally:
        server.terminate()
        server.wait()


asyncio.run(main())

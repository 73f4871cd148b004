"""debugpy's adapter behind `outrigger pipe --framing content-length`: initialize and disconnect."""

import asyncio
import json
import sys
import urllib.request

import websockets

from server import Server


def processes(server):
    """The number of programs that run."""
    status = server.url.replace("ws", "http", 1).replace("/dap", "/status")
    return json.loads(urllib.request.urlopen(status).read())["processes"]


async def main():
    adapter = [sys.executable, "-m", "debugpy.adapter"]
    with Server("pipe", "--framing", "content-length", "--path", "/dap", "--", *adapter) as server:
        async with websockets.connect(server.url) as socket:
            sequence = 0

            async def request(command, **arguments):
                nonlocal sequence
                sequence += 1
                await socket.send(json.dumps({"seq": sequence, "type": "request", "command": command, "arguments": arguments}))
                while True:
                    message = json.loads(await asyncio.wait_for(socket.recv(), 60))
                    if message["type"] == "response" and message["request_seq"] == sequence:
                        assert message["success"], message
                        return message.get("body")

            abilities = await request("initialize", clientID="test", adapterID="debugpy", pathFormat="path")
            assert abilities["supportsConfigurationDoneRequest"], abilities
            await request("disconnect")
        # The adapter exits at the end of its input.
        while processes(server):
            await asyncio.sleep(0.05)
        print(f"  debugpy's adapter: {len(abilities)} capabilities, disconnect ok")


asyncio.run(main())

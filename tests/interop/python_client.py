"""Python `websockets` against `outrigger echo` and the chat example."""

import asyncio
import json
import re
import urllib.request

import websockets
from prometheus_client.parser import text_string_to_metric_families
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from server import Server


async def echo():
    with Server("echo", "--max-message", "2MiB") as server:
        async with websockets.connect(server.url, max_size=None, compression=None) as socket:
            for message in ["", "hello", "κόσμε 😀" * 1000, b"", bytes(range(256)) * 4000]:
                await socket.send(message)
                assert await socket.recv() == message
            await socket.send(["in ", "several ", "frames"])
            assert await socket.recv() == "in several frames"
            await asyncio.wait_for(await socket.ping(b"there?"), 30)
        assert (socket.close_code, socket.close_reason) == (1000, "")
        async with websockets.connect(server.url) as socket:  # offers permessage-deflate, which is declined
            await socket.send("plain")
            assert await socket.recv() == "plain"
        async with websockets.connect(server.url, compression=None) as socket:
            try:
                await socket.send(bytes(3 << 20))
                await socket.recv()
                raise AssertionError("a message over the limit was taken")
            except ConnectionClosedError as error:
                assert (error.rcvd.code, error.rcvd.reason) == (1009, "Message too big"), error
        try:
            await websockets.connect(server.url + "nowhere")
            raise AssertionError("an unknown path was served")
        except InvalidStatus as error:
            assert error.response.status_code == 404
            assert json.loads(error.response.body)["type"] == "error"


async def many():
    with Server("echo") as server:
        async def one(number):
            async with websockets.connect(server.url, compression=None) as socket:
                for round in range(20):
                    await socket.send(f"{number}/{round}")
                    assert await socket.recv() == f"{number}/{round}"

        await asyncio.gather(*(one(number) for number in range(100)))


async def chat():
    with Server("app", "--", "python3", "examples/chat.py") as server:
        async with websockets.connect(server.url) as ann, websockets.connect(server.url) as bob:
            async def heard(socket):
                return json.loads(await asyncio.wait_for(socket.recv(), 30))

            assert (await heard(ann))["system"] == "What is your name?"
            await heard(bob)
            await ann.send("Ann")
            assert (await heard(bob))["system"] == "Ann is here."
            await heard(ann)
            await ann.send("hello")
            assert await heard(bob) == {"name": "Ann", "says": "hello"}
            await ann.close()
            assert (await heard(bob))["system"] == "Ann is gone."


async def shutdown():
    server = Server("echo")
    with server:
        async with websockets.connect(server.url) as socket:
            server.process.terminate()
            try:
                await asyncio.wait_for(socket.recv(), 30)
                raise AssertionError("nothing was sent")
            except websockets.exceptions.ConnectionClosed as closed:
                assert (closed.rcvd.code, closed.rcvd.reason) == (1001, "Server shutting down")


async def metrics():
    """What `/metrics` says is what Prometheus' own parser understands."""
    for command in [["echo"], ["processes", "--no-auth"], ["terminal", "--no-auth", "--", "cat"],
                    ["agent", "--no-auth", "--", "cat"]]:
        with Server(*command) as server:
            base = re.match(r"ws(s?://[^/]+)", server.url)[1]
            page = urllib.request.urlopen(f"http{base}/metrics").read().decode()
        families = list(text_string_to_metric_families(page))
        names = {family.name for family in families}
        assert {"outrigger_clients", "outrigger_connections_accepted", "outrigger_loop_turn_seconds"} <= names, names
        assert all(family.documentation and family.type != "unknown" for family in families)


async def main():
    checks = [echo, many, chat, shutdown, metrics]
    for check in checks:
        await check()
        print(f"  {check.__name__} ok")


asyncio.run(main())

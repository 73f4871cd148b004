#!/usr/bin/env python3
"""A client that survives lost connections: each message arrives once and in order. See docs/surviving-disconnects.md.

    python3 -m pip install websockets
    outrigger echo --listen 127.0.0.1:7070         in one shell
    examples/resume.py ws://127.0.0.1:7070/        in another: counts, even if `ss --kill dport = 7070` (as root) cuts it

`converse` sends the messages in the queue `outbox` and yields those of the server. `kept` has the messages that the server may
not have received. A PONG confirms everything that was sent before its PING. `InvalidStatus` with the status 410 means that the
client cannot come back; after 421 it tries again, because a load balancer has led it to another node.
"""

import asyncio
import sys
from contextlib import suppress

from websockets import ConnectionClosed, InvalidStatus, connect
from websockets.asyncio.client import process_exception


def is_final(error):
    misdirected = isinstance(error, InvalidStatus) and error.response.status_code == 421
    return None if misdirected else process_exception(error)


async def converse(url, outbox):
    fields, received, taken, kept = {"Outrigger-Resume": "new"}, 0, 0, []

    async def deliver(socket):
        nonlocal taken
        with suppress(ConnectionClosed):
            while True:
                for message in kept:
                    await socket.send(message)
                await (await socket.ping())
                taken, kept[:] = taken + len(kept), []
                kept.append(await outbox.get())
                kept.extend(outbox.get_nowait() for _ in range(outbox.qsize()))

    async for socket in connect(url, additional_headers=fields, max_size=None, process_exception=is_final):
        token, _, count = socket.response.headers["Outrigger-Resume"].partition("; received=")
        taken, kept[:] = int(count or 0), kept[int(count or 0) - taken :]
        delivery = asyncio.create_task(deliver(socket))
        with suppress(ConnectionClosed):
            async for message in socket:
                received += 1
                yield message
        delivery.cancel()
        if socket.close_code in (1000, 4001):  # the conversation has ended, or another connection has taken over
            return
        fields["Outrigger-Resume"] = f"{token}; received={received}"


async def main(url):
    outbox = asyncio.Queue()
    outbox.put_nowait("1")
    try:
        async for message in converse(url, outbox):
            print(message)
            await asyncio.sleep(1)
            outbox.put_nowait(str(int(message) + 1))
    except InvalidStatus as refused:
        assert refused.response.status_code == 410, refused
        await main(url)  # start anew


asyncio.run(main(sys.argv[1]))

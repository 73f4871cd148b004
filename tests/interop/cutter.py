#!/usr/bin/env python3
"""A TCP proxy that cuts connections on request.

usage: cutter.py PORT      passes connections to 127.0.0.1:PORT and prints its own port

SIGUSR1 cuts all connections and resets new ones. SIGUSR2 accepts connections again.
"""

import asyncio
import signal
import sys

streams = set()
closed = False


async def copy(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def serve(reader, writer):
    if closed:
        return writer.transport.abort()
    server_reader, server_writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    pair = {writer, server_writer}
    streams.update(pair)
    await asyncio.gather(copy(reader, server_writer), copy(server_reader, writer))
    streams.difference_update(pair)


def close():
    global closed
    closed = True
    for writer in streams:
        writer.transport.abort()


def reopen():
    global closed
    closed = False


async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, close)
    loop.add_signal_handler(signal.SIGUSR2, reopen)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())

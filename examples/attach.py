#!/usr/bin/env python3
"""Attaches your terminal to a terminal or process behind Outrigger.

    python3 -m pip install websockets
    outrigger terminal -- bash                                           in one shell
    examples/attach.py 'ws://127.0.0.1:7070/terminal?token=...'          in another, with the URL that Outrigger printed
    examples/attach.py 'ws://127.0.0.1:7070/process/ID/attach?takeover=1&token=...'

It exits with the exit code of the program. ^] leaves at once.
"""

import asyncio
import json
import os
import signal
import sys
import termios
import tty

import websockets

ESCAPE = b"\x1d"


async def attach(url):
    """Returns the program's exit code."""
    # A terminal without a known size reports 0.
    rows, cols = os.get_terminal_size().lines or 24, os.get_terminal_size().columns or 80
    url += f"{'&' if '?' in url else '?'}rows={rows}&cols={cols}"
    loop = asyncio.get_running_loop()
    async with websockets.connect(url, max_size=None, compression=None) as socket:
        typed = asyncio.Queue()
        loop.add_reader(0, lambda: typed.put_nowait(os.read(0, 65536)))
        loop.add_signal_handler(signal.SIGWINCH, lambda: typed.put_nowait(None))

        async def send():
            while True:
                keys = await typed.get()
                if keys is None:
                    size = os.get_terminal_size()
                    await socket.send(json.dumps({"type": "resize", "rows": size.lines or 24, "cols": size.columns or 80}))
                elif ESCAPE in keys:
                    return await socket.close()
                else:
                    await socket.send(keys)

        typed.put_nowait(None)
        sending = asyncio.create_task(send())
        code = 1
        try:
            async for message in socket:
                if isinstance(message, bytes):
                    sys.stdout.buffer.write(message)
                    sys.stdout.buffer.flush()
                    continue
                event = json.loads(message)
                if event["type"] == "exit":
                    code = event["exitCode"]
                elif event["type"] in ("gap", "error"):
                    print(f"\r\n[{message}]\r", file=sys.stderr)
        finally:
            sending.cancel()
            loop.remove_reader(0)
        return code


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if not sys.stdin.isatty():
        sys.exit("attach.py: standard input is not a terminal")
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        code = asyncio.run(attach(sys.argv[1]))
    except websockets.InvalidStatus as refused:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        sys.exit(f"attach.py: {refused}: {refused.response.body.decode()}")
    except (OSError, websockets.WebSocketException) as error:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        sys.exit(f"attach.py: {error}")
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
    sys.exit(code)


if __name__ == "__main__":
    main()

"""The example programs of websocketd, from its Debian package and unchanged, behind `outrigger pipe`, and their output behind
websocketd itself."""

import asyncio
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

import websockets
from websockets.exceptions import ConnectionClosed

from server import Server

EXAMPLES = pathlib.Path("/usr/share/doc/websocketd/examples")


class Websocketd:
    """websocketd on a free port, as a context manager like `Server`."""

    def __init__(self, *command):
        self.command = command

    def __enter__(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.process = subprocess.Popen(
            ["websocketd", "--address=127.0.0.1", f"--port={port}", *self.command], stdout=subprocess.DEVNULL
        )
        while self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        self.url = f"ws://127.0.0.1:{port}/"
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


async def receive(connection):
    """All messages up to the close."""
    messages = []
    try:
        while True:
            messages.append(await asyncio.wait_for(connection.recv(), 30))
    except ConnectionClosed:
        return messages


async def count(program):
    with Server("pipe", "--", *program) as server:
        async with websockets.connect(server.url) as connection:
            assert await receive(connection) == [str(number) for number in range(1, 11)]
        assert (connection.close_code, connection.close_reason) == (1000, "Program exited with code 0")


async def greeter(program):
    with Server("pipe", "--", *program) as server:
        async with websockets.connect(server.url) as connection:
            for name in ["Ann", "κόσμε", "a b"]:
                await connection.send(name)
                assert await asyncio.wait_for(connection.recv(), 30) == f"Hello {name}!"


async def chat(program):
    with Server("pipe", "--", *program) as server:
        async with websockets.connect(server.url) as ann, websockets.connect(server.url) as bob:
            for connection, name in [(ann, "Ann"), (bob, "Bob")]:
                assert await asyncio.wait_for(connection.recv(), 30) == "Please enter your name:"
                await connection.send(name)
                while f"Welcome to the chat {name}!" not in await asyncio.wait_for(connection.recv(), 30):
                    pass
            heard = ""
            while "Ann> hello" not in heard:
                # Bob's program reads the log only from some time after its welcome on.
                await ann.send("hello")
                try:
                    heard = await asyncio.wait_for(bob.recv(), 1)
                except TimeoutError:
                    pass


def variables(messages):
    pairs = (message.split("=", 1) for message in messages if "=" in message)
    return {name: value for name, value in pairs}


async def environment(program, path="/a%20b/c?x=1&y"):
    found = []
    for server in [Server("pipe", "--no-auth", "--", *program), Websocketd(*program)]:
        with server:
            url = server.url.rstrip("/") + path
            async with websockets.connect(url, additional_headers={"X-Some": "thing"}) as connection:
                found.append(variables(await receive(connection)))
    ours, theirs = found
    own = {"GATEWAY_INTERFACE", "SERVER_SOFTWARE", "UNIQUE_ID", "REMOTE_PORT", "SERVER_PORT", "HTTP_HOST", "HTTP_SEC_WEBSOCKET_KEY"}
    # websocketd decodes the path of REQUEST_URI, sets empty variables, and takes a part of the path for the program's name.
    different = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)} - own
    different = {name for name in different if (ours.get(name), theirs.get(name)) not in [("<unset>", ""), (None, "")]}
    print(f"  variables: {len(ours)}; not as with websocketd: { {name: (ours.get(name), theirs.get(name)) for name in different} }")
    assert "HTTP_SEC_WEBSOCKET_KEY" not in ours
    for name in ["REMOTE_ADDR", "REMOTE_HOST", "SERVER_NAME", "SERVER_PROTOCOL", "REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "HTTP_X_SOME"]:
        assert ours[name] == theirs[name], (name, ours[name], theirs[name])


async def main():
    runs = {count: "count", greeter: "greeter", environment: "dump-env"}
    for run, name in runs.items():
        for language, interpreter, ending in [("bash", "bash", "sh"), ("python", "python3", "py"), ("perl", "perl", "pl")]:
            program = EXAMPLES / language / f"{name}.{ending}"
            # The module CGI has not been part of Perl since version 5.22.
            if program.exists() and shutil.which(interpreter):
                await run([interpreter, str(program)])
                print(f"  {language}/{program.name} ok")
    with tempfile.TemporaryDirectory() as folder:
        # The chat room writes its log to the working directory.
        await chat(["sh", "-c", f"cd {folder} && exec bash {EXAMPLES}/bash/chat.sh"])
        print("  bash/chat.sh ok")


asyncio.run(main())

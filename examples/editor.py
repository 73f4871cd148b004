#!/usr/bin/env python3
"""A WebSocket server for an editor's plugin, which runs `outrigger app` and exchanges lines of JSON with it.

It has what an editor's command-line companions need, such as Claude Code: a random port, a lock file with the URL, the token and
the editor's pid, the token in a header that the editor chooses, and the subprotocol `mcp`, without which such clients give up. The
first half is the plugin, the second half a client.

    python3 -m pip install websockets
    python3 examples/editor.py            OUTRIGGER=path/to/outrigger, if it is not in PATH
"""

import asyncio
import json
import os
import subprocess
import tempfile
import threading

import websockets

OUTRIGGER = os.environ.get("OUTRIGGER", "outrigger")
HEADER = "X-Editor-Authorization"


class Plugin:
    """The editor's part: a child process, a thread that reads events, a dictionary of methods."""

    def __init__(self, folder):
        self.open_files = []
        self.ready = threading.Event()
        self.sidecar = subprocess.Popen(
            [OUTRIGGER, "app", "--port-range", "10000-60000", "--announce", f"{folder}/{{port}}.lock",
             "--announce-extra", json.dumps({"ideName": "Example", "workspaceFolders": [os.getcwd()]}),
             "--token-header", HEADER, "--subprotocol", "mcp", "--log", "warn"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.sidecar.stdout:
            event = json.loads(line)
            if event["event"] == "listening":
                self.ready.set()
            elif event["event"] == "message":
                request = json.loads(event["text"])
                result = {"openFile": self.open_file, "getOpenEditors": lambda: self.open_files}[request["method"]](
                    *request.get("params", []))
                answer = {"jsonrpc": "2.0", "id": request["id"], "result": result}
                self.command(cmd="send", client=event["client"], text=json.dumps(answer))

    def command(self, **fields):
        self.sidecar.stdin.write(json.dumps(fields) + "\n")
        self.sidecar.stdin.flush()

    def open_file(self, path):
        self.open_files.append(path)
        # Notifies all clients.
        self.command(cmd="broadcast", text=json.dumps({"jsonrpc": "2.0", "method": "opened", "params": [path]}))
        return "ok"

    def close(self):
        """Closes the input of Outrigger, which then stops cleanly and removes the lock file."""
        self.sidecar.stdin.close()
        return self.sidecar.wait()


async def client(folder):
    [lock] = os.listdir(folder)
    with open(f"{folder}/{lock}") as file:
        where = json.load(file)
    assert where["pid"] == os.getpid(), "the editor's pid"
    print(f"{lock}: {where['ideName']} at {where['url'].split('?')[0]}")
    async with websockets.connect(where["url"].split("?")[0], additional_headers={HEADER: where["authToken"]},
                                  subprotocols=["mcp"]) as socket:
        assert socket.subprotocol == "mcp"
        for id, (method, *params) in enumerate([("openFile", "README.md"), ("getOpenEditors",)]):
            await socket.send(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            while "id" not in (answer := json.loads(await socket.recv())):
                print(f"  {answer['method']} {answer['params']}")
            print(f"  {method}: {answer['result']}")


with tempfile.TemporaryDirectory() as folder:
    plugin = Plugin(folder)
    plugin.ready.wait(30)
    asyncio.run(client(folder))
    print(f"closed with {plugin.close()}, {len(os.listdir(folder))} lock files left")

#!/usr/bin/env python3
"""An editor's own server, without a server in the editor: `outrigger app` beside it, reading and writing lines of JSON.

It shows what editors need for their companions on the command line: a random port, a lock file that says where it is and
carries the token, and the token in a header of their own. The first half is the plugin, the second a client.

    python3 -m pip install websockets
    python3 examples/editor.py            OUTRIGGER=path/to/outrigger, if it is not on the path
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
    """What an editor would have of it: a child process, a thread that reads, a dictionary of methods."""

    def __init__(self, folder):
        self.open_files = []
        self.ready = threading.Event()
        self.sidecar = subprocess.Popen(
            [OUTRIGGER, "app", "--port-range", "10000-60000", "--announce", f"{folder}/{{port}}.lock",
             "--announce-extra", json.dumps({"ideName": "Example", "workspaceFolders": [os.getcwd()]}),
             "--token-header", HEADER, "--log", "warn"],
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
        # Everyone is told.
        self.command(cmd="broadcast", text=json.dumps({"jsonrpc": "2.0", "method": "opened", "params": [path]}))
        return "ok"

    def close(self):
        """The end of its input is a clean stop, and the lock file is removed."""
        self.sidecar.stdin.close()
        return self.sidecar.wait()


async def client(folder):
    [lock] = os.listdir(folder)
    with open(f"{folder}/{lock}") as file:
        where = json.load(file)
    print(f"{lock}: {where['ideName']} at {where['url'].split('?')[0]}")
    async with websockets.connect(where["url"].split("?")[0], additional_headers={HEADER: where["authToken"]}) as socket:
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

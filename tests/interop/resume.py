"""examples/resume.py counts while its connections are cut, and while some of them are led to another node: no number is lost, doubled
or out of order."""

import asyncio
import os
import sys

from server import Server

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../common"))
from cutting import Proxy

NUMBERS = 12
PATIENCE = 60


class Cutter(Proxy):
    """Cuts each connection after its handshake, whose request has some 370 bytes, at one of the first numbers."""

    WAYS, SPARED, UPWARD = {"reset": 1, "fin": 1}, 0, 1

    def plan(self):
        return self.random.randrange(380, 410)

    async def serve(self, *args):
        """Leads every third connection to the other node."""
        self.count += 1
        self.server_port = self.ports[self.count % 3 == 0]
        await super().serve(*args)


def port(server):
    return int(server.url.rsplit(":")[-1].strip("/"))


async def main():
    with Server("echo", "--node", "one") as server, Server("echo", "--node", "two") as other:
        cutter = Cutter(port(server), 1000, "resume")
        cutter.count, cutter.ports = 0, (port(server), port(other))
        url = f"ws://127.0.0.1:{await cutter.start()}/"
        command = [sys.executable, "-u", "examples/resume.py", url]
        client = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            for number in range(1, NUMBERS + 1):
                line = await asyncio.wait_for(client.stdout.readline(), PATIENCE)
                assert line == b"%d\n" % number, f"{line} instead of {number}"
        finally:
            client.kill()
            await client.wait()
            await cutter.stop()
        assert cutter.cuts.total() > 0 and cutter.count >= 3
        print(f"  examples/resume.py: {NUMBERS} numbers, {cutter.cuts.total()} cuts ok")


asyncio.run(main())

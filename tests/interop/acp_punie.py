"""punie, an agent that counts its sessions from 0 in each process, behind one Outrigger. Its own client, which is its bridge
`punie --server URL` with its own library on the standard streams, and the Python SDK's client on a WebSocket use it at once.

usage: acp_punie.py     with a Python that has punie (github.com/pauleveritt/punie, at commit 1fe77fb) and agent-client-protocol[http].
                        punie asks for Python 3.14. On an earlier one, put brackets around the exceptions of the `except` in
                        acp/transports.py, and `from __future__ import annotations` into each file
"""

import asyncio
import collections
import contextlib
import os
import pathlib
import sys
import tempfile

import acp
import punie.acp
from acp.schema import ClientCapabilities, FileSystemCapabilities
from acp.ws.client import create_websocket_stream
from punie.acp.stdio import spawn_agent_process
from punie.client.ask_client import run_ask_client
from server import Server

TIMEOUT = 120
LOGS = tempfile.TemporaryDirectory()
# punie has no command for an agent on its standard streams any more. This is what its function `run_acp_agent` does, and it asks
# the library for `session/fork`, which was not stable when punie copied it.
AGENT = """
import asyncio, os
from punie.acp import run_agent
from punie.agent import PunieAgent
asyncio.run(run_agent(PunieAgent(model="test", name=f"punie {os.getpid()}"), use_unstable_protocol=True))
"""
ANSWER = "I understand the request. Let me help with that task."


class Updates:
    """A client that counts the updates of each session."""

    def __init__(self):
        self.counts = collections.Counter()
        self.changed = asyncio.Event()

    def on_connect(self, agent):
        pass

    async def session_update(self, session_id, update, **kwargs):
        text = update.content.text
        assert text == ANSWER or "Punie Agent Connected" in text, text
        self.counts[session_id] += 1
        self.changed.set()

    async def got(self, wanted):
        """Waits for these counts. punie's library hands out updates after the answer that they came before."""
        while self.counts.total() < sum(wanted.values()):
            self.changed.clear()
            await self.changed.wait()
        assert self.counts == wanted, (self.counts, wanted)
        self.counts.clear()


class Own:
    """punie's library on the standard streams of punie's bridge."""

    def __init__(self, url):
        self.url = url

    async def __aenter__(self):
        self.updates = Updates()
        command = sys.executable, "-m", "punie", "--log-dir", LOGS.name, "--server", self.url
        self.bridge = spawn_agent_process(self.updates, *command, env=dict(os.environ), use_unstable_protocol=True)
        self.agent, _ = await self.bridge.__aenter__()
        self.process = (await self.agent.initialize(protocol_version=1)).agent_info.name
        return self

    async def __aexit__(self, *error):
        await self.bridge.__aexit__(*error)


class Sdk:
    """The client of the SDK. It can read files, which punie's bridge cannot, so it is of another kind."""

    def __init__(self, url):
        self.url = url

    async def __aenter__(self):
        self.updates = Updates()
        self.agent = acp.connect_to_agent(self.updates, await create_websocket_stream(self.url), use_unstable_protocol=True)
        capabilities = ClientCapabilities(fs=FileSystemCapabilities(read_text_file=True))
        hello = await self.agent.initialize(protocol_version=1, client_capabilities=capabilities)
        self.process = hello.agent_info.name
        return self

    async def __aexit__(self, *_):
        await self.agent.close()


async def prompt(client, session, turns):
    for turn in range(turns):
        text = punie.acp.text_block if isinstance(client, Own) else acp.text_block
        answer = await client.agent.prompt(prompt=[text(f"turn {turn}")], session_id=session)
        assert answer.stop_reason == "end_turn", answer


async def code(request):
    """The code of the error that answers a request, or of no error."""
    try:
        await request
    except (acp.RequestError, punie.acp.RequestError) as error:
        return error.code
    return None


async def forks(client, session):
    """A fork and its origin have turns of their own. punie gives the second fork the id of the first one, which has a client."""
    fork = f"{session}-fork"
    assert (await client.agent.fork_session(cwd="/", session_id=session)).session_id == fork
    await prompt(client, fork, 2)
    await prompt(client, session, 1)
    # The first turn of a session begins with a greeting.
    await client.updates.got({fork: 3, session: 1})
    assert await code(client.agent.fork_session(cwd="/", session_id=session)) == -32603


async def main(*options):
    one_process = "--one-process" in options
    # One principal: what a client leaves, the next one may load.
    with Server("agent", *options, "--", sys.executable, "-c", AGENT) as server:
        async with Own(server.url) as own, Sdk(server.url) as sdk:
            assert (own.process == sdk.process) == one_process, (own.process, sdk.process)
            processes = {Own: own.process, Sdk: sdk.process}
            sessions = [(await client.agent.new_session(cwd="/", mcp_servers=[])).session_id for client in (own, sdk)]
            assert sessions == ["punie-session-0", "punie-session-1" if one_process else "punie-session-0"], sessions
            await asyncio.gather(*(prompt(client, session, 20) for client, session in zip((own, sdk), sessions)))
            for client, session in zip((own, sdk), sessions):
                await client.updates.got({session: 21})
            for client, session in zip((own, sdk), sessions):
                await forks(client, session)
            if one_process:
                assert await code(own.agent.prompt(prompt=[punie.acp.text_block("mine")], session_id=sessions[1])) == -32010
        for kind, session in zip((Own, Sdk), sessions):
            async with kind(server.url) as client:
                assert client.process == processes[kind], client.process
                await client.agent.load_session(cwd="/", session_id=session, mcp_servers=[])
                await prompt(client, session, 2)
                await client.updates.got({session: 2})
        # `punie ask` uses names that only punie's own server translates. Nobody knows them here.
        with contextlib.redirect_stderr(None):
            failed = (await asyncio.gather(run_ask_client(server.url, "What is it?", pathlib.Path("/")), return_exceptions=True))[0]
        assert "new_session" in str(failed) and "-32601" in str(failed), repr(failed)
    print(f"  punie {' '.join(options)}: its client and the SDK's, with sessions {', '.join(sessions)} ok".replace(" :", ":"))


for options in ([], ["--one-process"]):
    asyncio.run(asyncio.wait_for(main(*options), TIMEOUT))

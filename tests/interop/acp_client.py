"""The Python SDK of the Agent Client Protocol as a client, with its own WebSocket transport and without `outrigger connect`."""

import asyncio
import os
import pathlib

import acp
from acp.schema import AllowedOutcome, ClientCapabilities, FileSystemCapabilities, Implementation
from acp.ws.client import MemoryAcpCookieStore, create_websocket_stream
from server import Server

HERE = pathlib.Path(__file__).parent
TIMEOUT = 60


class Client(acp.Client):
    """Keeps the texts of the updates. `heard` is set at each of them."""

    def __init__(self, name):
        self.name = name
        self.updates = []
        self.asked = 0
        self.heard = asyncio.Event()

    async def session_update(self, session_id, update, **kwargs):
        if update.session_update == "agent_message_chunk":
            self.updates.append((session_id, update.content.text))
            self.heard.set()

    async def request_permission(self, options, session_id, tool_call, **kwargs):
        self.asked += 1
        outcome = AllowedOutcome(outcome="selected", option_id=options[0].option_id)
        return acp.RequestPermissionResponse(outcome=outcome)

    async def read_text_file(self, path, session_id, **kwargs):
        return acp.ReadTextFileResponse(content=f"{self.name} has {path}")


async def connect(url, name, cookies=None):
    """Returns the client, its connection, and its transport."""
    client = Client(name)
    transport = await create_websocket_stream(url, cookie_store=cookies)
    agent = acp.connect_to_agent(client, transport)
    capabilities = ClientCapabilities(fs=FileSystemCapabilities(read_text_file=True))
    info = Implementation(name=name, version="1")
    hello = await agent.initialize(protocol_version=1, client_capabilities=capabilities, client_info=info)
    assert hello.protocol_version == 1, hello
    return client, agent, transport


def text(words):
    return [acp.text_block(words)]


async def at_once(url):
    """Clients with an agent each get only their own sessions, questions and files."""
    clients = [await connect(url, name) for name in ("ann", "bob", "cy")]
    sessions = [await agent.new_session(cwd="/", mcp_servers=[]) for _, agent, _ in clients]
    assert len({session.session_id for session in sessions}) == 3, sessions

    async def talk(number):
        client, agent, _ = clients[number]
        session_id = sessions[number].session_id
        for turn in range(20):
            answer = await agent.prompt(prompt=text(f"{number} {turn}"), session_id=session_id)
            assert answer.stop_reason == "end_turn", answer
        said = [[f"{number} {turn}", f"{client.name} has /file"] for turn in range(20)]
        assert client.updates == [(session_id, one) for turn in said for one in turn], client.updates
        assert client.asked == 20

    await asyncio.gather(*(talk(number) for number in range(3)))
    try:
        await clients[1][1].prompt(prompt=text("mine"), session_id=sessions[0].session_id)
        raise AssertionError("a stranger's prompt was accepted")
    except acp.RequestError as error:
        assert error.code == -32010, error
    for _, agent, _ in clients:
        await agent.close()
    print("  the Python SDK: three clients at once ok")


async def after_a_cut(url):
    """The next connection loads the session, although the first one was cut in the middle of a turn."""
    cookies = MemoryAcpCookieStore()
    client, agent, transport = await connect(url, "ann", cookies)
    session = await agent.new_session(cwd="/", mcp_servers=[])
    words = "one two three four five six seven eight"
    turn = asyncio.create_task(agent.prompt(prompt=text(words), session_id=session.session_id))
    await client.heard.wait()
    # As a network does that fails.
    transport._ws.transport.abort()
    failed = (await asyncio.gather(turn, return_exceptions=True))[0]
    assert isinstance(failed, Exception), failed
    client, agent, _ = await connect(url, "ann", cookies)
    await agent.load_session(cwd="/", session_id=session.session_id, mcp_servers=[])
    client.updates.clear()
    answer = await agent.prompt(prompt=text(words), session_id=session.session_id)
    assert answer.stop_reason == "end_turn", answer
    assert "".join(text for _, text in client.updates) == words, client.updates
    await agent.close()
    print("  the Python SDK: a session is loaded after a cut ok")


async def main():
    with Server("agent", "--", "node", str(HERE / "acp_agent.mjs")) as server:
        await asyncio.wait_for(at_once(server.url), TIMEOUT)
    with Server("agent", "--", "node", str(HERE / "acp_conformance/agent.mjs")) as server:
        await asyncio.wait_for(after_a_cut(server.url), TIMEOUT)


os.environ["TOOLS"]  # the folder of the npm packages, for the agents
asyncio.run(main())

"""An agent with sessions in memory, behind the own server of the Python SDK, on uvicorn. It answers a prompt with its words, one
update for each.

usage: agent.py        prints its URL
"""

import asyncio
import re
import socket
import uuid

import acp
import uvicorn
from acp.http.asgi import create_asgi_app

SESSIONS = {}


class Agent(acp.Agent):
    def on_connect(self, conn):
        self.client = conn

    async def initialize(self, protocol_version, client_capabilities=None, client_info=None, **kwargs):
        capabilities = acp.schema.AgentCapabilities(load_session=True)
        return acp.InitializeResponse(protocol_version=1, agent_capabilities=capabilities)

    async def new_session(self, cwd, mcp_servers=None, **kwargs):
        session_id = uuid.uuid4().hex
        SESSIONS[session_id] = {"cancelled": False}
        return acp.NewSessionResponse(session_id=session_id)

    async def load_session(self, cwd, session_id, mcp_servers=None, **kwargs):
        if session_id not in SESSIONS:
            raise acp.RequestError.invalid_params({"sessionId": session_id})
        return acp.LoadSessionResponse()

    async def cancel(self, session_id, **kwargs):
        SESSIONS.get(session_id, {})["cancelled"] = True

    async def prompt(self, prompt, session_id, **kwargs):
        if session_id not in SESSIONS:
            raise acp.RequestError.invalid_params({"sessionId": session_id})
        session = SESSIONS[session_id]
        session["cancelled"] = False
        for word in re.findall(r"\S+ ?", prompt[0].text):
            await self.client.session_update(session_id=session_id, update=acp.update_agent_message_text(word))
            await asyncio.sleep(0.02)
            if session["cancelled"]:
                return acp.PromptResponse(stop_reason="cancelled")
        return acp.PromptResponse(stop_reason="end_turn")

    async def ext_method(self, method, params):
        raise acp.RequestError.method_not_found(method)


async def main():
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"ws://127.0.0.1:{listener.getsockname()[1]}/acp", flush=True)
    config = uvicorn.Config(create_asgi_app(lambda connection: Agent()), log_level="warning", lifespan="on")
    await uvicorn.Server(config).serve(sockets=[listener])


asyncio.run(main())

"""Hosts of MCP servers that only know standard streams reach a remote server through `outrigger connect`: the Python SDK and
fastmcp."""

import asyncio
import os
import sys
import tempfile
import textwrap

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from server import OUTRIGGER, Server

SERVER = textwrap.dedent("""
    from fastmcp import FastMCP

    server = FastMCP("interop")

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    server.run(show_banner=False)
""")


async def with_sdk(url):
    parameters = StdioServerParameters(command=OUTRIGGER, args=["connect", url])
    async with stdio_client(parameters) as (reader, writer), ClientSession(reader, writer) as session:
        await session.initialize()
        tools = await session.list_tools()
        assert [tool.name for tool in tools.tools] == ["add"], tools
        for number in range(20):
            result = await session.call_tool("add", {"a": number, "b": 1})
            assert result.content[0].text == str(number + 1), result
    print("  the Python SDK of MCP as a stdio host ok")


async def with_fastmcp(url):
    async with Client(StdioTransport(command=OUTRIGGER, args=["connect", url])) as client:
        assert [tool.name for tool in await client.list_tools()] == ["add"]
        results = await asyncio.gather(*(client.call_tool("add", {"a": one, "b": one}) for one in range(20)))
        assert [result.data for result in results] == [2 * one for one in range(20)]
    print("  fastmcp as a stdio host ok")


async def main():
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "server.py")
        with open(program, "w") as file:
            file.write(SERVER)
        # The token is in the URL that the server prints.
        with Server("pipe", "--path", "/mcp", "--", sys.executable, program) as server:
            await asyncio.wait_for(with_sdk(server.url), 60)
            await asyncio.wait_for(with_fastmcp(server.url), 60)


asyncio.run(main())

"""An MCP server on the Python SDK 2.x, which speaks revision 2026-07-28 and the older ones.

usage: server_2026.py                 speaks on standard input and output
       server_2026.py --http PORT     serves the SDK's own Streamable HTTP transport at /mcp
"""

import asyncio
import sys
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel, Field

HTTP = sys.argv[1:2] == ["--http"]
# The HTTP server logs its URL. On standard streams the tool that fails would log its traceback.
server = MCPServer("outrigger-2026", version="1.0.0", log_level="INFO" if HTTP else "CRITICAL")
cancelled = 0


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
async def count(steps: int, delay: float, ctx: Context) -> str:
    """Reports its progress `steps` times, with `delay` seconds before each."""
    global cancelled
    try:
        for step in range(1, steps + 1):
            await asyncio.sleep(delay)
            await ctx.report_progress(step, steps, f"step {step}")
    except asyncio.CancelledError:
        cancelled += 1
        raise
    return f"counted to {steps}"


@server.tool()
def times_cancelled() -> int:
    """How many calls of `count` were cancelled."""
    return cancelled


@server.tool()
async def touch(ctx: Context) -> str:
    """Tells subscribers that the tools and the resource test://note changed."""
    await ctx.notify_tools_changed()
    await ctx.notify_resource_updated("test://note")
    return "touched"


@server.tool()
def route(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})], text: str) -> str:
    """Has an argument that clients also send as the header Mcp-Param-Region."""
    return f"{region}: {text}"


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("this tool fails")


class Name(BaseModel):
    name: str


async def ask_name() -> Elicit[Name]:
    return Elicit("What is your name?", Name)


@server.tool()
async def greet(answer: Annotated[Name, Resolve(ask_name)]) -> str:
    """Asks the client's user for a name."""
    return f"Hello, {answer.name}!"


@server.resource("test://note", mime_type="text/plain")
def note() -> str:
    return "A note."


@server.prompt()
def question(topic: str) -> str:
    return f"What is {topic}?"


if HTTP:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
else:
    server.run()

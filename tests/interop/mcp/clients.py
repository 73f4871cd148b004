"""Clients of MCP servers over Streamable HTTP: the Python SDK 2.x and fastmcp 4, in revision 2026-07-28 and in sessions.

usage: clients.py [outrigger|sdk]    `outrigger mcp` in front of stdio servers (default), or the servers' own HTTP transports
env:   OUTRIGGER, TOOLS, NODE=node, ONLY=words of the titles to run

Prints a line for each check, and ends with 1 if one failed.
"""

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import traceback
from pathlib import Path

import fastmcp
import httpx2
import mcp_types as types
from mcp import Client
from mcp.shared.exceptions import MCPError

HERE = Path(__file__).parent
TOOLS = Path(os.environ.get("TOOLS", HERE / "../../../target/interop")).resolve()
NODE = os.environ.get("NODE", "node")
OUTRIGGER = os.environ.get("OUTRIGGER", "outrigger")
MODE = sys.argv[1] if len(sys.argv) > 1 else "outrigger"
MODERN = "2026-07-28"
PYTHON_SERVER = [sys.executable, str(HERE / "server_2026.py")]
NODE_SERVER = [NODE, str(HERE / "server_2026.mjs")]

failed = []


async def check(title, function, *args, deadline=20):
    """Runs one check and prints whether it passed."""
    if os.environ.get("ONLY", "") not in title:
        return
    try:
        async with asyncio.timeout(deadline):
            await function(*args)
        print(f"  ok   {title}", flush=True)
    except BaseException as error:  # noqa: BLE001
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        failed.append(title)
        print(f"  FAIL {title}: {error!r}", flush=True)
        if os.environ.get("VERBOSE"):
            traceback.print_exception(error)


@contextlib.contextmanager
def served(command, *options):
    """Serves a program, and yields the URL of its endpoint."""
    if MODE == "outrigger":
        arguments = [OUTRIGGER, "mcp", "--listen", "127.0.0.1:0", "--no-auth", "--log", "warn", *options, "--", *command]
        child = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        output = child.stdout
    else:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        child = subprocess.Popen([*command, "--http", str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output = child.stdout
    try:
        url = None
        while url is None:
            line = output.readline()
            if not line:
                raise RuntimeError(f"{command} printed no URL")
            url = re.search(r"https?://[^\s'\"]+:\d+(/mcp)?", line)
        if MODE != "outrigger":
            # Reads the rest of the output, so that the server never waits for room in the pipe.
            subprocess.Popen(["cat"], stdin=output, stdout=subprocess.DEVNULL)
        url = url.group(0)
        yield url if url.endswith("/mcp") else url + "/mcp"
    finally:
        child.terminate()
        code = child.wait(20)
        if MODE == "outrigger" and code != 0:
            failed.append("the end of outrigger")
            print(f"  FAIL outrigger ended with {code}")


def text(result):
    return result.content[0].text


async def answer_name(_context, _params):
    return types.ElicitResult(action="accept", content={"name": "Ada"})


async def fastmcp_name(_message, _response_type, _params, _context):
    return {"name": "Ada"}


async def expect_error(awaitable, *codes):
    try:
        result = await awaitable
    except MCPError as error:
        assert error.error.code in codes, error.error
    else:
        raise AssertionError(f"no error, but {result}")


async def lists(client):
    tools = {tool.name for tool in (await client.list_tools()).tools}
    assert {"add", "count", "touch", "route", "greet"} <= tools, tools
    resources = [str(resource.uri) for resource in (await client.list_resources()).resources]
    assert resources == ["test://note"], resources
    prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
    assert prompts == ["question"], prompts


async def calls(client):
    assert text(await client.call_tool("add", {"a": 2, "b": 3})) == "5"
    assert text(await client.call_tool("route", {"region": "eu-west", "text": "hi"})) == "eu-west: hi"
    # The header of this value needs the encoding of the specification.
    assert text(await client.call_tool("route", {"region": " Zürich ", "text": "hi"})) == " Zürich : hi"
    failure = await client.call_tool("fail", {})
    assert failure.is_error, failure


async def unknown_method(client):
    request = types.Request[dict, str](method="nosuch/method", params={})
    await expect_error(client.session.send_request(request, types.EmptyResult), types.METHOD_NOT_FOUND)


async def resources_and_prompts(client):
    assert (await client.read_resource("test://note")).contents[0].text == "A note."
    assert (await client.get_prompt("question", {"topic": "life"})).messages[0].content.text == "What is life?"


async def progress(client):
    seen = []

    async def report(progress, total, message):
        seen.append((progress, total, message))

    result = await client.call_tool("count", {"steps": 4, "delay": 0.02}, progress_callback=report)
    assert text(result) == "counted to 4"
    assert seen == [(step, 4, f"step {step}") for step in (1, 2, 3, 4)], seen


async def concurrent(client):
    """Many calls at once, each with progress of its own."""
    seen = {}

    async def one(steps):
        seen[steps] = []

        async def report(progress, total, _message):
            seen[steps].append((progress, total))

        result = await client.call_tool("count", {"steps": steps, "delay": 0.001}, progress_callback=report)
        assert text(result) == f"counted to {steps}"

    async with asyncio.TaskGroup() as tasks:
        for steps in range(1, 21):
            tasks.create_task(one(steps))
    assert seen == {steps: [(step, steps) for step in range(1, steps + 1)] for steps in range(1, 21)}, seen


async def cancel(client):
    """A call that its caller gives up is cancelled in the server."""
    before = int(text(await client.call_tool("times_cancelled", {})))
    begun = asyncio.Event()

    async def report(*_):
        begun.set()

    call = asyncio.create_task(client.call_tool("count", {"steps": 2000, "delay": 0.02}, progress_callback=report))
    await begun.wait()
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    while int(text(await client.call_tool("times_cancelled", {}))) != before + 1:
        await asyncio.sleep(0.05)


async def elicitation(client):
    assert text(await client.call_tool("greet", {})) == "Hello, Ada!"


async def listen(client):
    """Each subscription gets what it asked for, and nothing else."""
    async with client.listen(tools_list_changed=True, resource_subscriptions=["test://note"]) as both:
        async with client.listen(prompts_list_changed=True) as neither:
            await client.call_tool("touch", {})
            events = [await anext(both), await anext(both)]
            assert {type(event).__name__ for event in events} == {"ToolsListChanged", "ResourceUpdated"}, events
            waiting = asyncio.create_task(anext(neither))
            await client.call_tool("touch", {})
            await anext(both)
            assert not waiting.done(), waiting
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
    # The server goes on without them.
    await client.call_tool("touch", {})


async def listen_apart(client, url):
    """A subscription of another client gets the events too."""
    async with Client(url) as other, other.listen(tools_list_changed=True) as subscription:
        await client.call_tool("touch", {})
        assert type(await anext(subscription)).__name__ == "ToolsListChanged"


async def pool_input(client):
    """The repeated call has to reach the process that asked: its state is sealed with a key of that process."""
    async with asyncio.TaskGroup() as tasks:
        for _ in range(40):
            tasks.create_task(elicitation(client))


async def pool_listen(client):
    """A subscription gets the events of both processes."""
    async with client.listen(tools_list_changed=True) as subscription:
        for _ in range(6):
            await client.call_tool("touch", {})
            assert type(await anext(subscription)).__name__ == "ToolsListChanged"


async def with_sdk(url, title, mode):
    async with contextlib.AsyncExitStack() as stack:
        client = None

        async def connect():
            nonlocal client
            client = await stack.enter_async_context(Client(url, mode=mode, elicitation_callback=answer_name))
            expected = MODERN if mode == "auto" else "2025-11-25"
            assert client.protocol_version == expected, client.protocol_version

        await check(f"{title}: connect", connect)
        if client is None:
            return
        await check(f"{title}: lists", lists, client)
        await check(f"{title}: calls", calls, client)
        await check(f"{title}: resources and prompts", resources_and_prompts, client)
        await check(f"{title}: progress", progress, client)
        await check(f"{title}: 20 calls at once with progress", concurrent, client)
        await check(f"{title}: an unknown method", unknown_method, client)
        await check(f"{title}: cancel", cancel, client)
        await check(f"{title}: elicitation", elicitation, client)
        if mode == "auto":
            await check(f"{title}: listen", listen, client)
            await check(f"{title}: listen of another client", listen_apart, client, url)


async def with_fastmcp(url, title):
    async def all_of_it():
        seen = []

        async def report(progress, total, _message):
            seen.append((progress, total))

        async with fastmcp.Client(url, elicitation_handler=fastmcp_name) as client:
            assert "add" in {tool.name for tool in await client.list_tools()}
            assert (await client.call_tool("add", {"a": 2, "b": 3})).content[0].text == "5"
            await client.call_tool("count", {"steps": 3, "delay": 0.01}, progress_handler=report)
            assert seen == [(1, 3), (2, 3), (3, 3)], seen
            assert (await client.read_resource("test://note"))[0].text == "A note."
            assert (await client.get_prompt("question", {"topic": "x"})).messages[0].content.text == "What is x?"
            assert (await client.call_tool("greet", {})).content[0].text == "Hello, Ada!"

    await check(f"{title}: lists, calls, progress, resources, prompts, elicitation", all_of_it)


def envelope(version=MODERN):
    prefix = "io.modelcontextprotocol/"
    return {prefix + "protocolVersion": version, prefix + "clientCapabilities": {}}


async def raw_requests(url):
    """Requests that no SDK sends, and the answers that the revision asks for."""
    accept = "application/json, text/event-stream"

    def body(method="tools/call", id=1, version=MODERN, **params):
        return {"jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "_meta": envelope(version)}}

    def headers(method="tools/call", version=MODERN, **more):
        fields = {"Accept": accept, "MCP-Protocol-Version": version, "Mcp-Method": method}
        return {**fields, **{name.replace("_", "-"): value for name, value in more.items()}}

    add = {"name": "add", "arguments": {"a": 1, "b": 2}}
    route = {"name": "route", "arguments": {"region": "eu", "text": "x"}}
    async with httpx2.AsyncClient() as http:
        async def expect(title, status, code, sent, fields):
            async def one():
                response = await http.post(url, json=sent, headers=fields)
                # An answer that takes a while may come as an event.
                data = re.search(r"^(?:data: ?)?(\{.*)$", response.text, re.MULTILINE)
                error = json.loads(data.group(1)).get("error", {}).get("code") if data else None
                assert (response.status_code, error) == (status, code), (response.status_code, response.text[:300])

            await check(f"raw: {title}", one)

        await expect("a call", 200, None, body(**add), headers(Mcp_Name="add"))
        await expect("no Mcp-Method", 400, -32020, body(**add), {"Accept": accept, "MCP-Protocol-Version": MODERN, "Mcp-Name": "add"})
        await expect("another Mcp-Method", 400, -32020, body(**add), headers("tools/list", Mcp_Name="add"))
        await expect("two equal versions", 400, -32020, body(**add), [*headers(Mcp_Name="add").items(), ("MCP-Protocol-Version", MODERN)])
        await expect("no Mcp-Name", 400, -32020, body(**add), headers())
        await expect("another Mcp-Name", 400, -32020, body(**add), headers(Mcp_Name="route"))
        await expect("an encoded Mcp-Name", 200, None, body(**add), headers(Mcp_Name="=?base64?YWRk?="))
        await expect("another version in the body", 400, -32020, body(version="2025-11-25", **add), headers(Mcp_Name="add"))
        await expect("an unknown version", 400, -32022, body(version="2099-01-01", **add), headers(version="2099-01-01", Mcp_Name="add"))
        await expect("no envelope", 400, -32602, {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}, headers("tools/list"))
        await expect("an unknown method", 404, -32601, body("nosuch/method"), headers("nosuch/method"))
        await expect("a batch", 400, -32600, [body(**add)], headers(Mcp_Name="add"))
        await expect("no Mcp-Param", 400, -32020, body(**route), headers(Mcp_Name="route"))
        await expect("another Mcp-Param", 400, -32020, body(**route), headers(Mcp_Name="route", Mcp_Param_Region="us"))
        await expect("the Mcp-Param", 200, None, body(**route), headers(Mcp_Name="route", Mcp_Param_Region="eu"))
        await expect("an encoded Mcp-Param", 200, None, body(**route), headers(Mcp_Name="route", Mcp_Param_Region="=?base64?ZXU=?="))
        notification = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "_meta": envelope()}}
        await expect("a notification", 202, None, notification, headers("notifications/cancelled"))

        async def other_methods():
            fields = {"Accept": "text/event-stream", "MCP-Protocol-Version": MODERN}
            for method in ("GET", "DELETE"):
                response = await http.request(method, url, headers=fields)
                assert response.status_code == 405, (method, response.status_code)

        await check("raw: GET and DELETE", other_methods)


async def main():
    for title, command in (("Python server", PYTHON_SERVER), ("TypeScript server", NODE_SERVER)):
        with served(command) as url:
            await with_sdk(url, f"mcp 2, {MODERN}, {title}", "auto")
            # The TypeScript SDK's own handler has no sessions, which elicitation and cancellation of these revisions need.
            if MODE == "outrigger" or command is PYTHON_SERVER:
                await with_sdk(url, f"mcp 2, session, {title}", "legacy")
            await with_fastmcp(url, f"fastmcp, {title}")
            if MODE == "outrigger" or command is PYTHON_SERVER:
                await raw_requests(url)
    if MODE == "outrigger":
        with served(PYTHON_SERVER, "--pool", "2") as url:
            async with Client(url, elicitation_callback=answer_name) as client:
                await check("a pool of two: requests that were asked for input", pool_input, client)
                await check("a pool of two: listen", pool_listen, client)
    print(f"  clients.py: {len(failed)} checks failed" if failed else "  clients.py: all passed")
    sys.exit(1 if failed else 0)


asyncio.run(main())

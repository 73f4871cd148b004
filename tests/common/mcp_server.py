#!/usr/bin/env python3
"""A stdio MCP server for tests/mcp/stress.py, with the revisions 2026-07-28 and 2025-11-25. It never blocks, so that many calls wait at
once, and it counts what a bridge must not do: ids or progress tokens that are used twice.

usage: tests/common/mcp_server.py [both|sessions|newer|silent]      `sessions` knows no revision without sessions, `newer` only 2026-07-28;
                                                                    `silent` only answers `initialize`
"""

import json
import os
import sys

VERSIONS, STATELESS = ["2025-11-25", "2025-06-18", "2025-03-26"], "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
SUBSCRIPTION = PREFIX + "subscriptionId"
KINDS = sys.argv[1] if len(sys.argv) > 1 else "both"
STRING = {"type": "string"}
TOOLS = {
    "echo": {}, "wait": {}, "counts": {}, "touch": {}, "announce": {}, "rename": {}, "ask": {}, "exit": {}, "pid": {}, "big": {}, "flood": {}, "chatter": {}, "stray": {},
    "late": {},
    "route": {
        "region": {**STRING, "x-mcp-header": "Region"}, "count": {"type": "integer", "x-mcp-header": "Count"},
        "inner": {"type": "object", "properties": {"on": {"type": "boolean", "x-mcp-header": "On"}}},
    },
}

counts = {"calls": 0, "cancelled": 0, "repeated_ids": 0, "repeated_tokens": 0, "unknown_cancels": 0, "answers": 0}
seen_ids, seen_tokens = set(), set()
waiting = {}
subscriptions = {}
asked = {}
is_stateless = False


def send(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")) + "\n")


def answer(id, stateless=None, **result):
    if is_stateless if stateless is None else stateless:
        result = {"resultType": "complete", **result}
    send(id=id, result=result)


def fail(id, code, message, **more):
    send(id=id, error={"code": code, "message": message, **more})


def text(value):
    return {"content": [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}]}


def notify(kind, uri=None):
    """Tells all subscribers of a kind of notification, or the client of the session."""
    method = {"tools": "notifications/tools/list_changed", "resource": "notifications/resources/updated"}[kind]
    params = {"uri": uri} if uri else {}
    if not is_stateless:
        send(method=method, params=params)
    for id, wanted in subscriptions.items():
        wants = wanted.get("toolsListChanged") if kind == "tools" else uri in wanted.get("resourceSubscriptions", [])
        if wants:
            send(method=method, params={**params, "_meta": {SUBSCRIPTION: id}})


def call(id, params, token):
    counts["calls"] += 1
    name, arguments = params.get("name"), params.get("arguments", {})
    if name == "echo":
        if token is not None:
            for step in range(1, arguments.get("steps", 0) + 1):
                send(method="notifications/progress", params={"progressToken": token, "progress": step, "message": arguments["what"]})
        answer(id, **text(arguments["what"]))
    elif name == "wait":
        waiting[id] = (token, is_stateless)
        if token is not None:
            send(method="notifications/progress", params={"progressToken": token, "progress": 0})
    elif name == "late":
        # Ends the calls that wait, each with progress and its answer.
        for other, (its_token, stateless) in list(waiting.items()):
            if its_token is not None:
                send(method="notifications/progress", params={"progressToken": its_token, "progress": 1})
            answer(other, stateless, **text("late"))
        waiting.clear()
        answer(id, **text("done"))
    elif name == "counts":
        answer(id, **text({**counts, "waiting": len(waiting), "subscriptions": len(subscriptions)}))
    elif name == "touch":
        notify("tools")
        notify("resource", "test://note")
        answer(id, **text("touched"))
    elif name == "announce":
        # Without an id of a subscription, as a server does that knows only one client.
        send(method="notifications/tools/list_changed")
        send(method="notifications/resources/updated", params={"uri": "test://note"})
        send(method="notifications/resources/updated", params={"uri": "test://other"})
        send(method="notifications/prompts/list_changed", params={})
        answer(id, **text("announced"))
    elif name == "rename":
        # From now on, the argument `region` belongs to another header.
        TOOLS["route"]["region"]["x-mcp-header"] = arguments["header"]
        notify("tools")
        send(method="notifications/tools/list_changed")
        answer(id, **text("renamed"))
    elif name == "ask":
        asked[f"ask-{len(asked)}"] = (id, is_stateless)
        send(id=f"ask-{len(asked) - 1}", method="sampling/createMessage", params={"messages": [], "maxTokens": 1})
    elif name == "exit":
        sys.stdout.flush()
        os._exit(3)
    elif name == "pid":
        answer(id, **text(str(os.getpid())))
    elif name == "big":
        answer(id, **text("x" * arguments["size"]))
    elif name == "flood":
        # One line, in pieces.
        sys.stdout.write(f'{{"jsonrpc":"2.0","id":{json.dumps(id)},"result":{{"content":[{{"type":"text","text":"')
        for _ in range(arguments["pieces"]):
            sys.stdout.write("x" * (1 << 20))
        sys.stdout.write('"}]}}\n')
    elif name == "chatter":
        for step in range(arguments["steps"]):
            send(method="notifications/progress", params={"progressToken": token, "progress": step, "message": "x" * arguments["size"]})
        answer(id, **text("said"))
    elif name == "stray":
        # None of these belongs to a request, and none may reach one.
        send(method="notifications/message", params={"level": "info", "data": "stray"})
        send(method="notifications/progress", params={"progressToken": 10**9, "progress": 1})
        send(method="notifications/progress", params={"progressToken": "t", "progress": 1})
        send(id=10**9, result={})
        send(id="1", result={})
        sys.stdout.write("this is not JSON\n")
        answer(id, **text("strayed"))
    elif name == "route":
        answer(id, **text(arguments))
    else:
        fail(id, -32602, f"unknown tool {name}")


def request(id, method, params, meta):
    global is_stateless
    is_stateless = KINDS in ("both", "newer") and PREFIX + "protocolVersion" in meta
    token = meta.get("progressToken")
    # A bridge may use an id again once its request has been answered. This one promises that it never does.
    counts["repeated_ids"] += id in seen_ids
    seen_ids.add(id)
    if is_stateless and token is not None:
        counts["repeated_tokens"] += token in seen_tokens
        seen_tokens.add(token)
    if KINDS == "silent" and method != "initialize":
        return
    tools = [{"name": name, "inputSchema": {"type": "object", "properties": shape}} for name, shape in TOOLS.items()]
    if method == "initialize" and KINDS == "newer":
        fail(id, -32022, "Unsupported protocol version")
    elif method == "initialize":
        capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
        version = params["protocolVersion"] if params["protocolVersion"] in VERSIONS else VERSIONS[0]
        answer(id, protocolVersion=version, capabilities=capabilities, serverInfo={"name": "tiny", "version": "1"})
    elif method == "tools/list":
        answer(id, tools=tools, **({"ttlMs": 0, "cacheScope": "public"} if is_stateless else {}))
    elif method == "tools/call":
        call(id, params, token)
    elif method == "ping" and not is_stateless:
        answer(id)
    elif method == "server/discover" and is_stateless:
        answer(id, supportedVersions=[STATELESS, *(VERSIONS if KINDS == "both" else [])], capabilities={"tools": {"listChanged": True}}, ttlMs=0, cacheScope="public")
    elif method == "subscriptions/listen" and is_stateless:
        subscriptions[id] = params["notifications"]
        send(method="notifications/subscriptions/acknowledged", params={"_meta": {SUBSCRIPTION: id}, "notifications": params["notifications"]})
    else:
        fail(id, -32601, "Method not found")


def main():
    for line in sys.stdin:
        message = json.loads(line)
        params = message.get("params") or {}
        if "method" not in message:
            counts["answers"] += 1
            id, stateless = asked.get(message.get("id"), (None, False))
            if id is not None:
                answer(id, stateless, **text(message.get("result") or message["error"]))
        elif "id" in message:
            try:
                request(message["id"], message["method"], params, params.get("_meta") or {})
            except (AttributeError, KeyError, TypeError) as error:
                fail(message["id"], -32602, f"bad parameters: {error!r}")
        elif message["method"] == "notifications/cancelled":
            id = params["requestId"]
            known = waiting.pop(id, None) or subscriptions.pop(id, None)
            counts["cancelled" if known is not None else "unknown_cancels"] += 1
        sys.stdout.flush()


main()

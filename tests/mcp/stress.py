#!/usr/bin/env python3
"""Drives `outrigger mcp` in front of a tiny stdio server, tests/common/mcp_server.py, as many clients and as bad ones.

Each part has a server of its own. Afterwards no process, descriptor, session, request or byte may be left.

usage: tests/mcp/stress.py [--quick] [--upgrades] [PART...]      --quick: fewer calls and sessions; --upgrades: the server replaces its
                                                                program all the time; OUTRIGGER=target/release/outrigger
"""

import collections
import json
import os
import signal
import sys
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
from mcp_http import (
    STATELESS, SUBSCRIPTION, VERSION, SERVER, QUICK, Connection, ask, eventually, expect_nothing_left, post, serving,
    stateless, text_of, tool,
)
from bad_input import bad_input
from limits import limits, mutations, readers
from sessions import abandoned, edges, sessions
from shared import broken, generations, many_sessions, newer, shared
from peers import PATIENCE, Worker, children_of, end_left_processes, frame, prepare, read_frame, read_head, results

CLIENTS = 16
CALLS = 5_000 if QUICK else 50_000


def counts_of(connection):
    status, messages = tool(connection, "counts", id="counts")
    assert status == 200, messages
    return json.loads(text_of(messages[-1]))


def one_client(pipe, port, number, calls):
    """Calls tools with the id and the progress token of all other clients. Returns the number of messages."""
    id, token = (1, "t") if number % 2 else ("1", 1)
    messages_seen = 0
    with Connection(port) as connection:
        for round in range(calls):
            what = f"{number}/{round}"
            kind = round % 8
            if kind == 5:
                status, messages = ask(connection, "tools/list", id=id)
                assert status == 200 and messages[0]["result"]["tools"][0]["name"] == "echo", messages
            elif kind == 6:
                status, messages = tool(connection, "unknown", id=id)
                assert status == 200 and messages[0]["error"]["code"] == -32602, (status, messages)
            elif kind == 7:
                status, messages = ask(connection, "no/such/method", id=id)
                assert status == 404 and messages[0]["error"]["code"] == -32601, (status, messages)
            else:
                steps = round % 3
                with_token = kind != 4
                status, messages = tool(connection, "echo", id, token if with_token else None, what=what, steps=steps)
                assert status == 200 and text_of(messages[-1]) == what, (status, messages)
                progress = [message["params"] for message in messages[:-1]]
                wanted = range(1, steps + 1) if with_token else []
                assert progress == [{"progressToken": token, "progress": step, "message": what} for step in wanted], messages
            assert messages[-1]["id"] == id and type(messages[-1]["id"]) is type(id), messages
            messages_seen += len(messages)
    return messages_seen


def one_listener(pipe, port, wanted, expected):
    """Subscribes, with the id of all other subscribers, and returns the methods that it has heard up to `expected`."""
    heard = []
    with Connection(port) as connection:
        assert post(connection, *stateless("subscriptions/listen", {"notifications": wanted}, id=1)) == 200
        messages = connection.messages()
        first = next(messages)
        assert first["method"] == "notifications/subscriptions/acknowledged", first
        assert first["params"] == {"_meta": {SUBSCRIPTION: 1}, "notifications": wanted}, first
        pipe.send(("result", "listening"))
        for message in messages:
            assert message["params"]["_meta"] == {SUBSCRIPTION: 1}, message
            heard.append(message["method"])
            if len(heard) == expected:
                return heard


def crossing():
    """16 clients with equal ids and tokens, and 4 subscribers with equal ids, share one process."""
    with serving("--pool", "1") as server:
        with server.connect() as connection:
            assert tool(connection, "pid")[0] == 200
            before = server.held()
            touches = 50
            wanted = [{"toolsListChanged": True}, {"resourceSubscriptions": ["test://note"]}] * 2
            listeners = [Worker(one_listener, server.port, filter, touches) for filter in wanted]
            assert results(listeners) == ["listening"] * 4
            started = time.monotonic()
            clients = [Worker(one_client, server.port, number, CALLS // CLIENTS) for number in range(CLIENTS)]
            for _ in range(touches // 2):
                # With the ids of subscriptions, and without.
                for name in "touch", "announce":
                    status, messages = tool(connection, name, id=1)
                    assert (status, len(messages)) == (200, 1), messages
                tool(connection, "stray", id=1)
            messages = sum(results(clients, 600))
            seconds = time.monotonic() - started
            for filter, heard in zip(wanted, results(listeners)):
                method = "tools/list_changed" if "toolsListChanged" in filter else "resources/updated"
                assert heard == [f"notifications/{method}"] * touches, collections.Counter(heard)
            seen = eventually("subscriptions end", lambda: (not (seen := counts_of(connection))["subscriptions"] and seen, seen))
            for name in "repeated_ids", "repeated_tokens", "unknown_cancels":
                assert seen[name] == 0, seen
            assert seen["cancelled"] == len(listeners), seen
            expect_nothing_left(server, before, "after the calls")
        for worker in clients + listeners:
            worker.kill()
        print(f"  {CALLS} calls of {CLIENTS} clients, {messages} messages, {CALLS / seconds:.0f} calls a second")


def hold(pipe, port, count):
    """Waits for calls that are not answered, for a subscription, and in the middle of a request."""
    connections = []
    for number in range(count):
        connection = Connection(port)
        post(connection, *stateless("tools/call", {"name": "wait", "arguments": {}}, id=1, token="t"))
        message = next(connection.messages())
        assert message["params"]["progressToken"] == "t", message
        connections.append(connection)
    silent = Connection(port)
    fields, message = stateless("tools/call", {"name": "wait", "arguments": {}})
    body = json.dumps(message).encode()
    # The head of the response comes with the first message, if there is none before.
    silent.send("POST", "/mcp", fields, body)
    listener = Connection(port)
    post(listener, *stateless("subscriptions/listen", {"notifications": {"toolsListChanged": True}}))
    next(listener.messages())
    half = Connection(port)
    half.socket.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
    pipe.send(("result", "holding"))
    time.sleep(PATIENCE)
    return [*connections, silent, listener, half]


def caller_killed():
    """A client that is killed cancels its own calls, and nobody else's."""
    with serving("--pool", "1") as server, server.connect() as connection:
        pid = text_of(tool(connection, "pid")[1][-1])
        before = server.held()
        bystander = server.connect()
        assert post(bystander, *stateless("tools/call", {"name": "wait"}, id=1, token="t")) == 200
        messages = bystander.messages()
        next(messages)
        victim = Worker(hold, server.port, 20)
        assert victim.hear() == "holding"
        seen = eventually("the calls wait", lambda: (seen := counts_of(connection))["waiting"] == 22 and seen)
        assert seen["subscriptions"] == 1, seen
        victim.kill()
        eventually("the calls are cancelled", lambda: ((seen := counts_of(connection))["waiting"] == 1, seen))
        seen = eventually("the subscription is cancelled", lambda: (seen := counts_of(connection))["cancelled"] == 22 and seen)
        assert seen["unknown_cancels"] == 0, seen
        assert tool(connection, "late")[0] == 200
        progress, last = list(messages)
        assert (progress["params"]["progressToken"], last["id"], text_of(last)) == ("t", 1, "late")
        bystander.socket.close()
        assert text_of(tool(connection, "pid")[1][-1]) == pid, "the process of the pool is the same"
        expect_nothing_left(server, before, "of the killed caller")
    print("  20 calls with progress, one without, a subscription and half a request: cancelled, and nothing left")


def server_killed():
    """A process of the pool that is killed fails its calls at once and is started again. A session ends with its process."""
    with serving("--pool", "1", "--restart-limit", "3/60s") as server, server.connect() as connection:
        pids = set()
        for round in range(4):
            def answered():
                status, messages = tool(connection, "pid")
                if status == 503:
                    assert int(connection.fields["retry-after"]) >= 1, connection.fields
                    assert messages[-1]["error"] and messages[-1]["id"] == 1, messages
                    return False, messages
                assert status == 200, (status, messages)
                return text_of(messages[-1])

            pid = int(eventually("the pool answers", answered))
            assert pid not in pids
            pids.add(pid)
            waiting = []
            for _ in range(8):
                waiting.append(server.connect())
                assert post(waiting[-1], *stateless("tools/call", {"name": "wait"}, id="w", token=1)) == 200
            streams = [call.messages() for call in waiting]
            for stream in streams:
                next(stream)
            since = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            for stream in streams:
                messages = list(stream)
                assert len(messages) == 1 and messages[0]["id"] == "w" and messages[0]["error"]["code"], messages
            assert time.monotonic() - since < 5, "they fail at once"
            for call in waiting:
                call.socket.close()
        # The fourth exit is one too many. A waiting request fails, and later ones get 503.
        status, messages = tool(connection, "pid")
        assert status == 503 and messages[-1]["error"] and "retry-after" in connection.fields, (status, messages)
        eventually("no request is left", lambda: server.status()["pending_requests"] == 0)
        # Sessions have processes of their own.
        session, other = server.session(), server.session()
        pid = int(text_of(session.tool("pid")[1][-1]))
        call, (stream, status) = session.open("wait", id=7, token="p"), session.get()
        assert status == 200
        messages = call.messages()
        next(messages)
        os.kill(pid, signal.SIGKILL)
        last = list(messages)
        assert len(last) == 1 and last[0]["id"] == 7 and last[0]["error"], last
        assert list(stream.messages()) == [], "the stream of an ended session ends"
        status, messages = session.tool("pid")
        assert status == 404 and messages[-1]["error"], (status, messages)
        stream, status = session.get()
        assert (status, session.delete(), session.send({"jsonrpc": "2.0", "method": "x"})) == (404, 404, 404)
        assert other.tool("pid")[0] == 200, "the other session is not affected"
        assert other.delete() in (200, 202, 204) and other.tool("pid")[0] == 404
        eventually("all processes are gone", lambda: (server.held()["sessions"] == 0 and not children_of(server.pid), server.held()))
    print(f"  {len(pids)} processes killed with 8 calls each, and the pool is restarted each time; a session ends with its process")


def old_servers():
    """A server that speaks only older revisions, or that says nothing, is found out at the start."""
    with serving(program=[*SERVER, "sessions"]) as server, server.connect() as connection:
        status, messages = tool(connection, "pid")
        error = messages[-1]["error"]
        assert (status, error["code"], messages[-1]["id"]) == (400, -32022, 1), (status, messages)
        assert error["data"]["requested"] == STATELESS and STATELESS not in error["data"]["supported"], error
        assert VERSION in error["data"]["supported"] and "2025-06-18" in error["data"]["supported"], error
        session = server.session()
        assert session.tool("pid")[0] == 200 and session.delete() in (200, 202, 204)
    with serving("--initialize-timeout", "1s", "--request-timeout", "2s", program=[*SERVER, "silent"]) as server:
        with server.connect() as connection:
            since = time.monotonic()
            status, messages = tool(connection, "pid")
            assert status in (400, 503) and messages[-1]["error"] and messages[-1]["id"] == 1, (status, messages)
            assert time.monotonic() - since < PATIENCE / 2
            session = server.session()
            status, messages = session.tool("pid", id=8)
            assert (messages[-1]["id"], messages[-1]["error"]["code"]) == (8, -32603), (status, messages)
            eventually("no request waits", lambda: server.status()["pending_requests"] == 0)
    print("  a server of older revisions, and one that does not answer")


PARTS = [
    bad_input, crossing, caller_killed, server_killed, abandoned, limits, sessions, readers, edges, mutations, old_servers, shared,
    newer, generations, many_sessions, broken,
]


def main():
    prepare()
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    unknown = set(names) - {part.__name__ for part in PARTS}
    if unknown:
        sys.exit(f"no such part: {', '.join(unknown)}")
    failed = []
    for part in PARTS:
        name = part.__name__
        if names and name not in names:
            continue
        since = time.monotonic()
        print(f"{name}: {part.__doc__}", flush=True)
        try:
            part()
        except Exception:
            traceback.print_exc()
            failed.append(name)
        for worker in list(Worker.running):
            worker.kill()
        left = end_left_processes()
        if left:
            print(f"  {left} processes are left", file=sys.stderr)
            failed.append(f"processes of {name}")
        print(f"  {time.monotonic() - since:.1f} s", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


main()

"""Parts of tests/mcp/stress.py: sessions of older revisions that share a process."""

import json
import random
import time

from mcp_http import (
    PREFIX, SERVER, QUICK, Connection, Session, eventually, serving, stateless, text_of,
)
from peers import Worker, children_of, results

WORKERS, EACH = 8, 8
CALLS = 20_000 if QUICK else 200_000
REVISIONS = ["2025-11-25", "2025-06-18", "2025-03-26"]


def call(session, connection, round, what):
    """Sends a call with the id and the token that all sessions use."""
    id, token = (1, "t") if round % 2 else ("1", 1)
    params = {"name": "echo", "arguments": {"what": what, "steps": round % 3}, "_meta": {"progressToken": token}}
    message = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
    body = json.dumps(message).encode()
    connection.send("POST", "/mcp", session.fields, body)
    return id, token


def check(connection, id, token, round, what):
    assert connection.head() == 200
    messages = list(connection.messages())
    assert messages[-1]["id"] == id and type(messages[-1]["id"]) is type(id), messages
    assert text_of(messages[-1]) == what, (what, messages)
    # A change belongs to all sessions. What the calls of others cause may not be here.
    changes = [message for message in messages[:-1] if message["method"].endswith("list_changed")]
    progress = [message["params"] for message in messages[:-1] if message not in changes]
    wanted = [{"progressToken": token, "progress": step, "message": what} for step in range(1, round % 3 + 1)]
    assert progress == wanted, (wanted, messages)


def clients(pipe, port, number, calls):
    """Several sessions that call at the same time, with equal ids and tokens. Returns the number of calls."""
    sessions = [Session(port, version=REVISIONS[(number + place) % len(REVISIONS)]) for place in range(EACH)]
    generator = random.Random(number)
    for round in range(calls // EACH):
        waiting = []
        for place, session in enumerate(sessions):
            what = f"{number}/{place}/{round}"
            waiting.append((session.connection, *call(session, session.connection, round, what), round, what))
        for one in waiting:
            check(*one)
        if round % 200 == 199:
            # A session that leaves in the middle of a call takes nothing from the others.
            place = generator.randrange(EACH)
            connection = Connection(port)
            call(sessions[place], connection, 2, "gone")
            connection.reset()
            assert sessions[place].delete() == 204
            sessions[place].connection.socket.close()
            sessions[place] = Session(port, version=REVISIONS[(number + place) % len(REVISIONS)])
    for session in sessions:
        assert session.delete() == 204
        session.connection.socket.close()
    return calls // EACH * EACH


def shared(kinds="sessions"):
    """64 sessions of three revisions with equal ids and tokens share a process for each revision."""
    with serving("--share", "all", "--process-idle", "2s", program=[*SERVER, kinds]) as server:
        first = [Session(server.port, version=version) for version in REVISIONS]
        for session in first:
            assert session.tool("stray")[0] == 200
        pool = 1 if kinds == "newer" else 0
        children = len(REVISIONS) + pool
        # The process that was asked which revisions the server supports may still be exiting.
        eventually("the processes run", lambda: ((held := server.held())["children"] == children, held))
        since = time.monotonic()
        workers = [Worker(clients, server.port, number, CALLS // WORKERS) for number in range(WORKERS)]
        for _ in range(20):
            for session in first:
                for name in "announce", "stray":
                    assert session.tool(name)[0] == 200
        calls = sum(results(workers, 900))
        seconds = time.monotonic() - since
        eventually("nothing is left", lambda: ((held := server.held())["pending_requests"] == 0 and held["sessions"] == 3, held))
        held = server.held()
        assert held["children"] == children, held
        for session in first:
            # The server has closed the connection, which was idle.
            session.connection = server.connect()
            seen = json.loads(text_of(session.tool("counts")[1][-1]))
            for name in "repeated_ids", "waiting":
                assert seen[name] == 0, seen
            assert session.delete() == 204
            session.connection.socket.close()
        eventually("no process is left", lambda: (len(children_of(server.pid)) == pool, server.held()))
        for worker in workers:
            worker.kill()
    print(f"  {calls} calls of {WORKERS * EACH} sessions on {len(REVISIONS)} processes, {calls / seconds:.0f} calls a second, nothing crossed")


def newer():
    """The same in front of a server that supports only 2026-07-28: the sessions are translated."""
    shared("newer")


def mixed_clients(pipe, port, number, calls):
    """Calls of sessions and of clients of 2026-07-28 at the same time, with equal ids and tokens. Returns the number of calls."""
    sessions = [Session(port) for _ in range(EACH // 2)]
    others = [Connection(port) for _ in range(EACH // 2)]
    for round in range(calls // EACH):
        waiting = []
        for place, session in enumerate(sessions):
            what = f"{number}/{place}/{round}"
            waiting.append((session.connection, *call(session, session.connection, round, what), round, what))
        for place, connection in enumerate(others):
            what = f"{number}/new-{place}/{round}"
            id, token = (1, "t") if round % 2 else ("1", 1)
            params = {"name": "echo", "arguments": {"what": what, "steps": round % 3}}
            fields, message = stateless("tools/call", params, id=id, token=token)
            message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = {"sampling": {}}
            connection.send("POST", "/mcp", fields, json.dumps(message).encode())
            waiting.append((connection, id, token, round, what))
        for one in waiting:
            check(*one)
    for session in sessions:
        assert session.delete() == 204
    return calls // EACH * EACH


def generations():
    """64 clients of 2025-11-25 and 2026-07-28 with equal ids and tokens share one process of an older server."""
    with serving("--share", "all", "--process-idle", "2s", program=[*SERVER, "sessions"]) as server:
        first = server.session()
        assert first.tool("stray")[0] == 200
        since = time.monotonic()
        workers = [Worker(mixed_clients, server.port, number, CALLS // WORKERS) for number in range(WORKERS)]
        for _ in range(20):
            for name in "announce", "stray":
                assert first.tool(name)[0] == 200
        calls = sum(results(workers, 900))
        seconds = time.monotonic() - since
        eventually("nothing is left", lambda: ((held := server.held())["pending_requests"] == 0 and held["sessions"] == 1, held))
        assert len(children_of(server.pid)) == 1, server.held()
        first.connection = server.connect()
        seen = json.loads(text_of(first.tool("counts")[1][-1]))
        assert seen["repeated_ids"] == 0 and seen["waiting"] == 0, seen
        assert first.delete() == 204
        eventually("no process is left", lambda: (not children_of(server.pid), server.held()))
        for worker in workers:
            worker.kill()
    print(f"  {calls} calls of {WORKERS * EACH} clients of two generations on one process, {calls / seconds:.0f} calls a second, nothing crossed")


def many_sessions():
    """A thousand sessions share a process, and the server's memory stays small."""
    count = 200 if QUICK else 1000
    with serving("--share", "all", "--max-sessions", "2000", program=[*SERVER, "sessions"]) as server:
        first = server.session()
        assert first.tool("pid")[0] == 200
        memory = server.memory()
        sessions = []
        for _ in range(count):
            sessions.append(server.session())
            assert sessions[-1].tool("pid")[0] == 200
            sessions[-1].connection.socket.close()
        grown = server.memory() - memory
        assert len(children_of(server.pid)) == 1, server.held()
        assert server.status()["sessions"] == count + 1
        print(f"  {count} sessions on one process: {grown * 1024 / count:.1f} KiB each")
        assert grown * 1024 / count < 16


def waiting_calls(server, kinds):
    """100 calls that wait, of ten clients or more with equal ids and tokens."""
    calls = []
    # Until then, requests of 2026-07-28 wait somewhere else.
    eventually("the revisions are known", lambda: server.status()["support"] != "unknown")
    sessions = [server.session() for _ in range(10)]
    for number in range(100):
        connection, id = server.connect(), number % 10
        params = {"name": "wait", "arguments": {}}
        if kinds == "sessions" and number % 2:
            fields, message = stateless("tools/call", params, id=id)
            message["params"]["_meta"][f"{PREFIX}clientCapabilities"] = {"sampling": {}}
        else:
            fields = sessions[number // 10].fields
            message = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
        connection.send("POST", "/mcp", fields, json.dumps(message).encode())
        calls.append((connection, id))
    eventually("all calls wait", lambda: ((count := server.status()["pending_requests"]) == len(calls), count))
    return sessions, calls


def broken():
    """A shared process dies with 100 calls, or writes a line of 1 GiB: each caller gets its own error, and the next calls are answered."""
    pieces = 64 if QUICK else 1024
    for kinds in "sessions", "newer":
        options = ["--share", "all", "--max-message", "1MiB"]
        with serving(*options, program=[*SERVER, kinds]) as server:
            for round in range(3):
                sessions, calls = waiting_calls(server, kinds)
                status, messages = sessions[0].tool("exit", id="exit")
                assert messages[-1]["id"] == "exit" and messages[-1]["error"]["message"] == "MCP server exited", (status, messages)
                for connection, id in calls:
                    assert connection.head() == 200
                    last = list(connection.messages())[-1]
                    assert last["id"] == id and last["error"]["message"] == "MCP server exited", (id, last)
                    connection.socket.close()
                for session in sessions:
                    session.connection = server.connect()
                    status, messages = session.tool("echo", what=str(round))
                    assert text_of(messages[-1]) == str(round), messages
                    assert session.delete() == 204
            session, memory = server.session(), server.memory()
            status, messages = session.tool("flood", id="long", pieces=pieces)
            assert messages[-1]["id"] == "long" and messages[-1]["error"]["code"] == -32603, messages[-1]
            assert text_of(session.tool("echo", what="after")[1][-1]) == "after"
            grown = server.memory() - memory
            assert grown < 32, f"{grown} MiB for a long line"
            eventually("nothing waits", lambda: server.status()["pending_requests"] == 0)
    print(f"  300 calls failed with 3 processes, each with its own error; a line of {pieces} MiB takes {grown:.1f} MiB; of servers of both generations")

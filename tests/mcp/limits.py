"""Parts of tests/mcp/stress.py: limits, callers that do not read, and requests with changed bytes."""

import collections
import json
import random
import time

from mcp_http import (
    BOTH, VERSION, QUICK, Connection, Session, eventually, expect_nothing_left, post, serving, stateless, text_of,
    tool,
)
from peers import KIB, MIB, Worker, results

ADA, BOB = "ada use secret-of-ada-0123456789abcdef", "bob use secret-of-bob-0123456789abcdef"


def limits():
    """Sessions, requests and kept bytes are limited, for all and for each principal."""
    watcher = "watcher all secret-of-all-0123456789abcdef"
    tokens = f"{watcher}\n{ADA}\n{BOB}\n"
    bearer = {who.split()[0]: {"Authorization": "Bearer " + who.split()[2]} for who in (watcher, ADA, BOB)}
    options = ["--max-sessions", "3", "--max-requests", "4", "--replay", "16KiB", "--max-replay", "40KiB", "--max-message", "1MiB"]
    with serving(*options, tokens=tokens) as server:
        before = server.held()

        def begin(who):
            session = Session(server.port, bearer[who])
            if session.status != 200:
                assert session.status == 503 and "retry-after" in session.answer and session.messages[-1]["error"], session.messages
                assert session.messages[-1]["id"] == 0
                session.connection.socket.close()
                return None
            return session

        ada = [begin("ada"), begin("ada")]
        assert None not in ada and begin("ada") is None, "two sessions for each"
        bob = begin("bob")
        assert bob and begin("bob") is None, "three sessions for all"
        assert server.status()["sessions"] == 3
        # A session belongs to its principal.
        thief = Session.__new__(Session)
        thief.__dict__.update(bob.__dict__)
        thief.fields = {**bob.fields, **bearer["ada"]}
        assert thief.tool("pid")[0] == 404 and thief.get()[1] == 404 and thief.delete() == 404
        assert bob.tool("pid")[0] == 200

        # Requests: those of the pool and those of sessions count together.
        def start(who, session=None):
            connection = server.connect()
            if session:
                params = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "wait", "_meta": {"progressToken": 1}}}
                status = post(connection, session.fields, params)
            else:
                status = post(connection, *stateless("tools/call", {"name": "wait"}, id=5, token=1, **bearer[who]))
            messages = connection.messages()
            first = next(messages)
            if status == 503:
                assert first["error"] and first["id"] == 5 and "retry-after" in connection.fields, (first, connection.fields)
                connection.socket.close()
                return None
            assert status == 200 and first["method"] == "notifications/progress", (status, first)
            return connection

        waiting = [start("ada"), start("ada", ada[0])]
        assert None not in waiting
        assert start("ada") is None and start("ada", ada[1]) is None, "two requests for each"
        waiting += [start("bob"), start("bob")]
        assert None not in waiting and start("watcher") is None, "four requests for all"
        assert server.status()["pending_requests"] == 4
        for connection in waiting:
            connection.socket.close()
        assert ada[0].send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}) == 202
        eventually("the requests are cancelled", lambda: (server.status()["pending_requests"] == 0, server.status()))

        # Events that are kept for a client that was cut: of one session, of one principal, of all.
        kept = []
        for session, limit in (ada[0], 16), (ada[1], 20), (bob, 40):
            call = session.open("wait", id=9, token="x" * 1000)
            next(call.messages())
            call.reset()
            most = 0
            for _ in range(20):
                session.tool("echo", id=3, token="y" * 500, what="z" * 1000, steps=5)
                most = max(most, server.status()["kept_bytes"])
            assert session.tool("late", id=4)[0] == 200
            assert 4 * KIB < most <= limit * KIB, (most, limit)
            kept.append(most)
        with server.connect() as connection:
            status, messages = tool(connection, "big", id="b", extra=bearer["ada"], size=2 * MIB)
            assert messages[-1]["id"] == "b" and messages[-1]["error"], (status, messages[-1]["id"])
            status, messages = tool(connection, "pid", extra=bearer["ada"])
            assert status == 200, (status, messages)
        for session in [*ada, bob]:
            assert session.delete() in (200, 202, 204)
            session.connection.socket.close()
        eventually("nothing is left", lambda: ((held := server.held())["sessions"] + held["pending_requests"] + held["kept_bytes"] == 0, held))
        eventually("no process is left", lambda: server.held()["children"] == before["children"])
    print(f"  3 sessions, 2 for each; 4 requests, 2 for each; {kept} bytes kept of 16, 20 and 40 KiB; a line over the limit fails its call")


def readers():
    """Callers that do not read, and lines of a gigabyte, cost little memory and do not disturb others."""
    pieces = 64 if QUICK else 1024
    with serving("--max-outbound", "1MiB") as server:
        with server.connect() as connection:
            pid = text_of(tool(connection, "pid")[1][-1])
        before = server.held()
        session = server.session()
        with server.connect() as connection:
            for id in range(2):
                status, messages = tool(connection, "flood", id=id, pieces=pieces)
                assert messages[-1]["id"] == id and messages[-1]["error"], (status, messages[-1]["id"])
            status, messages = session.tool("flood", id="s", pieces=pieces)
            assert messages[-1]["id"] == "s" and messages[-1]["error"], (status, messages[-1]["id"])
            assert session.tool("pid")[0] == 200, "the session goes on"
        # 16 callers read nothing of 32 MiB each.
        lazy = []
        for number in range(16):
            lazy.append(Connection(server.port))
            arguments = {"name": "chatter", "arguments": {"steps": 512, "size": 64 * KIB}}
            fields, message = stateless("tools/call", arguments, id=1, token="t")
            lazy[-1].send("POST", "/mcp", fields, json.dumps(message).encode())
        longest = 0
        with server.connect() as connection:
            for _ in range(20):
                status, messages = tool(connection, "echo", id=1, token="t", what="short", steps=2)
                assert (status, len(messages), text_of(messages[-1])) == (200, 3, "short"), messages
                # The process of the pool may be busy with the others; that of the session is not.
                since = time.monotonic()
                assert session.tool("pid")[0] == 200
                longest = max(longest, time.monotonic() - since)
            assert text_of(tool(connection, "pid")[1][-1]) == pid
        memory = server.memory()
        # The limit is four times as high for a client that has read lately, and the longest line is not counted.
        assert memory < 16 * 4 + 48, f"{memory:.0f} MiB"
        for connection in lazy:
            connection.reset()
        assert session.delete() == 204
        session.connection.socket.close()
        expect_nothing_left(server, before, "of callers that do not read")
    print(f"  lines of {pieces} MiB; 16 callers that read nothing: {memory:.0f} MiB, the longest call of a session {longest:.3f} s")


def mutate(pipe, port, session, seed, count):
    """Sends valid requests with changed, removed and added bytes. Returns how often each status came."""
    source, statuses = random.Random(seed), collections.Counter()
    stateless_fields, message = stateless("tools/call", {"name": "echo", "arguments": {"what": "w"}}, id=1, token="t")
    fields = {"Content-Type": "application/json", "Accept": BOTH}
    begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": VERSION, "capabilities": {}}}
    plain = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    seeds = [("POST", stateless_fields, message), ("POST", {**fields, "Mcp-Session-Id": session}, plain), ("POST", fields, begin),
             ("GET", {"Accept": "text/event-stream", "Mcp-Session-Id": session, "Last-Event-ID": "1-1"}, None),
             ("DELETE", {"Mcp-Session-Id": session[::-1]}, None)]
    for _ in range(count):
        method, fields, message = source.choice(seeds)
        body = b"" if message is None else json.dumps(message).encode()
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        data = bytearray(f"{method} /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body)
        for _ in range(source.randrange(1, 4)):
            at = source.randrange(len(data))
            if source.random() < 0.6:
                data[at] = source.choice(b'{}[],:"\\0e-. nul\r\n\x00\xff')
            elif source.random() < 0.5:
                del data[at : at + source.randrange(1, 9)]
            else:
                data[at:at] = data[at : at + source.randrange(1, 30)]
        with Connection(port) as connection:
            connection.socket.sendall(bytes(data))
            if source.random() < 0.2:
                continue
            connection.socket.settimeout(0.05)
            try:
                statuses[connection.head()] += 1
            except TimeoutError:
                statuses["waits"] += 1
            except (ConnectionError, ValueError, IndexError):
                statuses["closed"] += 1
    return statuses


def mutations():
    """Changed bytes in valid requests do no harm."""
    count = 250 if QUICK else 2_500
    with serving("--session-idle", "2s", "--handshake-timeout", "3s") as server, server.connect() as connection:
        pid = text_of(tool(connection, "pid")[1][-1])
        before = server.held()
        session = server.session()
        workers = [Worker(mutate, server.port, session.id, seed, count) for seed in range(4)]
        statuses = sum(results(workers, 600), collections.Counter())
        for worker in workers:
            worker.kill()
        unexpected = set(statuses) - {200, 202, 204, 400, 403, 404, 405, 406, 408, 411, 413, 414, 415, 417, 421, 426, 431, 501, 503, 505, "waits", "closed"}
        assert not unexpected, statuses
        session.connection.socket.close()
        with server.connect() as another:
            assert text_of(tool(another, "pid")[1][-1]) == pid, "the process of the pool is the same"
        connection.socket.close()
        before["descriptors"] -= 1
        expect_nothing_left(server, before, "of changed requests")
    print(f"  {4 * count} requests: {dict(statuses.most_common())}")

"""Parts of tests/mcp/stress.py: sessions, their streams and their end."""

import collections
import json
import random
import time

from mcp_http import (
    BOTH, VERSION, QUICK, Connection, Session, ask, eventually, expect_nothing_left, post, serving, stateless,
    text_of, tool,
)
from peers import Worker

SESSIONS = 200 if QUICK else 2_000
# A server that needs few milliseconds and little memory, for thousands of sessions. It answers `initialize`, and lists and
# calls nothing.
SMALL = ["sh", "-c", r"""
while read -r line; do
  id=${line#*\"id\":}; id=${id%%[,\}]*}
  case $line in
    *\"initialize\"*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"sh","version":"1"}}}';;
    *never*) ;;
    *\"tools/call\"*) echo '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"working"}}'
      echo '{"jsonrpc":"2.0","id":'$id',"result":{"content":[]}}';;
    *\"id\":*) echo '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32601,"message":"Method not found"}}';;
  esac
done
"""]


def abandon(pipe, port, numbers):
    """Opens sessions and leaves them in every way. Returns how many of each."""
    ways = collections.Counter()
    for number in numbers:
        way = number % 9
        if way == 7:
            with Connection(port) as connection:
                # The client leaves before the answer.
                params = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
                body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()
                connection.send("POST", "/mcp", {"Content-Type": "application/json", "Accept": BOTH}, body)
                connection.reset()
            ways["left before the answer"] += 1
            continue
        session = Session(port)
        assert session.status == 200 and session.id, (session.status, session.messages)
        if way in (0, 1, 2):
            ways["closed"] += 1
        elif way == 8:
            call = Connection(port)
            params = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "never"}}
            call.send("POST", "/mcp", session.fields, json.dumps(params).encode())
            call.reset() if number % 2 else call.socket.close()
            ways["never answered"] += 1
        elif way == 3:
            stream, status = session.get()
            assert status == 200
            stream.reset()
            ways["stream reset"] += 1
        elif way == 4:
            call = session.open("x", id=1)
            call.reset()
            ways["call reset"] += 1
        elif way == 5:
            assert session.tool("x")[0] == 200
            ways["answered"] += 1
        elif way == 6:
            assert session.delete() in (200, 202, 204)
            ways["deleted"] += 1
        session.connection.reset() if number % 2 else session.connection.socket.close()
    return ways


def abandoned():
    """Sessions that clients abandon end, with their processes."""
    with serving("--session-idle", "2s", "--max-sessions", str(SESSIONS), program=SMALL) as server:
        first = server.session()
        assert first.delete() in (200, 202, 204)
        first.connection.socket.close()
        eventually("the first one ends", lambda: server.status()["sessions"] == 0)
        # The first process, which has told the revisions, ends too.
        eventually("no process runs", lambda: server.held()["children"] == 0)
        before, memory = server.held(), server.memory()
        since = time.monotonic()
        workers = [Worker(abandon, server.port, range(part, SESSIONS, 4)) for part in range(4)]
        ways, most = collections.Counter(), server.held()
        for worker in workers:
            while not worker.pipe.poll(0.2):
                most = max(most, server.held(), key=lambda held: held["sessions"])
            ways += worker.hear(600)
            worker.kill()
        seconds = time.monotonic() - since
        expect_nothing_left(server, before, "of the abandoned sessions")
        grown = server.memory() - memory
        assert grown < 8, f"{grown:.1f} MiB more than before"
    print(f"  {sum(ways.values())} sessions in {seconds:.0f} s, at most {most['sessions']} at once: {dict(ways)}; {grown:+.1f} MiB")


def cut_often(session, steps, source):
    """Makes a call and cuts its stream again and again. Returns the messages that arrive, and the number of cuts."""
    call = session.open("chatter", id=1, token="t", steps=steps, size=100)
    events, seen, last, cuts = call.events(), [], None, 0
    while True:
        left = source.randrange(1, 30)
        for id, data in events:
            last = id or last
            if data:
                seen.append(json.loads(data))
            left -= 1
            if not left:
                break
        call.reset()
        if seen and "id" in seen[-1]:
            return seen, cuts
        cuts += 1
        call, status = session.get(last=last)
        assert status == 200, status
        events = call.events()


def sessions():
    """Streams of sessions: requests of the server, a cut and its replay, cancellation, and the end."""
    with serving() as server:
        session, other = server.session(), server.session()
        # The server asks on the stream of the call, and the client answers with a POST.
        call = session.open("ask", id=1)
        messages = call.messages()
        question = next(messages)
        assert question["method"] == "sampling/createMessage", question
        status = session.send({"jsonrpc": "2.0", "id": question["id"], "result": {"role": "assistant"}})
        assert status == 202 and session.rest == b"", (status, session.rest)
        last = list(messages)[-1]
        assert (last["id"], json.loads(text_of(last))) == (1, {"role": "assistant"})
        # A cut does not cancel. The client comes back and gets what it has not seen, once, and only from its own stream.
        call = session.open("wait", id=2, token="t")
        events = call.events()
        primed = [event for event in [next(events), next(events)]]
        if not primed[-1][1]:
            primed.append(next(events))
        seen = next(id for id, data in primed if data)
        assert seen, primed
        call.reset()
        stream, status = session.get()
        assert status == 200
        assert session.tool("touch", id=3)[0] == 200
        assert session.tool("late", id=4)[0] == 200
        back, status = session.get(last=seen)
        assert status == 200, status
        missed = list(back.messages())
        assert [message.get("id") for message in missed] == [None, 2], missed
        assert missed[0]["params"] == {"progressToken": "t", "progress": 1} and text_of(missed[1]) == "late"
        thief, status = other.get(last=seen)
        if status == 200:
            thief.socket.settimeout(0.5)
            try:
                heard = next(thief.messages(), None)
            except TimeoutError:
                heard = None
            assert heard is None, heard
        thief.socket.close()
        # Many cuts lose and repeat nothing.
        source, cuts = random.Random(5), 0
        for _ in range(5 if QUICK else 50):
            seen, more = cut_often(session, 300, source)
            progress = [message["params"]["progress"] for message in seen[:-1]]
            assert progress == list(range(300)) and text_of(seen[-1]) == "said", progress
            cuts += more
        # Notifications that belong to no request come on one stream, once.
        assert session.tool("touch", id=5)[0] == 200
        stream.socket.settimeout(2)
        general = []
        try:
            for message in stream.messages():
                general.append(message["method"])
        except TimeoutError:
            pass
        assert len(general) <= 4 and set(general) <= {"notifications/tools/list_changed", "notifications/resources/updated"}, general
        # The stream of a cancelled call ends, and no result comes.
        call = session.open("wait", id=6, token="c")
        messages = call.messages()
        next(messages)
        assert session.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 6}}) == 202
        last = list(messages)
        assert last == [] or [message["id"] for message in last] == [6] and last[0]["error"], last
        counts = json.loads(text_of(session.tool("counts", id=7)[1][-1]))
        assert (counts["cancelled"], counts["waiting"], counts["unknown_cancels"]) == (1, 0, 0), counts
        assert session.delete() in (200, 202, 204) and session.tool("pid")[0] == 404
        # A pooled process that asks gets an error, and the caller gets nothing of it.
        with server.connect() as connection:
            status, messages = tool(connection, "ask", id="a")
            assert status == 200 and len(messages) == 1, messages
            assert json.loads(text_of(messages[0]))["code"] == -32601, messages
    print(f"  questions, {cuts} cuts with replay, cancellation, and DELETE")


def edges():
    """Equal ids in one session, pipelined requests, several streams, wrong event ids, and a stop in the middle."""
    with serving("--session-idle", "2s") as server:
        # Pipelined requests are answered in order.
        with server.connect() as connection:
            for number in range(20):
                fields, message = stateless("tools/call", {"name": "echo", "arguments": {"what": str(number)}}, id=number)
                connection.send("POST", "/mcp", fields, json.dumps(message).encode())
            for number in range(20):
                assert connection.head() == 200
                message = list(connection.messages())[-1]
                assert (message["id"], text_of(message)) == (number, str(number)), message
        session = server.session()
        # A second call with the id of one that waits is refused, or answered as its own; the first one is not disturbed.
        first = session.open("wait", id=1, token="t")
        messages = first.messages()
        assert next(messages)["params"]["progress"] == 0
        status, second = session.tool("echo", id=1, what="second")
        assert "error" in second[-1] or text_of(second[-1]) == "second", second
        assert session.tool("late", id=2)[0] == 200
        last = list(messages)
        assert last[-1]["id"] == 1 and ("error" in last[-1] or text_of(last[-1]) == "late"), last
        # Each message comes on one stream only.
        streams = [session.get() for _ in range(3)]
        assert all(status in (200, 409) for _, status in streams) and streams[-1][1] in (200, 409), streams
        assert session.tool("touch", id=3)[0] == 200
        heard = []
        for stream, status in streams:
            stream.socket.settimeout(0.5)
            try:
                for message in stream.messages() if status == 200 else ():
                    heard.append(message["method"])
            except TimeoutError:
                pass
        assert sorted(heard) == ["notifications/resources/updated", "notifications/tools/list_changed"], heard
        for stream, _ in streams:
            stream.reset()
        # Event ids of nobody.
        for last in "x", "0", "-1", "99999999999999999999", "1_2_3", "0-0", "x" * 500, "é".encode().decode("latin-1"):
            stream, status = session.get(last=last)
            assert status in (200, 400, 404), (last, status)
            stream.reset()
        # A session with an open stream is in use.
        stream, status = session.get()
        assert status == 200
        time.sleep(3)
        assert session.tool("pid", connection=server.connect())[0] == 200, "the session has not ended"
        # A stream that waits for notifications ends with the process.
        with server.connect() as connection, server.connect() as listener:
            assert post(listener, *stateless("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id="l")) == 200
            messages = listener.messages()
            next(messages)
            tool(connection, "exit", id=6)
            last = list(messages)
            assert [message["id"] for message in last] == ["l"] and last[0]["error"], last
        # Tools that change are checked by their new headers, although no client has listed them.
        with server.connect() as connection:
            def route(**fields):
                its = {f"Mcp-Param-{name}": value for name, value in fields.items()}
                return tool(connection, "route", extra=its, region="west")[0]

            def listed():
                status, messages = ask(connection, "tools/list")
                return status == 200 and "result" in messages[-1], messages

            eventually("the pool is back", listed)
            assert (route(Region="west"), route(Region="east"), route()) == (200, 400, 400)
            assert tool(connection, "rename", header="Zone")[0] == 200
            eventually("the new header is known", lambda: route(Zone="west") == 200)
            assert (route(Zone="west"), route(Zone="east"), route(), route(Region="west")) == (200, 400, 400, 400)
        # A process that exits fails its call at once.
        status, messages = session.tool("exit", id=4, connection=server.connect())
        assert messages[-1]["id"] == 4 and messages[-1]["error"], (status, messages)
        assert session.tool("pid", connection=server.connect())[0] == 404
        with server.connect() as connection:
            status, messages = tool(connection, "exit", id=5)
            assert messages[-1]["id"] == 5 and messages[-1]["error"], (status, messages)
    # A stop: the call that can be answered is answered, the others end, and the program exits with 0.
    with serving("--drain-timeout", "1s") as server:
        session = server.session()
        waiting = [session.open("wait", id=1, token="t"), server.connect(), server.connect()]
        assert post(waiting[1], *stateless("tools/call", {"name": "wait"}, id=2, token="t")) == 200
        assert post(waiting[2], *stateless("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id=3)) == 200
        since = time.monotonic()
        assert server.stop() == 0
        seconds = time.monotonic() - since
        assert seconds < 15, seconds
        ends = []
        for connection in waiting:
            try:
                ends.append([message.get("id", message.get("method")) for message in connection.messages()][-1])
            except ConnectionError:
                ends.append("the connection ended")
    print(f"  stopped in {seconds:.1f} s; the last messages: {ends}")

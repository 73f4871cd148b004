"""The clients of tests/load/upgrades.py. Each one checks that no message and no byte is lost, doubled or out of order."""

import asyncio
import json
import random
import re
import time
import urllib.error
import urllib.request

import peers
from mcp_http import Connection, Session, post, stateless, text_of, tool

PATIENCE = 120
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
PYTHON = ["python3", "-u", "-c"]

# Counts the messages of each client, and sends each one back with its number.
APP = """
import json, sys
counts = {}
for line in sys.stdin:
    event = json.loads(line)
    if event["event"] == "message":
        client = event["client"]
        counts[client] = counts.get(client, 0) + 1
        command = {"cmd": "send", "client": client, "text": f"{counts[client]} {event['text']}"}
        sys.stdout.write(json.dumps(command) + "\\n")
        sys.stdout.flush()
    elif event["event"] == "disconnect":
        counts.pop(event["client"], None)
"""

PIPE = """
import sys
for number, line in enumerate(sys.stdin, 1):
    sys.stdout.write(f"{number} {line}")
    sys.stdout.flush()
"""

# Says the words of a prompt one after the other, and asks for permission in every third turn. Turns run at the same time.
AGENT = """
import asyncio, json, sys
asked, sessions = {}, 0

def say(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
    sys.stdout.flush()

async def turn(prompt, session, words):
    for number, word in enumerate(words):
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": word}}
        say(method="session/update", params={"sessionId": session, "update": update})
        if number == 3 and prompt % 3 == 0:
            asked[prompt] = asyncio.get_running_loop().create_future()
            options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
            call = {"toolCallId": "1", "title": "x"}
            params = {"sessionId": session, "toolCall": call, "options": options}
            say(id=prompt, method="session/request_permission", params=params)
            assert (await asked[prompt])["outcome"] == {"outcome": "selected", "optionId": "yes"}
        await asyncio.sleep(0.05)
    say(id=prompt, result={"stopReason": "end_turn"})

async def main():
    global sessions
    reader = asyncio.StreamReader(limit=1 << 24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    turns = set()
    while line := await reader.readline():
        message = json.loads(line)
        id, method, params = message.get("id"), message.get("method"), message.get("params", {})
        if method == "initialize":
            say(id=id, result={"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []})
        elif method == "session/new":
            sessions += 1
            say(id=id, result={"sessionId": f"session-{sessions}"})
        elif method == "session/prompt":
            words = params["prompt"][0]["text"].split()
            task = asyncio.create_task(turn(id, params["sessionId"], words))
            turns.add(task)
            task.add_done_callback(turns.discard)
        elif method is None:
            asked.pop(id).set_result(message["result"])

asyncio.run(main())
"""

# Each begins when its reader is there.
COUNTER = "stty raw -echo; echo 0; read -rn1; n=0; while [ ! -e $1 ]; do n=$((n + 1)); echo $n; read -rt 0.2; done; exit 7"
# `seq` writes whole blocks, so the reader is what is slow, and the processor is left to the server.
FLOOD = "stty raw -echo; echo 0; read -rn1; n=1; while [ ! -e $1 ]; do seq $n $((n + 9999)); n=$((n + 10000)); done; exit 7"


class Link:
    """A WebSocket connection."""

    def __init__(self, reader, writer, head):
        self.reader, self.writer, self.head = reader, writer, head

    @classmethod
    async def open(cls, port, path, tls=None):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16, ssl=tls)
        writer.write(peers.upgrade(path))
        async with asyncio.timeout(PATIENCE):
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head
        return cls(reader, writer, head.decode())

    def send(self, payload, opcode=BINARY):
        self.writer.write(peers.frame(opcode, payload))

    async def receive(self):
        """Returns the opcode and the payload of the next message. Answers PINGs."""
        while True:
            async with asyncio.timeout(PATIENCE):
                first, length = await self.reader.readexactly(2)
                if length >= 126:
                    length = int.from_bytes(await self.reader.readexactly(2 if length == 126 else 8))
                payload = await self.reader.readexactly(length)
            if first & 15 == PING:
                self.send(payload, PONG)
            else:
                return first & 15, payload


class AgentClient:
    """A client of an agent. Its requests have the ids 1, 2, and so on, as those of all others."""

    def __init__(self, link):
        self.link, self.next_id = link, 0

    @classmethod
    async def open(cls, port, capabilities):
        client = cls(await Link.open(port, "/agent"))
        params = {"protocolVersion": 1, "clientCapabilities": capabilities}
        assert (await client.ask("initialize", params))["protocolVersion"] == 1
        return client

    def say(self, **message):
        self.link.send(json.dumps({"jsonrpc": "2.0", **message}).encode(), TEXT)

    def request(self, method, params):
        self.next_id += 1
        self.say(id=self.next_id, method=method, params=params)
        return self.next_id

    async def hear(self):
        opcode, payload = await self.link.receive()
        assert opcode == TEXT, (opcode, payload)
        return json.loads(payload)

    async def ask(self, method, params):
        id = self.request(method, params)
        answer = await self.hear()
        assert answer.get("id") == id and "result" in answer, answer
        return answer["result"]


def message(name, number):
    """A message of up to 20 kB that says which one it is."""
    length = (0, 5, 200, 200, 3000, 20_000, 200)[(3 * name + number) % 7]
    return b"%d %d " % (name, number) + b"x" * length


class Load:
    def __init__(self, port, tls_port, tls, ending):
        self.port, self.tls_port, self.tls, self.ending = port, tls_port, tls, ending
        self.over = asyncio.Event()
        self.ready = self.messages = self.bytes = self.cuts = self.turns = self.restarts = 0
        self.running_turns = 0

    def end(self):
        """Lets every client end. The file ends the programs of the terminals."""
        with open(self.ending, "w"):
            self.over.set()

    async def plain(self, name, path="/echo"):
        """Exchanges numbered messages. Programs send each one back with its number."""
        link = await Link.open(self.port, path)
        self.ready += 1
        opcode = BINARY if path == "/echo" else TEXT
        sent = received = 0
        while not self.over.is_set() or received < sent:
            if not self.over.is_set():
                for _ in range(random.randrange(3)):
                    link.send(message(name, sent), opcode)
                    sent += 1
            while received < sent:
                expected = message(name, received)
                if path != "/echo":
                    expected = b"%d " % (received + 1) + expected
                answer = await link.receive()
                assert answer == (opcode, expected), (name, path, received, answer[0], answer[1][:40])
                received += 1
            await asyncio.sleep(random.random())
        self.messages += received
        link.writer.close()

    async def resumable(self, name, tls=None):
        """Comes back after cuts of its own, and over TLS after those of upgrades."""
        sent = received = 0
        link = await self.dial("/echo?resume=new", tls)
        self.ready += 1
        while True:
            token, _, count = re.search(r"Outrigger-Resume: (\S+?)(; received=(\d+))?\r\n", link.head).groups()
            # What the server has not taken is sent again.
            for number in range(int(count or 0), sent):
                link.send(message(name, number))
            until = time.monotonic() + random.random() * 3
            try:
                while time.monotonic() < until or self.over.is_set():
                    if not self.over.is_set():
                        link.send(message(name, sent))
                        sent += 1
                    elif received == sent:
                        self.messages += received
                        link.writer.close()
                        return
                    answer = await link.receive()
                    assert answer == (BINARY, message(name, received)), (name, received, answer[0], answer[1][:40])
                    received += 1
                    if random.random() < 0.3:
                        await asyncio.sleep(random.random() / 3)
                self.cuts += 1
            except (OSError, asyncio.IncompleteReadError) as error:
                assert tls, f"{name}: the server has ended the connection: {error}"
                self.restarts += 1
            link.writer.transport.abort()
            link = await self.dial(f"/echo?resume={token}&received={received}", tls)

    async def dial(self, path, tls):
        """Connects. A handshake over TLS that an upgrade ends is repeated."""
        while True:
            try:
                return await Link.open(self.tls_port if tls else self.port, path, tls)
            except (OSError, asyncio.IncompleteReadError):
                assert tls, "the server has refused a connection"
                await asyncio.sleep(0.05)

    async def over_tls(self, name):
        """Exchanges numbered messages until an upgrade ends the connection with 1012, and then begins anew."""
        link = await self.dial("/echo", self.tls)
        self.ready += 1
        while True:
            for number in range(1 << 30):
                link.send(message(name, number))
                opcode, payload = await link.receive()
                if opcode == CLOSE:
                    assert int.from_bytes(payload[:2]) == 1012, payload
                    self.restarts += 1
                    break
                assert (opcode, payload) == (BINARY, message(name, number)), (name, number, opcode, payload[:40])
                self.messages += 1
                if self.over.is_set():
                    link.writer.transport.abort()
                    return
                await asyncio.sleep(random.random() / 5)
            link.writer.transport.abort()
            link = await self.dial("/echo", self.tls)

    async def agent(self, name):
        """Has a turn run at any time. Every fifth client is observed. Those with an even number are another kind of client."""
        capabilities = {"fs": {"readTextFile": True}} if name % 2 == 0 else {}
        client = await AgentClient.open(self.port, capabilities)
        created = await client.ask("session/new", {"cwd": "/", "mcpServers": []})
        session, token = created["sessionId"], created["_meta"]["outrigger"]["watchToken"]
        observer = None
        if name % 5 == 0:
            observer = await AgentClient.open(self.port, capabilities)
            await observer.ask("session/attach", {"sessionId": session, "_meta": {"outrigger": {"watchToken": token}}})
        self.ready += 1
        number = 0
        while not self.over.is_set():
            words = [f"{name}-{number}-{word}" for word in range(random.randrange(5, 60))]
            number += 1
            watching = [self.watch_turn(observer, words)] if observer else []
            await asyncio.gather(self.turn(client, session, words), *watching)
        self.turns += number
        client.link.writer.close()

    async def turn(self, client, session, words):
        prompt = [{"type": "text", "text": " ".join(words)}]
        id = client.request("session/prompt", {"sessionId": session, "prompt": prompt})
        self.running_turns += 1
        heard = []
        while True:
            message = await client.hear()
            if message.get("method") == "session/update":
                heard.append(message["params"]["update"]["content"]["text"])
            elif message.get("method") == "session/request_permission":
                await asyncio.sleep(random.random() / 5)
                client.say(id=message["id"], result={"outcome": {"outcome": "selected", "optionId": "yes"}})
            else:
                assert (message.get("id"), message.get("result")) == (id, {"stopReason": "end_turn"}), message
                assert heard == words, (words[0], heard)
                self.running_turns -= 1
                return

    async def watch_turn(self, observer, words):
        seen = []
        while True:
            update = (await observer.hear()).get("params", {}).get("update", {})
            if update.get("sessionUpdate") == "agent_message_chunk":
                seen.append(update["content"]["text"])
            elif update.get("sessionUpdate") == "turn_complete":
                assert seen == words, (words[0], seen)
                return

    async def terminal(self, number):
        floods = number % 5 == 0
        script = FLOOD if floods else COUNTER
        body = {"command": "bash", "args": ["-c", script, "bash", self.ending], "allocate_tty": True}
        process = await asyncio.to_thread(call, self.port, "POST", "/process/spawn", body)
        path = f"/process/{process['process_id']}"
        link = await Link.open(self.port, f"{path}/attach")
        self.ready += 1
        expected, rest, exited = 0, b"", None
        while True:
            opcode, payload = await link.receive()
            if opcode == TEXT:
                event = json.loads(payload)
                assert event["type"] in ("role", "size", "clients", "exit"), event
                exited = event.get("exitCode", exited)
            elif opcode == CLOSE:
                break
            else:
                assert exited is None, "output after the exit"
                *lines, rest = (rest + payload).split(b"\n")
                for line in lines:
                    assert int(line) == expected, (number, line, expected)
                    if expected == 0:
                        # The terminal does not echo input any more.
                        link.send(b"x")
                    expected += 1
                self.bytes += len(payload)
            if floods and not self.over.is_set():
                await asyncio.sleep(random.random() / 2)
        assert (exited, int.from_bytes(payload[:2])) == (7, 1000), (exited, payload)
        status = await asyncio.to_thread(call, self.port, "GET", f"{path}/status")
        assert status["exit_code"] == 7, status


def bystander(pipe, port):
    """Exchanges messages until the pipe says that the load is over. Returns the longest time of an echo in seconds."""
    link = peers.open_client(port)
    slowest = 0.0
    pipe.send(("ready", None))
    while not pipe.poll():
        before = time.perf_counter()
        link.sendall(peers.frame(BINARY, b"hello"))
        while (answer := peers.read_frame(link))[0] == PING:
            link.sendall(peers.frame(PONG, answer[1]))
        assert answer == (BINARY, b"hello"), answer
        slowest = max(slowest, time.perf_counter() - before)
        time.sleep(0.005)
    return slowest


def mcp_calls(pipe, port, in_sessions, count):
    """Has `count` calls wait at an MCP server at any time, until the pipe says that the load is over. Each call gets progress before and
    after it has waited, and then its answer. Returns the number of calls."""
    fields = {"Authorization": f"Bearer {peers.TOKEN}"}
    sessions = [Session(port, fields) for _ in range(count)] if in_sessions else []
    connections = [session.connection for session in sessions] or [Connection(port) for _ in range(count)]
    helper = Session(port, fields) if in_sessions else Connection(port)
    calls = 0
    while calls == 0 or not pipe.poll():
        waiting = []
        for number, connection in enumerate(connections):
            its_fields, request = stateless("tools/call", {"name": "wait", "arguments": {}}, id=1, token=calls + number)
            if sessions:
                its_fields = sessions[number].fields
                request["params"]["_meta"] = {"progressToken": calls + number}
            assert post(connection, {**fields, **its_fields}, request) == 200
            waiting.append(connection.messages())
        seen = [[next(messages)] for messages in waiting]
        if calls == 0:
            pipe.send(("ready", None))
        time.sleep(random.random())
        status, messages = helper.tool("late") if sessions else tool(helper, "late", extra=fields)
        assert (status, text_of(messages[-1])) == (200, "done"), messages
        for number, messages in enumerate(waiting):
            *progress, answer = seen[number] + list(messages)
            expected = [{"progressToken": calls + number, "progress": step} for step in (0, 1)]
            assert [message["params"] for message in progress] == expected, (expected, progress)
            assert (answer["id"], text_of(answer)) == (1, "late"), answer
        calls += count
    return calls


def call(port, method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {peers.TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
    for _ in range(100):
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            # A call that is pending during an upgrade is refused, and can be made again.
            assert error.code == 503, (error.code, error.read())
            time.sleep(0.05)
    raise AssertionError(f"{path} was refused 100 times")

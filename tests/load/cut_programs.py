#!/usr/bin/env python3
"""The programs behind the server of tests/load/cuts.py. Each checks what it gets, and answers with what its clients can check.

usage: tests/load/cut_programs.py agent | app | terminal | flood
"""

import base64
import collections
import json
import os
import random
import sys
import tty

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
from cutting import KIB, MIB, content, stream


def agent():
    """Answers prompts with updates. Asks for permission before each fifth answer. Sessions are served in random order."""
    out, buffer, shuffler = sys.stdout.buffer, b"", random.Random(1)
    sessions, asked = {}, {}

    def say(**message):
        out.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def answer(id, session, number):
        say(id=id, result={"stopReason": "end_turn", "number": number})

    def prompt(id, params):
        session, number = params["sessionId"], params["number"]
        state = sessions[session]
        state["prompts"] += 1
        if number != state["prompts"] - 1 or params["prompt"][0]["text"].encode() != content(f"{session}/prompt", number):
            return say(id=id, error={"code": -32000, "message": f"{number} is not prompt {state['prompts'] - 1} of {session}"})
        for _ in range(updates_of(number)):
            text = content(f"{session}/update", state["updates"], MIB // 4).decode()
            state["updates"] += 1
            update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
            say(method="session/update", params={"sessionId": session, "update": update})
        if number % 5:
            return answer(id, session, number)
        asked[len(asked)] = (id, session, number)
        call = {"toolCallId": str(number), "title": "something"}
        say(
            id=len(asked) - 1,
            method="session/request_permission",
            params={"sessionId": session, "number": number, "toolCall": call, "options": []},
        )

    while chunk := os.read(0, MIB):
        *lines, buffer = (buffer + chunk).split(b"\n")
        prompts = collections.defaultdict(list)
        for line in lines:
            message = json.loads(line)
            match message.get("method"):
                case "initialize":
                    say(id=message["id"], result={"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []})
                case "session/new":
                    session = f"s{os.getpid()}-{len(sessions)}"
                    sessions[session] = {"prompts": 0, "updates": 0}
                    say(id=message["id"], result={"sessionId": session})
                case "session/prompt":
                    prompts[message["params"]["sessionId"]].append(message)
                case None:
                    answer(*asked[message["id"]])
                    # A second answer would be an error.
                    asked[message["id"]] = None
        for session in shuffler.sample(list(prompts), len(prompts)):
            for message in prompts[session]:
                prompt(message["id"], message["params"])
        out.flush()


def updates_of(number):
    return number % 4


def app():
    """Answers each message with another one. Every 16th answer is followed by a broadcast."""
    names, counts, ends = {}, collections.Counter(), collections.Counter()
    connects = resumable = broadcasts = 0
    for line in sys.stdin.buffer:
        event = json.loads(line)
        client = event.get("client")
        if event["event"] == "connect":
            connects += 1
            resumable += event.get("resumable") is True
        elif event["event"] == "disconnect":
            ends[client] += 1
        elif event["event"] == "error":
            print(event, file=sys.stderr)
        if event["event"] != "message":
            continue
        got = event["text"].encode() if "text" in event else base64.b64decode(event["binary"])
        if client not in names:
            names[client] = got.decode()
            if names[client] == "report":
                doubled = len(ends - collections.Counter(set(ends)))
                report = {"connects": connects, "resumable": resumable, "disconnects": len(ends), "doubled": doubled}
                print(json.dumps({"cmd": "send", "client": client, "text": json.dumps(report)}), flush=True)
            continue
        name, number = names[client], counts[client]
        counts[client] += 1
        command = {"cmd": "send", "client": client}
        if got != content(f"{name}/in", number):
            command["text"] = f"message {number} of {name} is wrong: {got[:40]}"
        elif number % 2:
            command["binary"] = base64.b64encode(content(f"{name}/out", number)).decode()
        else:
            command["text"] = content(f"{name}/out", number).decode()
        print(json.dumps(command), flush=True)
        if number % 16 == 15:
            print(json.dumps({"cmd": "broadcast", "text": f"broadcast {broadcasts}"}), flush=True)
            broadcasts += 1


def terminal():
    """Checks that its input is the stream of numbers, and writes as many bytes of that stream. A dot ends it."""
    tty.setraw(0)
    os.write(1, b"ready\n")
    position = 0
    while data := os.read(0, 64 * KIB):
        data, dot, _ = data.partition(b".")
        if data != stream(position, len(data)):
            os.write(1, b"the input is wrong after %d bytes" % position)
            return 9
        output = stream(position, len(data))
        while output:
            output = output[os.write(1, output) :]
        position += len(data)
        if dot:
            return 7


def flood():
    """Sends each other client numbered messages in turn, at most as many bytes in all as a client asks for."""
    clients, number = [], 0
    for line in sys.stdin.buffer:
        event = json.loads(line)
        if event["event"] == "connect":
            clients.append(event["client"])
        elif event["event"] == "message":
            asker, left = event["client"], int(event["text"])
            while left >= len(clients) * len(text := content("flood", number, 16 * KIB).decode()):
                for client in clients:
                    if client != asker:
                        left -= len(text)
                        print(json.dumps({"cmd": "send", "client": client, "text": text}))
                number += 1
            print(json.dumps({"cmd": "send", "client": asker, "text": str(number)}), flush=True)


if __name__ == "__main__":
    sys.exit({"agent": agent, "app": app, "terminal": terminal, "flood": flood}[sys.argv[1]]())

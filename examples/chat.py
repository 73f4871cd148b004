#!/usr/bin/env python3
"""A chat room without a WebSocket library: the `app` service sends events and takes commands as lines of JSON.

    outrigger app --allow-origin null -- python3 examples/chat.py

Open examples/chat.html in several tabs of a browser, or use any WebSocket client with the URL that Outrigger printed. The
first message of a client is its name, and every other message goes to the room. Each path is a separate room, for example
ws://127.0.0.1:7070/garden. A room is a topic: what is published to it reaches all clients that are subscribed to it.
"""

import json
import sys

names = {}  # client -> name
rooms = {}  # client -> path


def command(**fields):
    print(json.dumps(fields), flush=True)


def tell(client, **fields):
    command(cmd="send", client=client, text=json.dumps(fields))


def tell_room(room, **fields):
    command(cmd="publish", topic=room, text=json.dumps(fields))


for line in sys.stdin:
    event = json.loads(line)
    client = event.get("client")
    match event["event"]:
        case "listening":
            print(f"a room is open on port {event['port']}", file=sys.stderr)  # goes to Outrigger's log
        case "connect":
            rooms[client] = event["path"]
            command(cmd="subscribe", client=client, topic=event["path"])
            tell(client, system="What is your name?")
        case "message" if "text" in event:
            if client not in names:
                names[client] = event["text"].strip()[:40] or "somebody"
                tell_room(rooms[client], system=f"{names[client]} is here.")
            else:
                tell_room(rooms[client], name=names[client], says=event["text"])
        case "disconnect":
            name, room = names.pop(client, None), rooms.pop(client)
            if name:
                tell_room(room, system=f"{name} is gone.")
        case "error":
            print(f"our line {event['line']} was wrong: {event['message']}", file=sys.stderr)

#!/usr/bin/env python3
"""Chat rooms that span several Outrigger processes. The messages are in a stream of NATS JetStream.

    outrigger app --path /rooms -- python3 chat.py        needs the package nats-py; run.sh starts a whole cluster

A member sends lines of JSON:

    {"join": "garden", "since": 17}                       the messages after number 17, and then each new one
    {"join": "garden"}                                    only new messages
    {"room": "garden", "say": "hello", "id": "6f1c-1"}    stores a message; the same id within 10 minutes is stored once

and gets:

    {"joined": "garden", "seq": 41, "server": "one"}      41 is the number of the last message of the room
    {"room": "garden", "seq": 42, "name": "ada", "text": "hello"}
    {"stored": "6f1c-1", "seq": 42, "duplicate": false}
    {"error": "..."}                                      with "id" if it is about a message

The numbers of a room grow, with gaps, because the rooms share a stream. A member that comes back, to any process, joins with
the last number that it has received. It sends messages without `stored` again, with the same ids. Then every message is stored
once, and reaches every member once and in order. Ids must be unique and hard to guess, such as a random word and a number.

Environment: NATS_URL (one or more, with commas), NATS_TOKEN, REPLICAS (of the stream; 1), NODE (the name of this process).
"""

import asyncio
import json
import os
import re
import sys
from urllib.parse import parse_qs

import nats
from nats.errors import Error
from nats.js.api import ConsumerConfig, DeliverPolicy, StreamConfig
from nats.js.errors import NotFoundError

STREAM = StreamConfig(
    name="ROOMS",
    subjects=["rooms.*"],
    max_msgs_per_subject=1000,  # a member that comes back later than this, or than max_age, misses older messages
    max_age=24 * 3600,
    max_bytes=1 << 30,
    duplicate_window=600,
    num_replicas=int(os.environ.get("REPLICAS", 1)),
)
NODE = os.environ.get("NODE", "one")
ROOM = re.compile(r"[a-z0-9-]{1,64}")
MAX_TEXT, MAX_ID, MAX_ROOMS = 4096, 128, 16  # characters of a message and of an id; rooms of a member
MAX_WAITING = 1000  # requests of all members; then the program reads no further, and Outrigger holds its clients back
RETRY = 0.5  # seconds, while NATS cannot be reached

members = {}  # client -> Member
rooms = {}  # name -> Room, while it has members here


class Room:
    def __init__(self, name):
        self.subject = "rooms." + name
        self.tail = 0  # the highest number that is known to be in the room
        self.last = {}  # client -> number of the last message that it was sent
        self.joining = set()  # clients that get earlier messages, and do not get new ones yet


class Member:
    def __init__(self, client, name):
        self.client, self.name = client, name
        self.is_gone, self.rooms, self.requests = False, set(), asyncio.Queue()


def command(client, text):
    """Sends a line of JSON to a client."""
    return f'{{"cmd":"send","client":"{client}","text":{json.dumps(text)}}}\n'


def write(lines):
    sys.stdout.write(lines)
    sys.stdout.flush()


def tell(member, **fields):
    if not member.is_gone:
        write(command(member.client, json.dumps(fields)))


def message_of(name, seq, data):
    return json.dumps({"room": name, "seq": seq, **json.loads(data)})


async def report(error):
    print(f"NATS: {error!r}", file=sys.stderr)


async def insist(request):
    """Repeats a request until NATS answers it."""
    while True:
        try:
            return await request()
        except NotFoundError:
            raise
        except Error as error:
            await report(error)
            await asyncio.sleep(RETRY)


async def pass_on(live):
    """Sends each new message to the members of its room."""
    async for message in live.messages:
        name, seq = message.subject.removeprefix("rooms."), message.metadata.sequence.stream
        if (room := rooms.get(name)) is None:
            continue
        room.tail = max(room.tail, seq)
        text, lines = message_of(name, seq, message.data), []
        for client, last in room.last.items():
            if last < seq and client not in room.joining:
                room.last[client] = seq
                lines.append(command(client, text))
        write("".join(lines))


async def join(js, member, name, since):
    room = rooms.setdefault(name, Room(name))
    member.rooms.add(name)
    room.joining.add(member.client)
    room.last[member.client] = 0
    try:
        last = await insist(lambda: js.get_last_msg(STREAM.name, room.subject))
        room.tail = max(room.tail, last.seq)
    except NotFoundError:
        pass  # the room has no message
    seq = room.tail if since is None else min(since, room.tail)
    tell(member, joined=name, seq=room.tail, server=NODE)
    # While these are fetched, new messages move the tail. They are fetched here, too.
    while seq < room.tail and not member.is_gone:
        try:
            message = await insist(lambda: js.get_msg(STREAM.name, seq=seq + 1, subject=room.subject, next=True))
        except NotFoundError:
            break  # the last ones have expired
        seq = message.seq
        if not member.is_gone:
            write(command(member.client, message_of(name, seq, message.data or b"{}")))
    room.joining.discard(member.client)
    if member.is_gone:
        leave(member, name)
    else:
        room.last[member.client] = seq


def leave(member, name):
    if room := rooms.get(name):
        room.last.pop(member.client, None)
        if not room.last:
            del rooms[name]


async def store(js, member, name, text, message_id):
    data = json.dumps({"name": member.name, "text": text}).encode()
    headers = {"Nats-Msg-Id": f"{name}:{message_id}"} if message_id else None
    # An answer that is lost makes this try again, with the same id.
    answer = await insist(lambda: js.publish("rooms." + name, data, stream=STREAM.name, headers=headers))
    tell(member, stored=message_id, seq=answer.seq, duplicate=bool(answer.duplicate))


async def handle(js, member, text):
    try:
        request = json.loads(text)
        name = request.get("join") or request["room"]
        if not ROOM.fullmatch(name):
            return tell(member, error="a room has up to 64 characters: a-z, 0-9 and -")
        if "join" in request:
            since = request.get("since")
            if not (since is None or type(since) is int and since >= 0):
                return tell(member, error="since must be a number")
            if name in member.rooms or len(member.rooms) == MAX_ROOMS:
                return tell(member, error="already in this room, or in too many")
            return await join(js, member, name, since)
        said, message_id = request["say"], request.get("id", "")
        if not (isinstance(said, str) and isinstance(message_id, str) and message_id.isascii() and message_id.isprintable()):
            return tell(member, error="say and id must be text, and id must be printable ASCII")
        if len(said) > MAX_TEXT or len(message_id) > MAX_ID:
            return tell(member, error=f"say has up to {MAX_TEXT} characters, id up to {MAX_ID}", id=message_id[:MAX_ID])
        await store(js, member, name, said, message_id)
    except (ValueError, KeyError, TypeError, AttributeError):
        tell(member, error="expected join, or room and say")


async def serve(js, member, room_left):
    """Handles the requests of a member, one after the other."""
    while (text := await member.requests.get()) is not None:
        await handle(js, member, text)
        room_left.release()


async def main():
    # Members wait until NATS can be reached.
    connection = await nats.connect(
        os.environ.get("NATS_URL", "nats://127.0.0.1:4222").split(","),
        token=os.environ.get("NATS_TOKEN"),
        name=NODE,
        error_cb=report,
        max_reconnect_attempts=-1,
        reconnect_time_wait=RETRY,
    )
    js = connection.jetstream()
    await insist(lambda: js.add_stream(STREAM))
    # An ordered consumer notices a missing message, and asks for it again.
    config = ConsumerConfig(deliver_policy=DeliverPolicy.NEW)
    live = await insist(
        lambda: js.subscribe("rooms.*", stream=STREAM.name, config=config, ordered_consumer=True, idle_heartbeat=2)
    )
    live_task = asyncio.create_task(pass_on(live))
    # Without it, this program is no use. Outrigger starts another one, with --restart.
    live_task.add_done_callback(lambda task: task.cancelled() or os._exit(1))

    events = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(events), sys.stdin)
    tasks, room_left = set(), asyncio.Semaphore(MAX_WAITING)
    while line := await events.readline():
        event = json.loads(line)
        client = event.get("client")
        match event["event"]:
            case "connect":
                name = parse_qs(event["query"] or "").get("name", ["somebody"])[0][:40]
                members[client] = Member(client, name)
                task = asyncio.create_task(serve(js, members[client], room_left))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            case "message":
                await room_left.acquire()
                members[client].requests.put_nowait(event.get("text", ""))
            case "disconnect":
                member = members.pop(client)
                member.is_gone = True
                for name in member.rooms:
                    if client not in rooms[name].joining:
                        leave(member, name)
                member.requests.put_nowait(None)
            case "error":
                print(f"line {event['line']} was wrong: {event['message']}", file=sys.stderr)
    # Outrigger stops. What members have said is stored before this program ends, if NATS answers in time.
    if tasks:
        await asyncio.wait(tasks, timeout=1.5)
    live_task.cancel()
    await connection.close()


asyncio.run(main())

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
import contextlib
import json
import os
import re
import sys
import traceback
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
lines = []  # commands that are not written yet


def command(cmd, **fields):
    return json.dumps({"cmd": cmd, **fields}) + "\n"


def write(line):
    # Lines that are written in one turn of the loop go to Outrigger together.
    if not lines:
        asyncio.get_running_loop().call_soon(flush)
    lines.append(line)


def flush():
    sys.stdout.write("".join(lines))
    sys.stdout.flush()
    lines.clear()


def message_of(name, seq, data):
    return json.dumps({"room": name, "seq": seq, **json.loads(data)})


def fail(error):
    """Ends this program, because members would miss messages. Outrigger starts another one, with --restart."""
    traceback.print_exception(error)
    os._exit(1)


class Room:
    """A room while it has members here. It has a consumer in NATS, and a topic in Outrigger."""

    def __init__(self, name):
        self.name, self.subject = name, "rooms." + name
        self.members = set()  # clients, also those that get earlier messages and are not subscribed to the topic yet
        self.tail = 0  # the highest number that is known to be in the room
        self.published = 0  # the number of the last message that was published to the topic
        self.ahead = {}  # client -> number of the last message that it has fetched, until a later one is published
        self.has_consumer, self.is_empty = asyncio.Event(), asyncio.Event()

    async def publish(self, message):
        """Passes a new message on to the members."""
        try:
            seq = message.metadata.sequence.stream
            # When the last member has left, the topic may belong to the next Room of this name.
            if seq <= self.published or not self.members:
                return
            self.published, self.tail = seq, max(self.tail, seq)
            self.ahead = {client: last for client, last in self.ahead.items() if last >= seq}
            text = message_of(self.name, seq, message.data)
            write(command("publish", topic=self.name, text=text, **{"except": list(self.ahead)}))
        except Exception as error:
            fail(error)


class Member:
    def __init__(self, client, name):
        self.client, self.name = client, name
        self.is_gone, self.rooms, self.requests = False, set(), asyncio.Queue()


def send(member, text):
    if not member.is_gone:
        write(command("send", client=member.client, text=text))


def tell(member, **fields):
    send(member, json.dumps(fields))


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


async def follow(js, room):
    """Has each new message of a room published until its last member leaves."""
    # An ordered consumer notices a missing message, and asks for it again. nats-py changes the config, so each attempt has its own.
    consumer = await insist(
        lambda: js.subscribe(
            room.subject,
            cb=room.publish,
            stream=STREAM.name,
            config=ConsumerConfig(deliver_policy=DeliverPolicy.NEW),
            ordered_consumer=True,
            idle_heartbeat=2,
        )
    )
    room.has_consumer.set()
    await room.is_empty.wait()
    with contextlib.suppress(Error):
        await consumer.unsubscribe()


def enter(js, member, name):
    """Makes a client a member of a room, and starts the consumer for the first one."""
    if (room := rooms.get(name)) is None:
        room = rooms[name] = Room(name)
        room.task = asyncio.create_task(follow(js, room))
        room.task.add_done_callback(lambda task: task.cancelled() or task.exception() and fail(task.exception()))
    room.members.add(member.client)
    member.rooms.add(name)
    return room


def leave(member):
    """Removes a client from its rooms. Outrigger has removed it from the topics."""
    member.is_gone = True
    for name in member.rooms:
        room = rooms[name]
        room.members.discard(member.client)
        room.ahead.pop(member.client, None)
        if not room.members:
            # A client that joins while the consumer ends gets a new Room, with a consumer of its own.
            room.is_empty.set()
            del rooms[name]


async def join(js, member, name, since):
    room = enter(js, member, name)
    # What is stored before the consumer exists is fetched: the consumer gets only later messages.
    await room.has_consumer.wait()
    with contextlib.suppress(NotFoundError):  # the room has no message
        last = await insist(lambda: js.get_last_msg(STREAM.name, room.subject))
        room.tail = max(room.tail, last.seq)
    seq = room.tail if since is None else min(since, room.tail)
    tell(member, joined=name, seq=room.tail, server=NODE)
    # While these are fetched, new messages move the tail. They are fetched here, too.
    while seq < (tail := room.tail) and not member.is_gone:
        try:
            message = await insist(lambda: js.get_msg(STREAM.name, seq=seq + 1, subject=room.subject, next=True))
            seq = message.seq
            send(member, message_of(name, seq, message.data or b"{}"))
        except NotFoundError:
            seq = tail  # the last ones have expired
    # Nothing is published between the last comparison with the tail and `subscribe`, because there is no `await`.
    if not member.is_gone:
        write(command("subscribe", client=member.client, topic=name))
        if seq > room.published:
            room.ahead[member.client] = seq


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
                leave(member)
                member.requests.put_nowait(None)
            case "error":
                print(f"line {event['line']} was wrong: {event['message']}", file=sys.stderr)
    # Outrigger stops. What members have said is stored before this program ends, if NATS answers in time.
    if tasks:
        await asyncio.wait(tasks, timeout=1.5)
    await connection.close()


asyncio.run(main())

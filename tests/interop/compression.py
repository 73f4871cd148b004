"""permessage-deflate with Python `websockets`: every combination of parameters, broadcasts between direct messages, the memory
limit, the smallest window, and a decompression bomb."""

import asyncio
import json
import random
import re
import socket
import urllib.request
import zlib

import websockets
from websockets.exceptions import ConnectionClosedError
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory as Deflate

from server import Server

ALONE = "server_no_context_takeover; client_no_context_takeover"
AGREEMENTS = [
    ({}, ""),
    ({"server_no_context_takeover": True}, "; server_no_context_takeover"),
    ({"client_no_context_takeover": True}, "; client_no_context_takeover"),
    ({"server_max_window_bits": 9, "client_max_window_bits": 9}, "; server_max_window_bits=9; client_max_window_bits=9"),
    (
        {
            "server_no_context_takeover": True,
            "client_no_context_takeover": True,
            "server_max_window_bits": 10,
            "client_max_window_bits": 12,
        },
        f"; {ALONE}; server_max_window_bits=10; client_max_window_bits=12",
    ),
]


def connect(url, **parameters):
    return websockets.connect(url, extensions=[Deflate(**parameters)], compression=None, max_size=None)


def metric(url, name):
    text = urllib.request.urlopen(url.replace("ws:", "http:") + "metrics").read().decode()
    return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)[1])


def some_message(random):
    size = random.choice([0, 1, 10, 63, 64, 200, 1000, 5000, 70_000, 300_000])
    match random.randrange(3):
        case 0:
            return json.dumps({"number": size, "text": "hello wörld " * (size // 12)}, ensure_ascii=False)
        case 1:
            return random.randbytes(size)
        case _:
            return bytes(random.choices(b"abcd", k=size))


def in_pieces(message):
    step = len(message) // 3 + 1
    return [message[at : at + step] for at in range(0, len(message), step)]


async def agreements():
    with Server("echo", "--deflate") as server:
        for parameters, answer in AGREEMENTS:
            dice = random.Random(len(answer))
            async with connect(server.url, **parameters) as client:
                assert client.response.headers["Sec-WebSocket-Extensions"] == "permessage-deflate" + answer
                for number in range(200):
                    message = some_message(dice)
                    await client.send(in_pieces(message) if message and dice.random() < 0.3 else message)
                    assert await client.recv() == message, (parameters, number)
        before, after = (
            metric(server.url, f'outrigger_{what}_bytes_total{{direction="out"}}')
            for what in ("uncompressed", "compressed")
        )
        assert after < 0.5 * before, (before, after)
        assert metric(server.url, "outrigger_compression_reserved_bytes") == 0
        # With a context, similar short messages shrink to a fraction.
        async with connect(server.url) as client:
            began = metric(server.url, 'outrigger_compressed_bytes_total{direction="out"}')
            for number in range(100):
                await client.send('{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s-1","n":%d}}' % number)
                await client.recv()
            sent = metric(server.url, 'outrigger_compressed_bytes_total{direction="out"}') - began
            assert sent < 0.2 * 100 * 75, sent


async def broadcasts():
    """What is compressed once for all fits between what was compressed for one."""
    with Server("app", "--deflate", "--", "python3", "-c", APP) as server:
        url = server.url.replace("/...", "/")
        async with connect(url) as one, connect(url, server_no_context_takeover=True) as two, connect(
            url, server_max_window_bits=9
        ) as three, websockets.connect(url, compression=None) as four:
            clients = [one, two, three, four]
            dice = random.Random(7)
            for number in range(60):
                sender = dice.choice(clients)
                text = f"{number} " + "all the same to me " * dice.choice([1, 5, 60, 3000])
                to_all = dice.random() < 0.5
                await sender.send(("*" if to_all else "") + text)
                for client in clients if to_all else [sender]:
                    assert await client.recv() == text, number


APP = """
import json, sys
for line in sys.stdin:
    event = json.loads(line)
    if event["event"] == "message":
        text = event["text"]
        command = {"cmd": "broadcast", "text": text[1:]} if text[0] == "*" else {"cmd": "send", "client": event["client"], "text": text}
        print(json.dumps(command), flush=True)
    elif event["event"] == "shutdown":
        print('{"cmd": "shutdown"}', flush=True)
"""


async def memory():
    """Context takeover for as many as there is memory for, and again when one has left."""
    with Server("echo", "--deflate", "--deflate-memory", "1MiB") as server:
        clients = [await connect(server.url) for _ in range(5)]
        answers = [client.response.headers["Sec-WebSocket-Extensions"] for client in clients]
        assert answers[:3] == ["permessage-deflate"] * 3, answers
        assert answers[4] == f"permessage-deflate; {ALONE}", answers
        for client in clients:
            await client.send("hello " * 1000)
            assert await client.recv() == "hello " * 1000
        await clients[0].close()
        async with connect(server.url) as client:
            assert client.response.headers["Sec-WebSocket-Extensions"] == "permessage-deflate"
        for client in clients:
            await client.close()


def raw(url, offer):
    """A connection of bytes, and what was agreed on."""
    address = re.search(r"//(.*):(\d+)/", url)
    client = socket.create_connection((address[1], int(address[2])), timeout=60)
    client.sendall(
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: %s\r\n\r\n" % offer.encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(1)
    return client, head.decode()


def frame(first, payload):
    length = len(payload)
    size = bytes([0x80 | length]) if length < 126 else b"\xfe" + length.to_bytes(2) if length < 65536 else b"\xff" + length.to_bytes(8)
    return bytes([first]) + size + bytes(4) + payload


def take(client, count):
    data = b""
    while len(data) < count:
        data += client.recv(count - len(data)) or exit("the server left")
    return data


def take_frame(client):
    first, length = take(client, 2)
    if length == 126:
        length = int.from_bytes(take(client, 2))
    elif length == 127:
        length = int.from_bytes(take(client, 8))
    return first, take(client, length)


def smallest_window():
    """No distance is longer than the 256 bytes that were asked for: what has gone further back is not there any more when
    it comes out a byte at a time."""
    with Server("echo", "--deflate") as server:
        client, head = raw(server.url, "permessage-deflate; server_max_window_bits=8")
        assert "server_max_window_bits=8\r\n" in head, head
        inflate = zlib.decompressobj(-8)
        dice = random.Random(3)
        for _ in range(50):
            message = b"".join(dice.choices([b"one", b"two", b"three", b"four", dice.randbytes(9)], k=400))
            client.sendall(frame(0x82, message))
            first, payload = take_frame(client)
            assert first == 0xC2 and len(payload) < len(message)
            out, rest = b"", payload + b"\0\0\xff\xff"
            while len(out) < len(message):
                out += inflate.decompress(rest, 1)
                rest = inflate.unconsumed_tail
            assert out == message
            assert inflate.decompress(rest) == b""
        client.close()


def bomb():
    """A GiB of zeros in a MiB: 1009, and never more held than the limit and a little."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    payload = b"".join(deflate.compress(bytes(1 << 20)) for _ in range(1024)) + deflate.flush(zlib.Z_SYNC_FLUSH)[:-4]
    assert len(payload) < 1.1 * (1 << 20)
    with Server("echo", "--deflate", "--max-message", "16MiB") as server:

        def memory(name):
            with open(f"/proc/{server.process.pid}/status") as status:
                return int(re.search(rf"{name}:\s+(\d+)", status.read())[1]) / 1024

        # The program itself.
        rest = memory("VmRSS")
        for offer in ["permessage-deflate", "permessage-deflate; client_no_context_takeover"]:
            client, _ = raw(server.url, offer)
            client.sendall(frame(0xC2, payload))
            first, close = take_frame(client)
            assert (first, int.from_bytes(close[:2])) == (0x88, 1009), close
            client.close()
        grown = memory("VmHWM") - rest
        print(f"  at most {grown:.1f} MiB more for a bomb of 1 GiB, with a limit of 16 MiB")
        assert grown < 16 + 3, grown
        # Bytes that are not compressed data.
        client, _ = raw(server.url, "permessage-deflate")
        client.sendall(frame(0xC2, b"\xff" * 100))
        first, close = take_frame(client)
        assert (first, int.from_bytes(close[:2])) == (0x88, 1007), close
        client.close()
        # RSV1 where it is not allowed: on a control frame, on a continuation, without the extension.
        for offer, frames in [
            ("permessage-deflate", frame(0xC9, b"")),
            ("permessage-deflate", frame(0x42, b"\0") + frame(0xC0, b"\0")),
            ("permessage-deflate", frame(0xA2, b"\0")),
            ("x-other", frame(0xC2, b"\0")),
        ]:
            client, head = raw(server.url, offer)
            client.sendall(frames)
            first, close = take_frame(client)
            assert (first, int.from_bytes(close[:2])) == (0x88, 1002), (offer, close)
            client.close()
        client, head = raw(server.url, "permessage-deflate; =")
        assert head.startswith("HTTP/1.1 400 "), head


async def off():
    with Server("echo") as server:
        async with connect(server.url) as client:
            assert "Sec-WebSocket-Extensions" not in client.response.headers
            await client.send(b"x" * 100_000)
            assert await client.recv() == b"x" * 100_000
            try:
                # RSV1 without the extension.
                client.transport.write(frame(0xC1, b"\0"))
                await client.recv()
                raise AssertionError("a compressed message was taken")
            except ConnectionClosedError as error:
                assert error.rcvd.code == 1002, error


for part in [agreements, broadcasts, memory, off]:
    asyncio.run(part())
    print(f"  {part.__name__} ok")
smallest_window()
print("  smallest window ok")
bomb()
print("  bomb and wrong frames ok")

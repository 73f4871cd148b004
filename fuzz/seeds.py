#!/usr/bin/env python3
"""Writes the seed corpora: valid inputs from which the fuzzers start.

usage: fuzz/seeds.py        writes fuzz/corpus/TARGET/seed-*
"""

import itertools
import pathlib
import random
import zlib

CORPUS = pathlib.Path(__file__).parent / "corpus"
HEAD = (
    b"GET /chat?x=1 HTTP/1.1\r\nHost: localhost:7070\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    b"Origin: http://localhost\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Protocol: chat, superchat\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def write(target, seeds):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (folder / f"seed-{number:03}").write_bytes(bytes(seed))


def handshakes():
    yield HEAD
    lines = HEAD.split(b"\r\n")
    for at in range(len(lines) - 2):
        yield b"\r\n".join(lines[:at] + lines[at + 1 :])
        yield b"\r\n".join(lines[:at] + [lines[at]] + lines[at:])
    for old, new in [(b"GET", b"POST"), (b"1.1", b"1.0"), (b": 13", b": 8"), (b"/chat", b"http://h/"), (b"\r\n", b"\n")]:
        yield HEAD.replace(old, new)
    for field in [b"X-Forwarded-For: 192.0.2.1, [2001:db8::1]:80, unknown", b'Forwarded: for=192.0.2.1;proto=https, for="[2001:db8::1]:_p"']:
        yield HEAD.replace(b"Origin: http://localhost", field)
    yield HEAD + b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"
    yield b"\x16\x03\x01\x02\x00"


def headers():
    for first, second in itertools.product([0x00, 0x01, 0x02, 0x80, 0x81, 0x82, 0x88, 0x89, 0x8A, 0xC1, 0x83], [0x80, 0xFD, 0xFE, 0xFF, 0x05]):
        yield bytes([first, second]) + b"\x00\x00\x00\x00\x00\x01\x00\x00" + b"mask"
        yield bytes([first, second]) + b"\xff\xff" + b"mask"


def proxy_headers():
    binary = b"\r\n\r\n\0\r\nQUIT\n"
    yield b"PROXY TCP4 192.0.2.1 10.0.0.1 51000 80\r\nGET / HTTP/1.1\r\n"
    yield b"PROXY TCP6 2001:db8::1 ::1 65535 0\r\n"
    yield b"PROXY UNKNOWN anything\r\n"
    yield binary + b"\x20\0\0\0GET"
    yield binary + b"\x21\x11\0\x0f" + bytes(range(1, 16)) + b"GET"
    yield binary + b"\x21\x21\0\x24" + bytes(range(1, 37))
    yield binary + b"\x21\x31\0\xd8" + b"x" * 216


def step(kind, payload=b""):
    return bytes([kind, len(payload)]) + payload


def conversations():
    text, euro = "κόσμε €😀".encode(), "€".encode()
    plans = [
        step(1, b"hello") + step(2, b"\x00\xff") + step(4, b"ping") + step(3, b"\x03\xe8bye"),
        step(0x81, text) + step(0x80, text) + step(4, b"between") + step(0, text),
        step(0x81, euro[:1]) + step(0, euro[1:]),
        step(1, b"\xed\xa0\x80"),
        step(0x82, b"x" * 200) + step(0x18, b"y" * 200),
        step(0, b"stray") + step(1, b"after"),
        step(0x81, b"one") + step(1, b"nested"),
        step(3, b"\x03") + step(3, b"\x03\xed") + step(3),
        step(3, b"\x0f\xa0reason") + step(1, b"late"),
        step(0x1A, b"z" * 250),
        step(0xF0, b"\x82\xfe\x00\x10maskpayload"),
    ]
    for options, plan in itertools.product([0, 1, 2, 0x40, 0xF1], plans):
        yield bytes([options, 7]) + plan


def compressed():
    text = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s"}}'
    raw = zlib.compressobj(wbits=-15)
    raw = raw.compress(text) + raw.flush(zlib.Z_SYNC_FLUSH)
    plans = [
        step(0x08, text) * 3,
        step(0x00, bytes(range(200))) + step(0x07, b"a") + step(0x0F, text),
        step(0x78, text) + step(0x68, text) + step(0x08, b""),
        step(0x88, raw[:-4]) + step(0xB8, raw) + step(0x08, text),
        step(0x80, raw[: len(raw) // 2]) + step(0x08, b"after"),
        step(0x80, b"\x03\x00") + step(0x80, b"\x00") + step(0x80, b"\xff\xff"),
    ]
    free = [b"permessage-deflate", b'x, permessage-deflate; server_max_window_bits="10"', b"permessage-deflate; client_max_window_bits=16"]
    for plan, cuts in itertools.product(plans, [6, 7]):
        for offer in range(5):
            yield bytes([offer << 5 | 4 * offer, cuts]) + plan
    for offer in free:
        yield bytes([0xE0, len(offer)]) + offer + plans[0] + plans[3]


def resume():
    source = random.Random(16)
    arrive, come_back, send, cut, read, exchange = 0, 1, 2, 5, 7, 8
    for options in range(2):
        yield bytes([options]) + bytes([arrive, 200, exchange, 0, send, 12, exchange, 0, cut, 0, come_back, 246] * 4)
        yield bytes([options]) + bytes([arrive, 1, send + 13 * 5, 20, read, 9, cut + 26, 0, come_back, 240, exchange, 0] * 4)
    for _ in range(24):
        yield bytes(source.randrange(256) for _ in range(400))


def operations():
    source = random.Random(6455)
    open_client = bytes([0, 200])
    letters = [bytes([3 + 13 * letter, source.randrange(256)]) for letter in range(12)]
    for options in range(8):
        yield bytes([options]) + open_client * 3 + b"".join(letters) + bytes([7, 255, 9, 50, 10, 30, 5, 0, 6, 1, 12, 255])
    for _ in range(24):
        plan = open_client * source.randrange(1, 5)
        for _ in range(source.randrange(10, 80)):
            plan += source.choice(letters + [open_client, bytes([source.randrange(256), source.randrange(256)])])
        yield bytes([source.randrange(256)]) + plan


def framed():
    messages = [b"Content-Length: 5\r\n\r\nhello", b"content-length:\t2\r\nContent-Type: x; charset=utf-8\r\n\r\n{}", b"Content-Length: 0\n\n"]
    streams = [
        *messages,
        b"".join(messages),
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 99999999999999999999\r\n\r\n",
        b"Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
        b"one\r\ntwo\n\n\0\xff\nthree\r",
    ]
    for kind, limit, step, breaks in itertools.product(range(3), [4, 200], [0, 5], [0, 1]):
        for stream in streams:
            yield bytes([kind, limit, step, breaks]) + stream


def envelopes():
    for method in ["initialize", "session/new", "session/prompt", "$/cancel_request"]:
        params = '{"sessionId":"s\\u0031","requestId":"r","_meta":{"outrigger":{"resumeToken":"t"}},"x":[1.5e3,{}]}'
        for identity in ['"id":1,', '"id":"a\\"b",', '"id":null,', ""]:
            yield f'{{"jsonrpc":"2.0",{identity}"method":"{method}","params":{params}}}'.encode()
    yield b'{"jsonrpc":"2.0","id":1,"result":{"sessionId":"s","_meta":null}}'
    yield b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"\\ud83d\\ude00","data":[]}}'
    yield b"[" * 130 + b"]" * 130


def routes():
    source = random.Random(2)
    for _ in range(40):
        # The first byte chooses the protocol of the agent.
        yield bytes([source.choice([0, 128]), 0, 1]) + bytes([0, 0, 1]) * 2 + bytes(source.randrange(256) for _ in range(3 * source.randrange(10, 100)))


def calls():
    for kind in [0x00, 0x01, 0x0E, 0x20, 0x40, 0x41]:
        yield bytes([kind]) + step(kind, b"a body of some length") + step(1, b"") + step(kind ^ 1, b"x" * 200)
    for raw in [b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nT: x\r\n\r\n",
                b"POST /stream HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
                b"HEAD /stream HTTP/1.1\r\nHost: h\r\n\r\nGET /stream HTTP/1.1\r\nHost: h\r\n\r\n", HEAD[:250]]:
        yield bytes([7]) + step(0xF0, raw) + step(1, b"after")


def attachments():
    source = random.Random(41)
    for options in [0x00, 0x0F, 0xF3]:
        for _ in range(12):
            plan = bytes([3, 0, 3, 1, 3, 2])
            for _ in range(source.randrange(20, 150)):
                plan += bytes([source.choice([0, 0, 1, 2, 3, 5, 6, 6, 6, 7, 0x43, 0x80]), source.randrange(256)])
            yield bytes([options]) + plan + bytes([7, 255, 6, 0, 6, 1, 6, 2])


def clients():
    response = (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
    )
    frames = b"\x81\x05hello\x01\x03one\x89\x00\x80\x03two\x88\x02\x03\xe8"
    # Bytes from a server: whole responses, and frames behind one.
    for cut in [0, 2, 7]:
        yield bytes([1, cut]) + response + b"\r\n" + frames
        yield bytes([3, cut]) + response + b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n\xc1\x07\xf2\x48\xcd\xc9\xc9\x07\x00"
        yield bytes([5, cut]) + frames
        yield bytes([1, cut]) + b"HTTP/1.1 401 No\r\nContent-Length: 3\r\n\r\nnot"
    # Operations of both sides.
    yield bytes([2, 1, 40, 130, 50, 90, 255, 200, 255, 121, 3, 90, 255, 200, 255])
    yield bytes([0, 7, 255, 111, 5, 200, 90, 140, 9, 95, 70])


def exchanges():
    events = b": hello\nid: 1\ndata: {}\n\nevent: message\r\ndata: a\r\ndata: b\r\n\r\nretry: 5\ndata\n\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    for cut in [0, 2, 9]:
        yield bytes([cut]) + head + b"\r\n" + events
        yield bytes([cut]) + head + b"Content-Length: %d\r\n\r\n" % len(events) + events
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (events[:20], events[20:]))
        yield bytes([cut]) + b"HTTP/1.1 103 Hints\r\n\r\n" + head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        yield bytes([cut]) + events


def process_calls():
    identity = "0b6cad76-7685-4ebf-9650-e237ddd6a2b7"
    bodies = ['{"command":"sh","args":["-c","x"],"env":{"A":"b"},"cwd":"/","rows":1,"cols":2,"timeout_sec":0.5}',
              '{"signal":"SIGTERM","data_b64":"eA==","rows":24,"cols":80,"as_user":"root","as_root":null}']
    for path in ["/spawn", "/exec", f"/{identity}/kill", f"/{identity}/stdin", f"/{identity}/resize"]:
        for body in bodies:
            yield path.ljust(60).encode() + body.encode()
            yield (path + "\0" * 60)[:60].encode() + body.encode()


def app_commands():
    for command in [
        '"cmd":"send","client":"c2.1","text":"hi\\u0020"',
        '"cmd":"broadcast","binary":"AP8=","except":["c2.1","c3"],"path":"/x"',
        '"cmd":"broadcast","text":"a","except":null,"path":null',
        '"cmd":"subscribe","client":"c2.1","topic":"a b","keep":"latest"',
        '"cmd":"unsubscribe","client":"c2.1","topic":"x"',
        '"cmd":"publish","topic":"x","text":"","except":[]',
        '"cmd":"topics","id":[1,{"a":null}],"client":"c2.1"',
        '"cmd":"topics","topic":"x"',
        '"cmd":"close","client":"c2.1","code":4000,"reason":"over"',
        '"cmd":"status","id":7.50',
        '"cmd":"shutdown"',
    ]:
        yield f"{{{command}}}".encode()
        yield f" {{ {command},{command} }} ".encode()
        yield f'{{{command},"unknown":1}}'.encode()


def cookies():
    """The target, and before each field the seconds that pass."""
    fields = [
        b"node=one",
        b" node = two ; HttpOnly; SameSite=Lax; Path=/",
        b"a=b; Domain=.Example.ORG; Path=/x",
        b"b=1; Max-Age=60; Expires=Wed, 21 Oct 2015 07:28:00 GMT",
        b"c=1; Secure",
        b"a=; Max-Age=0",
    ]
    for target in range(5):
        yield bytes([target]) + b"\n".join(b"\x02" + field for field in fields)
        yield bytes([target]) + b"\n".join(b"\x01c%d=1" % number for number in range(40))


def attached():
    """Each message has its kind and its length before it."""
    event = lambda kind, text=b"": step(8 * kind + 6, text)
    texts = [b"plain\r\n", b"\x1b[?1049h vim \x1b[?25l", b"\x1b[?1;47h", b"\x1bc"]
    for options in range(2):
        role = bytes([options]) + event(9, b"writer")
        for text in texts:
            yield role + step(0, text) + event(1, text) + step(2) + step(3, b"") + event(3, text) + event(5, b"SIGKILL")
            yield role + step(0, text) + event(6, text) + event(8, text) + event(7, b"\x1b]0;x\x07")
        yield role + step(248, b"x" * 250) * 4 + step(2) + step(3) + step(5, b'{"type":"size","rows":24,"cols":80}')
        yield bytes([options]) + event(0, b"2f1c4a52-6f0c-4c5c-9a53-0b54a8b0e1c3") + event(9, b"viewer") + event(5)
        yield bytes([options]) + step(0, b"no role")


def restorations():
    source = random.Random(24)
    initialize = bytes([0, 0, 5])
    for abilities in range(8):
        # Sessions are opened, get settings and run, and the connection is lost.
        plan = initialize + bytes([abilities, 1, 0, 5, 0, 1, 65, 5, 9, 4, 5, 5, 0, 4, 97, 5, 0, 9, 0, 10, 49, 251, 255, 10, 37])
        yield bytes([0]) + plan + bytes([251, 96])
        yield bytes([0]) + plan + bytes(source.randrange(256) for _ in range(200))
    lines = [
        '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}',
        '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}}',
        '{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}',
        '{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s","_meta":{"outrigger":{"resumeToken":"t"}}}}',
        '{"jsonrpc":"2.0","id":3,"method":"session/set_mode","params":{"sessionId":"s","modeId":"m"}}',
        '{"jsonrpc":"2.0","id":3,"result":null}',
    ]
    yield b"\xff" + "\n".join(lines).encode()


def tls():
    """Conversations: the first byte selects the roles and the version. Both sides write, and the network carries all of it or a part."""
    source = random.Random(8446)
    write_peer, carry, carry_all, read, write_stream, read_peer, renew, exchange = 0, 1, 3, 4, 6, 9, 10, 27
    for options in [0, 1, 2, 4, 0x2D, 0x80, 0x81, 0x82, 0xC0, 0xC1]:
        talk = bytes([exchange, 9] * 4) + bytes([write_peer, 200, carry_all, 0, read, 40, write_stream, 100, read_peer, 0])
        yield bytes([options]) + talk
        yield bytes([options]) + bytes([carry, 7, read, 1, read_peer, 0] * 12) + talk + bytes([renew, 0]) + talk
        # Either side ends, and a byte is corrupted.
        yield bytes([options]) + talk + bytes([11, 0]) + talk + bytes([12, 0, carry_all, 0])
        yield bytes([options]) + talk + bytes([write_peer, 90, 13, 3, carry_all, 0, read, 200])
        yield bytes([options]) + bytes(source.randrange(256) for _ in range(120))


write("calls", calls())
write("app_command", app_commands())
write("attach", attached())
write("cookies", cookies())
write("restoration", restorations())
write("tls", tls())
write("attachments", attachments())
write(
    "control",
    [
        b'{"type":"resize","rows":24,"cols":80}',
        b'{"cols":1,"rows":65535,"type":"resize"}',
        b'{"AuthToken":"","columns":80,"rows":24}',
        b'1{"columns":80,"rows":24}',
        b"0ls",
    ],
)
write("process_calls", process_calls())
write("envelope", envelopes())
write("framing", framed())
def screens():
    """The output of programs: the first byte selects how much of it is kept, which the thresholds depend on."""
    plain = "".join(f"line {number}\r\n" for number in range(60))
    colored = "".join(f"\x1b[3{number % 8};1mline\x1b[m \x1b[38;5;{number}mwords\x1b[0m\r\n" for number in range(30))
    editor = (
        "\x1b[?1049h\x1b[?1h\x1b=\x1b[?2004h\x1b[H\x1b[2J\x1b[2;4r\x1b[4;1H\n\x1b[1;1Htext\x1b[K\x1b[r\x1b[4;1H\x1b[7m-- INSERT --\x1b[m"
        "\x1b[2;3H\x1b[L\x1b[M\x1b[3@\x1b[2P\x1b[4X\x1bM\x1b7\x1b[?25l\x1b8\x1b[?25h\x1b[?1000h\x1b[?1006h\x1b[2 q"
    )
    clusters = "漢字e\u0301 👍🏽 👩\u200d👩\u200d👧 🇩🇪🇫🇷 ❤\ufe0f 1\ufe0f\u20e3 각\u1100\u1161 \u0600x\x1b[3b\x1b[1;19H👩\u200d❤\ufe0f"
    others = (
        "\x1b(0lqk\x1b(B\x0e\x1b)0x\x0f\x1bH\t\x1b[3g\x1b[?6h\x1b[?7l\x1b[4h\x1b[20h\x1b[?45h\b\x1b[5 q\x1b]2;title\x07\x1b]0;t\x1b\\"
        "\x1bP1$r\x1b\\\x1b[!p\x1bc\x1b#8\x1b[2S\x1b[2T\x1b[ @\x1b[2 A\x1b['}\x1b['~\x1b[48:2::1:2:3m\x1b[4:3m\x1b[?2026h\x9b3;3H\x1b[2J"
    )
    for text in [plain, colored, editor, clusters, others, editor + clusters + plain, colored + others + "\x1b[?1049l"]:
        yield b"\x09" + text.encode()
        # A piece that begins with such a byte is repeated.
        yield b"\x09\x01" + text.encode()
    yield b"\x00\x01" + plain.encode()
    yield b"\x01\x01" + colored.encode()


def mcp():
    """Requests to an MCP endpoint: the fields of the head, the body, and a list of tools."""
    meta = '"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"progressToken":5}'
    body = '{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"t","arguments":{"a":1},' + meta + "}}"
    tools = '{"tools":[{"name":"t","inputSchema":{"properties":{"a":{"type":"integer","x-mcp-header":"A"}}}}]}'
    head = "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: %s\r\nMcp-Param-A: 1"
    for name in "t", "=?base64?dA==?=":
        yield (head % name + "\0" + body + "\0" + tools).encode()
    yield b"\0" + b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
    yield b"\0" + b'{"jsonrpc":"2.0","method":"x","params":{"_meta":{}}}'


write("screen", screens())
write("mcp", mcp())
# Two sessions that share a process, which is ready: calls, answers, and what follows an exit.
ready = bytes([0, 0, 0, 0, 15, 0, 8, 0])
write("mcp_sessions", [bytes([who]) + ready + bytes([2, 0, 2, 1, 8, 0, 8, 1, 16, 0, 15, 0]) for who in (0, 1)])
# Calls that need input, which the client gives, and a subscription.
write("mcp_newer", [bytes([0, 0, 9, 64, 11, 1, 11, 1, 7, 1, 3, 64, 12, 0, 12, 2])])
# Two calls to an older server, which is ready: progress, questions, their answers, and a subscription.
ready = bytes([0, 0, 0, 0, 15, 0, 6, 0])
write("mcp_older", [bytes([who]) + ready + bytes([8, 0, 9, 1, 11, 1, 6, 1, 4, 8, 6, 0, 6, 0, 17, 0]) for who in (0, 1)])
write("router", routes())
write("handshake", handshakes())
write("frame_header", headers())
write("proxy_header", proxy_headers())
write("connection", conversations())
write("client", clients())
write("exchange", exchanges())
write("deflate", compressed())
write("operations", operations())
write("resume", resume())

"""Checks of tests/tls/stress.py with records that no library sends: a client of TLS 1.3 that encrypts them itself.

The handshake is that of Python's `ssl`, which writes its secrets to a file. libcrypto encrypts.
"""

import ctypes
import ctypes.util
import hashlib
import hmac
import os
import struct
import tempfile
import time

from peers import MIB, frame
from tls_peers import BINARY, TEXT, TLS13, Bystander, dial, echo, ends, join, leave, read_message, watching

ALERT, HANDSHAKE, DATA = 21, 22, 23
KEY_UPDATE, KEY_UPDATE_REQUEST = b"\x18\0\0\x01\0", b"\x18\0\0\x01\x01"
SUITES = {
    "TLS_AES_256_GCM_SHA384": ("EVP_aes_256_gcm", 32, hashlib.sha384),
    "TLS_AES_128_GCM_SHA256": ("EVP_aes_128_gcm", 16, hashlib.sha256),
    "TLS_CHACHA20_POLY1305_SHA256": ("EVP_chacha20_poly1305", 32, hashlib.sha256),
}
GET_TAG = 0x10
CRYPTO = ctypes.CDLL(ctypes.util.find_library("crypto"))
for function in "EVP_CIPHER_CTX_new", *(suite[0] for suite in SUITES.values()):
    getattr(CRYPTO, function).restype = ctypes.c_void_p


def encrypt(cipher, key, nonce, head, data):
    context = ctypes.c_void_p(CRYPTO.EVP_CIPHER_CTX_new())
    out, tag, count = ctypes.create_string_buffer(len(data) + 16), ctypes.create_string_buffer(16), ctypes.c_int()
    CRYPTO.EVP_EncryptInit_ex(context, ctypes.c_void_p(getattr(CRYPTO, cipher)()), None, key, nonce)
    CRYPTO.EVP_EncryptUpdate(context, None, ctypes.byref(count), head, len(head))
    CRYPTO.EVP_EncryptUpdate(context, out, ctypes.byref(count), data, len(data))
    assert count.value == len(data)
    CRYPTO.EVP_EncryptFinal_ex(context, tag, ctypes.byref(count))
    assert CRYPTO.EVP_CIPHER_CTX_ctrl(context, GET_TAG, 16, tag) == 1
    CRYPTO.EVP_CIPHER_CTX_free(context)
    return out.raw[: len(data)] + tag.raw


class Client:
    """A client of TLS 1.3 with the methods of a socket. `seal` makes a record of any kind."""

    def __init__(self, server):
        context = server.certificates.context(TLS13)
        with tempfile.NamedTemporaryFile(mode="r") as keys:
            context.keylog_filename = keys.name
            self.tls = dial(server.port, context)
            (line,) = [line for line in keys if line.startswith("CLIENT_TRAFFIC_SECRET_0 ")]
        self.cipher, self.size, self.hash = SUITES[self.tls.tls.cipher()[0]]
        self.use(bytes.fromhex(line.split()[2]))
        self.raw = self.tls.raw
        join(self)

    def use(self, secret):
        self.secret, self.number = secret, 0
        self.key, self.iv = self.expand(b"key", self.size), self.expand(b"iv", 12)

    def expand(self, label, length):
        """HKDF-Expand-Label of RFC 8446 section 7.1, for at most one block."""
        info = struct.pack("!HB", length, 6 + len(label)) + b"tls13 " + label + b"\0\x01"
        return hmac.new(self.secret, info, self.hash).digest()[:length]

    def update(self):
        """Uses the next key, after a KeyUpdate was sealed."""
        self.use(self.expand(b"traffic upd", self.hash().digest_size))

    def seal(self, kind, data, padding=0):
        inner = data + bytes([kind] if kind else []) + bytes(padding)
        head = b"\x17\x03\x03" + struct.pack("!H", len(inner) + 16)
        nonce = bytes(one ^ other for one, other in zip(self.iv, self.number.to_bytes(12)))
        self.number += 1
        return head + encrypt(self.cipher, self.key, nonce, head, inner)

    def sendall(self, data):
        self.raw.sendall(b"".join(self.seal(DATA, data[at : at + 16384]) for at in range(0, len(data), 16384)))

    def recv(self, count):
        return self.tls.recv(count)

    def settimeout(self, seconds):
        self.raw.settimeout(seconds)

    @property
    def notified(self):
        return self.tls.notified

    def close(self):
        self.raw.close()


def odd_records(binary, certificates):
    """padding, empty records, KeyUpdates in pieces with PINGs and echoes between them"""
    with watching(binary, certificates, "--ping-interval", "1s", "--ping-timeout", "10s") as server:
        client = Client(server)
        for padding in 1, 100, 16384 - 8:
            client.raw.sendall(client.seal(DATA, frame(TEXT, b""), padding) + client.seal(DATA, frame(TEXT, b"a"), padding))
            assert [read_message(client) for _ in range(2)] == [(TEXT, b""), (TEXT, b"a")], padding
        # An empty record between the bytes of a message.
        for byte in frame(TEXT, b"bytes"):
            client.raw.sendall(client.seal(DATA, b"") + client.seal(DATA, bytes([byte])))
        assert read_message(client) == (TEXT, b"bytes")
        # A message before a part of a KeyUpdate, so that the server encrypts while it has that part.
        for message in KEY_UPDATE, KEY_UPDATE_REQUEST:
            for at in range(1, len(message)):
                client.raw.sendall(client.seal(DATA, frame(TEXT, b"before")) + client.seal(HANDSHAKE, message[:at]))
                assert read_message(client) == (TEXT, b"before")
                # A PING of the server.
                if at == 2:
                    time.sleep(2.2)
                client.raw.sendall(client.seal(HANDSHAKE, message[at:]))
                client.update()
                echo(client, b"after")
        # In records of a byte, at once, and a message behind it with the new key.
        for message in KEY_UPDATE, KEY_UPDATE_REQUEST:
            data = b"".join(client.seal(HANDSHAKE, message[at : at + 1]) for at in range(len(message)))
            client.update()
            client.raw.sendall(data + client.seal(DATA, frame(BINARY, b"behind")))
            assert read_message(client) == (BINARY, b"behind")
        assert leave(client), "the server ended without close_notify"
        # It ends with a part of a KeyUpdate, and by itself with one.
        for last in b"", frame(8, b"\x03\xe8"):
            client = Client(server)
            client.raw.sendall(client.seal(HANDSHAKE, KEY_UPDATE[:3]) + (client.seal(DATA, last) if last else b""))
            if not last:
                client.raw.shutdown(1)
            ends(client.raw)
            client.close()


def wrong_records(binary, certificates):
    """records that TLS 1.3 forbids end the connection, once, and floods of permitted ones cost nothing"""
    source = os.urandom
    certificate = b"\x0b\0\x3e\x80" + bytes(16000)
    kinds = {
        "too long": lambda client: client.seal(DATA, bytes(16385)),
        "far too long": lambda client: client.seal(DATA, bytes(17000)),
        "without a type": lambda client: client.seal(0, b"", 100),
        "of an unknown type": lambda client: client.seal(99, b"what"),
        "a ClientHello": lambda client: client.seal(HANDSHAKE, b"\x01\0\0\x04abcd"),
        "a certificate": lambda client: client.seal(HANDSHAKE, certificate),
        "a message of 16 MiB": lambda client: client.seal(HANDSHAKE, b"\x18\xff\xff\xff" + bytes(1000)),
        "a KeyUpdate with another value": lambda client: client.seal(HANDSHAKE, b"\x18\0\0\x01\x02"),
        "a KeyUpdate and data of the old key": lambda client: client.seal(HANDSHAKE, KEY_UPDATE) + client.seal(DATA, b"old"),
        "two KeyUpdates in a record": lambda client: client.seal(HANDSHAKE, KEY_UPDATE * 2) + client.seal(DATA, b"old"),
        "half a KeyUpdate and data": lambda client: client.seal(HANDSHAKE, KEY_UPDATE[:2]) + client.seal(DATA, frame(TEXT, b"x")) * 2,
        "ChangeCipherSpec": lambda client: b"\x14\x03\x03\0\x01\x01" * 2,
        "a plaintext alert": lambda client: b"\x15\x03\x03\0\x02\x01\0",
        "a plaintext handshake message": lambda client: b"\x16\x03\x03\0\x05" + KEY_UPDATE,
        "an unknown fatal alert": lambda client: client.seal(ALERT, b"\x02\xf0"),
        "an alert of a byte": lambda client: client.seal(ALERT, b"\x02"),
        "a record of nothing": lambda client: b"\x17\x03\x03\0\0",
        "a record twice": lambda client: client.seal(DATA, frame(TEXT, b"x")) * 2,
        "random bytes": lambda client: b"\x17\x03\x03\x01\0" + source(256),
        "random bytes without a head": lambda client: source(5000),
    }
    floods = {
        "empty records": lambda client: client.seal(DATA, b""),
        "empty handshake records": lambda client: client.seal(HANDSHAKE, b""),
        "padding": lambda client: client.seal(DATA, b"", 16000),
        "warnings": lambda client: client.seal(ALERT, b"\x01\x5a"),
        "KeyUpdates": lambda client: (client.seal(HANDSHAKE, KEY_UPDATE), client.update())[0],
        "requests for KeyUpdates": lambda client: (client.seal(HANDSHAKE, KEY_UPDATE_REQUEST), client.update())[0],
        "a handshake message without end": lambda client: client.seal(HANDSHAKE, bytes(16000)),
    }
    with watching(binary, certificates) as server, Bystander(server.port, server.context):
        taken = []
        for name, make in kinds.items():
            client = Client(server)
            client.raw.settimeout(2)
            client.raw.sendall(make(client))
            try:
                ends(client.raw)
            except AssertionError:
                taken.append(name)
            client.close()
        assert not taken, f"these do not end the connection: {', '.join(taken)}"
        memory, said = server.server.memory("VmHWM"), []
        for name, make in floods.items():
            client = Client(server)
            client.raw.settimeout(10)
            count = 0
            try:
                while count < 20_000:
                    client.raw.sendall(b"".join(make(client) for _ in range(100)))
                    count += 100
            except ConnectionError:
                pass
            if count == 20_000:
                client.raw.shutdown(1)
            client.close()
            said.append(f"{count} {name}")
        grown = server.server.memory("VmHWM") - memory
        assert grown < 2 * MIB, f"they cost {grown / MIB:.1f} MiB"
        return f"{len(kinds)} kinds; the server took {', '.join(said)}; {grown / MIB:.1f} MiB"

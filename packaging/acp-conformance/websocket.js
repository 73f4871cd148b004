// A WebSocket client (RFC 6455) that shows what libraries hide: the fields of the handshake, binary messages, fragments, and a
// connection that ends without a closing handshake.
"use strict";

const crypto = require("node:crypto");
const http = require("node:http");
const https = require("node:https");

const OPCODE = { continuation: 0, text: 1, binary: 2, close: 8, ping: 9, pong: 10 };

/** A request that is not upgraded: the status, the fields and the body. */
class Refused extends Error {
  constructor(response, body) {
    super(`the handshake was answered with ${response.statusCode}`);
    this.status = response.statusCode;
    this.headers = response.headers;
    this.body = body;
  }
}

/** Sends an HTTP request, and returns the response with its body. With `Upgrade`, resolves to the socket if the server accepts. */
function request(url, { method = "GET", headers = {}, body, timeout = 10_000, insecure = false } = {}) {
  const target = new URL(url.replace(/^ws/, "http"));
  const send = (target.protocol === "https:" ? https : http).request;
  return new Promise((resolve, reject) => {
    const sent = send(target, { method, headers, timeout, rejectUnauthorized: !insecure, agent: false });
    sent.on("upgrade", (response, socket, head) => {
      // The time limit is for the handshake. A connection may be idle.
      socket.setTimeout(0);
      resolve({ response, socket, head });
    });
    sent.on("response", (response) => {
      const chunks = [];
      response.on("data", (chunk) => {
        chunks.push(chunk);
        // A stream of events does not end.
        if (response.headers["content-type"]?.startsWith("text/event-stream")) done();
      });
      response.on("end", done);
      function done() {
        resolve({ response, body: Buffer.concat(chunks).toString() });
        sent.destroy();
      }
    });
    sent.on("timeout", () => sent.destroy(new Error("no response to the request")));
    sent.on("error", reject);
    sent.end(body);
  });
}

class WebSocket {
  /** Connects, or throws `Refused`. */
  static async connect(url, options = {}) {
    const key = crypto.randomBytes(16).toString("base64");
    const headers = {
      Connection: "Upgrade",
      Upgrade: "websocket",
      "Sec-WebSocket-Key": key,
      "Sec-WebSocket-Version": "13",
      ...options.headers,
    };
    const { response, socket, head, body } = await request(url, { ...options, headers });
    if (!socket) throw new Refused(response, body);
    const expected = crypto.createHash("sha1").update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest("base64");
    if (response.headers["sec-websocket-accept"] !== expected) throw new Error("Sec-WebSocket-Accept is wrong");
    return new WebSocket(response.headers, socket, head);
  }

  constructor(headers, socket, head) {
    this.headers = headers;
    this.socket = socket;
    this.input = head;
    this.fragments = [];
    this.messages = [];
    this.waiting = [];
    /** Whether PINGs are answered. A connection that is half open answers none. */
    this.answersPings = true;
    this.pings = 0;
    this.pongs = [];
    /** The code and reason of the server's CLOSE, or `{ code: 1006 }`. */
    this.closed = undefined;
    socket.setNoDelay(true);
    socket.on("data", (data) => {
      this.input = Buffer.concat([this.input, data]);
      this.read();
    });
    socket.on("error", () => {});
    socket.on("close", () => this.end({ code: 1006, reason: "" }));
    this.read();
  }

  end(closed) {
    this.closed ??= closed;
    for (const { resolve } of this.waiting.splice(0)) resolve(undefined);
  }

  read() {
    for (;;) {
      const frame = this.nextFrame();
      if (!frame) return;
      const { opcode, isLast, payload } = frame;
      if (opcode === OPCODE.ping) {
        this.pings++;
        if (this.answersPings) this.frame(OPCODE.pong, payload);
      } else if (opcode === OPCODE.pong) {
        this.pongs.push(payload.toString());
      } else if (opcode === OPCODE.close) {
        const code = payload.length >= 2 ? payload.readUInt16BE() : 1005;
        this.end({ code, reason: payload.subarray(2).toString() });
        this.frame(OPCODE.close, payload.subarray(0, 2));
        this.socket.end();
      } else {
        this.fragments.push(payload);
        if (isLast) this.deliver(Buffer.concat(this.fragments.splice(0)).toString());
      }
    }
  }

  nextFrame() {
    const input = this.input;
    if (input.length < 2) return undefined;
    let [at, length] = [2, input[1] & 0x7f];
    if (length >= 126) {
      const size = length === 126 ? 2 : 8;
      if (input.length < 2 + size) return undefined;
      length = length === 126 ? input.readUInt16BE(2) : Number(input.readBigUInt64BE(2));
      at += size;
    }
    if (input.length < at + length) return undefined;
    this.input = input.subarray(at + length);
    return { opcode: input[0] & 0xf, isLast: (input[0] & 0x80) !== 0, payload: input.subarray(at, at + length) };
  }

  deliver(text) {
    const waiting = this.waiting.shift();
    if (waiting) waiting.resolve(text);
    else this.messages.push(text);
  }

  /** The next message. `undefined` if the connection has ended, or none comes in time. */
  next(timeout) {
    if (this.messages.length > 0) return Promise.resolve(this.messages.shift());
    if (this.closed) return Promise.resolve(undefined);
    return new Promise((resolve) => {
      const timer = setTimeout(() => {
        this.waiting.splice(this.waiting.indexOf(waiting), 1);
        resolve(undefined);
      }, timeout);
      const waiting = {
        resolve: (text) => {
          clearTimeout(timer);
          resolve(text);
        },
      };
      this.waiting.push(waiting);
    });
  }

  frame(opcode, payload, isLast = true) {
    const length = payload.length;
    const head = [(isLast ? 0x80 : 0) | opcode];
    if (length < 126) head.push(0x80 | length);
    else if (length < 65536) head.push(0x80 | 126, length >> 8, length & 0xff);
    else head.push(0x80 | 127, 0, 0, 0, 0, ...[24, 16, 8, 0].map((bits) => (length >>> bits) & 0xff));
    const key = crypto.randomBytes(4);
    const masked = Buffer.from(payload.map((byte, index) => byte ^ key[index % 4]));
    if (!this.socket.destroyed) this.socket.write(Buffer.concat([Buffer.from(head), key, masked]));
  }

  send(text) {
    this.frame(OPCODE.text, Buffer.from(text));
  }

  sendBinary(text) {
    this.frame(OPCODE.binary, Buffer.from(text));
  }

  /** Sends a message in fragments of one byte, with a PING in between. */
  sendInPieces(text) {
    const bytes = Buffer.from(text);
    bytes.forEach((_, index) => {
      const opcode = index === 0 ? OPCODE.text : OPCODE.continuation;
      this.frame(opcode, bytes.subarray(index, index + 1), index === bytes.length - 1);
      if (index === 1) this.frame(OPCODE.ping, Buffer.from("between"));
    });
  }

  ping(text) {
    this.frame(OPCODE.ping, Buffer.from(text));
  }

  /** Stops reading, as a program that hangs does. */
  pause() {
    this.socket.pause();
  }

  /** Waits until the connection has ended. Returns why, or `undefined` if it goes on. */
  async ending(timeout) {
    const until = Date.now() + timeout;
    while (!this.closed && Date.now() < until) await this.next(until - Date.now());
    return this.closed;
  }

  /** Ends the connection as a network does that fails. */
  cut() {
    this.end({ code: 1006, reason: "" });
    this.socket.destroy();
  }

  close() {
    this.frame(OPCODE.close, Buffer.from([0x03, 0xe8]));
    setTimeout(() => this.socket.destroy(), 1000).unref();
  }
}

module.exports = { Refused, WebSocket, request };

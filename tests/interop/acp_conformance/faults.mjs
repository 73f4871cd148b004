// Shows that packaging/acp-conformance finds faults: a small server of the protocol with one fault at a time must fail the cases that
// are about it, and no others. Without a fault, it fails none. It sends no response to `stream/resume`, as the draft permits.
//
// usage: node faults.mjs
// env:   TOOLS=FOLDER of the npm packages
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const { WebSocketServer } = createRequire(process.env.TOOLS + "/")("ws");
const suite = fileURLToPath(new URL("../../../packaging/acp-conformance/cli.js", import.meta.url));
const RETAINED = 50;

// The cases that each fault must fail.
const faults = {
  none: [],
  "swaps answers": ["messages: equal ids of two clients do not cross"],
  "ignores session/cancel": ["sessions: session/cancel ends a turn"],
  "keeps silent connections": ["liveness: a connection that answers no PING is ended, and its session can be loaded"],
  "resumes anywhere": ["resume: a cursor of no message is refused", "resume: a cursor that is no longer retained is refused"],
  "repeats a message": ["resume: a cut in the middle of a turn loses and doubles nothing"],
  "loses a message": ["resume: a cut in the middle of a turn loses and doubles nothing"],
};

class Connection {
  constructor(id) {
    Object.assign(this, { id, log: [], count: 0, isResumable: false, isInitialized: false });
  }

  send(message) {
    const whole = { jsonrpc: "2.0", ...message };
    if (this.isResumable) {
      const cursor = { "acp/cursor": String(++this.count) };
      const holder = whole.params ?? whole.result ?? whole;
      holder._meta = { ...holder._meta, ...cursor };
      this.log.push(whole);
      if (this.log.length > RETAINED) this.log.shift();
    }
    // The fault of a server that loses a message.
    if (this.lost === undefined || this.lost !== this.count) this.socket?.send(JSON.stringify(whole));
  }
}

async function start(fault) {
  const [connections, sessions, held] = [new Map(), new Map(), new Map()];
  const refuse = (connection, id, code) => connection.send({ id, error: { code, message: "refused" } });

  /** Sends a response. With the fault, two clients that have used the same id get the response of the other one. */
  async function respond(connection, message) {
    if (fault !== "swaps answers" || typeof message.id !== "string") return connection.send(message);
    const other = held.get(message.id);
    if (other && other.connection !== connection) {
      held.delete(message.id);
      connection.send(other.message);
      return other.connection.send(message);
    }
    held.set(message.id, { connection, message });
    await sleep(100);
    if (held.get(message.id)?.message === message && held.delete(message.id)) connection.send(message);
  }

  async function turn(connection, id, { sessionId, prompt }) {
    const session = sessions.get(sessionId);
    if (session?.owner !== connection) return refuse(connection, id, -32602);
    session.isCancelled = false;
    for (const text of prompt[0].text.split(/(?<= )/)) {
      const update = { sessionUpdate: "agent_message_chunk", content: { type: "text", text } };
      connection.send({ method: "session/update", params: { sessionId, update } });
      await sleep(20);
      if (session.isCancelled && fault !== "ignores session/cancel") break;
    }
    const stopReason = session.isCancelled && fault !== "ignores session/cancel" ? "cancelled" : "end_turn";
    return connection.send({ id, result: { stopReason } });
  }

  function handle(connection, { id, method, params }) {
    if (method !== "initialize" && !connection.isInitialized) return id !== undefined && refuse(connection, id, -32600);
    switch (method) {
      case "initialize": {
        connection.isInitialized = true;
        connection.isResumable = params.clientCapabilities?.transport?.resumable !== undefined;
        const resumable = { retentionMessages: RETAINED, retentionSeconds: 60 };
        const capabilities = connection.isResumable ? { capabilities: { transport: { resumable } } } : {};
        return connection.send({ id, result: { protocolVersion: 1, agentCapabilities: { loadSession: true }, ...capabilities } });
      }
      case "session/new": {
        const sessionId = `fault-${sessions.size}`;
        sessions.set(sessionId, { owner: connection });
        return respond(connection, { id, result: { sessionId } });
      }
      case "session/load":
        if (!sessions.has(params.sessionId)) return refuse(connection, id, -32602);
        sessions.get(params.sessionId).owner = connection;
        return connection.send({ id, result: {} });
      case "session/prompt":
        return turn(connection, id, params);
      case "session/cancel":
        return sessions.has(params.sessionId) && (sessions.get(params.sessionId).isCancelled = true);
      default:
        return id !== undefined && respond(connection, { id, error: { code: -32601, message: "Method not found" } });
    }
  }

  /** Lets a connection continue on a socket, or returns why not. */
  function resume(target, cursor, socket) {
    const after = Number(cursor);
    const isKept = /^\d+$/.test(cursor) && after <= target?.count && after >= target.count - target.log.length;
    if (!target || (!isKept && fault !== "resumes anywhere")) return "expired_cursor";
    target.socket?.terminate();
    target.socket = socket;
    const number = (message) => Number((message.params ?? message.result ?? message)._meta["acp/cursor"]);
    const first = fault === "repeats a message" ? after : after + 1;
    if (fault === "loses a message") target.lost = after + 1;
    for (const message of isKept ? target.log.filter((message) => number(message) >= first && number(message) !== target.lost) : []) socket.send(JSON.stringify(message));
    return undefined;
  }

  const http = createServer((_, response) => response.writeHead(426).end());
  const server = new WebSocketServer({ server: http });
  server.on("headers", (headers, request) => {
    request.connectionId = request.headers["acp-connection-id"] ?? crypto.randomUUID();
    headers.push(`Acp-Connection-Id: ${request.connectionId}`);
  });
  server.on("connection", (socket, request) => {
    let connection = new Connection(request.connectionId);
    connection.socket = socket;
    const earlier = connections.get(request.connectionId);
    if (!earlier) connections.set(request.connectionId, connection);
    let isAlive = true;
    socket.on("pong", () => { isAlive = true; });
    const pings = setInterval(() => {
      if (!isAlive && fault !== "keeps silent connections") return socket.terminate();
      isAlive = false;
      return socket.ping();
    }, 500);
    socket.on("close", () => clearInterval(pings));
    socket.on("message", (data, isBinary) => {
      if (isBinary) return undefined;
      let message;
      try { message = JSON.parse(data); } catch { return refuse(connection, null, -32700); }
      if (message.method === "stream/resume") {
        const reason = resume(earlier, message.params.cursor, socket);
        if (reason) return connection.send({ method: "stream/resume_failed", params: { reason } });
        return (connection = earlier);
      }
      const isValid = !Array.isArray(message) && ["string", "undefined"].includes(typeof message.method);
      if (!isValid) return refuse(connection, message.id ?? null, -32600);
      return message.method && handle(connection, message);
    });
  });
  http.listen(0, "127.0.0.1");
  await once(http, "listening");
  return { url: `ws://127.0.0.1:${http.address().port}/acp`, stop: () => { http.close(); server.clients.forEach((client) => client.terminate()); } };
}

for (const [fault, expected] of Object.entries(faults)) {
  const { url, stop } = await start(fault);
  const json = `${tmpdir()}/acp-faults-${process.pid}.json`;
  const group = expected.length > 0 ? ["--only", expected[0].split(":")[0]] : [];
  const options = ["--json", json, "--timeout", "3", "--prompt", "one two three four five", ...group, url];
  const tried = spawn(process.execPath, [suite, ...options], { stdio: ["ignore", "ignore", "inherit"] });
  await once(tried, "close");
  stop();
  const { results } = JSON.parse(readFileSync(json));
  rmSync(json);
  const failed = results.filter(({ outcome }) => outcome === "failed" || outcome === "error");
  const names = failed.map(({ group, name }) => `${group}: ${name}`);
  assert.deepEqual(names, expected, `${fault}: ${failed.map(({ name, why }) => `${name}: ${why}`).join("\n")}`);
  console.log(`  ${fault === "none" ? "no fault" : `a server that ${fault}`}: ${names.length} of ${results.length} cases fail ok`);
}
process.exit(0);

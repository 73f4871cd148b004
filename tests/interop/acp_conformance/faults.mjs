// Shows that packaging/acp-conformance finds faults: a small server of the protocol with one fault at a time must fail the cases that
// are about it, and no others. Without a fault, it fails none.
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

// The cases that each fault must fail.
const faults = {
  none: [],
  "swaps answers": ["messages: equal ids of two clients do not cross"],
  "ignores session/cancel": ["sessions: session/cancel ends a turn"],
  "keeps silent connections": ["liveness: a connection that answers no PING is ended, and its session can be loaded"],
};

class Connection {
  isInitialized = false;

  constructor(socket) {
    this.socket = socket;
  }

  send(message) {
    this.socket.send(JSON.stringify({ jsonrpc: "2.0", ...message }));
  }
}

async function start(fault) {
  const [sessions, held] = [new Map(), new Map()];
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
      case "initialize":
        connection.isInitialized = true;
        return connection.send({ id, result: { protocolVersion: 1, agentCapabilities: { loadSession: true } } });
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

  const http = createServer((_, response) => response.writeHead(426).end());
  const server = new WebSocketServer({ server: http });
  server.on("headers", (headers) => { headers.push(`Acp-Connection-Id: ${crypto.randomUUID()}`); });
  server.on("connection", (socket) => {
    const connection = new Connection(socket);
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

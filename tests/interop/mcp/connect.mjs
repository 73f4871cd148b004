// A host that only starts programs, in front of a server over HTTP: the TypeScript SDKs over stdio, `outrigger connect http://...`, and
// server-everything behind `outrigger mcp` and over its own HTTP transport. Then the connections are cut and the server is restarted
// while the host calls it.
//
// usage: node connect.mjs [CUTS RESTARTS]    20 cuts and 2 restarts by default
// env:   OUTRIGGER, TOOLS (see packages.mjs), ONLY, VERBOSE
import assert from "node:assert/strict";
import { once } from "node:events";
import net from "node:net";

import { check, finish } from "./checks.mjs";
import { load, module_file } from "./packages.mjs";
import { everything_over_http, free_port, pause, program } from "./server.mjs";

const [CUTS, RESTARTS] = [process.argv[2] ?? 20, process.argv[3] ?? 2].map(Number);
const OUTRIGGER = process.env.OUTRIGGER ?? "outrigger";
const EVERYTHING = module_file("@modelcontextprotocol/server-everything/dist/index.js");

/** server-everything on a port: behind `outrigger mcp`, or over its own transport. */
function everything(kind, port) {
  if (kind === "own") return everything_over_http(port);
  const args = ["mcp", "--listen", `127.0.0.1:${port}`, "--no-auth", "--log", "error", "--", process.execPath, EVERYTHING, "stdio"];
  return program(OUTRIGGER, args);
}

/** A proxy that can cut all connections. */
async function cutter(port) {
  const sockets = new Set();
  const server = net.createServer((client) => {
    const upstream = net.connect(port, "127.0.0.1");
    for (const [one, other] of [[client, upstream], [upstream, client]]) {
      sockets.add(one);
      one.on("error", () => {});
      one.on("close", () => (sockets.delete(one), other.destroy()));
      one.pipe(other);
    }
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    port: server.address().port,
    cut: () => [...sockets].reduce((count, socket) => (socket.resetAndDestroy(), count + 1), 0) / 2,
    close: () => server.close(),
  };
}

const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = await load("@modelcontextprotocol/sdk/client/stdio.js");
const { LoggingMessageNotificationSchema } = await load("@modelcontextprotocol/sdk/types.js");

/** A host with a session through `outrigger connect`. */
async function host(url, log = "error") {
  const client = new Client({ name: "host", version: "1" }, { capabilities: {} });
  const errors = [];
  client.onerror = (error) => errors.push(String(error));
  await client.connect(new StdioClientTransport({ command: OUTRIGGER, args: ["connect", "--log", log, url], stderr: "inherit" }));
  return { client, errors };
}

const text = ({ content }) => content[0].text;

for (const kind of ["outrigger", "own"]) {
  await check(`${kind}: the SDK over stdio uses server-everything`, async () => {
    const port = await free_port();
    const server = await everything(kind, port);
    const { client, errors } = await host(`http://127.0.0.1:${port}/mcp`);
    const { tools } = await client.listTools();
    assert.ok(tools.length > 5);
    assert.equal(text(await client.callTool({ name: "echo", arguments: { message: "héllo" } })), "Echo: héllo");
    const steps = [];
    const long = { name: "trigger-long-running-operation", arguments: { duration: 1, steps: 4 } };
    await client.callTool(long, undefined, { onprogress: ({ progress }) => steps.push(progress) });
    assert.deepEqual(steps.slice(0, 3), [1, 2, 3]);
    // A message that belongs to no call comes on the GET stream.
    const logged = new Promise((resolve) => client.setNotificationHandler(LoggingMessageNotificationSchema, resolve));
    await client.setLoggingLevel("debug");
    await client.callTool({ name: "toggle-simulated-logging", arguments: {} });
    await logged;
    // A call that the host gives up is cancelled.
    await assert.rejects(client.callTool({ ...long, arguments: { duration: 30, steps: 1 } }, undefined, { timeout: 300 }), /timed out/i);
    const all = await Promise.all(Array.from({ length: 40 }, (_, n) => client.callTool({ name: "echo", arguments: { message: `${n}` } })));
    all.forEach((answer, n) => assert.equal(text(answer), `Echo: ${n}`));
    // Over its own transport, the server sends progress on the GET stream, where an answer may overtake it.
    assert.deepEqual(errors.filter((error) => !error.includes("unknown token")), []);
    await client.close();
    await server.stop();
  }, 60);
}

await check("the SDK 2.x over stdio uses revision 2026-07-28", async () => {
  const { Client } = await load("@modelcontextprotocol/client");
  const { StdioClientTransport } = await load("@modelcontextprotocol/client/stdio");
  const port = await free_port();
  const args = ["mcp", "--listen", `127.0.0.1:${port}`, "--no-auth", "--log", "error", "--", OUTRIGGER, "example-mcp"];
  const server = await program(OUTRIGGER, args);
  const client = new Client({ name: "host", version: "1" }, { versionNegotiation: { mode: "auto" } });
  await client.connect(new StdioClientTransport({ command: OUTRIGGER, args: ["connect", server.url], stderr: "inherit" }));
  assert.equal(client.getNegotiatedProtocolVersion?.() ?? "2026-07-28", "2026-07-28");
  assert.equal(text(await client.callTool({ name: "add", arguments: { a: 1, b: 2 } })), "3");
  await client.close();
  await server.stop();
}, 60);

await check(`${CUTS} cuts and ${RESTARTS} restarts are not seen by the host`, async () => {
  const port = await free_port();
  let server = await everything("outrigger", port);
  const proxy = await cutter(port);
  const { client, errors } = await host(`http://127.0.0.1:${proxy.port}/mcp`, process.env.LOG ?? "error");
  // From this list, `connect` learns which tools may be called twice.
  await client.listTools();
  let is_over = false;
  const figures = { answers: 0, cut: 0 };
  const caller = async (lane) => {
    for (let n = 0; !is_over; n++) {
      const message = `${lane}-${n}`;
      if (n % 7 === 3) assert.ok((await client.listTools()).tools.length > 5);
      else assert.equal(text(await client.callTool({ name: "echo", arguments: { message } })), `Echo: ${message}`);
      figures.answers++;
      await pause(Math.random() * 20);
    }
  };
  const callers = Promise.all([0, 1, 2, 3].map(caller));
  const disturb = async () => {
    let cuts = 0, restarts = 0;
    while (cuts < CUTS || restarts < RESTARTS) {
      // Between two cuts, something must pass. What is cut then is at any point.
      for (const before = figures.answers; figures.answers === before; ) await pause(5);
      await pause(Math.random() * 40);
      if (restarts < RESTARTS && restarts * CUTS <= cuts * RESTARTS) {
        process.kill(server.pid, "SIGKILL");
        await server.stop();
        server = await everything("outrigger", port);
        restarts++;
      }
      // Only what cuts a connection counts.
      const cut = proxy.cut();
      figures.cut += cut;
      cuts += cut > 0;
    }
    is_over = true;
  };
  await Promise.race([callers, disturb()]);
  await callers;
  assert.deepEqual(errors, []);
  console.log(`       ${figures.answers} answers, each once and with its own text; ${figures.cut} connections cut`);
  await client.close();
  await server.stop();
  proxy.close();
}, 60 + CUTS + 15 * RESTARTS);

finish("connect.mjs");

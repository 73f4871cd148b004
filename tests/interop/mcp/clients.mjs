// Clients of MCP servers over Streamable HTTP: the TypeScript SDK 1.x and 2.x in sessions, 2.x in revision 2026-07-28, the command line
// of the Inspector, and requests of our own.
//
// usage: node clients.mjs [outrigger|sdk]    `outrigger mcp` in front of stdio servers (default), or the servers' own HTTP transports
// env:   OUTRIGGER, TOOLS (see packages.mjs), PYTHON=TOOLS/mcp/bin/python, ONLY=words of the titles to run, VERBOSE
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { once } from "node:events";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { promisify } from "node:util";

import { check, finish } from "./checks.mjs";
import { HERE, NODE22, TOOLS, load, module_file } from "./packages.mjs";
import { everything_over_http, free_port, outrigger, pause, program } from "./server.mjs";
import { sessions } from "./sessions.mjs";

const MODE = process.argv[2] ?? "outrigger";
const PYTHON = process.env.PYTHON ?? path.join(TOOLS, "mcp/bin/python");
const EVERYTHING = module_file("@modelcontextprotocol/server-everything/dist/index.js");
const folder = mkdtempSync(path.join(os.tmpdir(), "mcp-interop-"));

const everything = async () =>
  MODE === "outrigger" ? outrigger([process.execPath, EVERYTHING, "stdio"]) : everything_over_http(await free_port());
const conformance = () => {
  const command = [process.execPath, path.join(HERE, "conformance_server.mjs")];
  return MODE === "outrigger" ? outrigger(command) : program(command[0], [command[1], "--http", 0]);
};
const filesystem = () => outrigger([process.execPath, module_file("@modelcontextprotocol/server-filesystem/dist/index.js"), folder]);
const server_2026 = async (command) => {
  if (MODE === "outrigger") return outrigger(command);
  const port = await free_port();
  const url = (line) => line.includes(":" + port) && `http://127.0.0.1:${port}/mcp`;
  return program(command[0], [...command.slice(1), "--http", port], { from: command[0] === PYTHON ? "stderr" : "stdout", url });
};

const answers = {
  "sampling/createMessage": () => ({ role: "assistant", model: "none", content: { type: "text", text: "sampled" }, stopReason: "endTurn" }),
  "elicitation/create": ({ requestedSchema }) =>
    ({ action: "accept", content: requestedSchema.properties.name ? { name: "Ada", check: true } : {} }),
  "roots/list": () => ({ roots: [{ uri: `file://${folder}`, name: "folder" }] }),
};
const capabilities = { sampling: {}, elicitation: {}, roots: {} };

/** A connected client. `seen` collects the notifications of servers, by method. */
async function connected(client, transport, on_request, on_notification) {
  const seen = {};
  for (const [method, answer] of Object.entries(answers)) on_request(client, method, answer);
  for (const method of ["message", "tools/list_changed", "resources/updated"]) {
    on_notification(client, `notifications/${method}`, (params) => (seen[method] ??= []).push(params ?? {}));
  }
  await client.connect(transport);
  return { client, transport, seen };
}

async function sdk_1(url) {
  const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
  const { StreamableHTTPClientTransport } = await load("@modelcontextprotocol/sdk/client/streamableHttp.js");
  const types = await load("@modelcontextprotocol/sdk/types.js");
  const schemas = {
    "sampling/createMessage": types.CreateMessageRequestSchema,
    "elicitation/create": types.ElicitRequestSchema,
    "roots/list": types.ListRootsRequestSchema,
    "notifications/message": types.LoggingMessageNotificationSchema,
    "notifications/tools/list_changed": types.ToolListChangedNotificationSchema,
    "notifications/resources/updated": types.ResourceUpdatedNotificationSchema,
  };
  const client = new Client({ name: "interop-1", version: "1" }, { capabilities });
  return connected(client, new StreamableHTTPClientTransport(new URL(url)),
    (client, method, answer) => client.setRequestHandler(schemas[method], async ({ params }) => answer(params)),
    (client, method, handler) => client.setNotificationHandler(schemas[method], ({ params }) => handler(params)));
}

async function sdk_2(url, mode) {
  const { Client, StreamableHTTPClientTransport } = await load("@modelcontextprotocol/client");
  const client = new Client({ name: "interop-2", version: "1" }, { capabilities, versionNegotiation: { mode } });
  return connected(client, new StreamableHTTPClientTransport(new URL(url)),
    (client, method, answer) => client.setRequestHandler(method, async ({ params }) => answer(params)),
    (client, method, handler) => client.setNotificationHandler(method, ({ params }) => handler(params)));
}

const text = (result) => result.content[0].text;
const until = async (what, test) => {
  while (!(await test())) await pause(20);
};

/** What both SDKs do in a session with server-everything. */
async function with_everything(title, connect) {
  const it = (what, test) => check(`${title}: ${what}`, test);
  let client, transport, seen;
  await it("connect", async () => {
    ({ client, transport, seen } = await connect());
    assert.ok(transport.sessionId);
    assert.equal(transport.protocolVersion, "2025-11-25");
    assert.equal(client.getServerVersion().name, "mcp-servers/everything");
  });
  if (!client) return;
  // The SDK's transport loses what a server sends before the client's GET.
  if (MODE === "outrigger") await it("what the server sends before any call", () => until("list_changed", () => seen["tools/list_changed"]));
  await it("tools", async () => {
    await until("all tools", async () => (await client.listTools()).tools.some(({ name }) => name === "get-roots-list"));
    assert.equal(text(await client.callTool({ name: "echo", arguments: { message: "Grüße 🚣" } })), "Echo: Grüße 🚣");
    const image = await client.callTool({ name: "get-tiny-image", arguments: {} });
    assert.ok(image.content.some(({ type, data }) => type === "image" && data.length > 1000));
    const wrong = await client.callTool({ name: "get-sum", arguments: { a: "x" } });
    assert.equal(wrong.isError, true);
  });
  await it("16 calls at once", async () => {
    const results = await Promise.all(Array.from({ length: 16 }, (_, i) => client.callTool({ name: "get-sum", arguments: { a: i, b: 100 } })));
    results.forEach((result, i) => assert.match(text(result), new RegExp(`\\b${i + 100}\\b`)));
  });
  const long = (duration, steps, options) =>
    client.callTool({ name: "trigger-long-running-operation", arguments: { duration, steps } }, ...(title.includes("1.") ? [undefined] : []), options);
  await it("progress", async () => {
    const steps = [];
    const result = await long(0.4, 4, { onprogress: ({ progress, total }) => steps.push([progress, total]) });
    assert.match(text(result), /completed/);
    assert.deepEqual(steps, [[1, 4], [2, 4], [3, 4], [4, 4]]);
  });
  await it("cancel", async () => {
    const abort = new AbortController();
    await assert.rejects(long(20, 100, { signal: abort.signal, onprogress: () => abort.abort("enough") }));
    assert.equal(text(await client.callTool({ name: "echo", arguments: { message: "after" } })), "Echo: after");
  });
  await it("resources", async () => {
    const { resources } = await client.listResources();
    const { contents } = await client.readResource({ uri: resources[0].uri });
    assert.ok(contents[0].text.length > 100);
    assert.ok((await client.listResourceTemplates()).resourceTemplates.length > 0);
    await client.subscribeResource({ uri: resources[0].uri });
    await client.unsubscribeResource({ uri: resources[0].uri });
    await assert.rejects(client.readResource({ uri: "demo://nothing" }));
  });
  await it("prompts and completion", async () => {
    assert.ok((await client.listPrompts()).prompts.length >= 3);
    const { messages } = await client.getPrompt({ name: "args-prompt", arguments: { city: "Bern" } });
    assert.match(messages[0].content.text, /Bern/);
    const ref = { type: "ref/prompt", name: "completable-prompt" };
    const { completion } = await client.complete({ ref, argument: { name: "department", value: "E" } });
    assert.deepEqual(completion.values, ["Engineering"]);
  });
  await it("sampling", async () => {
    const result = await client.callTool({ name: "trigger-sampling-request", arguments: { prompt: "hi", maxTokens: 10 } });
    assert.match(text(result), /sampled/);
  });
  await it("elicitation", async () => {
    const result = await client.callTool({ name: "trigger-elicitation-request", arguments: {} });
    assert.match(JSON.stringify(result), /Ada/);
  });
  await it("roots", async () => {
    const result = await client.callTool({ name: "get-roots-list", arguments: {} });
    assert.match(JSON.stringify(result), new RegExp(path.basename(folder)));
  });
  await it("logging", async () => {
    await client.setLoggingLevel("debug");
    await client.callTool({ name: "toggle-simulated-logging", arguments: {} });
    await until("a log message", () => seen.message);
    await client.callTool({ name: "toggle-simulated-logging", arguments: {} });
  });
  await it("an unknown method, ping", async () => {
    const { EmptyResultSchema } = await load("@modelcontextprotocol/sdk/types.js");
    await assert.rejects(client.request({ method: "nosuch/method" }, EmptyResultSchema), { code: -32601 });
    await client.ping();
  });
  await it("end of the session", async () => {
    const headers = { "mcp-session-id": transport.sessionId, accept: "text/event-stream" };
    await transport.terminateSession();
    await client.close();
    assert.equal((await fetch(url, { headers })).status, MODE === "outrigger" ? 404 : 400);
  });
}

/** A server of each client over WebSocket, for which the SDK 1.x has a transport. */
async function with_websocket(title) {
  await check(title, async () => {
    const args = ["pipe", "--subprotocol", "mcp", "--path", "/mcp", "--listen", "127.0.0.1:0", "--no-auth", "--log", "warn"];
    const server = [process.execPath, EVERYTHING, "stdio"];
    const { url, stop } = await program(process.env.OUTRIGGER ?? "outrigger", [...args, "--", ...server], { url: (line) => /ws:\S+/.exec(line)?.[0] });
    const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
    const { WebSocketClientTransport } = await load("@modelcontextprotocol/sdk/client/websocket.js");
    globalThis.WebSocket ??= (await load("ws")).default;
    const client = new Client({ name: "interop-ws", version: "1" }, { capabilities: {} });
    await client.connect(new WebSocketClientTransport(new URL(url)));
    assert.equal(text(await client.callTool({ name: "echo", arguments: { message: "hi" } })), "Echo: hi");
    await client.close();
    assert.equal(await stop(), 0);
  });
}

/** A client whose connections are all cut during a call comes back, and misses and repeats nothing. */
async function with_cuts(title, url, connect) {
  await check(title, async () => {
    const sockets = new Set();
    const proxy = net.createServer((client) => {
      const upstream = net.connect(new URL(url).port, "127.0.0.1");
      for (const [from, to] of [[client, upstream], [upstream, client]]) {
        sockets.add(from);
        from.on("data", (data) => to.write(data)).on("end", () => to.end()).on("close", () => (sockets.delete(from), to.destroy())).on("error", () => {});
      }
    }).listen(0, "127.0.0.1");
    await once(proxy, "listening");
    const host = `127.0.0.1:${proxy.address().port}`;
    const { client } = await connect(url.replace(/127\.0\.0\.1:\d+/, host));
    const steps = [];
    const onprogress = ({ progress }) => {
      steps.push(progress);
      if (progress === 2 || progress === 5) sockets.forEach((socket) => socket.destroy());
    };
    const tool = { name: "count", arguments: { steps: 8, delay: 0.25 } };
    const result = await (title.includes("1.") ? client.callTool(tool, undefined, { onprogress }) : client.callTool(tool, { onprogress }));
    assert.equal(text(result), "counted to 8");
    assert.deepEqual(steps, [1, 2, 3, 4, 5, 6, 7, 8]);
    await client.close();
    proxy.close();
  });
}

async function with_filesystem(title, connect) {
  await check(`${title}: a file written and read`, async () => {
    const { client } = await connect();
    const file = path.join(folder, "note.txt");
    const large = "outrigger ".repeat(50000);
    await client.callTool({ name: "write_file", arguments: { path: file, content: large } });
    assert.equal(readFileSync(file, "utf8"), large);
    assert.equal(text(await client.callTool({ name: "read_text_file", arguments: { path: file } })), large);
    const outside = await client.callTool({ name: "read_text_file", arguments: { path: "/etc/passwd" } });
    assert.equal(outside.isError, true);
    await client.close();
  });
}

/** A server of revision 2024-11-05: clients send that version in their header. */
async function with_2024(title, connect) {
  await check(title, async () => {
    const { client, transport } = await connect();
    assert.equal(transport.protocolVersion, "2024-11-05");
    assert.equal((await client.listTools()).tools.length, 1);
    assert.equal(text(await client.callTool({ name: "echo", arguments: { message: "hi" } })), "Echo: hi");
    await client.close();
  });
}

/** What the SDK 2.x does in revision 2026-07-28. */
async function with_2026(title, url) {
  const it = (what, test) => check(`${title}: ${what}`, test);
  let client, seen;
  await it("connect", async () => {
    ({ client, seen } = await sdk_2(url, "auto"));
    assert.equal(client.getNegotiatedProtocolVersion(), "2026-07-28");
  });
  if (!client) return;
  await it("tools", async () => {
    assert.ok((await client.listTools()).tools.some(({ name }) => name === "route"));
    assert.equal(text(await client.callTool({ name: "add", arguments: { a: 2, b: 3 } })), "5");
    for (const region of ["eu-west", " Zürich "]) {
      assert.equal(text(await client.callTool({ name: "route", arguments: { region, text: "x" } })), `${region}: x`);
    }
    assert.equal((await client.callTool({ name: "fail", arguments: {} })).isError, true);
  });
  await it("resources and prompts", async () => {
    assert.equal((await client.readResource({ uri: "test://note" })).contents[0].text, "A note.");
    assert.equal((await client.getPrompt({ name: "question", arguments: { topic: "life" } })).messages[0].content.text, "What is life?");
  });
  await it("progress of 12 calls at once", async () => {
    await Promise.all(Array.from({ length: 12 }, async (_, i) => {
      const steps = [];
      const onprogress = ({ progress, total }) => steps.push([progress, total]);
      const result = await client.callTool({ name: "count", arguments: { steps: i + 1, delay: 0.01 } }, { onprogress });
      assert.equal(text(result), `counted to ${i + 1}`);
      assert.deepEqual(steps, Array.from({ length: i + 1 }, (_, step) => [step + 1, i + 1]));
    }));
  });
  await it("cancel", async () => {
    const times = async () => Number(text(await client.callTool({ name: "times_cancelled", arguments: {} })));
    const before = await times();
    const abort = new AbortController();
    const options = { signal: abort.signal, onprogress: () => abort.abort("enough") };
    await assert.rejects(client.callTool({ name: "count", arguments: { steps: 2000, delay: 0.02 } }, options));
    await until("the server noticed", async () => (await times()) === before + 1);
  });
  await it("elicitation", async () => {
    assert.equal(text(await client.callTool({ name: "greet", arguments: {} })), "Hello, Ada!");
  });
  await it("listen", async () => {
    const subscription = await client.listen({ toolsListChanged: true, resourceSubscriptions: ["test://note"] });
    await client.callTool({ name: "touch", arguments: {} });
    await until("both events", () => seen["tools/list_changed"] && seen["resources/updated"]);
    assert.equal(seen["resources/updated"][0].uri, "test://note");
    await subscription.close();
    assert.equal(text(await client.callTool({ name: "touch", arguments: {} })), "touched");
  });
  await it("a pinned version", async () => {
    const { client: pinned } = await sdk_2(url, { pin: "2026-07-28" });
    assert.equal(text(await pinned.callTool({ name: "add", arguments: { a: 1, b: 1 } })), "2");
    await pinned.close();
  });
  await client.close();
}

/** `calls` checks the results of `run(METHOD, OPTIONS...)`. */
async function inspector(title, url, calls) {
  const launcher = path.join(TOOLS, "inspector/node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js");
  const env = { ...process.env, HOME: folder, MCP_CATALOG_PATH: path.join(folder, "catalog.json") };
  const run = async (...args) => {
    const { stdout } = await promisify(execFile)(NODE22, [launcher, "--cli", url, "--transport", "http", "--method", ...args], { env });
    return JSON.parse(stdout);
  };
  // Each run starts the Inspector again.
  await check(title, () => calls(run), 60);
}

const started = await everything();
const { url } = started;
await with_everything("SDK 1.32", () => sdk_1(url));
await with_everything("SDK 2.4, legacy", () => sdk_2(url, "legacy"));
await with_everything("SDK 2.4, auto with an older server", () => sdk_2(url, "auto"));
if (MODE === "outrigger") await with_websocket("SDK 1.32 over WebSocket");
await inspector("Inspector", url, async (run) => {
  assert.ok((await run("tools/list")).tools.some(({ name }) => name === "echo"));
  assert.equal(text(await run("tools/call", "--tool-name", "echo", "--tool-arg", "message=hi")), "Echo: hi");
  assert.ok((await run("resources/list")).resources.length > 0);
  assert.ok((await run("prompts/list")).prompts.length > 0);
});
await started.stop();

const plain = await conformance();
await sessions(plain.url, "sessions", MODE === "outrigger");
if (MODE === "outrigger") {
  await with_cuts("SDK 1.32 with connections that are cut", plain.url, sdk_1);
  await with_cuts("SDK 2.4 with connections that are cut", plain.url, (url) => sdk_2(url, "legacy"));
}
await plain.stop();

if (MODE === "outrigger") {
  const files = await filesystem();
  await with_filesystem("SDK 1.32 with server-filesystem", () => sdk_1(files.url));
  await with_filesystem("SDK 2.4 with server-filesystem", () => sdk_2(files.url, "auto"));
  await files.stop();

  const old = await outrigger([process.execPath, path.join(HERE, "server_2024.mjs")]);
  await with_2024("SDK 1.32 with a server of revision 2024-11-05", () => sdk_1(old.url));
  await with_2024("SDK 2.4 with a server of revision 2024-11-05", () => sdk_2(old.url, "auto"));
  await old.stop();
}

for (const [name, command] of [
  ["TypeScript", [process.execPath, path.join(HERE, "server_2026.mjs")]],
  ["Python", [PYTHON, path.join(HERE, "server_2026.py")]],
]) {
  const modern = await server_2026(command);
  await with_2026(`SDK 2.4, 2026-07-28, ${name} server`, modern.url);
  await inspector(`Inspector, 2026-07-28, ${name} server`, modern.url, async (run) => {
    const era = ["--protocol-era", "modern"];
    assert.ok((await run("tools/list", ...era)).tools.some(({ name }) => name === "route"));
    const args = ["--tool-name", "route", "--tool-arg", "region=eu", "--tool-arg", "text=hi"];
    assert.equal(text(await run("tools/call", ...args, ...era)), "eu: hi");
  });
  await modern.stop();
}
if (MODE === "outrigger") {
  const command = (name) => [process.execPath, path.join(HERE, name)];
  const config = path.join(folder, "serve.json");
  const routes = { "/new": { mcp: { command: command("server_2026.mjs") } }, "/plain": { mcp: { command: command("conformance_server.mjs") } } };
  writeFileSync(config, JSON.stringify({ listen: ["127.0.0.1:0"], "no-auth": true, log: "warn", routes }));
  const both = await program(process.env.OUTRIGGER ?? "outrigger", ["serve", "--config", config]);
  await check("two servers of `outrigger serve`", async () => {
    const clients = await Promise.all(["/new", "/plain"].map((route) => sdk_2(new URL(route, both.url).href, "auto")));
    assert.deepEqual(clients.map(({ client }) => client.getNegotiatedProtocolVersion()), ["2026-07-28", "2025-11-25"]);
    for (const { client } of clients) {
      assert.equal(text(await client.callTool({ name: "count", arguments: { steps: 2, delay: 0.01 } })), "counted to 2");
      await client.close();
    }
  });
  assert.equal(await both.stop(), 0);
}
rmSync(folder, { recursive: true });
finish("clients.mjs");

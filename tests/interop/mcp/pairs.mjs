// Every client revision in front of every generation of servers, behind `outrigger mcp --share principal`: what works.
//
// usage: node pairs.mjs [--quick] [--write]
//        --quick   three client revisions and two servers
//        --write   writes the table in docs/mcp.md; not with --quick
// env:   OUTRIGGER, TOOLS (see packages.mjs), PYTHON=TOOLS/mcp/bin/python, ONLY=words of the titles to run, VERBOSE
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import os from "node:os";
import path from "node:path";

import { check, failures, finish } from "./checks.mjs";
import { HERE, TOOLS, load } from "./packages.mjs";
import { pause, program } from "./server.mjs";

const QUICK = process.argv.includes("--quick");
const WRITE = process.argv.includes("--write");
const PYTHON = process.env.PYTHON ?? path.join(TOOLS, "mcp/bin/python");
const DOCS = path.resolve(HERE, "../../../docs/mcp.md");
const folder = mkdtempSync(path.join(os.tmpdir(), "mcp-pairs-"));
const token_file = path.join(folder, "tokens");
const TOKEN = "0123456789abcdef0123456789abcdef";
writeFileSync(token_file, `ada all ${TOKEN}\n`, { mode: 0o600 });
const requestInit = { headers: { Authorization: `Bearer ${TOKEN}` } };
const until = async (test) => {
  while (!(await test())) await pause(20);
};

const NEWEST = "2026-07-28";
const node = (file) => [process.execPath, path.join(HERE, file)];
const SERVERS = [
  { name: "TypeScript SDK 1", generation: "older", command: node("server_2025.mjs"), quick: true },
  { name: "TypeScript SDK 2, 2026-07-28 only", generation: NEWEST, command: [...node("only_2026.mjs"), ...node("server_2026.mjs")], quick: true },
  { name: "TypeScript SDK 2, both", generation: "both", command: node("server_2026.mjs") },
  { name: "Python SDK 2, 2026-07-28 only", generation: NEWEST, command: [...node("only_2026.mjs"), PYTHON, path.join(HERE, "server_2026.py")] },
  // This SDK tells only subscribers of 2026-07-28 what has changed.
  { name: "Python SDK 2, both", generation: "both", command: [PYTHON, path.join(HERE, "server_2026.py")], tells: NEWEST },
];
const CLIENTS = [
  { name: "TypeScript SDK 2", revision: NEWEST, connect: sdk_2, quick: true },
  { name: "TypeScript SDK 2", revision: "2025-11-25", connect: sdk_2 },
  { name: "TypeScript SDK 1", revision: "2025-11-25", connect: sdk_1, quick: true },
  { name: "TypeScript SDK 1", revision: "2025-06-18", connect: sdk_1 },
  { name: "TypeScript SDK 1", revision: "2025-03-26", connect: sdk_1, quick: true },
];

/** Lets a client ask for another revision of those that it knows. */
function asking(transport, revision) {
  const send = transport.send.bind(transport);
  transport.send = (message, options) => {
    if (message.method !== "initialize") return send(message, options);
    return send({ ...message, params: { ...message.params, protocolVersion: revision } }, options);
  };
  return transport;
}

const capabilities = { elicitation: {} };
const elicited = async () => ({ action: "accept", content: { name: "Ada" } });

async function sdk_1(url, revision) {
  const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
  const { StreamableHTTPClientTransport } = await load("@modelcontextprotocol/sdk/client/streamableHttp.js");
  const types = await load("@modelcontextprotocol/sdk/types.js");
  const client = new Client({ name: "pairs-1", version: "1" }, { capabilities });
  const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit });
  const seen = {};
  client.setRequestHandler(types.ElicitRequestSchema, elicited);
  client.setNotificationHandler(types.ToolListChangedNotificationSchema, () => (seen.tools = true));
  client.setNotificationHandler(types.ResourceUpdatedNotificationSchema, ({ params }) => (seen.resource = params.uri));
  await client.connect(asking(transport, revision));
  return {
    client, seen,
    version: transport.protocolVersion,
    call: (name, values = {}, options) => client.callTool({ name, arguments: values }, undefined, options),
    listen: async () => {
      await client.subscribeResource({ uri: "test://note" });
      return () => client.unsubscribeResource({ uri: "test://note" });
    },
    close: async () => {
      await transport.terminateSession();
      await client.close();
    },
  };
}

async function sdk_2(url, revision) {
  const { Client, StreamableHTTPClientTransport } = await load("@modelcontextprotocol/client");
  const mode = revision === NEWEST ? { pin: NEWEST } : "legacy";
  const client = new Client({ name: "pairs-2", version: "1" }, { capabilities, versionNegotiation: { mode } });
  const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit });
  const seen = {};
  client.setRequestHandler("elicitation/create", elicited);
  client.setNotificationHandler("notifications/tools/list_changed", () => (seen.tools = true));
  client.setNotificationHandler("notifications/resources/updated", ({ params }) => (seen.resource = params.uri));
  await client.connect(transport);
  return {
    client, seen,
    version: client.getNegotiatedProtocolVersion(),
    call: (name, values = {}, options) => client.callTool({ name, arguments: values }, options),
    listen: async () => {
      if (revision === NEWEST) {
        const subscription = await client.listen({ toolsListChanged: true, resourceSubscriptions: ["test://note"] });
        return () => subscription.close();
      }
      await client.subscribeResource({ uri: "test://note" });
      return () => client.unsubscribeResource({ uri: "test://note" });
    },
    close: async () => {
      if (revision !== NEWEST) await transport.terminateSession();
      await client.close();
    },
  };
}

const text = (result) => result.content[0].text;

/** title: a test of a connected client. */
const FEATURES = {
  "tools": async ({ client, call }) => {
    assert.ok((await client.listTools()).tools.some(({ name }) => name === "add"));
    assert.equal(text(await call("add", { a: 2, b: 3 })), "5");
    assert.equal((await call("fail")).isError, true);
  },
  "resources": async ({ client }) => {
    assert.equal((await client.readResource({ uri: "test://note" })).contents[0].text, "A note.");
    await assert.rejects(client.readResource({ uri: "test://nothing" }));
  },
  "prompts": async ({ client }) => {
    const { messages } = await client.getPrompt({ name: "question", arguments: { topic: "life" } });
    assert.equal(messages[0].content.text, "What is life?");
  },
  "progress": async ({ call }) => {
    await Promise.all([1, 2, 3, 4].map(async (steps) => {
      const seen = [];
      const onprogress = ({ progress }) => seen.push(progress);
      assert.equal(text(await call("count", { steps, delay: 0.02 }, { onprogress })), `counted to ${steps}`);
      assert.deepEqual(seen, Array.from({ length: steps }, (_, step) => step + 1));
    }));
  },
  "cancellation": async ({ call }) => {
    const times = async () => Number(text(await call("times_cancelled")));
    const before = await times();
    const abort = new AbortController();
    const options = { signal: abort.signal, onprogress: () => abort.abort("enough") };
    await assert.rejects(call("count", { steps: 2000, delay: 0.02 }, options));
    await until(async () => (await times()) === before + 1);
  },
  "elicitation": async ({ call }) => {
    const answers = await Promise.all([call("greet"), call("greet")]);
    answers.forEach((answer) => assert.equal(text(answer), "Hello, Ada!"));
  },
  "changes": async ({ call, listen, seen, version }, { generation, tells = version }) => {
    if (tells !== version) return;
    // For clients of older revisions, the SDKs of 2026-07-28 answer `resources/subscribe` with -32601.
    const subscribes = version === NEWEST || generation !== "both";
    const end = subscribes && await listen();
    await until(async () => {
      await call("touch");
      return seen.tools && (!subscribes || seen.resource === "test://note");
    });
    if (end) await end();
    assert.equal(text(await call("touch")), "touched");
  },
};

/** The features that failed, by client revision and server generation. */
const failed = {};

async function pair(client, server, url) {
  const title = `${client.revision}, ${client.name}, in front of ${server.name}`;
  const cell = (failed[`${client.revision} ${server.generation}`] ??= new Set());
  const it = async (feature, test) => {
    const before = failures();
    await check(`${title}: ${feature}`, test);
    if (failures() > before) cell.add(feature);
    return failures() === before;
  };
  let connected;
  const is_connected = await it("connection", async () => {
    connected = await client.connect(url, client.revision);
    assert.equal(connected.version, client.revision);
  });
  for (const [feature, test] of Object.entries(FEATURES)) {
    if (is_connected && connected) await it(feature, () => test(connected, server));
    else cell.add(feature);
  }
  await connected?.close();
}

/** The table of docs/mcp.md. */
function table() {
  const generations = { [NEWEST]: "only 2026-07-28", both: "both", older: "up to 2025-11-25" };
  const features = ["connection", ...Object.keys(FEATURES)];
  const row = (cells) => `| ${cells.join(" | ")} |`;
  const lines = [row(["client", "server", ...features]), `|${"---|".repeat(features.length + 2)}`];
  for (const revision of new Set(CLIENTS.map(({ revision }) => revision))) {
    for (const [generation, what] of Object.entries(generations)) {
      const is_translated = generation !== "both" && (revision === NEWEST) !== (generation === NEWEST);
      const result = (feature) => (failed[`${revision} ${generation}`].has(feature) ? "no" : is_translated ? "translated" : "yes");
      lines.push(row([revision, what, ...features.map(result)]));
    }
  }
  return lines.join("\n");
}

for (const server of SERVERS.filter(({ quick }) => quick || !QUICK)) {
  const options = ["mcp", "--listen", "127.0.0.1:0", "--token-file", token_file, "--log", "error", "--share", "principal"];
  const started = await program(process.env.OUTRIGGER ?? "outrigger", [...options, "--", ...server.command]);
  for (const client of CLIENTS.filter(({ quick }) => quick || !QUICK)) await pair(client, server, started.url);
  assert.equal(await started.stop(), 0);
}
rmSync(folder, { recursive: true });
if (WRITE && !QUICK && !process.env.ONLY) {
  const [before, , after] = readFileSync(DOCS, "utf8").split(/^<!-- pairs.*-->$/m);
  assert.ok(after !== undefined, "docs/mcp.md has no place for the table");
  const mark = "<!-- pairs: made by tests/interop/mcp/pairs.mjs --write -->";
  writeFileSync(DOCS, `${before}${mark}\n${table()}\n<!-- pairs -->${after}`);
}
finish("pairs.mjs");

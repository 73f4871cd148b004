// A client that behaves as Claude Code's, in front of an editor's plugin that runs `outrigger app`: it finds the lock file in the
// home directory, checks the editor's process, and speaks MCP over a WebSocket with the subprotocol `mcp` and a header of its own.
// npm ws, which such clients use, fails if the server does not accept the subprotocol.
//
// env: OUTRIGGER, TOOLS
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { on, once } from "node:events";
import fs from "node:fs";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";
import readline from "node:readline";

const { WebSocket } = createRequire(process.env.TOOLS + "/")("ws");
const HEADER = "x-claude-code-ide-authorization";
const home = fs.mkdtempSync(path.join(os.tmpdir(), "outrigger-editor-"));

/** The plugin: one tool answers at once, the other when the user has decided. */
function plugin() {
  const extra = JSON.stringify({ ideName: "Test", workspaceFolders: [process.cwd()] });
  const sidecar = spawn(process.env.OUTRIGGER, ["app", "--port-range", "10000-65535", "--announce", "~/.claude/ide/{port}.lock",
    "--announce-extra", extra, "--token-header", HEADER, "--subprotocol", "mcp", "--log", "warn"],
    { stdio: ["pipe", "pipe", "inherit"], env: { ...process.env, HOME: home } });
  process.on("exit", () => sidecar.kill());
  const command = (fields) => sidecar.stdin.write(JSON.stringify(fields) + "\n");
  const events = [];
  const diffs = [];
  const tools = [
    { name: "openFile", inputSchema: { type: "object", properties: { filePath: { type: "string" } } } },
    { name: "openDiff", inputSchema: { type: "object", properties: { tab_name: { type: "string" } } } },
  ];
  const text = (text) => ({ content: [{ type: "text", text }] });
  const answers = {
    initialize: ({ protocolVersion }) => ({ protocolVersion, capabilities: { tools: { listChanged: true } }, serverInfo: { name: "test", version: "1" } }),
    ping: () => ({}),
    "prompts/list": () => ({ prompts: [] }),
    "tools/list": () => ({ tools }),
  };
  let listening;
  const ready = new Promise((resolve) => { listening = resolve; });
  readline.createInterface(sidecar.stdout).on("line", (line) => {
    const event = JSON.parse(line);
    events.push(event);
    if (event.event === "listening") listening();
    if (event.event !== "message") return;
    const { id, method, params } = JSON.parse(event.text);
    const send = (result) => command({ cmd: "send", client: event.client, text: JSON.stringify({ jsonrpc: "2.0", id, result }) });
    if (id === undefined) return;
    if (method !== "tools/call") send(answers[method](params ?? {}));
    else if (params.name === "openFile") send(text(`Opened file: ${params.arguments.filePath}`));
    else diffs.push({ ...params.arguments, decide: (decision) => send(text(decision)) });
  });
  const notify = (method, params) => command({ cmd: "broadcast", text: JSON.stringify({ jsonrpc: "2.0", method, params }) });
  return { ready, events, diffs, notify, sidecar };
}

async function until(what, isTrue) {
  for (let deadline = Date.now() + 30_000; !isTrue();) {
    assert.ok(Date.now() < deadline, what);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Finds the editor as the client does, and connects. */
async function connect() {
  const folder = path.join(home, ".claude", "ide");
  assert.equal(fs.statSync(folder).mode & 0o777, 0o700);
  const [name] = fs.readdirSync(folder).filter((name) => name.endsWith(".lock"));
  const lock = JSON.parse(fs.readFileSync(path.join(folder, name), "utf8"));
  process.kill(lock.pid, 0);
  assert.equal(lock.pid, process.pid, "the editor's own process");
  assert.equal(lock.transport, "ws");
  assert.ok(lock.authToken.length >= 10 && lock.authToken.length <= 500);
  assert.ok(lock.workspaceFolders.includes(process.cwd()) && lock.ideName);
  const url = `ws://127.0.0.1:${parseInt(name, 10)}`;
  const socket = new WebSocket(url, ["mcp"], { headers: { "X-Claude-Code-Ide-Authorization": lock.authToken } });
  const messages = on(socket, "message");
  await once(socket, "open");
  let ids = 0;
  const notifications = [];
  const send = (message) => socket.send(JSON.stringify({ jsonrpc: "2.0", ...message }));
  const waiting = new Map();
  (async () => {
    for await (const [data] of messages) {
      const message = JSON.parse(data);
      if (message.id === undefined) notifications.push(message);
      else waiting.get(message.id)(message.result);
    }
  })();
  const call = (method, params) => new Promise((resolve) => {
    const id = ids++;
    waiting.set(id, resolve);
    send({ id, method, params });
  });
  return { socket, send, call, notifications, url, folder };
}

const editor = plugin();
await editor.ready;
const client = await connect();
const clientInfo = { name: "claude-code", version: "2.0" };
const hello = await client.call("initialize", { protocolVersion: "2025-03-26", capabilities: { roots: {} }, clientInfo });
assert.equal(hello.protocolVersion, "2025-03-26");
client.send({ method: "notifications/initialized" });
client.send({ method: "ide_connected", params: { pid: process.pid } });
const { tools } = await client.call("tools/list", {});
assert.deepEqual(tools.map(({ name }) => name), ["openFile", "openDiff"]);
// A diff waits for the user, while other calls are answered.
const contents = "x".repeat(300_000);
const args = { old_file_path: "/a", new_file_path: "/a", new_file_contents: contents, tab_name: "a" };
const decision = client.call("tools/call", { name: "openDiff", arguments: args });
await until("the diff is open", () => editor.diffs.length === 1);
assert.equal(editor.diffs[0].new_file_contents, contents);
const opened = await client.call("tools/call", { name: "openFile", arguments: { filePath: "/b" } });
assert.equal(opened.content[0].text, "Opened file: /b");
editor.notify("selection_changed", { text: "t", filePath: "/b" });
await until("the selection arrives", () => client.notifications.some(({ method }) => method === "selection_changed"));
editor.diffs[0].decide("FILE_SAVED");
assert.equal((await decision).content[0].text, "FILE_SAVED");

// Others are refused.
for (const headers of [{}, { "X-Claude-Code-Ide-Authorization": "wrong-token-wrong-token" }]) {
  const stranger = new WebSocket(client.url, ["mcp"], { headers });
  const [error] = await once(stranger, "error");
  assert.match(error.message, /401/);
}

// The editor closes.
editor.sidecar.stdin.end();
const [code] = await once(client.socket, "close");
assert.equal(code, 1001);
const [status] = editor.sidecar.exitCode === null ? await once(editor.sidecar, "exit") : [editor.sidecar.exitCode];
assert.equal(status, 0);
assert.deepEqual(fs.readdirSync(client.folder), []);
const kinds = editor.events.map(({ event }) => event);
assert.equal(kinds.filter((kind) => kind === "connect").length, 1);
fs.rmSync(home, { recursive: true });
console.log("  a client like Claude Code's, in front of an editor ok");

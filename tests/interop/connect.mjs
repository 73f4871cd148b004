// An editor's end of the Agent Client Protocol, written with the SDK, that starts `outrigger connect` as if it were the agent. The
// agent runs behind `outrigger agent`, the connection between them is cut 200 times at random points, and the server replaces its program
// in the middle of turns.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createRequire } from "node:module";
import { Readable, Writable } from "node:stream";
import { fileURLToPath, pathToFileURL } from "node:url";

const require = createRequire(process.env.TOOLS + "/");
const here = createRequire(import.meta.url);
const { start } = here("./server.js");
const { cutter, random, seed } = here("./cutter.js");
const acp = await import(pathToFileURL(require.resolve("@agentclientprotocol/sdk")));

const CUTS = 200;
console.log(`  seed ${seed}`);

const server = await start("agent", "--", "node", fileURLToPath(new URL("acp_agent.mjs", import.meta.url)));
const proxy = await cutter(new URL(server.url).port, { cuts: CUTS, bytes: 6000 });
const url = new URL(server.url);
url.port = proxy.port;
const editor = spawn(process.env.OUTRIGGER, ["connect", String(url), "--log", "error"], { stdio: ["pipe", "pipe", "pipe"] });
const exited = once(editor, "exit");
let said = "";
editor.stderr.on("data", (data) => { said += data; });

const updates = [];
let asked = 0;
const { agent } = acp.client({ name: "editor" })
  .onNotification(acp.methods.client.session.update, ({ params: { update } }) => { updates.push(update.content.text); })
  .onRequest(acp.methods.client.session.requestPermission, ({ params: { options } }) => {
    asked++;
    return { outcome: { outcome: "selected", optionId: options[0].optionId } };
  })
  .onRequest(acp.methods.client.fs.readTextFile, ({ params: { path } }) => ({ content: `content ${asked} of ${path}` }))
  .connect(acp.ndJsonStream(Writable.toWeb(editor.stdin), Readable.toWeb(editor.stdout)));
await agent.request(acp.methods.agent.initialize, { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: { fs: { readTextFile: true } } });
const { sessionId } = await agent.request(acp.methods.agent.session.new, { cwd: "/", mcpServers: [] });
const expected = [];
let rounds = 0;
while (proxy.cuts() < CUTS) {
  const text = `${rounds++} ${"x".repeat(random(2000))}`;
  const turn = agent.request(acp.methods.agent.session.prompt, { sessionId, prompt: [{ type: "text", text }] });
  if (rounds % 10 === 0) process.kill(server.pid, "SIGUSR2");
  const { stopReason } = await turn;
  assert.equal(stopReason, "end_turn");
  expected.push(text, `content ${rounds} of /file`);
  assert.equal(asked, rounds);
}
assert.deepEqual(updates, expected);
const headers = { Authorization: `Bearer ${url.searchParams.get("token")}` };
const metrics = await (await fetch(new URL("/metrics", server.url.replace("ws", "http")), { headers })).text();
const upgrades = Number(metrics.match(/^outrigger_upgrades_total\S* (\d+)$/m)[1]);
assert.ok(upgrades > 0);
editor.stdin.end();
const [code] = await exited;
assert.equal(code, 0, said);
assert.equal(said, "");
proxy.stop();
await server.stop();
console.log(`  the SDK's editor through connect: ${rounds} turns, ${proxy.cuts()} cuts, ${upgrades} upgrades, every update once and in order ok`);

// An editor's end of the Agent Client Protocol, written with the SDK, that starts `outrigger connect` as if it were the agent. The
// agent runs behind `outrigger agent`, and the connection between them is cut 200 times at random points.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createRequire } from "node:module";
import net from "node:net";
import { Readable, Writable } from "node:stream";
import { fileURLToPath, pathToFileURL } from "node:url";

const require = createRequire(process.env.TOOLS + "/");
const { start } = createRequire(import.meta.url)("./server.js");
const acp = await import(pathToFileURL(require.resolve("@agentclientprotocol/sdk")));

const CUTS = 200;
let seed = Number(process.env.SEED ?? Date.now() % 100000);
console.log(`  seed ${seed}`);
const random = (below) => {
  seed = (seed * 1103515245 + 12345) % 2147483648;
  return Math.floor((seed / 2147483648) * below);
};

/** A proxy that cuts each connection after a random number of bytes, in a random way. */
function cutter(port) {
  let cuts = 0;
  const server = net.createServer((client) => {
    const upstream = net.connect(port, "127.0.0.1");
    let left = cuts < CUTS ? 200 + random(6000) : Infinity;
    const resets = random(2) === 0;
    const cut = () => {
      for (const socket of [client, upstream]) resets ? socket.resetAndDestroy() : socket.destroy();
    };
    for (const [from, to] of [[client, upstream], [upstream, client]]) {
      from.on("data", (data) => {
        to.write(data.subarray(0, left));
        if (data.length < left) {
          left -= data.length;
        } else if (left > 0) {
          left = 0;
          cuts++;
          // The bytes before the cut still arrive, if the ways of the network allow it.
          random(2) === 0 ? cut() : setImmediate(cut);
        }
      });
      from.on("error", () => {});
      from.on("close", () => to.destroy());
    }
  });
  server.listen(0, "127.0.0.1");
  return { server, cuts: () => cuts };
}

const server = await start("agent", "--", "node", fileURLToPath(new URL("acp_agent.mjs", import.meta.url)));
const proxy = cutter(new URL(server.url).port);
await once(proxy.server, "listening");
const url = new URL(server.url);
url.port = proxy.server.address().port;
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
  const { stopReason } = await agent.request(acp.methods.agent.session.prompt, { sessionId, prompt: [{ type: "text", text }] });
  assert.equal(stopReason, "end_turn");
  expected.push(text, `content ${rounds} of /file`);
  assert.equal(asked, rounds);
}
assert.deepEqual(updates, expected);
editor.stdin.end();
const [code] = await exited;
assert.equal(code, 0, said);
assert.equal(said, "");
proxy.server.close();
await server.stop();
console.log(`  the SDK's editor through connect: ${rounds} turns, ${proxy.cuts()} cuts, every update once and in order ok`);

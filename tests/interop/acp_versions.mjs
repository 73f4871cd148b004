// Clients of both versions of the Agent Client Protocol at once, written with its SDK, behind one server with an agent that
// speaks both.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createRequire } from "node:module";
import { fileURLToPath, pathToFileURL } from "node:url";

const require = createRequire(process.env.TOOLS + "/");
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { start } = createRequire(import.meta.url)("./server.js");
const acp1 = await load("@agentclientprotocol/sdk");
const acp2 = await load("@agentclientprotocol/sdk/experimental/v2");
const { createWebSocketStream } = await load("@agentclientprotocol/sdk/experimental/ws-client");
const { WebSocket } = require("ws");

const program = fileURLToPath(new URL("acp_both_agent.mjs", import.meta.url));
const server = await start("agent", "--no-auth", "--unknown-sessions", "deny", "--", "node", program);
const status = async () => (await fetch(server.url.replace(/^ws(.*)\/acp$/, "http$1/status"))).json();

/** A client of version 1. `updates` are the texts it was sent. */
async function one(name) {
  const updates = [];
  const { agent } = acp1.client({ name })
    .onNotification(acp1.methods.client.session.update, ({ params: { update } }) => updates.push(update.content?.text))
    .connect(createWebSocketStream(server.url, { WebSocket }));
  const answer = await agent.request(acp1.methods.agent.initialize, { protocolVersion: 1, clientCapabilities: {} });
  assert.equal(answer.protocolVersion, 1);
  assert.equal(answer._meta.outrigger.takeover, true);
  const prompt = async (sessionId, text) => {
    const { stopReason } = await agent.request(acp1.methods.agent.session.prompt, { sessionId, prompt: [{ type: "text", text }] });
    assert.equal(stopReason, "end_turn");
  };
  return { agent, updates, prompt };
}

/** A client of version 2. `updates` are its updates; `idle` waits for the end of the turn. */
async function two(name) {
  const updates = [];
  const waiting = [];
  const connection = acp2.client({ name })
    .onNotification(acp2.methods.client.session.update, ({ params: { update } }) => {
      updates.push(update);
      if (update.sessionUpdate === "state_update") {
        waiting.filter(({ state }) => state === update.state).forEach(({ resolve }) => resolve(update));
      }
    })
    .onRequest(acp2.methods.client.session.requestPermission, ({ params: { options } }) => (
      { outcome: { outcome: "selected", optionId: options[0].optionId } }))
    .connect(createWebSocketStream(server.url, { WebSocket }));
  const { agent } = connection;
  const hello = { protocolVersion: 2, info: { name, version: "1" }, capabilities: {} };
  const answer = await agent.request(acp2.methods.agent.initialize, hello);
  assert.equal(answer.protocolVersion, 2);
  const reaches = (state) => new Promise((resolve) => waiting.push({ state, resolve }));
  const prompt = async (sessionId, text) => {
    const idle = reaches("idle");
    const { messageId } = await agent.request(acp2.methods.agent.session.prompt, { sessionId, prompt: [{ type: "text", text }] });
    assert.ok(messageId);
    return idle;
  };
  return { agent, updates, prompt, reaches, connection };
}

const [ann, bob, cy, dora] = await Promise.all([one("ann"), two("bob"), one("cy"), two("dora")]);
const opened = [ann, bob, cy, dora].map(({ agent }) => agent.request("session/new", { cwd: "/", mcpServers: [] }));
const [a, b, c, d] = (await Promise.all(opened)).map(({ sessionId }) => sessionId);
await Promise.all([[ann, a], [cy, c]].map(async ([client, session]) => {
  for (let round = 0; round < 20; round++) await client.prompt(session, `${round}`);
  assert.deepEqual(client.updates, Array.from({ length: 20 }, (_, round) => `v1 ${round}`));
}).concat([[bob, b], [dora, d]].map(async ([client, session]) => {
  for (let round = 0; round < 20; round++) {
    const { stopReason } = await client.prompt(session, `${round}`);
    assert.equal(stopReason, "end_turn");
  }
  const texts = client.updates.filter((update) => update.sessionUpdate === "agent_message_chunk");
  assert.deepEqual(texts.map(({ content }) => content.text), Array.from({ length: 20 }, (_, round) => `v2 ${round}`));
  const states = client.updates.filter((update) => update.sessionUpdate === "state_update").map(({ state }) => state);
  assert.deepEqual(states, Array(20).fill(["running", "requires_action", "idle"]).flat());
})));
const { agent } = await status();
assert.deepEqual(agent.processes.map(({ version, clients }) => [version, clients]).sort(), [[1, 2], [2, 2]]);
console.log("  clients of versions 1 and 2 at once ok");

// A client of version 2 continues its session, with its history, on a new connection.
const token = (await bob.agent.request("session/new", { cwd: "/" }));
const resumeToken = token._meta.outrigger.resumeToken;
const running = bob.reaches("running");
bob.prompt(token.sessionId, "wait");
await running;
const eve = await two("eve");
const take = { sessionId: token.sessionId, cwd: "/", replayFrom: { type: "start" }, _meta: { outrigger: { resumeToken, takeover: true } } };
const goesOn = eve.reaches("running");
await eve.agent.request(acp2.methods.agent.session.resume, take);
await goesOn;
assert.deepEqual(eve.updates.map(({ sessionUpdate, state }) => state ?? sessionUpdate), ["agent_message", "running"]);
const idle = eve.reaches("idle");
await eve.agent.notify(acp2.methods.agent.session.cancel, { sessionId: token.sessionId });
assert.equal((await idle).stopReason, "cancelled");
console.log("  a session of version 2 is taken over with its turn ok");

// The processes of a version that nobody uses end. The last one stays.
for (const { connection } of [bob, dora, eve]) connection.close();
for (let tries = 0; ; tries++) {
  const { agent: { processes } } = await status();
  if (processes.length === 2 && processes.some(({ clients }) => clients === 0)) break;
  assert.ok(tries < 100, JSON.stringify(processes));
  await new Promise((resolve) => setTimeout(resolve, 50));
}
await ann.prompt(a, "still here");
await server.stop();
console.log("  version 1 goes on without version 2 ok");

// Another client of the SDK approves for the client of the session, whose user does not answer. The SDK reports the update
// `permission_resolved`, which it does not know, and goes on.
console.error = () => {};
const shared = await start("agent", "--no-auth", "--approvals", "any", "--", "node",
  fileURLToPath(new URL("acp_agent.mjs", import.meta.url)));
async function attachable(name, onPermission) {
  const updates = [];
  const { agent } = acp1.client({ name })
    .onNotification(acp1.methods.client.session.update, ({ params: { update } }) => updates.push(update))
    .onRequest(acp1.methods.client.session.requestPermission, onPermission)
    .onRequest(acp1.methods.client.fs.readTextFile, () => ({ content: "text" }))
    .connect(createWebSocketStream(shared.url, { WebSocket }));
  const clientCapabilities = { fs: { readTextFile: true } };
  await agent.request(acp1.methods.agent.initialize, { protocolVersion: 1, clientCapabilities, clientInfo: { name, version: "1" } });
  return { agent, updates };
}
const owner = await attachable("owner", () => new Promise(() => {}));
const phone = await attachable("phone", ({ params: { options } }) => (
  { outcome: { outcome: "selected", optionId: options[0].optionId } }));
const { sessionId, _meta: { outrigger: { watchToken } } } = await owner.agent.request("session/new", { cwd: "/", mcpServers: [] });
const attached = await phone.agent.request("session/attach", { sessionId, _meta: { outrigger: { watchToken } } });
const [{ clientId, ...controller }] = attached.connectedClients;
assert.equal(typeof clientId, "string");
assert.deepEqual(controller, { name: "owner", version: "1", role: "controller" });
for (let round = 0; round < 10; round++) {
  const prompt = [{ type: "text", text: `${round}` }];
  const { stopReason } = await owner.agent.request("session/prompt", { sessionId, prompt });
  assert.equal(stopReason, "end_turn");
}
const said = (updates) => updates.filter((update) => update.sessionUpdate === "agent_message_chunk").map(({ content }) => content.text);
// The observer's updates come on a connection of its own, so the last one may come after the owner's answer.
for (const deadline = Date.now() + 30000; said(phone.updates).length < 20 && Date.now() < deadline;) {
  await new Promise((resolve) => setTimeout(resolve, 5));
}
assert.deepEqual(said(owner.updates), Array.from({ length: 10 }, (_, round) => [`${round}`, "text"]).flat());
assert.deepEqual(said(phone.updates), said(owner.updates));
await shared.stop();
console.log("  an observer approves for the client ok");

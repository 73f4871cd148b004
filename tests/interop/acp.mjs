// The SDK of the Agent Client Protocol on both ends: its WebSocket stream as the client, and an agent written with it behind
// `outrigger agent`. Then an MCP server for each connection, behind `outrigger pipe`.
import assert from "node:assert/strict";
import { on, once } from "node:events";
import { createRequire } from "node:module";
import { fileURLToPath, pathToFileURL } from "node:url";

const require = createRequire(process.env.TOOLS + "/");
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { start } = createRequire(import.meta.url)("./server.js");
const acp = await load("@agentclientprotocol/sdk");
const { createWebSocketStream } = await load("@agentclientprotocol/sdk/experimental/ws-client");
const { WebSocket } = require("ws");

const program = fileURLToPath(new URL("acp_agent.mjs", import.meta.url));
const server = await start("agent", "--", "node", program);

/** A client of the SDK; `updates` are the texts it was sent. */
async function connect(name, capabilities = {}) {
  const stream = createWebSocketStream(server.url, { WebSocket });
  const updates = [];
  const asked = [];
  const { agent } = acp.client({ name })
    .onNotification(acp.methods.client.session.update, ({ params: { sessionId, update } }) => {
      updates.push([sessionId, update.content?.text]);
    })
    .onRequest(acp.methods.client.session.requestPermission, ({ params: { options } }) => {
      asked.push(name);
      return { outcome: { outcome: "selected", optionId: options[0].optionId } };
    })
    .onRequest(acp.methods.client.fs.readTextFile, ({ params: { path } }) => ({ content: `${name} has ${path}` }))
    .connect(stream);
  const hello = { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: capabilities };
  const answer = await agent.request(acp.methods.agent.initialize, hello);
  assert.equal(answer.protocolVersion, acp.PROTOCOL_VERSION);
  return { agent, updates, asked };
}

const clients = await Promise.all(["ann", "bob", "cy"].map((name) => connect(name, { fs: { readTextFile: true } })));
const sessions = await Promise.all(clients.map(({ agent }) => agent.request(acp.methods.agent.session.new, { cwd: "/", mcpServers: [] })));
assert.equal(new Set(sessions.map(({ sessionId }) => sessionId)).size, 3);
await Promise.all(clients.map(async ({ agent, updates, asked }, number) => {
  const { sessionId } = sessions[number];
  for (let round = 0; round < 20; round++) {
    const { stopReason } = await agent.request(acp.methods.agent.session.prompt, { sessionId, prompt: [{ type: "text", text: `${number} ${round}` }] });
    assert.equal(stopReason, "end_turn");
  }
  const name = ["ann", "bob", "cy"][number];
  assert.equal(asked.length, 20);
  const want = Array.from({ length: 20 }, (_, round) => [[sessionId, `${number} ${round}`], [sessionId, `${name} has /file`]]).flat();
  assert.deepEqual(updates, want);
}));
console.log("  three clients, one agent ok");

const stranger = clients[1].agent.request(acp.methods.agent.session.prompt, { sessionId: sessions[0].sessionId, prompt: [] });
await assert.rejects(stranger, (error) => error.code === -32010 && error.message.includes("Access denied"));
console.log("  a stranger is denied ok");
await server.stop();

// An MCP server for each connection, with the MCP reference server.
const everything = await start("pipe", "--subprotocol", "mcp", "--path", "/mcp", "--", "node",
  require.resolve("@modelcontextprotocol/server-everything/dist/index.js"), "stdio");
// Queues messages from the start, because several may arrive in one read before the test waits for them.
const open = async () => {
  const socket = new WebSocket(everything.url, ["mcp"]);
  const messages = on(socket, "message");
  await once(socket, "open");
  let ids = 0;
  const send = (message) => socket.send(JSON.stringify({ jsonrpc: "2.0", ...message }));
  const call = async (method, params) => {
    const id = ++ids;
    send({ id, method, params });
    for (;;) {
      const { value: [data] } = await messages.next();
      const message = JSON.parse(data);
      if (message.id === id && !message.method) return message;
    }
  };
  return { socket, send, call };
};
await Promise.all([1, 2, 3].map(async (number) => {
  const { socket, send, call } = await open();
  assert.equal(socket.protocol, "mcp");
  const clientInfo = { name: "interop", version: "1" };
  const hello = await call("initialize", { protocolVersion: "2024-11-05", capabilities: {}, clientInfo });
  assert.ok(hello.result.serverInfo.name);
  send({ method: "notifications/initialized" });
  const { result } = await call("tools/call", { name: "echo", arguments: { message: `from ${number}` } });
  assert.match(JSON.stringify(result), new RegExp(`from ${number}`));
  socket.close();
}));
await everything.stop();
console.log("  an MCP server for each client ok");

// Sends every method that the SDK of the Agent Client Protocol knows, in both versions, through `outrigger agent`: from the client of
// a session, from another client that names the session, and from the agent. Prints where each one arrives, and what the other
// client gets. Another client must not reach the agent with somebody else's session, nor answer in its client's place.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createRequire } from "node:module";
import { fileURLToPath, pathToFileURL } from "node:url";

const require = createRequire(process.env.TOOLS + "/");
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { start } = createRequire(import.meta.url)("./server.js");
const { WebSocket } = require("ws");

const SDK = { v1: "@agentclientprotocol/sdk", v2: "@agentclientprotocol/sdk/experimental/v2" };
const NOTIFICATIONS = /^(session\/(cancel|update)|elicitation\/complete|nes\/(accept|reject)|document\/.*|\$\/cancel_request|mcp\/message)$/;
const flatten = (methods) => Object.values(methods).flatMap((value) => (typeof value === "string" ? [value] : flatten(value)));
// Every other method of the client names a session.
const WITHOUT_SESSION = /^(initialize|authenticate|logout|auth\/.*|providers\/.*|session\/new|session\/list|nes\/start)$/;
const capabilities = {
  fs: { readTextFile: true, writeTextFile: true }, terminal: true, elicitation: { form: {}, url: {} },
};
const PATIENCE = 30000;

const program = fileURLToPath(new URL("acp_methods_agent.mjs", import.meta.url));
const server = await start("agent", "--no-auth", "--", "node", program);

class Client {
  static async open(version) {
    const client = new Client();
    client.socket = new WebSocket(server.url);
    client.waiting = new Map();
    client.received = [];
    client.ids = 0;
    client.socket.on("message", (data) => client.hear(JSON.parse(data)));
    await once(client.socket, "open");
    const number = Number(version[1]);
    const hello = { protocolVersion: number, clientCapabilities: capabilities, capabilities };
    client.hello = await client.call("initialize", hello);
    assert.equal(client.hello.result.protocolVersion, number);
    return client;
  }

  hear(message) {
    if (message.method) return this.received.push(message);
    this.waiting.get(message.id)?.(message);
    this.waiting.delete(message.id);
  }

  send(message) {
    this.socket.send(JSON.stringify({ jsonrpc: "2.0", ...message }));
  }

  call(method, params) {
    const id = ++this.ids;
    const answer = new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`${method} is not answered`)), PATIENCE);
      this.waiting.set(id, (message) => { clearTimeout(timer); resolve(message); });
    });
    this.send({ id, method, params });
    return answer;
  }

  /** What the agent has received since the last call. */
  async seen() {
    return (await this.call("test/seen", {})).result.seen;
  }

  async session() {
    return (await this.call("session/new", { cwd: "/", mcpServers: [] })).result.sessionId;
  }

  /** Sends a method, and returns where it arrives, or what is answered instead. */
  async attempt(method, params) {
    await this.seen();
    let answer;
    if (NOTIFICATIONS.test(method)) this.send({ method, params });
    else answer = await this.call(method, params);
    // The agent gets messages in order, so the method is there before this call.
    if ((await this.seen()).some((message) => message.method === method)) return "the_agent";
    if (!answer) return "nothing";
    return answer.error ? `${answer.error.code}` : "Outrigger";
  }
}

for (const version of Object.keys(SDK)) {
  const { methods } = await load(SDK[version]);
  const row = (method, ...cells) => console.log(["  method", version, method, ...cells].join(" "));
  const owner = await Client.open(version);
  const other = await Client.open(version);
  const initializes = (await owner.seen()).filter(({ method }) => method === "initialize").length;
  assert.equal(initializes, 1);
  row("initialize", "client", "the_agent,_once_for_each_kind_of_client", "the_same_answer");

  for (const method of flatten(methods.agent).filter((name) => name !== "initialize").sort()) {
    const sessionId = await owner.session();
    const params = { cwd: "/", mcpServers: [], prompt: [], ...(WITHOUT_SESSION.test(method) ? {} : { sessionId }) };
    // The other client first, because the method may end the session.
    const foreign = await other.attempt(method, params);
    const own = await owner.attempt(method, params);
    if (!WITHOUT_SESSION.test(method)) assert.notEqual(foreign, "the_agent", `${method} of another client reaches the agent`);
    assert.ok(["the_agent", "Outrigger"].includes(own), `${method}: ${own}`);
    row(method, "client", own, foreign);
  }

  for (const method of flatten(methods.client).sort()) {
    const sessionId = await owner.session();
    const isRequest = !NOTIFICATIONS.test(method);
    const message = { method, params: { sessionId, elicitationId: "e", options: [], update: {} }, ...(isRequest ? { id: `a-${method}` } : {}) };
    await owner.seen();
    owner.received = [];
    other.received = [];
    await owner.call("test/send", { message });
    // What the agent has sent before these answers has arrived with them.
    await owner.seen();
    await other.seen();
    const arrived = [owner, other].map(({ received }) => received.filter((one) => one.method === method));
    assert.deepEqual(arrived.map(({ length }) => length), [1, 0], `${method}: ${JSON.stringify(arrived)}`);
    if (isRequest) {
      const { id } = arrived[0][0];
      other.send({ id, result: { from: "other" } });
      // The agent has got it, if it gets it, before this call.
      await other.call("test/other", {});
      owner.send({ id, result: { from: "owner" } });
      const answers = (await owner.seen()).filter((one) => one.id === message.id);
      assert.deepEqual(answers.map(({ result }) => result?.from), ["owner"], method);
    }
    row(method, "agent", "the_session's_client", isRequest ? "its_answer_is_ignored" : "nothing");
  }
  owner.socket.close();
  other.socket.close();
}
await server.stop();
console.log("  every method of the SDK ok");

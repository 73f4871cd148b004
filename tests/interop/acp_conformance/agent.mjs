// An agent with sessions in memory that speaks both versions of the protocol, written with the SDK: on standard input and output,
// or with --listen behind the SDK's own server of WebSocket. It answers a prompt with its words, one update for each. At `die`, it exits.
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { Readable, Writable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.TOOLS + "/");
const load = (name) => import(pathToFileURL(require.resolve(name)));
const acp1 = await load("@agentclientprotocol/sdk");
const acp2 = await load("@agentclientprotocol/sdk/experimental/v2");

const sessions = new Map();
function newSession() {
  const sessionId = `sdk-${process.pid}-${sessions.size + 1}`;
  sessions.set(sessionId, { turn: undefined });
  return { sessionId };
}
function sessionOf(sessionId) {
  return sessions.get(sessionId) ?? (() => { throw acp1.RequestError.sessionNotFound(sessionId); })();
}
const cancel = ({ params: { sessionId } }) => { const turn = sessions.get(sessionId)?.turn; if (turn) turn.isCancelled = true; };

/** Sends the words of the prompt as updates. Returns the stop reason. */
async function speak(sessionId, prompt, send) {
  // The next prompt begins another turn, and does not revive one that was cancelled.
  const turn = { isCancelled: false };
  sessionOf(sessionId).turn = turn;
  if (prompt[0].text === "die") process.exit(1);
  for (const word of prompt[0].text.split(/(?<= )/)) {
    await send({ type: "text", text: word });
    await sleep(20);
    if (turn.isCancelled) return "cancelled";
  }
  return "end_turn";
}

const v1 = () => acp1.agent({ name: "conformance" })
  .onRequest(acp1.methods.agent.initialize, () => ({ protocolVersion: 1, agentCapabilities: { loadSession: true } }))
  .onRequest(acp1.methods.agent.session.new, newSession)
  .onRequest(acp1.methods.agent.session.load, ({ params: { sessionId } }) => sessionOf(sessionId) && {})
  .onNotification(acp1.methods.agent.session.cancel, cancel)
  .onRequest(acp1.methods.agent.session.prompt, async ({ params: { sessionId, prompt }, client }) => {
    const send = (content) => client.notify(acp1.methods.client.session.update, {
      sessionId, update: { sessionUpdate: "agent_message_chunk", content },
    });
    return { stopReason: await speak(sessionId, prompt, send) };
  });

let messages = 0;
const v2 = () => acp2.agent({ name: "conformance" })
  .onRequest(acp2.methods.agent.initialize, () => ({
    protocolVersion: 2, info: { name: "conformance", version: "1" }, capabilities: { session: {} },
  }))
  .onRequest(acp2.methods.agent.session.new, newSession)
  .onRequest(acp2.methods.agent.session.list, () => ({ sessions: [...sessions.keys()].map((sessionId) => ({ sessionId, cwd: "/" })) }))
  .onRequest(acp2.methods.agent.session.close, () => ({}))
  .onRequest(acp2.methods.agent.session.resume, ({ params: { sessionId } }) => sessionOf(sessionId) && {})
  .onNotification(acp2.methods.agent.session.cancel, cancel)
  .onRequest(acp2.methods.agent.session.prompt, ({ params: { sessionId, prompt }, client }) => {
    sessionOf(sessionId);
    const send = (update) => client.notify(acp2.methods.client.session.update, { sessionId, update });
    const messageId = `m${++messages}`;
    const turn = async () => {
      await send({ sessionUpdate: "user_message", messageId, content: prompt });
      await send({ sessionUpdate: "state_update", state: "running" });
      const answerId = `m${++messages}`;
      const stopReason = await speak(sessionId, prompt, (content) => send({ sessionUpdate: "agent_message_chunk", messageId: answerId, content }));
      await send({ sessionUpdate: "state_update", state: "idle", stopReason });
    };
    // A client that has left gets no updates.
    setImmediate(() => turn().catch(() => {}));
    return { messageId };
  });

const agent = () => acp2.agentProtocolRouter().withV1(v1()).withV2(v2());

if (process.argv[2] === "--listen") {
  const { AcpServer } = await load("@agentclientprotocol/sdk/experimental/server");
  const { createNodeHttpHandler, createNodeWebSocketUpgradeHandler } = await load("@agentclientprotocol/sdk/experimental/node");
  const { WebSocketServer } = require("ws");
  const acp = new AcpServer({ createAgent: agent });
  const server = createServer(createNodeHttpHandler(acp));
  server.on("upgrade", createNodeWebSocketUpgradeHandler(acp, new WebSocketServer({ noServer: true })));
  server.listen(0, "127.0.0.1", () => console.log(`ws://127.0.0.1:${server.address().port}/acp`));
} else {
  agent().connect(acp2.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
}

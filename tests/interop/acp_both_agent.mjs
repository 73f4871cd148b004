// An agent written with the SDK that speaks both versions of the protocol. In version 2, it echoes the prompt after it has
// accepted it, with a permission request in between; `wait` waits until it is cancelled. It logs what it is told to
// standard error.
import { createRequire } from "node:module";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.TOOLS + "/");
const load = (name) => import(pathToFileURL(require.resolve(name)));
const acp1 = await load("@agentclientprotocol/sdk");
const acp2 = await load("@agentclientprotocol/sdk/experimental/v2");

let sessions = 0;
const newSession = () => ({ sessionId: `sdk-${process.pid}-${++sessions}` });

const v1 = acp1.agent({ name: "interop" })
  .onRequest(acp1.methods.agent.initialize, () => ({ protocolVersion: 1, agentCapabilities: {} }))
  .onRequest(acp1.methods.agent.session.new, newSession)
  .onNotification(acp1.methods.agent.session.cancel, () => {})
  .onRequest(acp1.methods.agent.session.prompt, async ({ params: { sessionId, prompt }, client }) => {
    const content = { type: "text", text: `v1 ${prompt[0].text}` };
    const update = { sessionUpdate: "agent_message_chunk", content };
    await client.notify(acp1.methods.client.session.update, { sessionId, update });
    return { stopReason: "end_turn" };
  });

let messages = 0;
const waiting = new Map();
const v2 = acp2.agent({ name: "interop" })
  .onRequest(acp2.methods.agent.initialize, () => ({
    protocolVersion: 2, info: { name: "interop", version: "1" }, capabilities: { session: {} },
  }))
  .onRequest(acp2.methods.agent.session.new, newSession)
  .onRequest(acp2.methods.agent.session.list, () => ({ sessions: [] }))
  .onRequest(acp2.methods.agent.session.close, () => ({}))
  .onRequest(acp2.methods.agent.session.resume, async ({ params: { sessionId, replayFrom }, client }) => {
    const send = (update) => client.notify(acp2.methods.client.session.update, { sessionId, update });
    if (replayFrom?.type === "start") {
      await send({ sessionUpdate: "agent_message", messageId: "replayed", content: [{ type: "text", text: "as it was" }] });
    }
    await send({ sessionUpdate: "state_update", state: waiting.has(sessionId) ? "running" : "idle" });
    return {};
  })
  .onNotification(acp2.methods.agent.session.cancel, ({ params: { sessionId } }) => {
    process.stderr.write(`cancelled ${sessionId}\n`);
    waiting.get(sessionId)?.();
  })
  .onRequest(acp2.methods.agent.session.prompt, ({ params: { sessionId, prompt }, client }) => {
    const send = (update) => client.notify(acp2.methods.client.session.update, { sessionId, update });
    const messageId = `m${++messages}`;
    const turn = async () => {
      await send({ sessionUpdate: "user_message", messageId, content: prompt });
      await send({ sessionUpdate: "state_update", state: "running" });
      if (prompt[0].text === "wait") {
        await new Promise((resolve) => waiting.set(sessionId, resolve));
        waiting.delete(sessionId);
        return send({ sessionUpdate: "state_update", state: "idle", stopReason: "cancelled" });
      }
      await send({ sessionUpdate: "state_update", state: "requires_action" });
      const options = [{ optionId: "y", name: "Yes", kind: "allow_once" }];
      await client.request(acp2.methods.client.session.requestPermission, { sessionId, title: "May I?", options });
      const content = { type: "text", text: `v2 ${prompt[0].text}` };
      await send({ sessionUpdate: "agent_message_chunk", messageId: `m${++messages}`, content });
      await send({ sessionUpdate: "state_update", state: "idle", stopReason: "end_turn" });
    };
    setImmediate(() => void turn());
    return { messageId };
  });

acp2.agentProtocolRouter().withV1(v1).withV2(v2)
  .connect(acp2.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));

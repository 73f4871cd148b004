// An agent written with the SDK: it echoes the prompt, requests a permission, and reads a file through the client.
import { createRequire } from "node:module";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.TOOLS + "/");
const acp = await import(pathToFileURL(require.resolve("@agentclientprotocol/sdk")));

let sessions = 0;
acp.agent({ name: "interop" })
  .onRequest(acp.methods.agent.initialize, () => ({ protocolVersion: acp.PROTOCOL_VERSION, agentCapabilities: {} }))
  .onRequest(acp.methods.agent.session.new, () => ({ sessionId: `sdk-${++sessions}` }))
  .onNotification(acp.methods.agent.session.cancel, () => {})
  .onRequest(acp.methods.agent.session.prompt, async ({ params: { sessionId, prompt }, client }) => {
    const say = (text) => client.notify(acp.methods.client.session.update, {
      sessionId, update: { sessionUpdate: "agent_message_chunk", content: { type: "text", text } },
    });
    await say(prompt[0].text);
    await client.request(acp.methods.client.session.requestPermission, {
      sessionId, toolCall: { toolCallId: "1", title: "read" }, options: [{ optionId: "y", name: "Yes", kind: "allow_once" }],
    });
    await say((await client.request(acp.methods.client.fs.readTextFile, { sessionId, path: "/file" })).content);
    return { stopReason: "end_turn" };
  })
  .connect(acp.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));

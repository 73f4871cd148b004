// An MCP server on the TypeScript SDK 1.x, which speaks the revisions up to 2025-11-25 on standard input and output. It has the tools of
// server_2026.mjs.
import { load } from "./packages.mjs";

const { Server } = await load("@modelcontextprotocol/sdk/server/index.js");
const { StdioServerTransport } = await load("@modelcontextprotocol/sdk/server/stdio.js");
const schema = await load("@modelcontextprotocol/sdk/types.js");

const text = (text) => ({ content: [{ type: "text", text: String(text) }] });
const object = (properties = {}) => ({ type: "object", properties, required: Object.keys(properties) });
const number = { type: "number" };
const string = { type: "string" };
const subscribed = new Set();
let cancelled = 0;

/** name: [input schema, function]. */
const TOOLS = {
  add: [object({ a: number, b: number }), ({ a, b }) => text(a + b)],
  count: [object({ steps: number, delay: number }), async ({ steps, delay }, { signal, _meta, sendNotification }) => {
    for (let progress = 1; progress <= steps; progress++) {
      await new Promise((resolve) => setTimeout(resolve, delay * 1000));
      if (signal.aborted) {
        cancelled++;
        throw new Error("cancelled");
      }
      const params = { progressToken: _meta?.progressToken, progress, total: steps };
      if (params.progressToken !== undefined) await sendNotification({ method: "notifications/progress", params });
    }
    return text(`counted to ${steps}`);
  }],
  times_cancelled: [object(), () => text(cancelled)],
  touch: [object(), async () => {
    await server.sendToolListChanged();
    if (subscribed.has("test://note")) await server.sendResourceUpdated({ uri: "test://note" });
    return text("touched");
  }],
  fail: [object(), () => {
    throw new Error("this tool fails");
  }],
  greet: [object(), async (_, { sendRequest }) => {
    const params = { message: "What is your name?", requestedSchema: object({ name: string }) };
    const answer = await sendRequest({ method: "elicitation/create", params }, schema.ElicitResultSchema);
    return text(`Hello, ${answer.content.name}!`);
  }],
};

const capabilities = { tools: { listChanged: true }, prompts: {}, resources: { subscribe: true } };
const server = new Server({ name: "outrigger-2025", version: "1.0.0" }, { capabilities });
const on = (name, handler) => server.setRequestHandler(schema[name + "RequestSchema"], ({ params }, call) => handler(params ?? {}, call));
on("ListTools", () => ({ tools: Object.entries(TOOLS).map(([name, [inputSchema]]) => ({ name, description: name, inputSchema })) }));
on("CallTool", async ({ name, arguments: values, _meta }, call) => {
  try {
    return await TOOLS[name][1](values ?? {}, { ...call, _meta });
  } catch (error) {
    return { isError: true, ...text(error.message) };
  }
});
on("ListResources", () => ({ resources: [{ uri: "test://note", name: "note", mimeType: "text/plain" }] }));
on("ReadResource", ({ uri }) => {
  if (uri !== "test://note") throw new schema.McpError(-32002, "Resource not found");
  return { contents: [{ uri, mimeType: "text/plain", text: "A note." }] };
});
on("Subscribe", ({ uri }) => (subscribed.add(uri), {}));
on("Unsubscribe", ({ uri }) => (subscribed.delete(uri), {}));
on("ListPrompts", () => ({ prompts: [{ name: "question", arguments: [{ name: "topic", required: true }] }] }));
on("GetPrompt", ({ arguments: { topic } }) => ({ messages: [{ role: "user", content: { type: "text", text: `What is ${topic}?` } }] }));
await server.connect(new StdioServerTransport());

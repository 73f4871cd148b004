// An MCP server on the TypeScript SDK 2.x, which speaks revision 2026-07-28 and the older ones. It has the tools of server_2026.py.
//
// usage: node server_2026.mjs                 speaks on standard input and output
//        node server_2026.mjs --http PORT     serves the SDK's own Streamable HTTP handler at /mcp, and prints its URL
import http from "node:http";

import { load } from "./packages.mjs";

const { McpServer, acceptedContent, createMcpHandler, fromJsonSchema, inputRequired } = await load("@modelcontextprotocol/server");

const object = (properties = {}, required = Object.keys(properties)) => fromJsonSchema({ type: "object", properties, required });
const text = (text) => ({ content: [{ type: "text", text: String(text) }] });
const number = { type: "number" };
const string = { type: "string" };

let cancelled = 0;
let http_handler;

/** Waits, and throws if the call is cancelled meanwhile. */
const pause = (seconds, signal) => new Promise((resolve, reject) => {
  const cancel = () => (clearTimeout(timer), reject(new Error("cancelled")));
  const timer = setTimeout(() => (signal.removeEventListener("abort", cancel), resolve()), seconds * 1000);
  signal.addEventListener("abort", cancel, { once: true });
});

function make() {
  const server = new McpServer({ name: "outrigger-2026", version: "1.0.0" });
  const tool = (name, description, inputSchema, call) => server.registerTool(name, { description, inputSchema }, call);

  tool("add", "Adds two numbers.", object({ a: number, b: number }), ({ a, b }) => text(a + b));
  tool("count", "Reports its progress `steps` times, with `delay` seconds before each.", object({ steps: number, delay: number }),
    async ({ steps, delay }, { mcpReq }) => {
      const progressToken = mcpReq._meta?.progressToken;
      for (let progress = 1; progress <= steps; progress++) {
        try {
          await pause(delay, mcpReq.signal);
        } catch (error) {
          cancelled++;
          throw error;
        }
        if (progressToken === undefined) continue;
        await mcpReq.notify({ method: "notifications/progress", params: { progressToken, progress, total: steps, message: `step ${progress}` } });
      }
      return text(`counted to ${steps}`);
    });
  tool("times_cancelled", "How many calls of `count` were cancelled.", object(), () => text(cancelled));
  tool("touch", "Tells subscribers that the tools and the resource test://note changed.", object(), async () => {
    if (http_handler) {
      http_handler.notify.toolsChanged();
      http_handler.notify.resourceUpdated("test://note");
    } else {
      await server.server.sendToolListChanged();
      await server.server.sendResourceUpdated({ uri: "test://note" });
    }
    return text("touched");
  });
  tool("route", "Has an argument that clients also send as the header Mcp-Param-Region.",
    object({ region: { ...string, "x-mcp-header": "Region" }, text: string }), ({ region, text: what }) => text(`${region}: ${what}`));
  tool("fail", "Fails.", object(), () => {
    throw new Error("this tool fails");
  });
  tool("greet", "Asks the client's user for a name.", object(), (_, { mcpReq }) => {
    const answer = acceptedContent(mcpReq.inputResponses, "name");
    if (answer) return text(`Hello, ${answer.name}!`);
    const requestedSchema = { type: "object", properties: { name: string }, required: ["name"] };
    return inputRequired({ inputRequests: { name: inputRequired.elicit({ message: "What is your name?", requestedSchema }) } });
  });
  const contents = [{ uri: "test://note", mimeType: "text/plain", text: "A note." }];
  server.server.registerCapabilities({ resources: { subscribe: true, listChanged: true } });
  server.registerResource("note", "test://note", { mimeType: "text/plain" }, () => ({ contents }));
  server.registerPrompt("question", { argsSchema: object({ topic: string }) },
    ({ topic }) => ({ messages: [{ role: "user", content: { type: "text", text: `What is ${topic}?` } }] }));
  return server;
}

if (process.argv[2] === "--http") {
  const { toNodeHandler } = await load("@modelcontextprotocol/node");
  http_handler = createMcpHandler(make);
  const handle = toNodeHandler(http_handler);
  const listener = http.createServer((request, response) => handle(request, response));
  listener.listen(Number(process.argv[3] ?? 0), "127.0.0.1", () => console.log(`http://127.0.0.1:${listener.address().port}/mcp`));
} else {
  const { serveStdio } = await load("@modelcontextprotocol/server/stdio");
  serveStdio(make);
}

// A stdio server that only speaks revision 2024-11-05, as old ones do. It has no SDK.
import readline from "node:readline";

const tools = [{ name: "echo", description: "Returns its argument", inputSchema: { type: "object", properties: { message: { type: "string" } } } }];
const results = {
  initialize: () => ({ protocolVersion: "2024-11-05", capabilities: { tools: {} }, serverInfo: { name: "old", version: "1" } }),
  ping: () => ({}),
  "tools/list": () => ({ tools }),
  "tools/call": ({ arguments: { message } }) => ({ content: [{ type: "text", text: `Echo: ${message}` }] }),
};

for await (const line of readline.createInterface(process.stdin)) {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) continue;
  const answer = results[method] ? { result: results[method](params) } : { error: { code: -32601, message: "Method not found" } };
  console.log(JSON.stringify({ jsonrpc: "2.0", id, ...answer }));
}

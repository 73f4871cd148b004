// Clients with equal request ids and progress tokens share a pool of one process, in revision 2026-07-28. Each answer and each report
// of progress must be its own.
//
// usage: node crossing.mjs [outrigger|sdk] [CALLS=50000] [CLIENTS=16]
import assert from "node:assert/strict";
import http from "node:http";
import path from "node:path";

import { HERE } from "./packages.mjs";
import { outrigger, program } from "./server.mjs";

const [mode = "outrigger", calls = 50000, clients = 16] = process.argv.slice(2);
const command = [process.execPath, path.join(HERE, "server_2026.mjs")];
const server = mode === "sdk" ? await program(command[0], [command[1], "--http", "0"]) : await outrigger(command, "--pool", "1");

const prefix = "io.modelcontextprotocol/";
const envelope = { [prefix + "protocolVersion"]: "2026-07-28", [prefix + "clientCapabilities"]: {} };

/** Calls a tool, and returns the messages of the answer. */
function call(agent, id, name, args, fields, _meta = {}) {
  const params = { name, arguments: args, _meta: { ...envelope, ..._meta } };
  const body = JSON.stringify({ jsonrpc: "2.0", id, method: "tools/call", params });
  const headers = {
    accept: "application/json, text/event-stream",
    "content-type": "application/json",
    "content-length": Buffer.byteLength(body),
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": "tools/call",
    "mcp-name": name,
    ...fields,
  };
  return new Promise((resolve, reject) => {
    const request = http.request(server.url, { method: "POST", agent, headers }, (response) => {
      let text = "";
      response.setEncoding("utf8");
      response.on("data", (chunk) => (text += chunk));
      response.on("error", reject);
      response.on("end", () => {
        try {
          assert.equal(response.statusCode, 200, text);
          const json = response.headers["content-type"].startsWith("application/json");
          resolve(json ? [JSON.parse(text)] : [...text.matchAll(/^data: ?(.+)$/gm)].map(([, data]) => JSON.parse(data)));
        } catch (error) {
          reject(error);
        }
      });
    });
    request.on("error", reject);
    request.end(body);
  });
}

let reports = 0;
async function client(index) {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
  const next = { id: 0 };
  const worker = async () => {
    for (let id; (id = next.id++) < calls / clients;) {
      if (id % 5 > 0) {
        const args = { region: `client-${index}`, text: `call ${id}` };
        const [answer, ...more] = await call(agent, id, "route", args, { "mcp-param-region": args.region });
        assert.equal(more.length, 0);
        assert.equal(answer.id, id);
        assert.equal(answer.result.content[0].text, `client-${index}: call ${id}`);
        continue;
      }
      // Tokens are texts and numbers. The number of steps tells whose report it is.
      const steps = index + 1;
      const progressToken = id % 2 ? id : `token ${id}`;
      const messages = await call(agent, `count ${id}`, "count", { steps, delay: 0 }, {}, { progressToken });
      assert.equal(messages.at(-1).id, `count ${id}`);
      assert.equal(messages.at(-1).result.content[0].text, `counted to ${steps}`);
      const seen = messages.slice(0, -1).map(({ params }) => [params.progressToken, params.progress, params.total]);
      assert.deepEqual(seen, Array.from({ length: steps }, (_, step) => [progressToken, step + 1, steps]));
      reports += steps;
    }
  };
  await Promise.all([worker(), worker(), worker(), worker()]);
  agent.destroy();
}

const begun = performance.now();
await Promise.all(Array.from({ length: clients }, (_, index) => client(index)));
const seconds = (performance.now() - begun) / 1000;
console.log(`  ${calls} calls and ${reports} reports of progress of ${clients} clients with equal ids: none crossed (${seconds.toFixed(1)} s)`);
await server.stop();

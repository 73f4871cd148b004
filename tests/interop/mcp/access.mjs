// Who may use an MCP endpoint: tokens, sessions of another principal, the metadata of OAuth, and web pages of another origin.
//
// usage: node access.mjs
// env:   OUTRIGGER, TOOLS (see packages.mjs)
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import os from "node:os";
import path from "node:path";

import { check, finish } from "./checks.mjs";
import { HERE, load } from "./packages.mjs";
import { program } from "./server.mjs";

const OUTRIGGER = process.env.OUTRIGGER ?? "outrigger";
const folder = mkdtempSync(path.join(os.tmpdir(), "mcp-access-"));
const tokens = path.join(folder, "tokens");
const resource = path.join(folder, "resource.json");
const add = (name, ...args) => execFileSync(OUTRIGGER, ["token", "add", name, ...args, "--token-file", tokens], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
const secret = (text) => text.match(/\S{20,}/)[0];
const [ada, bob, watcher] = [add("ada"), add("bob"), add("watcher", "--scope", "watch")].map(secret);
writeFileSync(resource, JSON.stringify({ resource: "https://mcp.example/mcp", authorization_servers: ["https://login.example"] }));

const ORIGIN = "https://client.example";
const options = ["--token-file", tokens, "--oauth-resource", resource, "--allow-origin", ORIGIN];
const server = await program(OUTRIGGER,
  ["mcp", "--listen", "127.0.0.1:0", "--log", "warn", ...options, "--", process.execPath, path.join(HERE, "conformance_server.mjs")]);
const url = server.url.replace(/[?#].*/, "");
const root = new URL("/", url).href;

const message = (method, params, id = 1) => JSON.stringify({ jsonrpc: "2.0", id, method, params });
const initialize = message("initialize", { protocolVersion: "2025-11-25", capabilities: {}, clientInfo: { name: "raw", version: "1" } });
const request = (token, body, headers = {}, method = "POST") => fetch(url, {
  method,
  headers: {
    accept: method === "GET" ? "text/event-stream" : "application/json, text/event-stream",
    ...(body && { "content-type": "application/json" }),
    ...(token && { authorization: `Bearer ${token}` }),
    ...headers,
  },
  body,
});

for (const [name, sdk] of [["1.32", "@modelcontextprotocol/sdk/client/index.js"], ["2.4", "@modelcontextprotocol/client"]]) {
  const { Client } = await load(sdk);
  const { StreamableHTTPClientTransport } = name === "2.4" ? await load(sdk) : await load("@modelcontextprotocol/sdk/client/streamableHttp.js");
  await check(`SDK ${name} with a token in its header`, async () => {
    const client = new Client({ name: "access", version: "1" });
    const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: { authorization: `Bearer ${ada}` } } });
    await client.connect(transport);
    assert.ok((await client.listTools()).tools.length > 5);
    await transport.terminateSession();
    await client.close();
  });
  await check(`SDK ${name} without a token`, async () => {
    const client = new Client({ name: "access", version: "1" });
    await assert.rejects(client.connect(new StreamableHTTPClientTransport(new URL(url))), /the token is missing/);
  });
}

await check("a 401 names the metadata, which needs no token", async () => {
  for (const method of ["POST", "GET", "DELETE"]) {
    const refused = await request(undefined, method === "POST" ? initialize : undefined, {}, method);
    assert.equal(refused.status, 401);
    const [, where] = /resource_metadata="([^"]+)"/.exec(refused.headers.get("www-authenticate"));
    assert.equal(where, `${root}.well-known/oauth-protected-resource`);
    for (const address of [where, `${where}/mcp`]) {
      const metadata = await fetch(address);
      assert.equal(metadata.status, 200);
      assert.deepEqual((await metadata.json()).authorization_servers, ["https://login.example"]);
    }
  }
});

await check("a scope that is too small", async () => {
  const refused = await request(watcher, initialize);
  assert.ok([401, 403].includes(refused.status), String(refused.status));
});

await check("a session belongs to the principal that began it", async () => {
  const begun = await request(ada, initialize);
  assert.equal(begun.status, 200);
  const session = { "mcp-session-id": begun.headers.get("mcp-session-id") };
  const ping = message("ping", {}, 2);
  assert.equal((await request(bob, ping, session)).status, 404);
  assert.equal((await request(bob, undefined, session, "GET")).status, 404);
  assert.equal((await request(bob, undefined, session, "DELETE")).status, 404);
  assert.equal((await request(ada, ping, session)).status, 200);
  assert.ok((await request(ada, undefined, session, "DELETE")).ok);
});

await check("a web page of an allowed origin", async () => {
  const asked = "authorization,content-type,last-event-id,mcp-method,mcp-name,mcp-param-region,mcp-protocol-version,mcp-session-id";
  for (const method of ["POST", "DELETE"]) {
    const preflight = await request(undefined, undefined,
      { origin: ORIGIN, "access-control-request-method": method, "access-control-request-headers": asked }, "OPTIONS");
    assert.ok(preflight.ok, String(preflight.status));
    assert.equal(preflight.headers.get("access-control-allow-origin"), ORIGIN);
    assert.match(preflight.headers.get("access-control-allow-methods"), new RegExp(`\\b${method}\\b`));
    const allowed = preflight.headers.get("access-control-allow-headers").toLowerCase().split(/\s*,\s*/);
    const missing = asked.split(",").filter((name) => !allowed.includes(name) && !(allowed.includes("*") && name !== "authorization"));
    assert.deepEqual(missing, []);
  }
  const begun = await request(ada, initialize, { origin: ORIGIN });
  assert.equal(begun.status, 200);
  assert.equal(begun.headers.get("access-control-allow-origin"), ORIGIN);
  assert.match(begun.headers.get("access-control-expose-headers"), /mcp-session-id/i);
});

await check("a web page of another origin", async () => {
  assert.equal((await request(ada, initialize, { origin: "https://evil.example" })).status, 403);
});

assert.equal(await server.stop(), 0);
rmSync(folder, { recursive: true });
finish("access.mjs");

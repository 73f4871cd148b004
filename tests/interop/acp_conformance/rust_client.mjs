// The Rust SDK's own client in front of `outrigger agent`: several at once, without `outrigger connect`.
//
// usage: node rust_client.mjs PROGRAM
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

const { start } = createRequire(import.meta.url)("../server.js");
const agent = fileURLToPath(new URL("agent.mjs", import.meta.url));
const server = await start("agent", "--", "node", agent);
const run = async () => {
  const child = spawn(process.argv[2], [server.url], { stdio: "inherit" });
  const [code] = await once(child, "exit");
  assert.equal(code, 0);
};
await Promise.all(Array.from({ length: 3 }, run));
await server.stop();

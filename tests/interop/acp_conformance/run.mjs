// Runs packaging/acp-conformance against servers of the Agent Client Protocol over WebSocket. The agent is the same behind all of them,
// but the Python SDK has one of its own. Fails if a case fails or is skipped with Outrigger, or if a server cannot be tried.
//
// usage: node run.mjs SERVER...
// env:   OUTRIGGER=PROGRAM, TOOLS=FOLDER of the npm packages, ACP_PYTHON=FOLDER of the programs of the Python packages,
//        RUST_SDK=PROGRAM of the folder rust_sdk, REPORT=FILE for the results as JSON, TIMEOUT=5 seconds for an answer
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const tools = process.env.TOOLS;
const here = (name) => fileURLToPath(new URL(name, import.meta.url));
const suite = here("../../../packaging/acp-conformance/cli.js");
const agent = ["node", here("agent.mjs")];
const python = process.env.ACP_PYTHON;
const TOKEN = "a-token-of-the-conformance-run";

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

// The command of each server for a free port. `url` is the address, if the server does not print one; `crash` says that the agent is a
// process of its own.
const servers = {
  outrigger: () => ({
    // A case waits for PINGs.
    command: [process.env.OUTRIGGER, "agent", "--listen", "127.0.0.1:0", "--log", "off", "--ping-interval", "1s", "--ping-timeout", "2s", "--", ...agent],
    env: { OUTRIGGER_TOKEN: TOKEN },
    options: ["--header", `Authorization: Bearer ${TOKEN}`],
    crash: true,
  }),
  "npm SDK": () => ({ command: [...agent, "--listen"] }),
  "Python SDK": () => ({ command: [`${python}/python`, here("agent.py")] }),
  "Rust SDK": () => ({ command: [process.env.RUST_SDK, ...agent], crash: true }),
  acpremote: (port) => ({
    command: [`${python}/acpremote`, "expose", "--port", `${port}`, "--stderr-mode", "discard", "--", ...agent],
    url: `ws://127.0.0.1:${port}/acp/ws`,
    crash: true,
  }),
  "stdio-to-ws": (port) => ({
    command: ["node", `${tools}/node_modules/.bin/stdio-to-ws`, "-p", `${port}`, agent.join(" ")],
    url: `ws://127.0.0.1:${port}/`,
    crash: true,
  }),
};

/** Waits until a server accepts connections. */
async function accepts(url) {
  for (let tries = 0; tries < 300; tries++) {
    if (await fetch(url.replace(/^ws/, "http")).then(() => true, () => false)) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error(`nothing listens on ${url}`);
}

async function run(name) {
  const { command, env = {}, options = [], url, crash } = servers[name](await freePort());
  const child = spawn(command[0], command.slice(1), { stdio: ["ignore", "pipe", "ignore"], env: { ...process.env, ...env }, detached: true });
  await once(child, "spawn");
  const stop = () => { try { process.kill(-child.pid); } catch { /* It has ended. */ } };
  process.on("exit", stop);
  try {
    const lines = createInterface(child.stdout);
    const printed = new Promise((resolve, reject) => {
      lines.on("line", (line) => { const found = line.match(/wss?:\/\/\S+/); if (found) resolve(found[0]); });
      child.once("exit", () => reject(new Error(`${name}: the server ended`)));
    });
    printed.catch(() => {});
    const address = url ?? await printed;
    await accepts(address);
    const json = `${tmpdir()}/acp-conformance-${process.pid}.json`;
    const all = ["--json", json, "--timeout", process.env.TIMEOUT ?? "5", "--prompt", "one two three four five", ...(crash ? ["--crash", "die"] : []), ...options, address];
    // Not `spawnSync`: this process has to read what the server writes.
    const tried = spawn(process.execPath, [suite, ...all], { stdio: ["ignore", "pipe", "inherit"] });
    let out = "";
    tried.stdout.on("data", (data) => { out += data; });
    const [code] = await once(tried, "close");
    if (code === 2) throw new Error(`${name}: the suite failed: ${out}`);
    const { results } = JSON.parse(readFileSync(json));
    rmSync(json);
    return results;
  } finally {
    stop();
  }
}

const report = {};
let failed = false;
for (const name of process.argv.slice(2)) {
  const results = await run(name);
  report[name] = results;
  const count = (outcome) => results.filter((result) => result.outcome === outcome).length;
  console.log(`${name}: ${count("passed")} passed, ${count("failed")} failed, ${count("error")} error, ${count("skipped")} skipped`);
  for (const { level, group, name: what, outcome, why } of results) {
    if (outcome === "failed" || outcome === "error") console.log(`  ${level} ${group}: ${what}: ${why}`);
  }
  if (name === "outrigger" && count("passed") !== results.length) failed = true;
  if (count("passed") === 0) failed = true;
}
if (process.env.REPORT) writeFileSync(process.env.REPORT, `${JSON.stringify(report, null, 1)}\n`);
process.exit(failed ? 1 : 0);

// Runs what the MCP conformance suite requires of servers.
//
// usage: node conformance.mjs URL          against a server that runs
//        node conformance.mjs baseline     against conformance_server.mjs on the SDK's own HTTP transport
//        node conformance.mjs outrigger    against conformance_server.mjs behind `outrigger mcp`
//        node conformance.mjs shared       the same with `--share principal`
//        node conformance.mjs translated   the requirements of 2026-07-28 against the same server, which speaks older revisions
// env:   OUTRIGGER, TOOLS (see packages.mjs), REVISION=2025-11-25 for URL
//
// Prints a line for each scenario. A failed check fails the run, but for those of UNTESTABLE with `translated`.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import os from "node:os";
import path from "node:path";

import { HERE, NODE22, module_file } from "./packages.mjs";
import { outrigger, program } from "./server.mjs";

const REVISIONS = { translated: "2026-07-28" };
const SCENARIOS = { "2025-11-25": 33, "2026-07-28": 40 };

/** Scenarios that are not run with an older server: extensions, and those that need tools of 2026-07-28 or names that its server gives
 * to its questions. An older server's questions have only ids. */
const is_foreign = (scenario) => /^(tasks-|json-schema-|http-custom-header-|input-required-result-(?!unsupported|ignore|validate|missing))/.test(scenario);
/** Checks for which the suite needs tools that an older server cannot have. */
const UNTESTABLE = /^sep-2575-(server-rejects-undeclared-capability|missing-capability-http-400|http-server-no-independent-requests-on-stream|server-no-log-without-loglevel)$/;

const mode = process.argv[2] ?? "outrigger";
const revision = REVISIONS[mode] ?? process.env.REVISION ?? "2025-11-25";
const server_file = path.join(HERE, "conformance_server.mjs");

async function server() {
  const command = [process.execPath, server_file];
  if (mode === "baseline") return program(command[0], [server_file, "--http", "0"]);
  if (mode === "outrigger") return outrigger(command);
  if (mode === "translated") return outrigger(command, "--share", "principal");
  if (mode === "shared") {
    // Only a token with a name is one person, whom the server may ask.
    const [file, token] = [path.join(folder, "tokens"), "0123456789abcdef0123456789abcdef"];
    writeFileSync(file, `ada all ${token}\n`, { mode: 0o600 });
    const args = ["mcp", "--listen", "127.0.0.1:0", "--token-file", file, "--log", "warn", "--share", "principal", "--", ...command];
    const started = await program(process.env.OUTRIGGER ?? "outrigger", args);
    return { ...started, url: `${started.url}?token=${token}` };
  }
  return { url: mode, stop: async () => {} };
}

/** The checks of all scenarios that ran, by scenario. */
async function run(url, folder) {
  const file = module_file("@modelcontextprotocol/conformance/dist/index.js");
  const args = [file, "server", "--url", url, "--requirements", revision, "--output-dir", folder];
  const child = spawn(NODE22, args, { stdio: ["ignore", "ignore", "inherit"] });
  await once(child, "exit");
  const scenarios = {};
  for (const name of readdirSync(folder)) {
    const scenario = /^server-(.+)-\d{4}-\d\d-\d\dT/.exec(name)?.[1];
    if (scenario) scenarios[scenario] = JSON.parse(readFileSync(path.join(folder, name, "checks.json"), "utf8"));
  }
  return scenarios;
}

const folder = mkdtempSync(path.join(os.tmpdir(), "mcp-conformance-"));
const started = await server();
try {
  const scenarios = Object.entries(await run(started.url, folder)).filter(([name]) => mode !== "translated" || !is_foreign(name));
  let failures = 0;
  for (const [name, checks] of scenarios.sort()) {
    const failed = checks.filter(({ id, status }) => status === "FAILURE" && !(mode === "translated" && UNTESTABLE.test(id)));
    const passed = checks.filter(({ status }) => status === "SUCCESS");
    failures += failed.length;
    const title = mode === "outrigger" ? name : `${mode}/${name}`;
    console.log(`  ${failed.length === 0 ? "ok  " : "FAIL"} ${title}: ${passed.length} passed, ${failed.length} failed`);
    for (const { id, errorMessage } of failed) console.log(`       ${id}: ${errorMessage}`);
  }
  console.log(`  ${mode}: ${scenarios.length} scenarios of ${revision}, ${failures} checks failed`);
  const wanted = mode === "translated" ? 28 : SCENARIOS[revision];
  if (scenarios.length !== wanted || failures > 0) process.exitCode = 1;
} finally {
  await started.stop();
  rmSync(folder, { recursive: true });
}

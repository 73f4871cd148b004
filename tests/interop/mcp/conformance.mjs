// Runs the server scenarios of the MCP conformance suite.
//
// usage: node conformance.mjs URL          against a server that runs
//        node conformance.mjs baseline     against conformance_server.mjs on the SDK's own HTTP transport
//        node conformance.mjs outrigger    against conformance_server.mjs behind `outrigger mcp`
// env:   OUTRIGGER, TOOLS (see packages.mjs), SUITE=all (active, pending)
//
// Prints a line for each scenario. A failed check fails the run: the baseline passes them all.
import { spawn } from "node:child_process";
import path from "node:path";
import readline from "node:readline";

import { HERE, NODE22, module_file } from "./packages.mjs";
import { outrigger, program } from "./server.mjs";

const SCENARIOS = { all: 32, active: 30, pending: 2 };
const suite = process.env.SUITE ?? "all";
const server_file = path.join(HERE, "conformance_server.mjs");

async function server(mode) {
  if (mode === "baseline") return program(process.execPath, [server_file, "--http", "0"]);
  if (mode === "outrigger") return outrigger([process.execPath, server_file]);
  return { url: mode, stop: async () => {} };
}

async function run(url) {
  const file = module_file("@modelcontextprotocol/conformance/dist/index.js");
  const child = spawn(NODE22, [file, "server", "--url", url, "--suite", suite], { stdio: ["ignore", "pipe", "inherit"] });
  const totals = { scenarios: 0, failed: [] };
  const errors = [];
  let summary = false;
  for await (const line of readline.createInterface(child.stdout)) {
    summary ||= line.includes("=== SUMMARY ===");
    if (!summary && /FAILURE|WARNING|Error:/.test(line)) errors.push(line);
    const [, scenario, passed, failed] = (summary && /^\S+ (\S+): (\d+) passed, (\d+) failed/.exec(line)) || [];
    if (!scenario) continue;
    totals.scenarios++;
    if (failed !== "0") totals.failed.push(scenario);
    console.log(`  ${failed === "0" ? "ok  " : "FAIL"} ${scenario}: ${passed} passed, ${failed} failed`);
  }
  if (totals.failed.length > 0 || process.env.VERBOSE) console.log(errors.join("\n"));
  return totals;
}

const mode = process.argv[2] ?? "outrigger";
const started = await server(mode);
try {
  const { scenarios, failed } = await run(started.url);
  console.log(`  ${mode}: ${scenarios - failed.length} of ${SCENARIOS[suite]} scenarios passed`);
  if (scenarios !== SCENARIOS[suite] || failed.length > 0) process.exitCode = 1;
} finally {
  await started.stop();
}

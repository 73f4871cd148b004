#!/usr/bin/env node
// Tests an endpoint of the Agent Client Protocol over WebSocket, and prints a table.
"use strict";

const fs = require("node:fs");
const { parseArgs } = require("node:util");
const { cases } = require("./cases.js");
const { Skipped, Unmet } = require("./client.js");

const HELP = `Usage: outrigger-acp-conformance [OPTIONS] URL

Tests an endpoint of the Agent Client Protocol over WebSocket, such as ws://127.0.0.1:7070/acp, and prints a table.
Each case uses connections of its own. The agent gets a few prompts.

  --prompt TEXT          the prompt of the cases with turns [hello]; without a text, these are skipped
  --crash TEXT           a prompt at which the agent exits; without it, the cases of a crash are skipped
  --cwd PATH             the working directory of sessions [the current one]
  --header 'NAME: VALUE' a field of each request; can be repeated
  --timeout SECONDS      how long to wait for an answer [10]
  --insecure             accept any certificate
  --only TEXT            only the cases whose group or name contains this
  --list                 list the cases, with their level and the text that asks for them
  --json FILE            write the results as JSON; - is standard output
  --junit FILE           write the results as JUnit XML
  -h, --help             print this help

The exit code is 0 if no case of the level MUST has failed, 1 if one has, and 2 for a wrong option.
`;

function fail(message) {
  process.stderr.write(`${message}\nSee 'outrigger-acp-conformance --help'.\n`);
  process.exit(2);
}

function readOptions() {
  const options = {
    prompt: { type: "string", default: "hello" },
    crash: { type: "string", default: "" },
    cwd: { type: "string", default: process.cwd() },
    header: { type: "string", multiple: true, default: [] },
    timeout: { type: "string", default: "10" },
    insecure: { type: "boolean", default: false },
    only: { type: "string", default: "" },
    list: { type: "boolean", default: false },
    json: { type: "string" },
    junit: { type: "string" },
    help: { type: "boolean", short: "h", default: false },
  };
  let parsed;
  try {
    parsed = parseArgs({ options, allowPositionals: true });
  } catch (error) {
    fail(error.message);
  }
  const { values, positionals } = parsed;
  if (values.help) {
    process.stdout.write(HELP);
    process.exit(0);
  }
  if (values.list) return values;
  if (positionals.length !== 1) fail("one URL is needed");
  const url = URL.canParse(positionals[0]) ? new URL(positionals[0]) : undefined;
  if (!["ws:", "wss:"].includes(url?.protocol)) fail(`'${positionals[0]}' is not a ws:// or wss:// URL`);
  const timeout = Number(values.timeout) * 1000;
  if (!(timeout > 0)) fail(`'${values.timeout}' is not a number of seconds`);
  const headers = {};
  for (const header of values.header) {
    const [, name, value] = /^([^:]+):\s*(.*)$/.exec(header) ?? fail(`'${header}' is not 'NAME: VALUE'`);
    headers[name] = value;
  }
  return { ...values, url: url.href, timeout, headers };
}

/** Runs a case. Returns its outcome: passed, failed, skipped or error, and why. */
async function run(one, settings) {
  const since = Date.now();
  const open = [];
  let [outcome, why] = ["passed", ""];
  try {
    await one.run({ ...settings, open });
  } catch (error) {
    if (error instanceof Skipped) outcome = "skipped";
    else if (error instanceof Unmet) outcome = "failed";
    else outcome = "error";
    why = error.message;
  } finally {
    for (const client of open) client.socket.close();
  }
  const { group, name, level, text } = one;
  return { group, name, level, text, outcome, why, seconds: (Date.now() - since) / 1000 };
}

function escapeXml(text) {
  const names = { "<": "&lt;", ">": "&gt;", "&": "&amp;", '"': "&quot;" };
  return text.replace(/[<>&"]/g, (character) => names[character]).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "?");
}

function junit(results, url) {
  const count = (outcome) => results.filter((result) => result.outcome === outcome).length;
  const lines = results.map(({ group, name, outcome, why, seconds }) => {
    const tag = { failed: "failure", error: "error", skipped: "skipped" }[outcome];
    const inside = tag ? `<${tag} message="${escapeXml(why)}"/>` : "";
    return `  <testcase classname="${escapeXml(group)}" name="${escapeXml(name)}" time="${seconds}">${inside}</testcase>`;
  });
  const counts = `tests="${results.length}" failures="${count("failed")}" errors="${count("error")}" skipped="${count("skipped")}"`;
  return `<?xml version="1.0" encoding="UTF-8"?>\n<testsuite name="${escapeXml(url)}" ${counts}>\n${lines.join("\n")}\n</testsuite>\n`;
}

async function main() {
  const settings = readOptions();
  const chosen = cases.filter(({ group, name }) => `${group} ${name}`.includes(settings.only));
  if (settings.list) {
    for (const { group, name, level, text } of chosen) process.stdout.write(`${level.padEnd(6)} ${group}: ${name} (${text})\n`);
    return;
  }
  if (chosen.length === 0) fail(`no case has '${settings.only}' in its name`);
  const out = settings.json === "-" ? process.stderr : process.stdout;
  const results = [];
  for (const one of chosen) {
    const result = await run(one, settings);
    results.push(result);
    const why = result.why ? `: ${result.why}` : "";
    out.write(`${result.outcome.padEnd(7)} ${result.level.padEnd(6)} ${result.group}: ${result.name}${why}\n`);
  }
  const counts = ["passed", "failed", "error", "skipped"].map((outcome) => {
    return `${results.filter((result) => result.outcome === outcome).length} ${outcome}`;
  });
  out.write(`${counts.join(", ")}\n`);
  const report = { url: settings.url, results };
  if (settings.json === "-") process.stdout.write(`${JSON.stringify(report, null, 2)}\n`);
  else if (settings.json) fs.writeFileSync(settings.json, `${JSON.stringify(report, null, 2)}\n`);
  if (settings.junit) fs.writeFileSync(settings.junit, junit(results, settings.url));
  const isBad = ({ level, outcome }) => level === "MUST" && (outcome === "failed" || outcome === "error");
  process.exitCode = results.some(isBad) ? 1 : 0;
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(2);
});

// An agent for acp_methods.mjs: it answers every request, and records what arrives.
import readline from "node:readline";

const say = (message) => process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
let sessions = 0;
let seen = [];
for await (const line of readline.createInterface({ input: process.stdin })) {
  const { id, method, params, result, error } = JSON.parse(line);
  if (method === "test/seen") {
    say({ id, result: { seen } });
    seen = [];
    continue;
  }
  if (method === "test/send") {
    say({ id, result: {} });
    say(params.message);
    continue;
  }
  seen.push(method ? { method } : { id, result, error });
  if (id === undefined || !method) continue;
  if (method === "initialize") {
    const agentCapabilities = { loadSession: true, sessionCapabilities: { resume: {} } };
    say({ id, result: { protocolVersion: params.protocolVersion, agentCapabilities, capabilities: { session: {} } } });
  } else {
    say({ id, result: { sessionId: `${process.pid}-${++sessions}` } });
  }
}

// Lets an MCP server speak revision 2026-07-28 only: refuses `initialize`, as such servers do, and passes all else on.
//
// usage: node only_2026.mjs PROGRAM [ARGS...]
import { spawn } from "node:child_process";
import readline from "node:readline";

const [command, ...args] = process.argv.slice(2);
const server = spawn(command, args, { stdio: ["pipe", "inherit", "inherit"] });
server.on("exit", (code) => process.exit(code ?? 1));
for await (const line of readline.createInterface(process.stdin)) {
  const { id, method } = JSON.parse(line);
  if (method === "initialize") {
    const data = { supported: ["2026-07-28"], requested: "an older revision" };
    console.log(JSON.stringify({ jsonrpc: "2.0", id, error: { code: -32022, message: "Unsupported protocol version", data } }));
  } else {
    server.stdin.write(line + "\n");
  }
}
server.stdin.end();

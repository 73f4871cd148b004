// Servers as child processes of a test.
import { spawn } from "node:child_process";
import { once } from "node:events";
import net from "node:net";
import readline from "node:readline";

import { module_file } from "./packages.mjs";

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** A port that is free now. */
export async function free_port() {
  const server = net.createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

/** Starts server-everything over its own HTTP transport, on a port. */
export function everything_over_http(port) {
  const url = (line) => line.includes("listening") && `http://127.0.0.1:${port}/mcp`;
  const script = module_file("@modelcontextprotocol/server-everything/dist/index.js");
  return program(process.execPath, [script, "streamableHttp"], { env: { ...process.env, PORT: port }, from: "stderr", url });
}

/** Starts a program that prints its URL. `url` is that URL. `stop` sends SIGTERM and returns the exit code. */
export async function program(command, args, options = {}) {
  const { url: known, from = "stdout", ...rest } = options;
  const stdio = ["ignore", from === "stdout" ? "pipe" : "ignore", from === "stderr" ? "pipe" : "inherit"];
  const child = spawn(command, args, { stdio, ...rest });
  const exited = once(child, "exit");
  const lines = readline.createInterface(child[from]);
  const deadline = setTimeout(() => child.kill("SIGKILL"), 30000);
  let url;
  for await (const line of lines) {
    url = known?.(line) ?? /https?:\/\/[^\s'"]+/.exec(line)?.[0];
    if (url) break;
  }
  clearTimeout(deadline);
  if (!url) throw new Error(`${command} ${args.join(" ")} printed no URL`);
  child[from].resume();
  return {
    url,
    pid: child.pid,
    async stop() {
      child.kill("SIGTERM");
      return (await exited)[0];
    },
  };
}

/** Starts `outrigger mcp -- PROGRAM` on a free port. `stop` also checks that it exits cleanly. */
export async function outrigger([...command], ...options) {
  const args = ["mcp", "--listen", "127.0.0.1:0", "--no-auth", "--log", "warn", ...options, "--", ...command];
  const started = await program(process.env.OUTRIGGER ?? "outrigger", args);
  const { stop } = started;
  started.stop = async () => {
    const code = await stop();
    if (code !== 0) throw new Error(`outrigger ended with ${code}`);
  };
  return started;
}

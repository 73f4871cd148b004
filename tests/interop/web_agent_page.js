// What the tests of an agent's page share: `outrigger agent` in a directory of its own, and the parts of the page that they all look at.
const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const { once } = require("node:events");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { tls } = require("./server.js");

/**
 * Starts `outrigger agent` with the command of an agent, in a new directory. `page` is the address of its page, and `file(name)` the path of
 * a file in the directory. With `isHome`, the directory is the agent's home, and what it prints is left out. Otherwise
 * `stop` checks that the server exits cleanly.
 */
async function startAgent(command, { args = [], env = {}, isHome = false } = {}) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "outrigger-agent-"));
  const all = ["agent", "--listen", "127.0.0.1:0", "--log", "warn", ...args, ...tls, "--", ...command];
  const child = spawn(process.env.OUTRIGGER, all, {
    stdio: ["ignore", "pipe", isHome ? "ignore" : "inherit"],
    cwd: directory,
    env: { ...process.env, ...(isHome && { HOME: directory }), ...env },
  });
  const exited = once(child, "exit");
  const kill = () => child.kill("SIGKILL");
  process.on("exit", kill);
  let told = "";
  child.stdout.on("data", (data) => { told += data; });
  while (!/page at \S+\n/.test(told)) await once(child.stdout, "data");
  return {
    page: told.match(/page at (\S+)/)[1],
    file: (name) => path.join(directory, name),
    async stop() {
      child.kill("SIGTERM");
      const [code] = await exited;
      process.off("exit", kill);
      // An agent's own programs may still write there.
      fs.rmSync(directory, { recursive: true, force: isHome, maxRetries: isHome ? 5 : 0 });
      if (!isHome) assert.equal(code, 0);
    },
  };
}

/** Waits until the line of the connection says something. */
const state = (page, text, wait) => page.locator("#connection").getByText(text, { exact: true }).waitFor(wait);

module.exports = { startAgent, state };

// `outrigger` as a child process of a test.
const { spawn } = require("node:child_process");
const { once } = require("node:events");
const readline = require("node:readline");

// A page that is opened as a file has the origin `null`.
/** Starts `outrigger COMMAND` on a free port. `url` is its address; `stop` stops it and checks that it exits cleanly. */
exports.start = async (command, ...args) => {
  const all = [command, "--listen", "127.0.0.1:0", "--log", "warn", "--allow-origin", "null", ...args];
  const child = spawn(process.env.OUTRIGGER, all, { stdio: ["ignore", "pipe", "inherit"] });
  const [line] = await once(readline.createInterface(child.stdout), "line");
  const exited = once(child, "exit");
  return {
    url: line.match(/ws:\/\/\S+/)[0],
    async stop() {
      child.kill("SIGTERM");
      const [code] = await exited;
      if (code !== 0) throw new Error(`outrigger ended with ${code}`);
    },
  };
};

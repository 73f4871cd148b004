#!/usr/bin/env node
// Starts the program of the package for this platform, with the same arguments and streams, and ends as it ends.
"use strict";

const { spawn } = require("node:child_process");
const os = require("node:os");

const name = `@NPM@-${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/outrigger`);
} catch {
  console.error(
    `outrigger: the package ${name} is missing. Either there is no program for this platform, or npm was told to leave out ` +
      "optional dependencies (--omit=optional).",
  );
  process.exit(1);
}

const args = process.argv.slice(2);
if (process.execve) {
  // The program takes the place of this process, so that signals reach it, and Node.js takes no memory.
  process.execve(program, [program, ...args]);
}
const child = spawn(program, args, { stdio: "inherit" });
// A terminal sends SIGINT and SIGQUIT to both processes. Other signals are passed on.
for (const signal of ["SIGINT", "SIGQUIT"]) process.on(signal, () => {});
for (const signal of ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"]) process.on(signal, () => child.kill(signal));
child.on("error", (error) => {
  console.error(`outrigger: cannot start ${program}: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => {
  process.exitCode = signal === null ? code : 128 + os.constants.signals[signal];
});

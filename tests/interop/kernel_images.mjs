// The SDK for kernel-images (npm @onkernel/sdk) against `outrigger processes --compat kernel-images`: its process calls, the
// cases of kernel-images' own tests of them, and what its server does beyond its schema.
//
// env: OUTRIGGER, TOOLS; OPTIONS replaces the options that follow --path
import assert from "node:assert/strict";
import { on, once } from "node:events";
import http from "node:http";
import { createRequire } from "node:module";

const require = createRequire(process.env.TOOLS + "/");
const { start } = createRequire(import.meta.url)("./server.js");
const Kernel = require("@onkernel/sdk").default;
const { BadRequestError, InternalServerError, NotFoundError } = require("@onkernel/sdk");
const { WebSocket } = require("ws");

process.env.OF_SERVER = "yes";
const id = "b1";
const options = (process.env.OPTIONS ?? "--compat kernel-images").split(" ").filter((option) => option);
const server = await start("processes", "--path", `/browsers/${id}/process`, ...options);
const url = new URL(server.url.replace(/^ws/, "http"));
const client = new Kernel({ apiKey: url.searchParams.get("token"), baseURL: url.origin, maxRetries: 0 });
const calls = client.browsers.process;

const sh = (script) => ({ command: "sh", args: ["-c", script] });
const text = (base64) => Buffer.from(base64, "base64").toString();
const rejects = (promise, kind, says) =>
  assert.rejects(promise, (error) => error instanceof kind && (!says || error.message.includes(says)));

async function events(process_id) {
  const all = { stdout: [], stderr: [], exit: undefined };
  for await (const event of await calls.stdoutStream(process_id, { id })) {
    if (event.event === "exit") all.exit = event.exit_code;
    else all[event.stream].push(Buffer.from(event.data_b64, "base64"));
  }
  return { ...all, stdout: Buffer.concat(all.stdout), stderr: Buffer.concat(all.stderr) };
}

async function exited(process_id) {
  for (let deadline = Date.now() + 30_000; Date.now() < deadline;) {
    const { state } = await calls.status(process_id, { id });
    if (state === "exited") return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  assert.fail("the process does not exit");
}

/** Sends a request without the SDK. Returns its status and body. */
const raw = (method, path, body, headers = {}) => new Promise((resolve, reject) => {
  const authorization = `Bearer ${client.apiKey}`;
  const request = http.request(new URL(path, url), { method, headers: { authorization, ...headers } }, async (response) => {
    const chunks = [];
    for await (const chunk of response) chunks.push(chunk);
    resolve({ status: response.statusCode, body: Buffer.concat(chunks).toString() });
  });
  request.on("error", reject);
  request.end(body);
});

const cases = {
  async "exec answers with both outputs and the exit code"() {
    const { exit_code, stdout_b64, stderr_b64 } = await calls.exec(id, sh("printf out; printf err 1>&2; exit 3"));
    assert.deepEqual([exit_code, text(stdout_b64), text(stderr_b64)], [3, "out", "err"]);
  },
  async "a stream has both outputs and the exit"() {
    const { process_id } = await calls.spawn(id, sh("printf ABC; sleep 0.05; printf DEF 1>&2; sleep 0.05; exit 0"));
    await calls.status(process_id, { id });
    const { stdout, stderr, exit } = await events(process_id);
    assert.deepEqual([String(stdout), String(stderr), exit], ["ABC", "DEF", 0]);
  },
  async "stdin reaches the process"() {
    const { process_id } = await calls.spawn(id, sh("dd of=/dev/null bs=1 count=3 status=none"));
    const data_b64 = Buffer.from("xyz").toString("base64");
    assert.deepEqual(await calls.stdin(process_id, { id, data_b64 }), { written_bytes: 3 });
    await exited(process_id);
  },
  async "a process is killed"() {
    const { process_id } = await calls.spawn(id, sh("sleep 1000"));
    assert.deepEqual(await calls.kill(process_id, { id, signal: "KILL" }), { ok: true });
    await exited(process_id);
  },
  async "an unknown process is not found"() {
    const unknown = "00000000-0000-4000-8000-000000000000";
    await rejects(calls.status(unknown, { id }), NotFoundError);
    await rejects(calls.stdoutStream(unknown, { id }), NotFoundError);
  },
  async "an id that is not a UUID is a bad request"() {
    await rejects(calls.status("nonsense", { id }), BadRequestError);
  },
  async "a command that does not exist is a bad request"() {
    const body = { command: "nonexistent_binary_that_does_not_exist" };
    await rejects(calls.exec(id, body), BadRequestError);
    await rejects(calls.spawn(id, body), BadRequestError);
    await rejects(calls.spawn(id, { ...body, allocate_tty: true }), BadRequestError);
    await rejects(calls.exec(id, { command: "/etc" }), BadRequestError);
    await rejects(calls.exec(id, { command: "true", cwd: "/no/such" }), BadRequestError);
  },
  async "as_root and as_user exclude each other"() {
    await rejects(calls.exec(id, { command: "true", as_root: true, as_user: "0" }), BadRequestError);
  },
  async "another user keeps the server's environment"() {
    if (process.getuid() !== 0) return;
    const { stdout_b64 } = await calls.exec(id, { ...sh("id -un; echo $OF_SERVER"), as_user: "nobody" });
    assert.equal(text(stdout_b64), "nobody\nyes\n");
    const { stdout_b64: ids } = await calls.exec(id, { ...sh("id -u; id -g"), as_user: "65534:0" });
    assert.equal(text(ids), "65534\n0\n");
  },
  async "exec has all of a long output"() {
    const { exit_code, stdout_b64 } = await calls.exec(id, sh("head -c 15000000 /dev/zero"));
    assert.deepEqual([exit_code, Buffer.from(stdout_b64, "base64").length], [0, 15_000_000]);
  },
  async "exec waits for a child that holds its output"() {
    const { exit_code, stdout_b64 } = await calls.exec(id, sh("(sleep 1; echo late) & echo early; exit 4"));
    assert.deepEqual([exit_code, text(stdout_b64)], [4, "early\nlate\n"]);
  },
  async "a time-out of exec is an error of the server"() {
    await rejects(calls.exec(id, { ...sh("sleep 1000"), timeout_sec: 1 }), InternalServerError, "process timed out");
  },
  async "empty strings mean none"() {
    const { exit_code } = await calls.exec(id, { command: "true", args: [], cwd: "", as_user: "", env: {}, timeout_sec: 0 });
    assert.equal(exit_code, 0);
  },
  async "unknown fields are ignored"() {
    assert.equal((await calls.exec(id, { command: "true", of_a_later_version: [1] })).exit_code, 0);
  },
  async "a body needs no Content-Type"() {
    const { status } = await raw("POST", `/browsers/${id}/process/exec`, '{"command":"true"}');
    assert.equal(status, 200);
  },
  async "output before the first reader is not lost"() {
    const { process_id } = await calls.spawn(id, sh("head -c 20000000 /dev/zero; echo end"));
    await new Promise((resolve) => setTimeout(resolve, 500));
    const { stdout, exit } = await events(process_id);
    assert.deepEqual([stdout.length, exit], [20_000_004, 0]);
  },
  async "a terminal is resized and attached"() {
    const body = { ...sh("read line; stty size; exit 5"), allocate_tty: true, rows: 30, cols: 100 };
    const { process_id } = await calls.spawn(id, body);
    assert.deepEqual(await calls.resize(process_id, { id, rows: 40, cols: 120 }), { ok: true });
    const at = new URL(`/browsers/${id}/process/${process_id}/attach`, url);
    at.protocol = "ws:";
    const headers = { authorization: `Bearer ${client.apiKey}` };
    const socket = new WebSocket(at, { headers });
    const messages = on(socket, "message");
    await once(socket, "open");
    socket.send(Buffer.from("\n"));
    let output = "";
    for await (const [data, isBinary] of messages) {
      const event = isBinary ? { type: "output" } : JSON.parse(data);
      if (isBinary) output += data;
      if (event.type !== "exit") continue;
      assert.equal(event.exitCode, 5);
      break;
    }
    assert.match(output, /40 120/);
  },
  async "the API is described"() {
    for (const path of ["/spec.json", "/spec.yaml"]) {
      const { status, body } = await raw("GET", path);
      assert.equal(status, 200);
      // JSON is valid YAML.
      assert.ok(JSON.parse(body).paths[`/browsers/${id}/process/exec`].post);
    }
  },
};

let failed = 0;
for (const [name, run] of Object.entries(cases)) {
  try {
    await run();
  } catch (error) {
    failed++;
    console.error(`  ${name} FAILED: ${String(error.message).slice(0, 300)}`);
  }
}
await server.stop();
console.log(`  @onkernel/sdk: ${Object.keys(cases).length - failed} of ${Object.keys(cases).length} cases ok`);
process.exitCode = failed ? 1 : 0;

// examples/resume.ts, and web/resumable.js, which is the package outrigger-client, in Node: the network goes away and comes back, and
// every message arrives once and in order, both ways. web_cuts.js has the same module in a page.
const assert = require("node:assert/strict");
const { execFileSync } = require("node:child_process");
const fs = require("node:fs");
const net = require("node:net");
const os = require("node:os");
const path = require("node:path");
const zlib = require("node:zlib");
const { pathToFileURL } = require("node:url");
const typescript = require("typescript");
const { start } = require("./server.js");

// Node before 22 has no WebSocket. This one is like it, except that an error without a listener ends the process.
globalThis.WebSocket ??= class extends require("ws") {
  constructor(url) { super(url); this.on("error", () => {}); }
};
const wait = (time) => new Promise((done) => setTimeout(done, time));

/** A proxy that resets a connection after a random number of bytes, at most `most`, in either direction. */
class Cutter {
  cuts = 0; online = true; frozen = false; sockets = new Set();

  async start(url, most) {
    const { hostname, port, pathname } = new URL(url);
    this.most = most;
    this.server = net.createServer((near) => this.connect(near, net.connect(port, hostname))).listen(0, "127.0.0.1");
    await new Promise((done) => this.server.once("listening", done));
    return `ws://127.0.0.1:${this.server.address().port}${pathname}`;
  }

  connect(near, far) {
    const cut = () => { near.resetAndDestroy(); far.resetAndDestroy(); };
    if (!this.online) return cut();
    this.sockets.add(cut);
    let left = 1500 + Math.floor(Math.random() * this.most); // a first response that is lost would leave a client behind
    for (const [from, to] of [[near, far], [far, near]]) {
      from.on("error", () => {}).on("close", () => { to.destroySoon(); this.sockets.delete(cut); });
      from.on("data", (data) => {
        if (this.frozen) return;
        to.write(data.subarray(0, left));
        left -= data.length;
        if (left > 0 || this.sockets.size === 0) return;
        this.cuts++;
        cut();
      });
    }
  }

  /** Nothing arrives any more, and nobody says so. */
  freeze() { this.frozen = true; }
  goOffline() { this.online = false; for (const cut of this.sockets) cut(); }
  goOnline() { this.online = true; }
  stop() { this.goOffline(); this.server.close(); }
}

/** Sends `count` numbered messages to `echo`, at most ten ahead. Returns what is wrong. */
async function echo(Resuming, url, count) {
  const connection = new Resuming(url);
  const content = (number) => String(number).padEnd(1 + ((number * 7919) % 40_000), "κόσμε");
  const wrong = [];
  let sent = 0, back = 0;
  const send = () => {
    while (sent < count && sent < back + 10) {
      connection.send(sent % 2 ? content(sent) : new TextEncoder().encode(content(sent)).buffer);
      sent++;
    }
  };
  const ended = new Promise((done) => { connection.onend = done; });
  await new Promise((done) => {
    connection.onlost = () => { wrong.push("the server has forgotten us"); done(); };
    connection.onmessage = (data) => {
      const text = typeof data === "string" ? data : new TextDecoder().decode(data);
      if (text !== content(back) || (typeof data === "string") !== (back % 2 === 1)) wrong.push(`${back}: ${text.slice(0, 20)}`);
      connection.confirm(++back);
      if (back === count || wrong.length > 0) done();
      send();
    };
    send();
  });
  connection.close();
  return { wrong, back, code: await ended };
}

/** Lets the agent count twice. Returns what it said, and how often each request was answered. */
async function count(Resuming, url, most) {
  const connection = new Resuming(url);
  const answers = {};
  let said = "", id = 0;
  const ask = (method, params) => new Promise((done, fail) => {
    const mine = ++id;
    connection.onlost = () => fail(new Error("the server has forgotten us"));
    answers[mine] = 0;
    connection.onmessage = (data) => {
      const message = JSON.parse(data);
      if (message.method === "session/update") said += message.params.update.content.text;
      if (!("id" in message)) return;
      answers[message.id]++;
      if (message.id === mine) done(message.result);
    };
    connection.send(JSON.stringify({ jsonrpc: "2.0", id: mine, method, params }));
  });
  await ask("initialize", { protocolVersion: 1, clientCapabilities: {} });
  const { sessionId } = await ask("session/new", { cwd: "/", mcpServers: [] });
  for (let round = 0; round < 2; round++) {
    await ask("session/prompt", { sessionId, prompt: [{ type: "text", text: `/count ${most}` }] });
  }
  const ended = new Promise((done) => { connection.onend = done; });
  connection.close();
  await ended;
  return { said, answers };
}

/** The server forgets a client that stays away. The client starts anew. */
async function startAnew(Resuming, url) {
  const connection = new Resuming(url);
  const next = () => new Promise((done) => { connection.onmessage = done; });
  connection.send("first");
  const first = await next();
  const lost = new Promise((done) => { connection.onlost = (kept) => { connection.send("again"); done(kept); }; });
  const kept = await lost;
  const again = await next();
  const ended = new Promise((done) => { connection.onend = done; });
  connection.close();
  await ended;
  return { first, kept, again };
}

/** Runs the functions above with a client. */
async function check(name, run, servers) {
  const away = async (cutter, time) => {
    cutter.goOffline();
    await wait(time);
    cutter.goOnline();
  };
  const clientsLeft = async (url) => (await (await fetch(new URL("/status", url.replace("ws:", "http:")))).json()).client_count;

  const cutter = new Cutter();
  const echoing = run(echo, await cutter.start(servers.both.echo, 3_000_000), 1000);
  await wait(300);
  await away(cutter, 1000);
  assert.deepEqual(await echoing, { wrong: [], back: 1000, code: 1000 });
  cutter.stop();
  console.log(`  ${name}: 1000 messages to echo and back, ${cutter.cuts} cuts, 1 s offline ok`);

  const second = new Cutter();
  const counting = run(count, await second.start(servers.both.agent, 3000), 50);
  await wait(1500);
  await away(second, 1000);
  const numbers = Array.from({ length: 50 }, (_, at) => `${at + 1} `).join("");
  assert.deepEqual(await counting, { said: numbers + numbers, answers: { 1: 1, 2: 1, 3: 1, 4: 1 } });
  second.stop();
  console.log(`  ${name}: two prompts to an agent, ${second.cuts} cuts, 1 s offline ok`);

  const third = new Cutter();
  const anew = run(startAnew, await third.start(servers.forgetful, 1e9));
  await wait(1000);
  await away(third, 2000);
  assert.deepEqual(await anew, { first: "first", kept: ["first"], again: "again" });
  third.stop();
  console.log(`  ${name}: 410, and a new conversation ok`);
  const deadline = Date.now() + 30_000;
  while (await clientsLeft(servers.both.echo) + await clientsLeft(servers.forgetful) > 0) {
    assert.ok(Date.now() < deadline, "no client is left");
    await wait(50);
  }
}

/** Gives the WebSocket of the package the methods of the example, which the functions above use. */
function likeTheExample(ResumableWebSocket) {
  return class {
    constructor(url) {
      this.url = url;
      this.begin();
    }
    begin() {
      const socket = this.socket = new ResumableWebSocket(this.url, [], { early: true });
      socket.binaryType = "arraybuffer";
      socket.onmessage = ({ data }) => this.onmessage(data);
      socket.onclose = ({ code, status }) => {
        if (status !== 410) return this.onend?.(code);
        this.begin();
        this.onlost(socket.unconfirmed);
      };
    }
    send(data) { this.socket.send(data); }
    confirm(count) { this.socket.confirm(count); }
    close() { this.socket.close(); }
  };
}

/** The package's types fit, and it is small. */
function checkPackage(compilerOptions, folder) {
  const size = zlib.gzipSync(fs.readFileSync(path.join(folder, "index.js")), { level: 9 }).length;
  assert.ok(size < 5000, `${size} bytes`);
  const others = ["xterm.js", "acp.js"].map((name) => zlib.gzipSync(fs.readFileSync(path.join(folder, name)), { level: 9 }).length);
  const use = path.join(folder, "use.ts");
  fs.writeFileSync(use, `import { ResumableWebSocket } from "./index.js";
    const socket = new ResumableWebSocket(() => "/acp", "outrigger", { early: true, unauthorized: async () => {} });
    socket.addEventListener("cut", ({ reason, retryAt }) => console.log(reason.length, retryAt + 1));
    socket.onclose = ({ code, status, wasClean }) => console.log(code + status, wasClean);
    const plain: Pick<WebSocket, "send" | "close" | "readyState" | "bufferedAmount" | "url" | "protocol" | "extensions" | "OPEN"> = socket;
    plain.send("x");
    socket.confirm(socket.sent);`);
  const agent = path.join(folder, "agent.ts");
  fs.writeFileSync(agent, `import { AgentConnection, RequestError } from "./acp.js";
    const agent = new AgentConnection("/acp", { protocols: "outrigger", minDelay: 10, request: ({ method, params, signal }) => signal.aborted ? undefined : [method, params] });
    agent.addEventListener("notification", ({ detail: { method, params } }) => console.log(method.length, params));
    agent.addEventListener("close", ({ detail: { code, status } }) => console.log(code + status));
    agent.request("a", { b: 1 }).catch((error) => error instanceof RequestError && error.code + error.status);`);
  const program = typescript.createProgram([use, agent], { ...compilerOptions, moduleResolution: typescript.ModuleResolutionKind.Bundler });
  assert.deepEqual(typescript.getPreEmitDiagnostics(program).map(({ messageText }) => messageText), []);
  console.log(`  the package: its types, and ${size} bytes compressed ok; the addon adds ${others[0]}, the agents' connection ${others[1]}`);
}

/** A conversation with an agent over a connection that is cut often: nothing is lost, and what is open at the end fails. */
async function conversation(AgentConnection, url) {
  const cutter = new Cutter();
  const asked = [];
  let text = "";
  const connection = new AgentConnection(await cutter.start(url, 2000), {
    minDelay: 10,
    request({ method, params }) {
      asked.push(method);
      return { outcome: { outcome: "selected", optionId: params.options.find(({ kind }) => kind.startsWith("allow")).optionId } };
    },
  });
  connection.addEventListener("notification", ({ detail: { params } }) => { text += params.update.content?.text ?? ""; });
  assert.equal((await connection.initialize()).protocolVersion, 1);
  const { sessionId } = await connection.request("session/new", { cwd: "/", mcpServers: [] });
  const ask = (words) => connection.request("session/prompt", { sessionId, prompt: [{ type: "text", text: words }] });
  for (let prompt = 1; cutter.cuts < 5 || prompt < 3; prompt++) {
    assert.deepEqual(await ask("hello"), { stopReason: "end_turn" });
    assert.match(text, new RegExp(`This is prompt ${prompt} of this session`));
  }
  await ask("/permission");
  assert.match(text, /You allowed it, and nothing was done\./);
  assert.deepEqual(asked, ["session/request_permission"]);
  await assert.rejects(connection.request("no/such/method"), ({ code, isLost }) => code === -32601 && !isLost);
  // Nobody asks the agent any more.
  cutter.goOffline();
  const lost = assert.rejects(ask("lost"), ({ code, isLost }) => code === 0 && isLost);
  connection.close();
  await lost;
  await assert.rejects(ask("too late"), ({ isLost }) => isLost);
  cutter.stop();
  console.log(`  the package: a conversation with an agent, cut ${cutter.cuts} times ok`);
}

/** Messages of a server that does not resume arrive as they are, even if they begin as the server's own do. */
async function plainServer(ResumableWebSocket) {
  const { WebSocketServer } = require("ws");
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  await new Promise((done) => server.once("listening", done));
  const texts = ['{"outrigger": this is not JSON', '{"outrigger":{"resume":1}}', '{"outrigger":{"heartbeat":"0123456789abcdef","received":7}}', "null"];
  for (const text of texts) {
    server.once("connection", (socket) => socket.send(text));
    const socket = new ResumableWebSocket(`ws://127.0.0.1:${server.address().port}/`);
    const data = await new Promise((done, fail) => { socket.onmessage = ({ data }) => done(data); socket.onclose = () => fail(new Error("closed")); });
    assert.equal(data, text);
    assert.deepEqual([socket.resumable, socket.received], [false, 1]);
    socket.close();
  }
  server.close();
  console.log("  the package: a server that does not resume ok");
}

/** The server says what it has received, so little is kept without `confirm`, and a connection that is dead is noticed. */
async function heartbeats(ResumableWebSocket, url) {
  const cutter = new Cutter();
  const at = await cutter.start(url, 1e9);
  const socket = new ResumableWebSocket(at, [], { early: true, deadAfter: 1000 });
  socket.binaryType = "arraybuffer";
  let back = 0;
  socket.onmessage = () => { back++; };
  for (let count = 0; count < 100; count++) socket.send(new Uint8Array(10_000));
  const until = async (condition) => {
    const end = Date.now() + 30_000;
    while (!condition()) { assert.ok(Date.now() < end, "in time"); await wait(20); }
  };
  await until(() => back === 100 && socket.bufferedAmount === 0);
  assert.equal(cutter.cuts, 0);
  const cut = new Promise((done) => socket.addEventListener("cut", done, { once: true }));
  const began = Date.now();
  cutter.freeze();
  assert.equal((await cut).reason, "the server does not answer");
  const took = Date.now() - began;
  assert.ok(took < 10_000, `${took} ms`);
  cutter.frozen = false;
  socket.retry();
  await until(() => socket.connected);
  socket.send("on");
  await until(() => back === 101);
  socket.close();
  cutter.stop();
  console.log(`  the package: 1 MB is confirmed, and a dead connection is noticed after ${took} ms ok`);
}

async function main() {
  const source = fs.readFileSync("examples/resume.ts", "utf8");
  const compilerOptions = { strict: true, noEmit: true, types: [], lib: ["lib.es2022.d.ts", "lib.dom.d.ts"],
    target: typescript.ScriptTarget.ES2022, module: typescript.ModuleKind.ES2022 };
  const program = typescript.createProgram(["examples/resume.ts"], compilerOptions);
  assert.deepEqual(typescript.getPreEmitDiagnostics(program).map(({ messageText }) => messageText), []);
  const script = typescript.transpile(source, compilerOptions);
  const module = await import(`data:text/javascript,${encodeURIComponent(script)}`);

  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "outrigger-resume-"));
  execFileSync("packaging/npm-client/files.sh", [folder]);
  checkPackage(compilerOptions, folder);
  const ours = fs.readFileSync(path.join(folder, "index.js"), "utf8");
  const { ResumableWebSocket } = await import(`data:text/javascript,${encodeURIComponent(ours)}`);
  const routes = { "/echo": { echo: {} }, "/acp": { agent: { command: [path.resolve(process.env.OUTRIGGER), "example-agent"] } } };
  fs.writeFileSync(path.join(folder, "config.json"), JSON.stringify({ routes }));
  // The grace is longer than the client's longest delay, 10 s.
  const both = await start("serve", "--no-auth", "--resume-grace", "30s", "--config", path.join(folder, "config.json"));
  const forgetful = await start("echo", "--resume-grace", "300ms");
  const servers = { both: { echo: new URL("/echo", both.url).href, agent: new URL("/acp", both.url).href }, forgetful: forgetful.url };

  fs.writeFileSync(path.join(folder, "package.json"), '{"type":"module"}');
  await conversation((await import(pathToFileURL(path.join(folder, "acp.js")))).AgentConnection, servers.both.agent);
  await plainServer(ResumableWebSocket);
  await heartbeats(ResumableWebSocket, servers.both.echo);
  await check("node", (work, ...args) => work(module.Resuming, ...args), servers);

  await check("the package, node", (work, ...args) => work(likeTheExample(ResumableWebSocket), ...args), servers);

  await both.stop();
  await forgetful.stop();
  fs.rmSync(folder, { recursive: true });
}

main().catch((error) => { console.error(error); process.exit(1); });

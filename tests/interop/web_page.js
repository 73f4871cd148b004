// What the tests of the terminal page share: servers, a proxy that cuts connections, and a page that fails its test if anything goes wrong
// in it.
//
// env: SCREENSHOTS=DIR: saves what the page looks like in this directory
//      WEB=web: takes the scripts and style sheets from this directory, so that a change needs no build
const assert = require("node:assert/strict");
const fs = require("node:fs");
const net = require("node:net");
const os = require("node:os");
const path = require("node:path");
const { chromium } = require("playwright-core");
const { start } = require("./server.js");

const QUIET = ["--no-sandbox", "--disable-quic", "--no-first-run", "--disable-sync",
  "--disable-background-networking", "--disable-component-update"];
const TOKEN = "a-token-of-this-test-alone";
const DEADLINE = Number(process.env.DEADLINE ?? 30_000);
process.env.OUTRIGGER_TOKEN = TOKEN;

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "outrigger-web-"));
const script = (name, text) => {
  const file = path.join(folder, name);
  fs.writeFileSync(file, text);
  return file;
};

/** Passes connections to the server, and cuts them on request, or `early`: each WebSocket after its first message. */
class Cutter {
  early = false;
  cuts = 0; online = true; frozen = false; upgrades = 0; sockets = new Set(); #pairs = new Set(); #server;

  async start(port) {
    this.port = port;
    this.#server = net.createServer((near) => {
      if (!this.online) return near.resetAndDestroy();
      if (this.frozen) return this.sockets.add(near.pause().on("error", () => {}));
      const far = net.connect(this.port, "127.0.0.1");
      const cut = () => { near.resetAndDestroy(); far.resetAndDestroy(); };
      this.#pairs.add(cut);
      for (const [from, to] of [[near, far], [far, near]]) {
        from.on("error", () => {}).on("close", () => { to.destroySoon(); this.#pairs.delete(cut); });
        from.pipe(to);
        this.sockets.add(from);
      }
      let upgraded = false;
      near.on("data", (data) => {
        if (upgraded || !/^upgrade: websocket/im.test(data)) return;
        upgraded = true;
        this.upgrades++;
        let answer = "";
        far.on("data", (data) => {
          answer = (answer + data.toString("latin1")).slice(0, 4096);
          if (this.early && !answer.endsWith("\r\n\r\n")) near.end();
        });
      });
    }).listen(0, "127.0.0.1");
    await new Promise((done) => this.#server.once("listening", done));
    return this.#server.address().port;
  }

  cut() { this.cuts++; for (const cut of this.#pairs) cut(); }
  /** The network is dead: nothing arrives any more, in open and in new connections, and nobody says so. */
  freeze() { this.frozen = true; for (const socket of this.sockets) { socket.unpipe(); socket.pause(); } }
  /** New connections arrive again. */
  thaw() { this.frozen = false; for (const socket of this.sockets) socket.destroy(); }
  goOffline() { this.online = false; this.cut(); }
  goOnline() { this.online = true; }
  stop() { this.goOffline(); this.#server.close(); }
}

/** A server with its page's address. */
async function serve(command, ...args) {
  const server = await start(command, ...args);
  const url = new URL(server.url);
  return { ...server, port: Number(url.port), path: url.pathname, base: `http://${url.host}` };
}

const bash = (...options) => serve("terminal", ...options, "--env", "PS1=$ ", "--", "bash", "--norc");

/** Takes the files of the pages from a directory, and those of npm packages from `dist` in it. */
function serveFrom(context, directory) {
  const types = { css: "text/css", js: "text/javascript", mjs: "text/javascript" };
  const content = (name) => [directory, path.join(directory, "dist")].map((one) => path.join(one, name)).find((file) => fs.existsSync(file));
  // Chromium keeps a page that did not come from the network away from this machine's servers, so HTML comes from the server.
  return context.route((url) => url.pathname.includes("/.outrigger/web/"), (route) => {
    const name = path.basename(new URL(route.request().url()).pathname);
    const file = content(name);
    return file ? route.fulfill({ body: fs.readFileSync(file), contentType: types[name.split(".").at(-1)] }) : route.continue();
  });
}

/** A terminal page. Everything that goes wrong in it fails the test. */
class Page {
  wrong = [];

  static async open(browser, url, options = {}) {
    const self = new Page();
    self.context = options.context ?? await browser.newContext({ viewport: { width: 900, height: 500 }, ...options });
    if (process.env.WEB) await serveFrom(self.context, process.env.WEB);
    const page = self.page = await self.context.newPage();
    self.origin = new URL(url).origin;
    page.setDefaultTimeout(DEADLINE);
    page.on("pageerror", (error) => self.wrong.push(String(error.stack)));
    page.on("console", (message) => {
      // Cuts, and tokens that are refused on purpose.
      if (message.type() === "error" && !/WebSocket connection|Failed to load resource/.test(message.text())) self.wrong.push(message.text());
    });
    page.on("request", (request) => {
      const { origin, protocol } = new URL(request.url());
      if (protocol !== "data:" && origin !== self.origin) self.wrong.push(`a request to ${request.url()}`);
      if (request.url().includes(TOKEN)) self.wrong.push(`the token in ${request.url()}`);
    });
    page.on("websocket", (socket) => {
      if (socket.url().includes(TOKEN)) self.wrong.push("the token in the URL of the WebSocket");
      if (new URL(socket.url()).host !== new URL(url).host) self.wrong.push(`a WebSocket to ${socket.url()}`);
    });
    self.dialogs = [];
    page.on("dialog", (dialog) => { self.dialogs.push(dialog.type()); dialog.accept().catch(() => {}); });
    await page.goto(url);
    return self;
  }

  type(text) { return this.page.keyboard.type(text); }
  press(key) { return this.page.keyboard.press(key); }
  lines() {
    return this.page.evaluate(() => {
      const buffer = outriggerTerminal.buffer.active;
      return Array.from({ length: buffer.length }, (_, at) => buffer.getLine(at).translateToString(true));
    });
  }
  async shows(text) {
    await this.page.waitForFunction((text) => {
      const buffer = globalThis.outriggerTerminal?.buffer.active;
      if (!buffer) return false;
      const lines = Array.from({ length: buffer.length }, (_, at) => buffer.getLine(at).translateToString(true).trimEnd());
      return `\n${lines.join("\n")}`.includes(text);
    }, text).catch(async (error) => { throw new Error(`"${text}" is not shown: ${error.message}\n${(await this.lines()).join("\n").trim().slice(-2000)}\n${await this.bar()}`); });
  }
  bar() { return this.page.locator("#bar").innerText(); }
  async says(pattern) {
    await this.page.waitForFunction(({ source, flags }) => new RegExp(source, flags).test(document.querySelector("#bar").innerText), { source: pattern.source, flags: pattern.flags })
      .catch(async (error) => { throw new Error(`the status bar does not say ${pattern}: ${error.message}\n${await this.bar()}`); });
  }
  size() { return this.page.evaluate(() => [outriggerTerminal.rows, outriggerTerminal.cols]); }
  /** Records the output from now on. */
  record() {
    return this.page.evaluate(() => {
      globalThis.output = [];
      const core = outriggerTerminal._core;
      const write = core.writeSync.bind(core);
      globalThis.outputBytes = 0;
      core.writeSync = (data) => { globalThis.output.push(data); globalThis.outputBytes += data.length; write(data); };
    });
  }
  recorded() {
    return this.page.evaluate(async () => {
      const reader = new FileReader();
      const read = new Promise((done) => { reader.onload = done; });
      reader.readAsDataURL(new Blob(globalThis.output));
      await read;
      return reader.result.split(",")[1] ?? "";
    }).then((text) => Buffer.from(text, "base64"));
  }
  /** Pastes a text as the browser does it. */
  paste(text) {
    return this.page.evaluate((text) => {
      const clipboardData = new DataTransfer();
      clipboardData.setData("text/plain", text);
      outriggerTerminal.textarea.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
    }, text);
  }
  async shot(name) {
    if (process.env.SCREENSHOTS) await this.page.screenshot({ path: path.join(process.env.SCREENSHOTS, `${name}.png`) });
  }
  async close() {
    assert.deepEqual(this.wrong, []);
    await this.context.close();
  }
}

async function until(condition, what) {
  const end = Date.now() + DEADLINE;
  while (!condition()) {
    if (Date.now() > end) throw new Error(`not in time: ${what}`);
    await new Promise((done) => setTimeout(done, 20));
  }
}

/** A call of the processes API. */
async function call(server, way, body) {
  const response = await fetch(server.base + way, {
    method: "POST", headers: { Authorization: `Bearer ${TOKEN}`, "Content-Type": "application/json" }, body: JSON.stringify(body),
  });
  assert.equal(response.status, 200, `${way}: ${await response.clone().text()}`);
  return response.json();
}

/** Runs the chosen parts, or all, each with the browser. */
async function run(title, parts, args = [...QUIET, "--disable-gpu"]) {
  const chosen = process.argv.slice(2);
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args });
  try {
    for (const [name, part] of Object.entries(parts)) {
      if (chosen.length && !chosen.includes(name)) continue;
      const began = Date.now();
      await part(browser).catch((error) => { throw new Error(`${name}: ${error.message}`, { cause: error }); });
      console.log(`  ${title}: ${name} ok (${((Date.now() - began) / 1000).toFixed(1)} s)`);
    }
  } finally {
    await browser.close();
    fs.rmSync(folder, { recursive: true, force: true });
  }
}

module.exports = { QUIET, TOKEN, Cutter, Page, bash, call, folder, run, script, serve, serveFrom, until };

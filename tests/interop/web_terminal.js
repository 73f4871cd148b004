// The terminal page in headless Chromium, on real programs: bash, vim, htop and Python.
//
// usage: OUTRIGGER=... NODE_PATH=... node tests/interop/web_terminal.js [PART...]      all parts by default
// env:   SCREENSHOTS=DIR: saves what the page looks like in this directory
//        WEB=web: takes the scripts and style sheets from this directory, so that a change needs no build
const assert = require("node:assert/strict");
const crypto = require("node:crypto");
const fs = require("node:fs");
const net = require("node:net");
const os = require("node:os");
const path = require("node:path");
const { chromium } = require("playwright-core");
const { start } = require("./server.js");

const QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
  "--disable-background-networking", "--disable-component-update"];
const TOKEN = "a-token-of-this-test-alone";
const DEADLINE = Number(process.env.DEADLINE ?? 30_000);
const MEGABYTE = 1_000_000;
process.env.OUTRIGGER_TOKEN = TOKEN;

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "outrigger-web-"));
const sha256 = (data) => crypto.createHash("sha256").update(data).digest("hex");
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

/** A program that prints numbered lines once a key is pressed, and what it prints. It exits with code 7 at the next key. */
function numbers() {
  const printer = script("printer.py", `
import os, sys, time, tty
tty.setraw(0)
os.write(1, b"ready\\r\\n")
os.read(0, 1)
for n in range(40000):
    os.write(1, b"\\x1b[%dmline %d \\xce\\xba\\xe6\\x97\\xa5\\x1b[0m %s\\r\\n" % (31 + n % 7, n, b"x" * (n * 7919 % 60)))
    if n % 100 == 0: time.sleep(0.01)
os.write(1, b"end\\r\\n")
os.read(0, 1)
sys.exit(7)
`);
  const expected = Buffer.concat(Array.from({ length: 40000 }, (_, n) =>
    Buffer.from(`\x1b[${31 + n % 7}mline ${n} κ日\x1b[0m ${"x".repeat(n * 7919 % 60)}\r\n`)).concat(Buffer.from("end\r\n")));
  return { printer, expected };
}

/** A call of the processes API. */
async function call(server, way, body) {
  const response = await fetch(server.base + way, {
    method: "POST", headers: { Authorization: `Bearer ${TOKEN}`, "Content-Type": "application/json" }, body: JSON.stringify(body),
  });
  assert.equal(response.status, 200, `${way}: ${await response.clone().text()}`);
  return response.json();
}

const parts = {
  /** Typing, the address without the token, the title, colors, links, search, copy, resizing, vim and htop. */
  async programs(browser) {
    const server = await bash();
    const page = await Page.open(browser, `${server.base}${server.path}#token=${TOKEN}`, { permissions: ["clipboard-read", "clipboard-write"] });
    await page.shows("\n$");
    assert.equal(page.page.url(), `${server.base}${server.path}`);
    await page.says(/Connected/);
    await page.type("echo the answer is $((6 * 7)) κόσμε 日本\n");
    await page.shows("\nthe answer is 42 κόσμε 日本");

    await page.type("printf '\\e]2;a title\\a'\n");
    await page.page.waitForFunction(() => document.title === "a title");

    // The bell of a hidden page marks its title.
    await page.page.evaluate(() => Object.defineProperty(document, "hidden", { value: true, configurable: true }));
    await page.type("printf '\\a'\n");
    await page.page.waitForFunction(() => document.title === "● a title");
    await page.page.evaluate(() => { delete document.hidden; document.dispatchEvent(new Event("visibilitychange")); });
    assert.equal(await page.page.title(), "a title");

    await page.type("clear; seq 500\n");
    await page.shows("\n500\n$");
    await page.page.mouse.move(300, 200);
    await page.page.mouse.wheel(0, -1000);
    await page.page.waitForFunction(() => outriggerTerminal.buffer.active.viewportY < outriggerTerminal.buffer.active.baseY);

    await page.type("clear; printf '\\e[31mA\\e[38;5;99mB\\e[38;2;255;100;0mC\\e[0;1;4mD\\e[0m\\n'\n");
    await page.shows("\nABCD");
    const cells = await page.page.evaluate(() => {
      const buffer = outriggerTerminal.buffer.active;
      for (let at = 0; at < buffer.length; at++) {
        const line = buffer.getLine(at);
        if (line.translateToString(true) !== "ABCD") continue;
        return [0, 1, 2, 3].map((x) => line.getCell(x)).map((cell) => [cell.isFgPalette(), cell.isFgRGB(), cell.getFgColor(), Boolean(cell.isBold()), Boolean(cell.isUnderline())]);
      }
    });
    assert.deepEqual(cells, [[true, false, 1, false, false], [true, false, 99, false, false], [false, true, 0xff6400, false, false], [false, false, -1, true, true]]);

    const before = await page.size();
    await page.page.setViewportSize({ width: 1200, height: 700 });
    await page.page.waitForFunction(([rows, cols]) => outriggerTerminal.rows > rows && outriggerTerminal.cols > cols, before);
    await page.type("clear; stty size\n");
    await page.shows(`\n${(await page.size()).join(" ")}\n`);
    const [, columns] = await page.size();
    await page.press("Control+-");
    await page.page.waitForFunction((columns) => outriggerTerminal.cols > columns, columns);
    assert.equal(await page.page.evaluate(() => localStorage.getItem("outrigger.terminal.fontSize")), "13");
    await page.type("clear; stty size\n");
    await page.shows(`\n${(await page.size()).join(" ")}\n`);
    await page.press("Control+0");

    // Without `noflsh` the kernel may discard the `^C` that follows the signal (termios(3)).
    await page.type("clear; stty noflsh; echo needle; echo https://example.com/page\n");
    await page.shows("\nhttps://example.com/page");
    await page.press("Control+Shift+F");
    await page.page.keyboard.type("needle");
    await page.page.locator("#find-count", { hasText: "1 of 1" }).waitFor();
    await page.press("Escape");
    // A search begins at the prompt and goes up.
    await page.type("clear; for n in {1..60}; do echo straw $n; done\n");
    await page.shows("\nstraw 60\n$");
    await page.press("Control+Shift+F");
    await page.page.keyboard.type("straw ");
    await page.page.locator("#find-count", { hasText: "60 of 60" }).waitFor();
    await page.press("Enter");
    await page.page.locator("#find-count", { hasText: "59 of 60" }).waitFor();
    await page.press("Shift+Enter");
    await page.page.locator("#find-count", { hasText: "60 of 60" }).waitFor();
    await page.press("Escape");
    await page.type("clear; echo '(see https://example.com/page_(a)/b_(c).)'; echo https://example.com/page\n");
    await page.shows("\nhttps://example.com/page");
    for (const [column, address] of [[10, "https://example.com/page_(a)/b_(c)"], [40, ""]]) {
      const over = await page.page.evaluate((column) => {
        const buffer = outriggerTerminal.buffer.active;
        const row = Array.from({ length: outriggerTerminal.rows }, (_, y) => buffer.getLine(buffer.viewportY + y).translateToString(true)).findIndex((line) => line.startsWith("(see"));
        const box = document.querySelector(".xterm-screen").getBoundingClientRect();
        return { x: box.left + (column + 0.5) * box.width / outriggerTerminal.cols, y: box.top + (row + 0.5) * box.height / outriggerTerminal.rows };
      }, column);
      await page.page.mouse.move(over.x - 3, over.y);
      await page.page.mouse.move(over.x, over.y);
      await page.page.waitForFunction((address) => document.querySelector("#link").textContent === address, address);
    }
    const popup = page.context.waitForEvent("page");
    await page.context.route("https://example.com/**", (route) => route.abort());
    const at = await page.page.evaluate(() => {
      const buffer = outriggerTerminal.buffer.active;
      const row = Array.from({ length: outriggerTerminal.rows }, (_, y) => buffer.getLine(buffer.viewportY + y).translateToString(true)).indexOf("https://example.com/page");
      const box = document.querySelector(".xterm-screen").getBoundingClientRect();
      return { x: box.left + 5.5 * box.width / outriggerTerminal.cols, y: box.top + (row + 0.5) * box.height / outriggerTerminal.rows };
    });
    await page.page.mouse.move(at.x - 3, at.y);
    await page.page.mouse.move(at.x, at.y);
    await page.page.locator("#link", { hasText: "https://example.com/page" }).waitFor();
    await page.page.mouse.click(at.x, at.y);
    assert.equal(await (await popup).evaluate(() => window.opener), null);
    await (await popup).close();

    await page.page.mouse.dblclick(at.x, at.y);
    await page.press("Control+Shift+C");
    await page.page.waitForFunction(async () => (await navigator.clipboard.readText()).includes("https"));
    await page.press("Control+c");
    await page.shows("^C\n$");

    const file = path.join(folder, "edited.txt");
    await page.type(`clear; vim -u NONE -N ${file}\n`);
    await page.shows("~\n~");
    await page.type("ihello from vim");
    await page.shows("\nhello from vim");
    await page.press("Escape");
    await page.shot("vim");
    await page.type(":wq\n");
    await page.shows("\n$");
    await until(() => fs.existsSync(file) && fs.readFileSync(file, "utf8") === "hello from vim\n", "vim saves the file");

    await page.type("htop -d 5\n");
    await page.shows("F10Quit");
    await page.shows("Load average");
    await page.shot("htop");
    await page.type("q");
    await page.type("exit 3\n");
    await page.says(/Exited with code 3/);
    await page.press("Enter"); // the first button: a new terminal
    await page.says(/Connected/);
    await page.type("kill -TERM $$; kill -KILL $$\n");
    await page.says(/Killed by SIGKILL/);
    await page.page.getByRole("button", { name: "Start a new terminal" }).click();
    await page.says(/Connected/);
    await page.type("echo anew\n");
    await page.shows("\nanew");
    assert.deepEqual(page.dialogs, []);
    // To close the page would end the shell.
    await page.page.close({ runBeforeUnload: true });
    await until(() => page.dialogs.includes("beforeunload"), "the page warns before it closes");
    await page.close();
    await server.stop();
  },

  /** A megabyte, pasted while the connection is cut, arrives once and in order; a flood of output is shown completely. */
  async paste(browser) {
    const reader = script("reader.py", `
import hashlib, os, sys, termios, tty
tty.setraw(0)
count = int(sys.argv[1])
os.write(1, b"ready\\r\\n")
data = b""
while len(data) < count:
    data += os.read(0, 65536)
os.write(1, b"got %d %s\\r\\n" % (len(data), hashlib.sha256(data).hexdigest().encode()))
os.write(1, b"\\x1b[?2004h> ")
while b"201~" not in (line := os.read(0, 1000)):
    os.write(1, repr(line).encode())
os.write(1, repr(line).encode() + b"\\r\\n")
os.read(0, 1)
os.write(1, b"".join(b"line %d\\r\\n" % n for n in range(600000)) + b"end\\r\\n")
os.read(0, 1)
`);
    const server = await serve("terminal", "--", "python3", reader, String(MEGABYTE));
    const cutter = new Cutter();
    const port = await cutter.start(server.port);
    const page = await Page.open(browser, `http://127.0.0.1:${port}${server.path}#token=${TOKEN}`);
    await page.shows("\nready");
    const text = Array.from({ length: MEGABYTE }, (_, at) => String.fromCharCode(33 + (at * 7919) % 94)).join("");
    await page.paste(text);
    for (let i = 0; i < 3; i++) { cutter.cut(); await page.says(/Connected/); }
    await page.shows(`\ngot ${MEGABYTE} ${sha256(text)}`);
    await page.shows("\n>");
    await page.paste("one\x1b[201~two\nthree");
    await page.shows("b'\\x1b[200~one[201~two\\rthree\\x1b[201~'");
    await page.press("g");
    await page.shows("\nline 599999\nend");
    await page.press("q");
    await page.says(/Exited with code 0/);
    await page.close();
    cutter.stop();
    await server.stop();
  },

  /** A reload continues the same shell, and no output is lost or doubled. */
  async reload(browser) {
    const server = await bash();
    const page = await Page.open(browser, `${server.base}${server.path}#token=${TOKEN}`);
    await page.shows("\n$");
    await page.type("variable=kept; printf '\\e]2;my title\\a'\n");
    await page.type("clear; for i in {1..400}; do printf 'line \\e[3%dm%d\\e[0m κόσμε\\n' $((i % 8)) $i; sleep 0.005; done; echo the end\n");
    for (const seen of [20, 120, 220]) {
      await page.shows(`\nline ${seen} κόσμε`);
      await page.page.reload();
    }
    await page.shows("\nthe end");
    const lines = (await page.lines()).filter((line) => /^line \d+ κόσμε$/.test(line));
    assert.deepEqual(lines, Array.from({ length: 400 }, (_, at) => `line ${at + 1} κόσμε`));
    assert.equal(await page.page.title(), "my title");
    await page.type("clear; echo the variable is $variable\n");
    await page.shows("\nthe variable is kept");
    // At a prompt F5 is the browser's key, in a full-screen program it is the program's.
    await page.type("vim -u NONE -N\n");
    await page.shows("~\n~");
    await page.page.reload();
    await page.shows("~\n~");
    await page.type("ijust \x16");
    await page.press("F5");
    await page.shows("\njust ^[[15~");
    await page.press("Escape");
    await page.type(":q!\n");
    await page.shows("the variable is kept\n$ vim");
    await page.type("exit\n");
    await page.says(/Exited with code 0/);
    assert.equal(await page.page.evaluate(() => Object.keys(sessionStorage).join()), "outrigger.token");
    await page.close();
    await server.stop();
  },

  /** The connection is cut again and again, and the output is that of the program, byte for byte. */
  async cuts(browser) {
    const { printer, expected } = numbers();
    const server = await serve("terminal", "--", "python3", printer);
    const cutter = new Cutter();
    const port = await cutter.start(server.port);
    const page = await Page.open(browser, `http://127.0.0.1:${port}${server.path}#token=${TOKEN}`);
    await page.shows("\nready");
    await page.record();
    await page.press("g");
    for (let cut = 1; cut <= 9; cut++) {
      await page.page.waitForFunction((least) => globalThis.outputBytes >= least, cut * expected.length / 10);
      cutter.cut();
    }
    await page.shows("\nend");
    const got = await page.recorded();
    assert.equal(got.length, expected.length);
    assert.equal(sha256(got), sha256(expected));

    // The server cannot be reached for a while: the page says since when, and input that is typed meanwhile arrives.
    cutter.goOffline();
    await page.says(/No connection since \d.*\(\d+ s/s);
    await page.shot("lost");
    cutter.goOnline();
    await page.says(/Connected/);
    cutter.goOffline();
    await page.says(/No connection since/);
    await page.press("q");
    cutter.goOnline();
    await page.page.getByRole("button", { name: "Try now" }).click({ timeout: 2000 }).catch(() => {}); // it may be back already
    await page.says(/Exited with code 7/);
    await page.close();
    cutter.stop();
    await server.stop();
  },

  /** A browser that is offline, and a network that is dead without a sign, are noticed without typing. The cursor does not animate. */
  async dead(browser) {
    // The program asks for a block that blinks.
    const server = await serve("terminal", "--", "sh", "-c", "printf '\\033[1 q'; exec cat");
    const cutter = new Cutter();
    const port = await cutter.start(server.port);
    const page = await Page.open(browser, `http://127.0.0.1:${port}${server.path}#token=${TOKEN}&renderer=dom`);
    await page.says(/Connected/);
    await page.page.locator(".xterm-cursor").first().waitFor({ state: "attached" });
    assert.equal(await page.page.evaluate(() => document.getAnimations().length), 0, "nothing animates");
    await page.page.context().setOffline(true);
    await page.says(/No connection since/);
    await page.page.context().setOffline(false);
    await page.says(/Connected/);
    const began = Date.now();
    cutter.freeze();
    await page.says(/No connection since/);
    const took = (Date.now() - began) / 1000;
    console.log(`    a dead network is noticed after ${took.toFixed(1)} s`);
    assert.ok(took < 11, "a dead network is noticed in time");
    await page.close();
    cutter.stop();
    for (const socket of cutter.sockets) socket.destroy();
    await server.stop();

    // Without resumable connections, and on this connection: the page asks on no other one.
    const plain = await serve("processes", "--no-resume");
    const { process_id: id } = await call(plain, "/process/spawn", { command: "cat", allocate_tty: true });
    const other = new Cutter();
    const process = await Page.open(browser, `http://127.0.0.1:${await other.start(plain.port)}/process/${id}/attach#token=${TOKEN}`);
    await process.says(/Connected/);
    await process.type("before\n");
    await process.shows("\nbefore");
    let asked = 0;
    process.page.on("request", () => { asked++; });
    const dies = Date.now();
    other.freeze();
    await process.says(/No connection since/);
    assert.ok(Date.now() - dies < 11_000, "a dead network is noticed in time");
    assert.equal(asked, 0);
    other.thaw();
    await process.says(/Connected/);
    await process.type("after\n");
    await process.shows("before\nafter");
    await process.close();
    other.stop();
    await plain.stop();
  },

  /** Without resumable connections, a process continues at the byte, and a terminal is gone. */
  async plain(browser) {
    const { printer, expected } = numbers();
    const server = await serve("processes", "--no-resume");
    const cutter = new Cutter();
    const port = await cutter.start(server.port);
    const { process_id: id } = await call(server, "/process/spawn", { command: "python3", args: [printer], allocate_tty: true });
    const page = await Page.open(browser, `http://127.0.0.1:${port}/process/${id}/attach#token=${TOKEN}`);
    await page.shows("\nready");
    await page.record();
    await page.press("g");
    for (let cut = 1; cut <= 5; cut++) {
      await page.page.waitForFunction((least) => globalThis.outputBytes >= least, cut * expected.length / 6);
      cutter.cut();
    }
    await page.shows("\nend");
    assert.equal(sha256(await page.recorded()), sha256(expected));
    await page.page.reload();
    await page.shows("\nend");
    await page.press("q");
    await page.says(/Exited with code 7/);
    await page.close();
    cutter.stop();
    await server.stop();

    const terminal = await bash("--no-resume");
    const other = new Cutter();
    const shell = await Page.open(browser, `http://127.0.0.1:${await other.start(terminal.port)}${terminal.path}#token=${TOKEN}`);
    await shell.shows("\n$");
    other.cut();
    await shell.says(/The terminal is gone/);
    await shell.close();
    other.stop();
    await terminal.stop();
  },

  /** The server restarts and ends the terminal: the page begins a new one by itself when the server is back. */
  async restarted(browser) {
    const server = await bash();
    const cutter = new Cutter();
    const port = await cutter.start(server.port);
    const page = await Page.open(browser, `http://127.0.0.1:${port}${server.path}#token=${TOKEN}`);
    await page.shows("\n$");
    await server.stop();
    await page.says(/The server restarts. No connection since/);
    const other = await bash();
    cutter.port = other.port;
    await page.says(/Connected/);
    await page.type("echo another\n");
    await page.shows("\nanother");
    await page.close();
    cutter.stop();
    await other.stop();
  },

  /** The server ends and another one takes its place: the terminal is gone, and the page says so. */
  async gone(browser) {
    const server = await bash();
    const cutter = new Cutter();
    const port = await cutter.start(server.port);
    const page = await Page.open(browser, `http://127.0.0.1:${port}${server.path}#token=${TOKEN}`);
    await page.shows("\n$");
    cutter.goOffline();
    await server.stop();
    await page.says(/No connection since/);
    const other = await bash();
    cutter.port = other.port;
    cutter.goOnline();
    await page.says(/The terminal is gone/);
    await page.shot("gone");
    await page.page.getByRole("button", { name: "Start a new terminal" }).click();
    await page.says(/Connected/);
    await page.type("echo another\n");
    await page.shows("\nanother");
    await page.close();
    cutter.stop();
    await other.stop();
  },

  /** Watching with a link's token, taking over, and who is there. */
  async sharing(browser) {
    const server = await serve("processes");
    const { process_id: id } = await call(server, "/process/spawn", { command: "bash", args: ["--norc"], allocate_tty: true, env: { PS1: "$ " } });
    const attach = `/process/${id}/attach`;
    const writer = await Page.open(browser, `${server.base}${attach}#token=${TOKEN}`, { viewport: { width: 1000, height: 600 } });
    await writer.shows("\n$");
    await writer.type("echo by the writer\n");
    await writer.shows("\nby the writer");

    const link = await call(server, "/.outrigger/links", { path: attach, ttl_s: 3600 });
    const viewer = await Page.open(browser, `${server.base}${attach}#token=${link.token}&mode=viewer`, { viewport: { width: 500, height: 700 } });
    await viewer.shows("\nby the writer");
    await viewer.says(/Watching/);
    await writer.says(/1 viewer/);
    assert.equal(await viewer.page.getByRole("button", { name: /Take over|Write/ }).count(), 0, "the link may only watch");
    assert.deepEqual(await viewer.size(), await writer.size());
    await viewer.type("echo by the viewer\n");
    await viewer.paste("echo by the viewer\n");
    await writer.type("clear; echo after the viewer\n");
    await viewer.shows("\nafter the viewer");
    for (const page of [viewer, writer]) assert.doesNotMatch((await page.lines()).join("\n"), /by the viewer/);
    await writer.page.setViewportSize({ width: 800, height: 400 });
    await writer.page.waitForFunction(() => outriggerTerminal.rows < 28);
    const size = await writer.size();
    await viewer.page.waitForFunction(([rows, cols]) => outriggerTerminal.rows === rows && outriggerTerminal.cols === cols, size);
    const overflow = () => viewer.page.evaluate(() => {
      const [screen, frame] = [".xterm-screen", "#frame"].map((selector) => document.querySelector(selector).getBoundingClientRect());
      return [screen.right <= frame.right, screen.bottom <= frame.bottom, screen.width > 0.8 * frame.width];
    });
    await viewer.page.waitForFunction(() => document.querySelector(".xterm-screen").getBoundingClientRect().width < innerWidth);
    assert.deepEqual(await overflow(), [true, true, true], "the viewer sees the whole screen");
    await viewer.shot("viewer");
    await viewer.page.reload();
    await viewer.shows("\nafter the viewer");
    assert.deepEqual(await viewer.size(), size);

    // A second tab watches, and takes over.
    const second = await Page.open(browser, `${server.base}${attach}#token=${TOKEN}`, { viewport: { width: 900, height: 500 } });
    await second.shows("\nafter the viewer");
    await second.says(/Watching/);
    await second.page.getByRole("button", { name: "Take over" }).click();
    await second.says(/Connected/);
    await second.type("echo by the second\n");
    await second.shows("\nby the second");
    await writer.says(/Taken over/);
    await writer.shows("\nby the second");
    await writer.page.getByRole("button", { name: "Take over" }).click();
    await writer.says(/Connected/);
    await second.says(/Taken over/);
    await writer.shot("writer");
    // Whoever closes the page leaves at once, so that the next one can write.
    await writer.close();
    await second.says(/nobody writes/);
    const third = await Page.open(browser, `${server.base}${attach}#token=${TOKEN}`);
    await third.says(/Connected · 2 viewers/);
    await third.type("exit 5\n");
    for (const page of [third, second, viewer]) await page.says(/Exited with code 5/);
    for (const page of [third, second, viewer]) await page.close();
    await server.stop();
  },

  /** A viewer's page shows a part of a huge terminal, and says so. */
  async huge(browser) {
    const server = await serve("processes");
    const { process_id: id } = await call(server, "/process/spawn", { command: "cat", allocate_tty: true });
    await call(server, `/process/${id}/resize`, { rows: 65_535, cols: 65_535 });
    const viewer = await Page.open(browser, `${server.base}/process/${id}/attach#token=${TOKEN}&mode=viewer`);
    await viewer.says(/larger than what is shown: 65535×65535/);
    const [rows, cols] = await viewer.size();
    assert.ok(rows <= 500 && cols <= 1000 && rows * cols <= 200_000, `${rows}×${cols}`);
    await call(server, `/process/${id}/resize`, { rows: 40, cols: 132 });
    await viewer.page.waitForFunction(() => outriggerTerminal.rows === 40 && outriggerTerminal.cols === 132);
    assert.doesNotMatch(await viewer.bar(), /larger/);
    await viewer.close();
    await server.stop();
  },

  /** The terminal answers no questions in output from before the connection, and answers new ones. */
  async questions(browser) {
    const asker = script("asker.py", `
import os, select, tty
tty.setraw(0)
QUESTIONS = b"\\x1b[c\\x1b[>c\\x1b[5n\\x1b[6n\\x1b[?25$p\\x1b]10;?\\x07\\x1bP$qm\\x1b\\\\"
os.write(1, b"x" * 100000 + QUESTIONS + b"\\r\\nasked" + QUESTIONS)
while True:
    data = os.read(0, 1)
    if data in b"123": os.write(1, QUESTIONS)
    while select.select([0], [], [], 0.5)[0]: data += os.read(0, 1000)
    os.write(1, b"\\r\\nread %r end" % data)
`);
    const server = await serve("processes");
    const cutter = new Cutter();
    const port = await cutter.start(server.port);
    const { process_id: id } = await call(server, "/process/spawn", { command: "python3", args: [asker], allocate_tty: true });
    const ask = (key) => call(server, `/process/${id}/stdin`, { data_b64: Buffer.from(key).toString("base64") });
    const viewer = await Page.open(browser, `${server.base}/process/${id}/attach#token=${TOKEN}&mode=viewer`);
    await viewer.shows("\nasked");

    const url = `http://127.0.0.1:${port}/process/${id}/attach#token=${TOKEN}`;
    const page = await Page.open(browser, url);
    await page.shows("\nasked");
    await page.type("a");
    await page.shows("\nread b'a' end");
    await page.type("1");
    await page.page.waitForFunction(() => {
      const buffer = outriggerTerminal.buffer.active;
      const text = Array.from({ length: buffer.length }, (_, at) => buffer.getLine(at).translateToString(false)).join("");
      return /read b'1\\x1b\[\?1;2c\\x1b\[>0;\d+;0c\\x1b\[0n\\x1b\[\d+;\d+R\\x1b\[\?25;1\$y\\x1b\]10;rgb:\S+\\x1bP1\$r0m\\x1b\\\\' end/.test(text);
    });

    // Asked while the page is away, and given up before it is back: after a reload, and after a cut.
    await page.page.goto("about:blank");
    page.wrong.length = 0;
    await viewer.says(/nobody writes/);
    await ask("2");
    await viewer.shows("\nread b'2' end");
    await page.page.goto(url);
    await page.shows("\nread b'2' end");
    await page.says(/Connected/);
    await page.type("b");
    await page.shows("\nread b'b' end");
    cutter.goOffline();
    await ask("3");
    await viewer.shows("\nread b'3' end");
    await page.says(/\([3-9] s/);
    cutter.goOnline();
    await page.shows("\nread b'3' end");
    await page.type("c");
    await page.shows("\nread b'c' end");
    await page.close();
    await viewer.close();
    cutter.stop();
    await server.stop();
  },

  /** If each connection is cut early, the page comes back less and less often, and says so. */
  async backoff(browser) {
    const server = await bash();
    const cutter = new Cutter();
    const port = await cutter.start(server.port);
    cutter.early = true;
    const page = await Page.open(browser, `http://127.0.0.1:${port}${server.path}#token=${TOKEN}`);
    await page.says(/cut again and again/);
    await page.says(/next attempt in [2-9] s/);
    assert.ok(cutter.upgrades >= 4 && cutter.upgrades <= 9, `${cutter.upgrades} connections`);
    cutter.early = false;
    await page.page.getByRole("button", { name: "Try now" }).click();
    await page.says(/Connected · the connection was cut again and again/);
    // Once a connection has lived for a while, a cut is the first one again.
    await page.says(/Connected$/m);
    const before = cutter.upgrades;
    const began = Date.now();
    cutter.cut();
    await until(() => cutter.upgrades > before, "the page comes back");
    assert.ok(Date.now() - began < 1500, `after ${Date.now() - began} ms`);
    await page.type("echo here\n");
    await page.shows("\nhere");
    await page.close();
    cutter.stop();
    await server.stop();
  },

  /** A program writes to the clipboard, and the page says so. It cannot read it, and neither old output nor what is watched counts. */
  async clipboard(browser) {
    const server = await serve("processes");
    const { process_id: id } = await call(server, "/process/spawn", { command: "bash", args: ["--norc"], allocate_tty: true, env: { PS1: "$ " } });
    const url = `${server.base}/process/${id}/attach#token=${TOKEN}`;
    const permissions = ["clipboard-read", "clipboard-write"];
    const page = await Page.open(browser, url, { permissions });
    const clipboard = (one) => one.page.evaluate(() => navigator.clipboard.readText());
    await page.shows("\n$");
    await page.page.evaluate(() => navigator.clipboard.writeText("mine"));
    const watcher = await Page.open(browser, `${url}&mode=viewer`, { permissions });
    await watcher.says(/Watching/);
    // A question, too much, and what is no base64.
    await page.type(`printf '\\e]52;c;?\\a'; printf '\\e]52;c;%01400000d\\a' 0; printf '\\e]52;c;%%%%\\a'; echo asked\n`);
    await page.shows("\nasked\n$");
    assert.equal(await clipboard(page), "mine");
    await page.type(`printf '\\e]52;c;${Buffer.from("κόσμε copied").toString("base64")}\\a'; echo written\n`);
    await page.says(/The program has put 12 characters into the clipboard/);
    assert.equal(await clipboard(page), "κόσμε copied");
    await watcher.shows("\nwritten\n$");
    assert.doesNotMatch(await watcher.bar(), /clipboard/);
    // After a reload, the old output is shown again.
    await page.page.evaluate(() => navigator.clipboard.writeText("mine"));
    await page.page.evaluate(() => sessionStorage.removeItem(Object.keys(sessionStorage).find((key) => key.startsWith("outrigger.terminal"))));
    await page.page.reload();
    await page.shows("written\n$");
    await page.says(/Connected/);
    assert.equal(await clipboard(page), "mine");
    // A browser that wants a click.
    await page.page.evaluate(() => { navigator.clipboard.writeText = () => { delete navigator.clipboard.writeText; return Promise.reject(new Error("no")); }; });
    // The page takes output for older output until it has been connected for a moment.
    const wants = () => page.bar().then((bar) => bar.includes("The program wants to put 7 characters"));
    for (let tries = 0; tries < 100 && !(await wants()); tries++) {
      if (tries % 10 === 0) await page.type(`printf '\\e]52;c;${Buffer.from("clicked").toString("base64")}\\a'\n`);
      await page.page.waitForTimeout(100);
    }
    await page.says(/The program wants to put 7 characters into the clipboard/);
    await page.page.getByRole("button", { name: "Copy", exact: true }).click();
    await page.says(/The program has put 7 characters/);
    assert.equal(await clipboard(page), "clicked");
    await page.close();
    await watcher.close();
    await server.stop();
  },

  /** Theme, font and size: by the dialog, which the browser keeps, and by the address. */
  async settings(browser) {
    const server = await bash();
    const page = await Page.open(browser, `${server.base}${server.path}#token=${TOKEN}`, { colorScheme: "light" });
    await page.shows("\n$");
    const background = () => page.page.evaluate(() => [outriggerTerminal.options.theme.background, getComputedStyle(document.querySelector("#bar")).backgroundColor]);
    const [white, light] = await background();
    assert.equal(white, "#ffffff");
    await page.page.getByRole("button", { name: "Settings" }).click();
    const dialog = page.page.getByRole("dialog", { name: "Settings" });
    await dialog.getByLabel("Theme").selectOption({ label: "Dark" });
    await page.page.waitForFunction(() => outriggerTerminal.options.theme.background === "#14171b");
    assert.notEqual((await background())[1], light);
    await dialog.getByLabel("Size").fill("20");
    await dialog.getByLabel("Font").fill("DejaVu Sans Mono\"; color: red");
    await dialog.getByRole("button", { name: "Close" }).click();
    await dialog.waitFor({ state: "detached" });
    const looks = () => page.page.evaluate(() => [outriggerTerminal.options.fontSize, outriggerTerminal.options.fontFamily.split(",")[0], outriggerTerminal.options.theme.background]);
    const expected = [20, '"DejaVu Sans Mono color: red"', "#14171b"];
    await page.page.waitForFunction(() => outriggerTerminal.options.fontSize === 20);
    assert.deepEqual(await looks(), expected);
    // The focus is back in the terminal, and the program knows the size.
    await page.type("clear; stty size\n");
    await page.shows(`\n${(await page.size()).join(" ")}\n`);
    await page.page.reload();
    await page.says(/Connected/);
    assert.deepEqual(await looks(), expected);
    await page.page.goto(`${server.base}${server.path}#theme=contrast`);
    await page.page.waitForFunction(() => globalThis.outriggerTerminal?.options.theme.background === "#000000");
    await page.says(/Connected/);
    await page.shot("contrast");
    // A theme that does not exist is that of the system or the chosen one.
    await page.page.goto(`${server.base}${server.path}#theme=__proto__`);
    await page.page.waitForFunction(() => globalThis.outriggerTerminal?.options.theme.background === "#14171b");
    await page.says(/Connected/);
    await page.page.getByRole("button", { name: "Settings" }).click();
    await dialog.getByLabel("Theme").selectOption({ label: "As the system" });
    await page.page.waitForFunction(() => outriggerTerminal.options.theme.background === "#ffffff");
    assert.equal(new URL(page.page.url()).hash, "");
    await page.close();
    await server.stop();
  },

  /** The keys of a phone: paste, select, page keys, and the size of the letters. */
  async phone(browser) {
    const reader = script("keys.py", `
import os, tty
tty.setraw(0)
os.write(1, b"ready\\r\\n")
while True:
    os.write(1, repr(os.read(0, 1000)).encode() + b"\\r\\n")
`);
    const server = await serve("terminal", "--", "python3", reader);
    const page = await Page.open(browser, `${server.base}${server.path}#token=${TOKEN}`, {
      viewport: { width: 390, height: 780 }, hasTouch: true, isMobile: true, permissions: ["clipboard-read", "clipboard-write"],
    });
    await page.shows("\nready");
    const tap = (name) => page.page.getByRole("button", { name, exact: true }).tap();
    await page.page.getByRole("button", { name: "Home", exact: true }).waitFor({ state: "hidden" });
    await tap("More keys");
    for (const [name, bytes] of [["Home", "\\x1b[H"], ["End", "\\x1b[F"], ["PgUp, page up", "\\x1b[5~"], ["PgDn, page down", "\\x1b[6~"], ["Up", "\\x1b[A"]]) {
      await tap(name);
      await page.shows(`b'${bytes}'`);
    }
    await tap("Ctrl, for the next key");
    await tap("PgUp, page up");
    await page.shows("b'\\x1b[5;5~'");
    const before = await page.page.evaluate(() => outriggerTerminal.options.fontSize);
    await tap("A+, larger letters");
    await page.page.waitForFunction((before) => outriggerTerminal.options.fontSize === before + 1, before);
    await tap("A−, smaller letters");
    await page.page.waitForFunction((before) => outriggerTerminal.options.fontSize === before, before);
    await page.page.evaluate(() => navigator.clipboard.writeText("from the clipboard"));
    await tap("Paste");
    await page.shows("b'from the clipboard'");
    // Without the permission, there is a field to paste into.
    await page.page.evaluate(() => { navigator.clipboard.readText = () => Promise.reject(new Error("no")); });
    await tap("Paste");
    const paste = page.page.getByRole("dialog", { name: "Paste" });
    await paste.getByLabel("Text").fill("by hand");
    await paste.getByRole("button", { name: "Paste" }).tap();
    await page.shows("b'by hand'");
    await tap("Select text");
    const select = page.page.getByRole("dialog", { name: "Select text" });
    await select.getByRole("region", { name: "Text of the terminal" }).filter({ hasText: "b'by hand'" }).waitFor();
    await page.shot("select");
    await select.getByRole("button", { name: "Copy all" }).tap();
    await page.says(/Copied/);
    const inside = await page.page.evaluate(() => document.documentElement.scrollWidth <= innerWidth && [...document.querySelectorAll("#keys button")].every((button) => button.getBoundingClientRect().right <= innerWidth));
    assert.ok(inside, "the keys fit");
    await page.shot("phone");
    await page.close();
    await server.stop();
  },

  /** A path that begins with two slashes is a path, not a host. */
  async slashes(browser) {
    const server = await bash("--path", "/...");
    const page = await Page.open(browser, `${server.base}//other.test/x?a=b#token=${TOKEN}&renderer=dom`);
    await page.shows("\n$");
    assert.equal(page.page.url(), `${server.base}//other.test/x?a=b#renderer=dom`);
    await page.type("echo reached\n");
    await page.shows("\nreached");
    await page.close();
    await server.stop();
  },

  /** A missing and a wrong token. */
  async token(browser) {
    const server = await bash();
    const page = await Page.open(browser, `${server.base}${server.path}`);
    await page.page.getByRole("dialog").waitFor();
    await page.type("not-the-token");
    await page.press("Enter");
    await page.page.getByText("The server does not accept this token.").waitFor();
    await page.shot("token");
    await page.page.getByLabel("Token", { exact: true }).fill(TOKEN);
    await page.press("Enter");
    await page.shows("\n$");
    await page.page.goto("about:blank");
    page.origin = "null";
    page.wrong.length = 0;
    await page.close();
    // A wrong token in the link.
    const other = await Page.open(browser, `${server.base}${server.path}#token=wrong`);
    await other.page.getByRole("dialog").waitFor();
    await other.page.getByLabel("Token", { exact: true }).fill(TOKEN);
    await other.press("Enter");
    await other.shows("\n$");
    await other.close();
    await server.stop();
  },

  /** Dark and light, a phone, and a browser without JavaScript. */
  async looks(browser) {
    const server = await bash();
    const url = `${server.base}${server.path}#token=${TOKEN}`;
    const luminance = (page) => page.page.evaluate(() => {
      const [red, green, blue] = getComputedStyle(document.querySelector("#frame")).backgroundColor.match(/\d+/g).map(Number);
      return (red + green + blue) / 3;
    });
    const page = await Page.open(browser, url, { colorScheme: "dark" });
    await page.shows("\n$");
    assert.ok(await luminance(page) < 50);
    await page.shot("dark");
    await page.page.emulateMedia({ colorScheme: "light" });
    assert.ok(await luminance(page) > 200);
    await page.page.waitForFunction(() => outriggerTerminal.options.theme.background === "#ffffff");
    await page.shot("light");
    await page.close();

    const phone = await Page.open(browser, url, { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2 });
    await phone.shows("\n$");
    assert.equal(await phone.page.evaluate(() => document.documentElement.scrollWidth), 390);
    const key = (name) => phone.page.getByRole("button", { name, exact: true }).tap();
    await phone.page.locator("#terminal").tap();
    // The shell reads no more keys once its command has begun.
    await phone.type("echo begun; cat -v\n");
    await phone.shows("\nbegun");
    await key("Esc");
    await key("Up");
    await phone.type("\n");
    await phone.shows("\n^[^[[A");
    await key("Ctrl, for the next key");
    await phone.type("c");
    await phone.shows("^C\n$");
    await phone.type("echo a touch\n");
    await phone.shows("\na touch");
    await phone.type("seq 300\n");
    await phone.shows("\n300\n$");
    const touch = await phone.context.newCDPSession(phone.page);
    await touch.send("Input.dispatchTouchEvent", { type: "touchStart", touchPoints: [{ x: 200, y: 200 }] });
    for (const y of [300, 400, 500]) await touch.send("Input.dispatchTouchEvent", { type: "touchMove", touchPoints: [{ x: 200, y }] });
    await touch.send("Input.dispatchTouchEvent", { type: "touchEnd", touchPoints: [] });
    await phone.page.waitForFunction(() => outriggerTerminal.buffer.active.viewportY < outriggerTerminal.buffer.active.baseY - 10);
    await phone.type("clear\n");
    await phone.shot("phone");
    await phone.close();

    const plain = await browser.newContext({ javaScriptEnabled: false });
    const without = await plain.newPage();
    await without.goto(url);
    await without.locator("noscript p", { hasText: "needs JavaScript" }).waitFor();
    await plain.close();
    await server.stop();
  },

  /** axe finds nothing serious. */
  async accessibility(browser) {
    const server = await bash();
    const phone = { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true };
    for (const options of [{ colorScheme: "dark" }, { colorScheme: "light" }, { colorScheme: "light", ...phone }]) {
      const page = await Page.open(browser, `${server.base}${server.path}#token=${TOKEN}`, { ...options, bypassCSP: true });
      await page.shows("\n$");
      await page.page.addScriptTag({ path: require.resolve("axe-core") });
      const check = async (what) => {
        const found = await page.page.evaluate(() => axe.run());
        assert.deepEqual(found.violations.map(({ id, nodes }) => [id, nodes.map(({ html }) => html)]), [], `${what}, ${JSON.stringify(options)}`);
      };
      await page.type("ls --color=always /\n");
      await check("a shell");
      await page.press("Control+Shift+F");
      await check("the search");
      await page.press("Escape");
      await page.page.getByRole("button", { name: "Settings" }).click();
      await check("the settings");
      await page.press("Escape");
      if (options.isMobile) {
        await page.page.getByRole("button", { name: "More keys" }).tap();
        await check("the keys");
        await page.page.getByRole("button", { name: "Select text" }).tap();
        await check("the text to select");
        await page.press("Escape");
        await page.page.getByRole("button", { name: "Paste" }).tap();
        await page.page.getByRole("dialog", { name: "Paste" }).waitFor();
        await check("the field to paste into");
        await page.press("Escape");
      }
      // A dialog gives the focus back some time after it has closed.
      await page.page.waitForFunction(() => document.activeElement === globalThis.outriggerTerminal.textarea);
      await page.press("Control+Shift+E");
      assert.equal(await page.page.evaluate(() => document.activeElement.id), "find-open");
      await page.page.getByRole("button", { name: "Screen reader" }).click();
      await page.type("echo to be read\n");
      await page.page.locator(".xterm-accessibility", { hasText: "to be read" }).waitFor();
      await check("the screen reader's text");
      await page.type("exit 1\n");
      await page.says(/Exited with code 1/);
      await check("an ended terminal");
      await page.page.evaluate(() => sessionStorage.clear());
      await page.page.reload();
      await page.page.getByRole("dialog").waitFor();
      await page.page.addScriptTag({ path: require.resolve("axe-core") });
      await check("the form for the token");
      await page.close();
    }
    await server.stop();
  },
};

async function until(condition, what) {
  const end = Date.now() + DEADLINE;
  while (!condition()) {
    if (Date.now() > end) throw new Error(`not in time: ${what}`);
    await new Promise((done) => setTimeout(done, 20));
  }
}

async function main() {
  const chosen = process.argv.slice(2);
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: QUIET });
  try {
    for (const [name, part] of Object.entries(parts)) {
      if (chosen.length && !chosen.includes(name)) continue;
      const began = Date.now();
      await part(browser).catch((error) => { throw new Error(`${name}: ${error.message}`, { cause: error }); });
      console.log(`  terminal page: ${name} ok (${((Date.now() - began) / 1000).toFixed(1)} s)`);
    }
  } finally {
    await browser.close();
    fs.rmSync(folder, { recursive: true, force: true });
  }
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });

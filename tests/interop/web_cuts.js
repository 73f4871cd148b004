// The terminal page in headless Chromium, when its connection is cut, the network is dead, the page is reloaded, or the server restarts or
// is upgraded.
//
// usage: OUTRIGGER=... NODE_PATH=... node tests/interop/web_cuts.js [PART...]      all parts by default
// env:   see web_page.js
const assert = require("node:assert/strict");
const crypto = require("node:crypto");
const { TOKEN, Cutter, Page, bash, call, run, script, serve, until } = require("./web_page.js");

const MEGABYTE = 1_000_000;
const sha256 = (data) => crypto.createHash("sha256").update(data).digest("hex");

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

const parts = {
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
    await page.type("vim -u NONE -N -n\n");
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
    console.log(`    a dead network is noticed after ${((Date.now() - began) / 1000).toFixed(1)} s`);
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
    other.freeze();
    await process.says(/No connection since/);
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

  /** The server replaces its program while vim is open, and while output flows: the page is not even cut. */
  async upgrade(browser) {
    const { printer, expected } = numbers();
    const server = await bash("--allow-upgrade", "--env", `PRINTER=${printer}`);
    const cutter = new Cutter();
    const port = await cutter.start(server.port);
    const page = await Page.open(browser, `http://127.0.0.1:${port}${server.path}#token=${TOKEN}`);
    await page.shows("\n$");
    await page.type("vim -u NONE -N -n\n");
    await page.shows("~\n~");
    await page.type("ibefore");
    await page.shows("\nbefore");
    await page.shot("before-upgrade");
    assert.deepEqual((await call(server, "/upgrade", {})).closed, 0);
    await page.shot("after-upgrade");
    await page.type(" and after");
    await page.shows("\nbefore and after");
    await page.press("Escape");
    await page.type(":q!\n");
    await page.shows("$ vim -u NONE -N -n\n$");
    await page.type("python3 $PRINTER\n");
    await page.shows("\nready");
    await page.record();
    await page.press("g");
    for (let upgrade = 1; upgrade <= 5; upgrade++) {
      await page.page.waitForFunction((least) => globalThis.outputBytes >= least, upgrade * expected.length / 6);
      await call(server, "/upgrade", {});
    }
    await page.shows("\nend");
    assert.equal(sha256(await page.recorded()), sha256(expected));
    assert.equal(cutter.upgrades, 1, "one WebSocket");
    await page.close();
    cutter.stop();
    await server.stop();
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
    await page.page.evaluate(() => {
      globalThis.waited = false;
      new MutationObserver(() => { globalThis.waited ||= /next attempt/.test(document.querySelector("#ticker").textContent); }).observe(document.querySelector("#ticker"), { childList: true, characterData: true, subtree: true });
    });
    const before = cutter.upgrades;
    cutter.cut();
    await until(() => cutter.upgrades > before, "the page comes back");
    await page.type("echo here\n");
    await page.shows("\nhere");
    assert.equal(await page.page.evaluate(() => globalThis.waited), false, "the first attempt follows at once");
    await page.close();
    cutter.stop();
    await server.stop();
  },
};

run("cuts", parts).then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });

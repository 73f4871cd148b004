// Headless Chromium: the WebSocket API, and two tabs of examples/chat.html in one room.
const assert = require("node:assert/strict");
const path = require("node:path");
const { chromium } = require("playwright-core");
const { start, trust } = require("./server.js");

const QUIET = ["--host-resolver-rules=MAP rebound.example 127.0.0.1",
  // Newer browsers block such pages themselves. This test checks that the server does.
  "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
  "--disable-background-networking", "--disable-component-update", ...trust];

/** A page of another origin, and a page whose name resolves to the server's address, get 403 and never become clients. */
async function keepsPagesOut(browser) {
  const server = await start("terminal", "--no-auth", "--", "sh");
  const { port, protocol: ws } = new URL(server.url);
  const http = ws.replace("ws", "http");
  const open = async (from, to) => {
    const page = await browser.newPage();
    await page.route(from, (route) => route.fulfill({ contentType: "text/html", body: "<p>a page" }));
    await page.goto(from);
    const result = await page.evaluate(async (to) => {
      const socket = new WebSocket(to);
      const opened = await new Promise((done) => {
        socket.onopen = () => done(true);
        socket.onclose = () => done(false);
      });
      const called = await fetch(to.replace("ws", "http").replace("/terminal", "/status"))
        .then((answer) => answer.status, () => "failed");
      return { opened, called };
    }, to);
    await page.close();
    return result;
  };
  assert.deepEqual(await open("http://elsewhere.example/", `${ws}//127.0.0.1:${port}/terminal`),
    { opened: false, called: "failed" });
  // The browser takes this for the same origin, so the page may read the answer.
  assert.deepEqual(await open(`${http}//rebound.example:${port}/page`, `${ws}//rebound.example:${port}/terminal`),
    { opened: false, called: 403 });
  const metrics = await (await fetch(`${http}//127.0.0.1:${port}/metrics`)).text();
  assert.match(metrics, /^outrigger_refusals_total\{reason="origin"\} 2$/m);
  assert.match(metrics, /^outrigger_refusals_total\{reason="host"\} 2$/m);
  assert.doesNotMatch(metrics, /code="101"/);
  // A request without Origin is accepted.
  assert.deepEqual(await open(`${http}//127.0.0.1:${port}/page`, `${ws}//127.0.0.1:${port}/terminal`),
    { opened: true, called: 200 });
  await server.stop();
}

/** A page of a listed origin: its calls need a preflight, and it may read answers and events. */
async function letsAPageIn(browser) {
  const origin = "http://app.example";
  const server = await start("processes", "--allow-origin", origin);
  const { host, searchParams, protocol } = new URL(server.url);
  const page = await browser.newPage();
  await page.route(`${origin}/`, (route) => route.fulfill({ contentType: "text/html", body: "<p>a page" }));
  await page.goto(`${origin}/`);
  const result = await page.evaluate(async ([api, token]) => {
    const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
    const wrong = await fetch(api);
    const body = JSON.stringify({ command: "echo", args: ["hello"] });
    const spawned = await (await fetch(`${api}/spawn`, { method: "POST", headers, body })).json();
    const events = new EventSource(`${api}/${spawned.process_id}/stdout/stream?token=${token}`);
    const output = await new Promise((done) => {
      events.onmessage = (event) => done(atob(JSON.parse(event.data).data_b64));
      events.onerror = () => done("failed");
    });
    events.close();
    const { processes } = await (await fetch(api, { headers })).json();
    return { wrong: [wrong.status, (await wrong.json()).type], output, count: processes.length };
  }, [`${protocol.replace("ws", "http")}//${host}/process`, searchParams.get("token")]);
  assert.deepEqual(result, { wrong: [401, "error"], output: "hello\n", count: 1 });
  await page.close();
  await server.stop();
}

async function main() {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: QUIET });
  try {
    const echo = await start("echo");
    const page = await browser.newPage();
    const result = await page.evaluate(async (url) => {
      const socket = new WebSocket(url);
      socket.binaryType = "arraybuffer";
      const next = (name) => new Promise((done) => socket.addEventListener(name, done, { once: true }));
      await next("open");
      const text = "κόσμε 😀".repeat(20000);
      socket.send(text);
      const sameText = (await next("message")).data === text;
      const bytes = new Uint8Array(1 << 20).map((_, at) => at * 131);
      socket.send(bytes);
      const got = new Uint8Array((await next("message")).data);
      const sameBytes = got.length === bytes.length && got.every((byte, at) => byte === bytes[at]);
      socket.close(4321, "bye");
      const { code, reason, wasClean } = await next("close");
      return { sameText, sameBytes, code, reason, wasClean };
    }, echo.url);
    assert.deepEqual(result, { sameText: true, sameBytes: true, code: 4321, reason: "", wasClean: true });
    await echo.stop();
    console.log("  WebSocket API ok");

    const compressing = await start("echo", "--deflate");
    const compressed = await page.evaluate(async (url) => {
      const socket = new WebSocket(url);
      const next = (name) => new Promise((done) => socket.addEventListener(name, done, { once: true }));
      await next("open");
      for (let round = 0; round < 50; round++) {
        const text = JSON.stringify({ round, text: "κόσμε 😀".repeat(round * round) });
        socket.send(text);
        if ((await next("message")).data !== text) return `round ${round} differs`;
      }
      return socket.extensions;
    }, compressing.url);
    assert.equal(compressed, "permessage-deflate");
    const counted = await (await fetch(`${compressing.url.replace("ws", "http")}metrics`)).text();
    assert.match(counted, /^outrigger_compressed_messages_total\{direction="in"\} 50$/m);
    await compressing.stop();
    console.log("  compression ok");

    await keepsPagesOut(browser);
    console.log("  pages of other origins and names are kept out ok");
    await letsAPageIn(browser);
    console.log("  calls of a page that is let in ok");

    const chat = await start("app", "--", "python3", "examples/chat.py");
    const url = `file://${path.resolve("examples/chat.html")}?${encodeURIComponent(chat.url)}`;
    const [ann, bob] = [await browser.newPage(), await browser.newPage()];
    const say = async (page, text) => { await page.fill("#text", text); await page.press("#text", "Enter"); };
    const heard = (page, text) => page.getByText(text, { exact: true }).waitFor({ timeout: 30_000 });
    for (const page of [ann, bob]) {
      await page.goto(url);
      await heard(page, "What is your name?");
    }
    await say(ann, "Ann");
    await heard(bob, "Ann is here.");
    await say(bob, "Bob");
    await heard(ann, "Bob is here.");
    await say(ann, "Hello, <b>Bob</b>!");
    await heard(bob, "Ann: Hello, <b>Bob</b>!");
    if (process.env.SCREENSHOT) await bob.screenshot({ path: process.env.SCREENSHOT });
    await ann.close();
    await heard(bob, "Ann is gone.");
    await chat.stop();
    await heard(bob, "Closed: 1001 Server shutting down");
    console.log("  chat page ok");
  } finally {
    await browser.close();
  }
}

main().catch((error) => { console.error(error); process.exit(1); });

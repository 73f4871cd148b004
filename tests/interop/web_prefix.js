// The pages below a path of a proxy, in headless Chromium: nginx and HAProxy, each of which removes the path or passes it on unchanged
// to a server with `--base-path`.
//
// usage: OUTRIGGER=... NODE_PATH=... node tests/interop/web_prefix.js      nginx and haproxy must be installed
const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const { once } = require("node:events");
const fs = require("node:fs");
const net = require("node:net");
const os = require("node:os");
const path = require("node:path");
const { chromium } = require("playwright-core");
const { start } = require("./server.js");

const QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
  "--disable-background-networking", "--disable-component-update"];
const TOKEN = "a-token-of-this-test-alone";
const DEADLINE = 30_000;
const PREFIX = "/tools/term";
process.env.OUTRIGGER_TOKEN = TOKEN;
process.env.PATH += ":/usr/sbin";
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "outrigger-prefix-"));

const file = (name, text) => {
  const at = path.join(folder, name);
  fs.writeFileSync(at, text);
  return at;
};

async function freePort() {
  const server = net.createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

/** Waits until something listens on the port. */
async function listening(port) {
  const end = Date.now() + DEADLINE;
  for (;;) {
    const socket = net.connect(port, "127.0.0.1");
    const connected = await once(socket, "connect").then(() => true, () => false);
    socket.destroy();
    if (connected) return;
    if (Date.now() > end) throw new Error(`nothing listens on port ${port}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}

/** The proxies: each begins with the port to listen on, the port of the server, and whether it removes the path. */
const PROXIES = {
  nginx(port, server, removes) {
    const conf = file(`nginx-${port}.conf`, `daemon off; pid ${folder}/nginx-${port}.pid; error_log stderr; events {}
http {
  access_log off;
  client_body_temp_path ${folder}/body; proxy_temp_path ${folder}/proxy; fastcgi_temp_path ${folder}/f; uwsgi_temp_path ${folder}/u; scgi_temp_path ${folder}/s;
  map $http_upgrade $connection_upgrade { default upgrade; "" ""; }
  server {
    listen 127.0.0.1:${port};
    location ${PREFIX}/ {
      proxy_pass http://127.0.0.1:${server}${removes ? "/" : ""};
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection $connection_upgrade;
    }
  }
}`);
    return ["nginx", "-c", conf];
  },
  haproxy(port, server, removes) {
    const conf = file(`haproxy-${port}.cfg`, `defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend web
  bind 127.0.0.1:${port}
  http-request deny deny_status 404 unless { path_beg ${PREFIX}/ }
  ${removes ? `http-request replace-path ${PREFIX}(/.*) \\1` : ""}
  default_backend outrigger
backend outrigger
  server one 127.0.0.1:${server}
`);
    return ["haproxy", "-f", conf];
  },
};

/** The text on a terminal page. */
const shows = (page, text) => page.waitForFunction((text) => {
  const buffer = globalThis.outriggerTerminal?.buffer.active;
  if (!buffer) return false;
  const lines = Array.from({ length: buffer.length }, (_, at) => buffer.getLine(at).translateToString(true).trimEnd());
  return `\n${lines.join("\n")}`.includes(text);
}, text);

const says = (page, pattern) => page.waitForFunction((source) => new RegExp(source).test(document.querySelector("#bar").innerText), pattern.source);

/** Uses every page below `base`. `id` is that of the process. */
async function use(browser, base, id) {
  const context = await browser.newContext({ viewport: { width: 900, height: 600 } });
  context.setDefaultTimeout(DEADLINE);
  const wrong = [];
  context.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith("data:") && !url.startsWith("blob:") && !url.startsWith(`${base}/`)) wrong.push(`a request to ${url}`);
  });
  context.on("response", (response) => {
    if (response.status() >= 400 && response.status() !== 426) wrong.push(`${response.status()} for ${response.url()}`);
  });
  context.on("page", (page) => {
    page.on("pageerror", (error) => wrong.push(String(error.stack)));
    page.on("websocket", (socket) => { if (!socket.url().startsWith(`${base.replace("http", "ws")}/`)) wrong.push(`a WebSocket to ${socket.url()}`); });
  });

  // A terminal: typing, and a reload that continues it.
  let page = await context.newPage();
  await page.goto(`${base}/terminal#token=${TOKEN}`);
  await shows(page, "\n$");
  assert.equal(page.url(), `${base}/terminal`);
  await page.keyboard.type("x=kept; echo $((6 * 7))\n");
  await shows(page, "\n42\n");
  await page.reload();
  await says(page, /Connected/);
  await page.keyboard.type("echo $x-it\n");
  await shows(page, "\nkept-it\n");
  page.on("dialog", (dialog) => dialog.accept().catch(() => {}));
  await page.close();

  // The console: a process, its terminal two folders deeper, and a link to it.
  page = await context.newPage();
  await page.goto(`${base}/#token=${TOKEN}`);
  const row = page.locator("#processes-table tbody tr").filter({ hasText: "cat" });
  await row.getByText("running").waitFor();
  const popup = context.waitForEvent("page");
  await row.getByRole("button", { name: /^Attach/ }).click();
  const attached = await popup;
  await says(attached, /Connected/);
  assert.match(attached.url(), new RegExp(`^${base}/process/.+/attach`));
  await attached.keyboard.type("from the console");
  await shows(attached, "from the console");
  await attached.close();
  await page.close();

  page = await context.newPage();
  await page.goto(`${base}/process/by-name/named-cat#token=${TOKEN}&mode=viewer`);
  await says(page, /Watching/);
  await shows(page, "from the console");
  const link = await page.evaluate(async ({ token, id }) => {
    const { api } = await import(document.querySelector("script[src]").src.replace("terminal.js", "common.js"));
    return api("/.outrigger/links", { method: "POST", body: { path: `/process/${id}/attach` } });
  }, { token: TOKEN, id });
  await page.close();
  page = await context.newPage();
  await page.goto(`${base}${link.path}#token=${link.token}&mode=viewer`);
  await says(page, /Watching/);
  await shows(page, "from the console");
  await page.close();

  // An agent: a session.
  page = await context.newPage();
  await page.goto(`${base}/acp#token=${TOKEN}`);
  await page.getByRole("button", { name: "New session" }).first().waitFor();
  await page.waitForFunction(() => document.body.dataset.state !== "lost" && !document.querySelector("[role=alert]")?.textContent);
  await page.close();

  assert.deepEqual(wrong, []);
  await context.close();
}

async function main() {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: QUIET });
  const config = file("serve.json", JSON.stringify({ routes: {
    "/terminal": { terminal: { command: ["bash", "--norc"], env: ["PS1=$ "] } },
    "/process": { processes: {} },
    "/acp": { agent: { command: [process.env.OUTRIGGER, "example-agent"] } },
  } }));
  const children = [];
  process.on("exit", () => { for (const child of children) child.kill(); });
  try {
    for (const removes of [true, false]) {
      const server = await start("serve", "--config", config, ...(removes ? [] : ["--base-path", PREFIX]));
      const own = removes ? "" : PREFIX;
      const { host, port, pathname } = new URL(server.url);
      assert.ok(pathname.startsWith(`${own}/`), server.url);
      const spawned = await fetch(`http://${host}${own}/process/by-name/named-cat`, { method: "PUT",
        headers: { Authorization: `Bearer ${TOKEN}`, "Content-Type": "application/json" },
        body: JSON.stringify({ command: "cat", allocate_tty: true }) });
      assert.equal(spawned.status, 200);
      const { process_id: id } = await spawned.json();
      // Probes do not come through the proxy.
      assert.equal((await fetch(`http://${host}/healthz`)).status, 200);
      if (!removes) assert.equal((await fetch(`http://${host}/terminal`)).status, 404);
      for (const [name, configure] of Object.entries(PROXIES)) {
        const began = Date.now();
        const at = await freePort();
        const [program, ...args] = configure(at, Number(port), removes);
        const child = spawn(program, args, { stdio: ["ignore", "ignore", process.env.VERBOSE ? "inherit" : "ignore"] });
        children.push(child);
        await listening(at);
        await use(browser, `http://127.0.0.1:${at}${PREFIX}`, id);
        const ended = once(child, "exit");
        child.kill();
        await ended;
        console.log(`  ${name} ${removes ? "removes the path" : "with --base-path"} ok (${((Date.now() - began) / 1000).toFixed(1)} s)`);
      }
      await server.stop();
    }
  } finally {
    await browser.close();
    fs.rmSync(folder, { recursive: true, force: true });
  }
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });

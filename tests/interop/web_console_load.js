// The console with much to show, and with a server that hangs: 5,000 rows, 1,200 clients, the bytes that it asks for with 200 clients, a
// flood of log lines, and the charts after a stall.
//
// env: OUTRIGGER; PICTURES, a directory for screenshots
const assert = require("node:assert/strict");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { setTimeout: delay } = require("node:timers/promises");
const WebSocket = require("ws");
const { checkWidths, launch, errorsOf, look, picture, run, WAIT } = require("./console_server.js");

/** The most bytes for each second that the console may ask for with 200 clients. */
const MOST_BYTES = 8000;

const VIEWPORT = { viewport: { width: 1440, height: 900 } };

/** The origin of a server that has printed its address. */
const originOf = ({ told }) => new URL(told.match(/(wss?|https?):\/\/\S+/)[0].replace(/^ws/, "http")).origin;

/** Connects clients to /echo. Each sends as many bytes as `size` says, and gets them back. */
async function crowd(origin, count, size) {
  const sockets = [];
  for (let begin = 0; begin < count; begin += 50)
    sockets.push(
      ...(await Promise.all(
        Array.from({ length: Math.min(50, count - begin) }, async (_, at) => {
          const socket = new WebSocket(`${origin.replace("http", "ws")}/echo`, ["outrigger"], { rejectUnauthorized: false });
          await new Promise((done, fail) => {
            socket.on("open", () => socket.send("x".repeat(size(begin + at))));
            socket.on("message", done);
            socket.on("error", fail);
          });
          return socket;
        }),
      )),
    );
  return sockets;
}

/** Five thousand rows are sorted and filtered, and the page stays quick. */
async function rows(browser, origin) {
  const context = await browser.newContext(VIEWPORT);
  const page = await context.newPage();
  const errors = errorsOf(page);
  const all = Array.from({ length: 5000 }, (_, at) => ({
    process_id: `00000000-0000-4000-8000-${String(at).padStart(12, "0")}`,
    pid: 10_000 + ((at * 7919) % 5000),
    command: "worker",
    args: [`--shard=${at}`],
    tty: false,
    started_at: new Date(Date.now() - at * 1000).toISOString(),
    running_s: at,
    state: "running",
    exit_code: null,
    signal: null,
    cpu_s: at / 10,
    mem_bytes: 1_000_000 + at,
    attached: false,
    readers: 0,
  }));
  await page.route("**/process?usage=1", (route) => route.fulfill({ json: { processes: all } }));
  await page.goto(origin);
  await look(page, "processes");
  await page.getByText("and 4980 more").waitFor(WAIT);
  const first = (name, value) =>
    page.waitForFunction(
      ([name, value]) => document.querySelector(`#processes-table tbody td[data-name="${name}"]`)?.textContent === value,
      [name, value],
      WAIT,
    );
  const sort = (name) => page.locator("#processes-table").getByRole("button", { name, exact: true }).click();
  // Numbers are sorted as numbers: 10,000 is not the first from the top.
  await sort("Process id");
  await first("Process id", "14999");
  await sort("Process id");
  await first("Process id", "10000");
  await page.fill("#processes-filter", "shard=49 running");
  await page.waitForFunction(
    () => [...document.querySelectorAll("#processes-table td.main")].every((cell) => cell.textContent.includes("--shard=49")),
    null,
    WAIT,
  );
  // 49, 490 to 499, and 4900 to 4999.
  await page.getByText("and 91 more").waitFor(WAIT);
  await page.fill("#processes-filter", "");
  await page.getByText("and 4980 more").waitFor(WAIT);
  // How long the page is busy at a time, while it shows the rows again each second.
  const longest = await page.evaluate(async () => {
    let [longest, before] = [0, performance.now()];
    const end = before + 4000;
    while (before < end) {
      await new Promise((next) => setTimeout(next, 0));
      const now = performance.now();
      longest = Math.max(longest, now - before);
      before = now;
    }
    return longest;
  });
  assert.ok(longest < 2000, `the page was busy for ${Math.round(longest)} ms`);
  assert.deepEqual(errors, []);
  await context.close();
  console.log(`  5,000 rows sort and filter ok; the page is busy for at most ${Math.round(longest)} ms at a time`);
}

/** Who sends most is found among more clients than the page ever gets, and is disconnected. */
async function most(browser, origin) {
  const sockets = await crowd(origin, 1200, (at) => (at === 1150 ? 60_000 : 100 + at));
  const ended = new Promise((done) => {
    sockets[1150].on("close", done);
  });
  const context = await browser.newContext(VIEWPORT);
  const page = await context.newPage();
  await page.goto(origin);
  await page.getByText("1200", { exact: true }).first().waitFor(WAIT);
  await look(page, "clients");
  await page.getByText("and 1180 more").waitFor(WAIT);
  await page.locator("#clients-table").getByRole("button", { name: "In", exact: true }).click();
  const row = page.locator("#clients-table tbody tr").first();
  await row.getByText(/^6\d\.\d kB$/).first().waitFor(WAIT);
  await row.getByRole("button", { name: /^Disconnect/ }).click();
  await page.getByRole("button", { name: "Disconnect", exact: true }).last().click();
  assert.equal(await ended, 1008);
  await page.getByText("and 1179 more").waitFor(WAIT);
  await page.fill("#clients-filter", "nobody-has-this");
  await page.getByText("Nothing matches the filter.").waitFor(WAIT);
  await context.close();
  for (const socket of sockets) socket.terminate();
  console.log("  who sends most is found among 1,200 clients ok");
}

/** The console asks for few bytes, wherever somebody looks. */
async function bytes(browser, origin) {
  const sockets = await crowd(origin, 200, () => 500);
  const context = await browser.newContext(VIEWPORT);
  const page = await context.newPage();
  const session = await context.newCDPSession(page);
  await session.send("Network.enable");
  let received = 0;
  session.on("Network.loadingFinished", ({ encodedDataLength }) => {
    received += encodedDataLength;
  });
  await page.goto(origin);
  await page.getByText("200", { exact: true }).first().waitFor(WAIT);
  const told = [];
  for (const id of ["overview", "processes", "clients", "log"]) {
    await look(page, id);
    // What a section asks for at first, such as the whole log, is not repeated.
    await delay(2000);
    received = 0;
    const began = performance.now();
    await delay(8000);
    const rate = Math.round((received / (performance.now() - began)) * 1000);
    told.push(`${id} ${rate}`);
    assert.ok(rate > 100 && rate <= MOST_BYTES, `${rate} B/s with ${id} in sight`);
  }
  await picture(page, "console-200-clients");
  await checkWidths(page);
  await context.close();
  for (const socket of sockets) socket.terminate();
  console.log(`  bytes per second with 200 clients ok: ${told.join(", ")}`);
}

/** A server that hangs is noticed soon, its data looks dead, and an action fails in time. Afterwards, no chart has a spike. */
async function hang(browser, server, origin) {
  const context = await browser.newContext(VIEWPORT);
  const page = await context.newPage();
  const errors = errorsOf(page, false);
  await page.goto(origin);
  await page.getByText("connected", { exact: true }).waitFor(WAIT);
  const history = (after) => page.evaluate(async (after) => (await (await fetch(`/status?history=${after}&limit=0`)).json()).history, after);
  // The samples of the tests before end here.
  const { next } = await history(0);
  await page.waitForFunction(async (next) => (await (await fetch(`/status?history=${next}`)).json()).history.samples.length > 0, next, WAIT);
  const first = next + 1;
  const [socket] = await crowd(origin, 1, () => 10);
  // As many messages for each second as fit between two answers, before and after the stall.
  let sent = 0;
  socket.on("message", async () => {
    await delay(20);
    sent++;
    if (socket.readyState === WebSocket.OPEN) socket.send("x".repeat(1000));
  });
  socket.send("x");
  await look(page, "processes");
  await page.fill("#spawn-command", "true");
  await page.locator("#processes").waitFor(WAIT);
  while (sent < 150) await delay(100);
  server.child.kill("SIGSTOP");
  try {
    await page.getByText(/^no answer for \d+ s$/).waitFor(WAIT);
    await page.locator("body.dead").waitFor(WAIT);
    await picture(page, "console-dead");
    await page.press("#spawn-command", "Enter");
    await page.getByText("Run true: pending …").waitFor(WAIT);
    assert.equal(await page.locator("#spawn-run").isDisabled(), true);
    await page.getByText(/the server does not answer since/).waitFor(WAIT);
    await page.getByText("Run true failed: the server has not answered within 15 s. It may still do it.").waitFor(WAIT);
    assert.equal(await page.locator("#spawn-run").isDisabled(), false);
  } finally {
    server.child.kill("SIGCONT");
  }
  await page.getByText("connected", { exact: true }).waitFor(WAIT);
  await page.locator("body:not(.dead)").waitFor(WAIT);
  const before = sent;
  while (sent < before + 150) await delay(100);
  const { fields, samples } = await history(first);
  const rates = samples.map((sample) => sample[fields.indexOf("messages_in")]);
  assert.ok(Math.max(...rates) < 60, `at most 50 messages come in a second: ${rates}`);
  assert.ok(rates.at(-1) > 0, "messages come again");
  // A single outlier does not flatten the others.
  const scales = await page.evaluate(async () => {
    const { scaleOf } = await import("/.outrigger/web/chart.js");
    const even = Array.from({ length: 400 }, (_, at) => 50 + (at % 10));
    return [scaleOf(even, 4), scaleOf([...even, 9000], 4), scaleOf([], 4), scaleOf([null, 3], 4)];
  });
  assert.deepEqual(scales, [{ top: 59 }, { top: 73.75, peak: 9000 }, { top: 4 }, { top: 4 }]);
  assert.deepEqual(errors, []);
  await context.close();
  socket.terminate();
  console.log("  a hung server, an action that fails in time, and charts without a spike ok");
}

/** A flood of lines leaves the warnings, and the page stays quick. A server of any kind has the console if it is asked for. */
async function flood(browser) {
  const script = 'i=0; while [ $i -lt 20000 ]; do echo "flood $i" >&2; i=$((i+1)); done; (while sleep 1; do echo after >&2; done) & cat; kill $!';
  const server = await run(
    "listening",
    "app",
    "--console",
    ...["--path", "/app", "--listen", "127.0.0.1:0", "--no-auth", "--log", "info", "--", "sh", "-c", script],
  );
  const context = await browser.newContext(VIEWPORT);
  const page = await context.newPage();
  const errors = errorsOf(page);
  await page.goto(originOf(server));
  await look(page, "log");
  await page.locator("#log-lines p").filter({ hasText: "flood" }).first().waitFor(WAIT);
  assert.ok((await page.locator("#log-lines p").count()) <= 1000);
  // What was suppressed is told in the log and behind the strip on top.
  await page.getByRole("button", { name: "Reasons" }).click();
  await page.waitForFunction(
    () => {
      const [name] = [...document.querySelectorAll(".health-details dt")].filter((one) => one.textContent === "log lines suppressed");
      return name && Number(name.nextSibling.textContent) > 1000;
    },
    null,
    WAIT,
  );
  await page.getByRole("button", { name: "Close", exact: true }).click();
  await page.locator("#log-lines p").filter({ hasText: /after \(\d+ similar lines were suppressed\)/ }).first().waitFor(WAIT);
  await page.fill("#log-filter", "no line has this");
  await page.getByText("No line matches the level and the filter.").waitFor(WAIT);
  await page.fill("#log-filter", "");
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download" }).click()]);
  assert.match(download.suggestedFilename(), /^outrigger-.*\.log$/);
  assert.deepEqual(errors, []);
  await context.close();
  await server.stop();
  console.log("  a flood of log lines ok");
}

async function main() {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "outrigger-"));
  const config = path.join(folder, "config.json");
  fs.writeFileSync(config, JSON.stringify({ routes: { "/echo": { echo: {} }, "/process": { processes: {} } } }));
  const server = await run(
    "console at",
    ...["serve", "--config", config, "--listen", "127.0.0.1:0", "--no-auth", "--log", "warn", "--max-clients", "5000"],
  );
  const origin = originOf(server);
  const browser = await launch();
  try {
    await rows(browser, origin);
    await most(browser, origin);
    await bytes(browser, origin);
    await hang(browser, server, origin);
    await flood(browser);
  } finally {
    await browser.close();
  }
  await server.stop();
  fs.rmSync(folder, { recursive: true });
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});

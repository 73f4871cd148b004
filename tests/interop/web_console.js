// The console and the session page in headless Chromium, on `outrigger demo` and on servers whose tokens have scopes.
//
// env: OUTRIGGER; PICTURES, a directory for screenshots
const assert = require("node:assert/strict");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { checkAccess, errorsOf, launch, look, picture, run, WAIT } = require("./console_server.js");

/** Waits until the page fits its width. A table becomes a list of cards some time after the width has changed. */
const fits = (page) => page.waitForFunction(() => document.documentElement.scrollWidth <= innerWidth, null, WAIT);

async function main() {
  const server = await run("^C ends", "demo", "--listen", "127.0.0.1:0", "--log", "info");
  const link = server.told.match(/https?:\/\/\S+\/[#?]token=\w+/)[0].replace("?token", "#token");
  const origin = new URL(link).origin;
  const browser = await launch();
  // The check for accessibility is a script that the page's own policy would not let in.
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, bypassCSP: true });
  try {
    await context.grantPermissions(["clipboard-read", "clipboard-write"]);
    const page = await context.newPage();
    const errors = errorsOf(page);
    await page.goto(link);
    await page.getByText(/^process \d+, up/).waitFor(WAIT);
    assert.doesNotMatch(page.url(), /token/, "the token does not stay in the address");
    await page.getByText("default, scope all").waitFor(WAIT);
    await page.reload();
    await page.getByText(/^process \d+, up/).waitFor(WAIT);
    assert.doesNotMatch(await page.content(), new RegExp(link.match(/token=(\w+)/)[1]), "the token is not in the page");
    console.log("  the token, and a reload ok");

    await messages(page);
    await processes(context, page, origin);
    await outputs(page);
    await clients(page);
    await figures(page);
    await most(page);
    const id = await sessions(context, page);

    await page.reload();
    await look(page, "log");
    await page.locator("#log-lines p").first().waitFor(WAIT);
    await page.waitForFunction(
      () => {
        const box = document.querySelector("#log-lines");
        return box.scrollHeight > box.clientHeight && box.scrollTop + box.clientHeight > box.scrollHeight - 24;
      },
      null,
      WAIT,
    ); // the log shows its end
    await page.setViewportSize({ width: 360, height: 740 });
    await fits(page); // on a narrow screen
    await picture(page, "console-narrow");
    await page.setViewportSize({ width: 1440, height: 900 });
    await fits(page);
    await checkAccess(page, "console");
    assert.match(errors.shift(), /status of 400/, "the program that does not exist");
    assert.deepEqual(errors, []);
    console.log("  widths and accessibility ok");

    await tokens(browser, origin, link.match(/token=(\w+)/)[1], id);
    await health(browser);
    await restart(browser);
    await scopes(browser);
  } finally {
    await browser.close();
  }
  await server.stop();
}

/** The messages panel reaches the services. */
async function messages(page) {
  const shows = (text) => page.locator("#try-lines").filter({ hasText: text }).waitFor(WAIT);
  const say = async (text) => {
    await page.fill("#try-text", text);
    await page.press("#try-text", "Enter");
  };
  const connect = async (service) => {
    if ((await page.textContent("#try-connect")) === "Disconnect") {
      await page.click("#try-connect");
      await shows("disconnected: 1000");
    }
    await page.selectOption("#try-path", service);
    await page.click("#try-connect");
    await shows(`connected to ${service}`);
  };
  await connect("/echo");
  await say("hello κόσμε");
  await shows("< hello κόσμε");
  await page.getByRole("cell", { name: "/echo", exact: true }).nth(1).waitFor(WAIT);

  await connect("/app");
  await shows("You are guest 1.");
  await say("anybody there?");
  await shows("< guest 1: anybody there?");

  await connect("/acp");
  for (const [name, answer] of [
    ["initialize", '"protocolVersion":1'],
    ["session/new", '"sessionId":"'],
    ["session/prompt", '"stopReason":"end_turn"'],
  ]) {
    await page.getByRole("button", { name, exact: true }).click();
    assert.doesNotMatch(await page.inputValue("#try-text"), /SESSION/, "the session is filled in");
    await page.press("#try-text", "Enter");
    await shows(answer);
  }
  await page
    .locator("#figures div")
    .filter({ hasText: /agent sessions\s*1/ })
    .waitFor(WAIT);
  console.log("  messages to echo, app and agent ok");
}

/** Processes: spawn, exit code, signal, attach in a tab, watch-only link. */
async function processes(context, page, origin) {
  const row = (text) => page.locator("#processes-table tbody tr").filter({ hasText: text });
  const run = async (line) => {
    await page.fill("#spawn-command", line);
    await page.press("#spawn-command", "Enter");
  };
  await run("sh -c 'exit 3'");
  await row("sh -c 'exit 3'").getByText("exited with 3").waitFor(WAIT);
  // A click on a row opens its details.
  await row("sh -c 'exit 3'").getByText("exited with 3").click();
  await page.locator("dl.details").getByText("exit_code", { exact: true }).waitFor(WAIT);
  await page.getByRole("button", { name: "Close", exact: true }).click();
  await page.fill("#spawn-command", "true | cat");
  await page.getByText("Without a shell, the program gets “|” as they are.").waitFor(WAIT);
  await page.check("#spawn-shell");
  await page.locator("#spawn-hint").waitFor({ ...WAIT, state: "hidden" });
  await page.uncheck("#spawn-shell");
  await run("sh -c 'not closed");
  await page.getByText("The quote ' is not closed.").waitFor(WAIT);
  await run("/no/such/program");
  await page.locator("#spawn-error").filter({ hasText: /^cannot start the command: No such file/ }).waitFor(WAIT);

  await run("sleep 1000");
  await row("sleep 1000").getByText("running").waitFor(WAIT);
  await row("sleep 1000").getByRole("button", { name: "Signal" }).click();
  await page.getByRole("button", { name: /^TERM/ }).click();
  await row("sleep 1000").getByText("killed by SIGTERM").waitFor(WAIT);
  await run("sleep 2000");
  await row("sleep 2000").getByRole("button", { name: "Signal" }).click();
  await page.getByRole("button", { name: /^KILL/ }).click();
  await page.getByRole("button", { name: "Kill", exact: true }).click();
  await row("sleep 2000").getByText("killed by SIGKILL").waitFor(WAIT);

  await run("cat -v");
  await row("cat -v").getByText("running").waitFor(WAIT);
  await row("cat -v")
    .getByText(/^[\d.]+ [kM]B$/)
    .waitFor(WAIT);
  const { terminal: hasTerminal } = await pagesOf(page);
  let tab;
  if (hasTerminal) {
    [tab] = await Promise.all([
      context.waitForEvent("page"),
      row("cat -v").getByRole("button", { name: "Attach" }).click(),
    ]);
    await tab.waitForLoadState();
    assert.match(tab.url(), /\/process\/[0-9a-f-]+\/attach/);
    await row("cat -v").getByText("writer").waitFor(WAIT);
    assert.doesNotMatch(tab.url(), /token/);
  } else {
    // This build cannot show a terminal, so it offers the command that can.
    await row("cat -v").getByRole("button", { name: "Attach" }).click();
    const command = await page.inputValue("dialog .address");
    assert.match(command, /^outrigger attach 'wss?:\/\/[^']+\/process\/[0-9a-f-]+\/attach\?token=\w+'$/);
    await page.getByRole("button", { name: "Close", exact: true }).click();
    await row("cat -v").getByRole("button", { name: "Signal" }).click();
    await page.getByRole("button", { name: /^HUP/ }).click();
    await row("cat -v").getByText("killed by SIGHUP").waitFor(WAIT);
    console.log("  processes, signals and the command to attach ok (the program was built without the feature web)");
    return;
  }

  const links = page.locator("#links-table tbody tr");
  await row("cat -v").getByRole("button", { name: "link" }).click();
  await page.getByRole("button", { name: "Cancel" }).click();
  await row("cat -v").getByRole("button", { name: "link" }).click();
  await page.getByRole("radio", { name: "1 day" }).check();
  await picture(page, "console-link");
  assert.equal(await links.count(), 0, "no link is made before somebody asks for it");
  await page.getByRole("button", { name: "Make link" }).click();
  await page.getByText("The link is in your clipboard.").waitFor(WAIT);
  const url = await page.inputValue("dialog .address");
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), url);
  await page.getByRole("button", { name: "Done" }).click();
  assert.equal(new URL(url).origin, origin);
  assert.match(url, /#(.*&)?mode=viewer/);
  await links.filter({ hasText: "23 h" }).getByText("cat -v").waitFor(WAIT);
  await page.waitForFunction(() => document.querySelectorAll("#links-table tbody tr").length === 1, null, WAIT);

  const stranger = await page.context().browser().newContext();
  const watcher = await stranger.newPage();
  await watcher.goto(url);
  const token = new URLSearchParams(new URL(url).hash.slice(1)).get("token");
  const ask = (where) =>
    watcher.evaluate(
      async ([where, token]) => {
        const response = await fetch(where, { headers: { Authorization: `Bearer ${token}`, Accept: "application/json" } });
        return { status: response.status, body: await response.json() };
      },
      [where, token],
    );
  const who = await ask("/.outrigger/session");
  assert.equal(who.body.scope, "watch");
  assert.equal(who.body.only.path, new URL(url).pathname);
  assert.equal((await ask("/status")).status, 403);
  assert.equal((await ask("/process")).status, 403);
  assert.equal((await ask("/.outrigger/log")).status, 403);
  if (hasTerminal) {
    await row("cat -v").getByText("writer, 1 viewer").waitFor(WAIT);
    await links.getByRole("cell", { name: "1", exact: true }).waitFor(WAIT);
    console.log("  attaching in a tab, and watching with a link ok");
  } else console.log("  (the program was built without the feature web: the terminal page is not checked)");

  await links.getByRole("button", { name: "Revoke" }).click();
  if (hasTerminal) await page.getByRole("button", { name: "Revoke", exact: true }).last().click();
  await page.getByText("No links.").waitFor(WAIT);
  assert.equal((await ask("/.outrigger/session")).status, 401, "a revoked link opens nothing");
  await stranger.close();
  await tab.close();
  await row("cat -v").getByRole("button", { name: "Signal" }).click();
  await page.getByRole("button", { name: /^HUP/ }).click();
  await row("cat -v").getByText("killed by SIGHUP").waitFor(WAIT);
  console.log("  processes, signals and links ok");
}

/** Asks the server something with the token of the page. */
const askServer = (page, where) =>
  page.evaluate(async (where) => {
    const headers = { Authorization: `Bearer ${sessionStorage.getItem("outrigger.token")}` };
    return (await fetch(where, { headers })).json();
  }, where);

/** What the server says about its pages. */
const pagesOf = async (page) => (await askServer(page, "/status?limit=0")).pages;

/** A process without a terminal: its output is live, stays after the exit, and is gone when it is cleared. */
async function outputs(page) {
  const row = page.locator("#processes-table tbody tr").filter({ hasText: "out-1" });
  await page.check("#spawn-shell");
  await page.uncheck("#spawn-tty");
  await page.fill("#spawn-command", "echo out-1; echo err-1 >&2; read line; echo got $line; exit 4");
  await page.getByRole("button", { name: "Run and show output" }).click();
  const output = page.locator("dialog .output");
  await output.filter({ hasText: "out-1" }).filter({ hasText: "err-1" }).waitFor(WAIT);
  await page.locator("dialog").getByText("live", { exact: true }).waitFor(WAIT);
  const [{ process_id: id }] = (await askServer(page, "/process")).processes.filter(({ args }) => args[1]?.includes("out-1"));
  await page.evaluate(async (id) => {
    const headers = { Authorization: `Bearer ${sessionStorage.getItem("outrigger.token")}`, "Content-Type": "application/json" };
    const body = JSON.stringify({ data_b64: btoa("a line\n") });
    await fetch(`/process/${id}/stdin`, { method: "POST", headers, body });
  }, id);
  await output.filter({ hasText: "got a line" }).waitFor(WAIT);
  await page.locator("dialog").getByText("exited with 4", { exact: true }).waitFor(WAIT);
  await checkAccess(page, "console-output");
  await page.getByRole("button", { name: "Close", exact: true }).click();
  await row.getByRole("button", { name: /^Output of/ }).click();
  await output.filter({ hasText: "got a line" }).waitFor(WAIT);
  await page.getByRole("button", { name: "Close", exact: true }).click();
  await row.getByRole("button", { name: /^Clear/ }).click();
  await row.waitFor({ ...WAIT, state: "detached" });
  await page.uncheck("#spawn-shell");
  await page.check("#spawn-tty");
  // Several at once.
  for (const line of ["sleep 3001", "sleep 3002"]) {
    await page.fill("#spawn-command", line);
    await page.press("#spawn-command", "Enter");
    await page.locator("#processes-table tbody tr").filter({ hasText: line }).getByText("running").waitFor(WAIT);
  }
  await page.fill("#processes-filter", "sleep 300");
  await page.getByRole("checkbox", { name: "Choose all shown processes" }).check();
  await page.getByRole("button", { name: "End 2 chosen" }).click();
  await page.getByRole("button", { name: "End", exact: true }).click();
  await page.waitForFunction(
    () => document.querySelectorAll("#processes-table tbody tr").length === 2 && !/running/.test(document.querySelector("#processes-table tbody").textContent),
    null,
    WAIT,
  );
  await page.getByRole("checkbox", { name: "Choose all shown processes" }).check();
  await page.getByRole("button", { name: "Clear 2 chosen" }).click();
  await page.getByRole("button", { name: "Clear", exact: true }).last().click();
  await page.getByText("Nothing matches the filter.").waitFor(WAIT);
  await page.fill("#processes-filter", "");
  console.log("  output without a terminal, ending and clearing several ok");
}

/** The strip on top is quiet, and red when a token is wrong. It names the reasons. */
async function health(browser) {
  const server = await run("console at", "processes", "--listen", "127.0.0.1:0", "--log", "info");
  const context = await browser.newContext({ bypassCSP: true });
  const page = await context.newPage();
  await page.goto(server.told.match(/console at (\S+)/)[1]);
  await page.getByText("All is well", { exact: true }).waitFor(WAIT);
  await page.evaluate(() => fetch("/status", { headers: { Authorization: "Bearer wr0ng-0123456789" } }));
  await page.locator("#health[data-state=bad]").getByText("Look at refused, wrong tokens").waitFor(WAIT);
  await page.locator("#health li[data-state=bad]").getByText("1 wrong tokens in 15 min").waitFor(WAIT);
  // A reload does not forget it: the server keeps the figures.
  await page.reload();
  await page.locator("#health li[data-state=bad]").getByText("1 wrong tokens in 15 min").waitFor(WAIT);
  await page.getByRole("button", { name: "Reasons" }).click();
  await page.locator(".health-details").getByText("Refused requests, by reason").waitFor(WAIT);
  await page.locator(".health-details dt").getByText("unauthorized", { exact: true }).waitFor(WAIT);
  await checkAccess(page, "console-health");
  await page.getByRole("button", { name: "Refused requests in the log" }).click();
  await page.locator("#log-lines p").filter({ hasText: "refused: 401" }).filter({ hasText: "/status" }).first().waitFor(WAIT);
  assert.equal(await page.locator("#log-lines p").filter({ hasNotText: "refused" }).count(), 0);
  await context.close();
  await server.stop();
  console.log("  health ok");
}

/** A client can be disconnected. */
async function clients(page) {
  await look(page, "clients");
  const row = page.locator("#clients-table tbody tr").filter({ hasText: "/acp" });
  await row.getByRole("button", { name: /^Disconnect client/ }).click();
  await page.getByRole("button", { name: "Disconnect", exact: true }).last().click();
  await page.locator("#try-lines").filter({ hasText: "disconnected: 1008 Disconnected by an operator" }).waitFor(WAIT);
  await row.waitFor({ ...WAIT, state: "detached" });
  console.log("  disconnecting a client ok");
}

/** Log lines and charts. */
async function figures(page) {
  const lines = page.locator("#log-lines p");
  await lines.filter({ hasText: "started" }).first().waitFor(WAIT);
  await page.fill("#log-filter", "no line contains this");
  await page.waitForFunction(() => document.querySelectorAll("#log-lines p").length === 0, null, WAIT);
  await page.fill("#log-filter", "");
  await page.selectOption("#log-level", "error");
  await page.waitForFunction(
    () => [...document.querySelectorAll("#log-lines .level")].every((one) => one.textContent === "error"),
    null,
    WAIT,
  );
  await page.selectOption("#log-level", "trace");
  await lines.first().waitFor(WAIT);

  for (const title of ["Messages per second", "Bytes per second", "Latency of the event loop", "Agents' answer times"]) {
    const chart = page.getByRole("group", { name: title });
    await chart
      .locator("path.one")
      .first()
      .waitFor({ ...WAIT, state: "attached" });
    // The keyboard reads out a moment.
    await chart.focus();
    await page.keyboard.press("ArrowLeft");
    await chart.locator(".when").filter({ hasText: /\d/ }).waitFor(WAIT);
  }
  // While nothing but this page asks, nothing is counted.
  const idle = () =>
    page
      .getByRole("group", { name: "Messages per second" })
      .locator(".legend")
      .filter({ hasText: /in 0\s*out 0/ });
  await page.evaluate(() => document.activeElement.blur());
  await idle().waitFor(WAIT);
  await page
    .getByRole("group", { name: "Bytes per second" })
    .locator(".legend")
    .filter({ hasText: /in 0 B\s*out 0 B/ })
    .waitFor(WAIT);
  console.log("  log and charts ok");
}

/** Somebody finds out who sends most, and disconnects them: the table sorts numbers as numbers, filters, shows details and acts on several. */
async function most(page) {
  const token = await page.evaluate(() => sessionStorage.getItem("outrigger.token"));
  await page.evaluate(async (token) => {
    globalThis.ends = [];
    const open = (number) =>
      new Promise((done) => {
        const socket = new WebSocket(`${location.origin.replace("http", "ws")}/echo`, ["outrigger", `outrigger.token.${token}`]);
        socket.onopen = () => socket.send("x".repeat(number * number * 300));
        socket.onmessage = done;
        socket.onclose = ({ code }) => globalThis.ends.push([number, code]);
      });
    await Promise.all(Array.from({ length: 12 }, (_, at) => open(at + 1)));
  }, token);
  await page.fill("#clients-filter", "/echo echo");
  const rows = page.locator("#clients-table tbody tr");
  await page.waitForFunction(() => document.querySelectorAll("#clients-table tbody tr").length === 12, null, WAIT);
  const sort = page.locator("#clients-table").getByRole("button", { name: "In", exact: true });
  const amounts = () => rows.locator("td[data-name=In] small").allTextContents();
  const inOrder = (direction) =>
    page.waitForFunction(
      (direction) => {
        const value = (text) => Number.parseFloat(text) * (text.endsWith("kB") ? 1000 : 1);
        const all = [...document.querySelectorAll("#clients-table td[data-name=In] small")].map(({ textContent }) => value(textContent));
        return all.every((one, at) => at === 0 || direction * (one - all[at - 1]) >= 0);
      },
      direction,
      WAIT,
    );
  await sort.click();
  await page.locator("#clients-table th[aria-sort=descending]").waitFor(WAIT);
  await inOrder(-1);
  // TLS adds to it.
  assert.match((await amounts())[0], /^4[3-6]\.\d kB$/);
  await sort.click();
  await inOrder(1);
  await sort.click();
  await inOrder(-1);
  await rows.first().getByRole("button", { name: /^Details of client/ }).click();
  for (const name of ["bytes_in", "user_agent", "origin", "principal"])
    await page.locator("dl.details").getByText(name, { exact: true }).waitFor(WAIT);
  await page.getByRole("button", { name: "Close", exact: true }).click();
  for (const at of [0, 1]) await rows.nth(at).getByRole("checkbox").check();
  await picture(page, "console-chosen");
  await page.getByRole("button", { name: "Disconnect 2 chosen" }).click();
  await page.getByRole("button", { name: "Disconnect", exact: true }).last().click();
  await page.waitForFunction(() => globalThis.ends.length === 2, null, WAIT);
  assert.deepEqual((await page.evaluate(() => globalThis.ends)).sort(), [[11, 1008], [12, 1008]]);
  await page.waitForFunction(() => document.querySelectorAll("#clients-table tbody tr").length === 10, null, WAIT);
  await page.locator("#clients-head .danger").waitFor({ ...WAIT, state: "hidden" });
  await page.reload();
  await page.getByText(/^process \d+, up/).waitFor(WAIT);
  console.log("  sorting, details and disconnecting several ok");
}

/** The session page shows a turn. Returns the id of the session. */
async function sessions(context, page) {
  await page.selectOption("#try-path", "/acp");
  await page.click("#try-connect");
  const shows = (text) => page.locator("#try-lines").filter({ hasText: text }).waitFor(WAIT);
  const send = async (name) => {
    await page.getByRole("button", { name, exact: true }).click();
    await page.press("#try-text", "Enter");
  };
  await shows("connected to /acp");
  await send("initialize");
  await shows('"protocolVersion":1');
  await send("session/new");
  await shows('"sessionId":"');
  await look(page, "agents");
  const row = page.locator("#sessions-table tbody tr").filter({ hasNotText: "no client" });
  const [watcher] = await Promise.all([
    context.waitForEvent("page"),
    row.getByRole("button", { name: /^Watch session/ }).click(WAIT),
  ]);
  const errors = errorsOf(watcher);
  await watcher.getByText("watching", { exact: true }).waitFor(WAIT);
  assert.doesNotMatch(watcher.url(), /token/);
  const id = await row.getByRole("cell").first().textContent();
  assert.match(watcher.url(), new RegExp(`#session=${id}$`));
  await row.getByRole("cell", { name: "1", exact: true }).waitFor(WAIT);

  await send("session/prompt");
  const transcript = watcher.locator("#scroll .transcript");
  await transcript.getByText("hello", { exact: true }).waitFor(WAIT);
  await transcript.getByText("This is prompt 1 of this session").waitFor(WAIT);
  const idle = () => watcher.waitForFunction(() => !document.title.startsWith("…"), null, WAIT);
  await idle();
  await page.getByRole("button", { name: "session/prompt", exact: true }).click();
  await page.fill("#try-text", (await page.inputValue("#try-text")).replace("hello", "/permission"));
  await page.press("#try-text", "Enter");
  await transcript.getByText("Permission: Do nothing at all").waitFor(WAIT);
  await transcript.getByText("waiting for an answer").waitFor(WAIT);
  const asked = page.locator("#try-lines p").filter({ hasText: "session/request_permission" });
  const request = JSON.parse((await asked.textContent()).slice(2));
  await page.fill(
    "#try-text",
    JSON.stringify({ jsonrpc: "2.0", id: request.id, result: { outcome: { outcome: "selected", optionId: "yes" } } }),
  );
  await page.press("#try-text", "Enter");
  await transcript.getByText("answered: Do it").waitFor(WAIT);
  await transcript.getByText("You allowed it, and nothing was done.").waitFor(WAIT);
  await idle();

  // A reload shows what was before, and watches on.
  await watcher.reload();
  await transcript.getByText("This is prompt 1 of this session").waitFor(WAIT);
  await send("session/prompt");
  await transcript.getByText("This is prompt 3 of this session").waitFor(WAIT);
  await checkAccess(watcher, "session");
  await watcher.setViewportSize({ width: 360, height: 740 });
  await fits(watcher);
  assert.deepEqual(errors, []);
  await watcher.close();

  // Without a session, the page lists them.
  const [empty] = await Promise.all([
    context.waitForEvent("page"),
    page.getByRole("link", { name: "Open the agent" }).click(),
  ]);
  await empty.locator(`#sessions button[data-id="${id}"]`).click(WAIT);
  await empty.getByText("watching", { exact: true }).waitFor(WAIT);
  await empty.close();

  // With a link, somebody else watches until the link is revoked.
  await row.getByRole("button", { name: /^Link/ }).click();
  await page.getByRole("button", { name: "Make link" }).click();
  await page.getByText("The link is in your clipboard.").waitFor(WAIT);
  const url = await page.inputValue("dialog .address");
  await page.getByRole("button", { name: "Done" }).click();
  const stranger = await page.context().browser().newContext();
  const guest = await stranger.newPage();
  await guest.goto(url);
  await guest.getByText("watching", { exact: true }).waitFor(WAIT);
  assert.doesNotMatch(guest.url(), /token/);
  await page.click("#try-connect");
  await guest.getByText("The session's client has left.").waitFor(WAIT);
  const link = page.locator("#links-table tbody tr").filter({ hasText: id });
  await link.getByRole("cell", { name: "1", exact: true }).waitFor(WAIT);
  await link.getByRole("button", { name: /^Revoke/ }).click();
  await page.getByRole("button", { name: "Revoke", exact: true }).last().click();
  await guest.getByText("Disconnected: the link was revoked.").waitFor(WAIT);
  await stranger.close();
  console.log("  the session page ok");
  return id;
}

/** A page without a token, or with a wrong one, asks for it. */
async function tokens(browser, origin, token, id) {
  for (const where of ["/", `/acp#session=${id}`, "/#token=wrong"]) {
    const context = await browser.newContext({ bypassCSP: true });
    const page = await context.newPage();
    const errors = errorsOf(page, false);
    await page.goto(origin + where);
    await page.locator("dialog.token").waitFor(WAIT);
    await page.fill("dialog.token input", "wrong-again");
    await page.press("dialog.token input", "Enter");
    await page.getByText("The server does not accept this token.").waitFor(WAIT);
    if (where === "/") await checkAccess(page, "token");
    await page.fill("dialog.token input", token);
    await page.press("dialog.token input", "Enter");
    await page.getByText(where.startsWith("/acp") ? "connected" : "default, scope all", { exact: true }).waitFor(WAIT);
    assert.deepEqual(errors, []);
    await context.close();
  }
  console.log("  asking for the token ok");
}

/** The console goes on when its server is back. */
async function restart(browser) {
  const begin = (listen) => run("listening", "processes", "--listen", listen, "--no-auth", "--log", "warn");
  let server = await begin("127.0.0.1:0");
  const url = new URL(server.told.match(/wss?:\/\/\S+/)[0].replace(/^ws/, "http"));
  const context = await browser.newContext();
  const page = await context.newPage();
  const errors = errorsOf(page, false);
  await page.goto(`${url.origin}/`);
  await page.getByText("no token required").waitFor(WAIT);
  await page.fill("#spawn-command", "cat");
  await page.press("#spawn-command", "Enter");
  const row = page.locator("#processes-table tbody tr").filter({ hasText: "cat" });
  await row.getByText("running").waitFor(WAIT);
  // Without tokens, a link to watch is the page itself.
  if ((await pagesOf(page)).terminal) {
    await row.getByRole("button", { name: /^Link/ }).click();
    await page.getByRole("button", { name: "Make link" }).click();
    await page.locator("dialog .address").waitFor(WAIT);
    assert.match(await page.inputValue("dialog .address"), /\/process\/[0-9a-f-]+\/attach#mode=viewer$/);
    await page.getByRole("button", { name: "Done" }).click();
  } else assert.equal(await row.getByRole("button", { name: /^Link/ }).count(), 0, "there is no page to watch");
  const before = await page.textContent("#about");
  await server.stop();
  await page.getByText(/^the server does not answer since .*, trying again$/).waitFor(WAIT);
  server = await begin(url.host);
  await page.getByText("connected", { exact: true }).waitFor(WAIT);
  await row.waitFor({ ...WAIT, state: "detached" });
  assert.notEqual((await page.textContent("#about")).match(/process \d+/)[0], before.match(/process \d+/)[0]);
  assert.deepEqual(errors, []);
  await context.close();
  await server.stop();
  console.log("  a restart of the server ok");
}

/** Connects a page to a service. */
const connect = (page, where) =>
  page.evaluate((where) => {
    const token = sessionStorage.getItem("outrigger.token");
    globalThis.socket?.close();
    const socket = new WebSocket(`${location.origin.replace("http", "ws")}${where}`, ["outrigger", `outrigger.token.${token}`]);
    globalThis.socket = socket;
    return new Promise((done, fail) => Object.assign(socket, { onopen: () => done(), onerror: () => fail(new Error("not connected")) }));
  }, where);

/** What a scope forbids is not shown. */
async function scopes(browser) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "outrigger-"));
  const secrets = Object.fromEntries(["all", "use", "watch", "metrics"].map((scope) => [scope, `${scope}-0123456789abcdef`]));
  fs.writeFileSync(
    path.join(folder, "tokens"),
    Object.entries(secrets)
      .map(([scope, secret]) => `my-${scope} ${scope} ${secret}\n`)
      .join(""),
    { mode: 0o600 },
  );
  const routes = {
    "/process": { processes: {} },
    "/terminal": { terminal: { command: ["cat"] } },
    "/agent": { agent: { command: [process.env.OUTRIGGER, "example-agent"], grace: "500ms" } },
    "/echo": { echo: {} },
  };
  fs.writeFileSync(path.join(folder, "config.json"), JSON.stringify({ routes }));
  const server = await run(
    "/echo",
    "serve",
    "--config",
    path.join(folder, "config.json"),
    "--listen",
    "127.0.0.1:0",
    "--log",
    "warn",
    "--token-file",
    path.join(folder, "tokens"),
  );
  const { origin } = new URL(server.told.match(/wss?:\/\/\S+/)[0].replace(/^ws/, "http"));
  const shown = {
    all: ["overview", "services", "processes", "programs", "clients", "agents", "links", "log"],
    use: ["overview", "services", "programs", "clients", "agents"],
    watch: ["overview", "services", "programs", "clients", "agents"],
    metrics: ["overview", "services", "programs", "clients", "agents"],
  };
  const open = {
    all: ["Open a terminal", "Open the agent"],
    use: ["Open a terminal", "Open the agent"],
    watch: ["Watch a session"],
    metrics: [],
  };
  // A client that everybody sees and only `all` may disconnect.
  const holder = await browser.newContext();
  const talk = await holder.newPage();
  await talk.goto(`${origin}/#token=${secrets.all}`);
  const { terminal: hasTerminal } = await pagesOf(talk);
  await connect(talk, "/echo");
  for (const [scope, secret] of Object.entries(secrets)) {
    const context = await browser.newContext({ viewport: { width: 1200, height: 900 } });
    const page = await context.newPage();
    // A request that the scope forbids would be an error in the browser's console.
    const errors = errorsOf(page);
    await page.goto(`${origin}/#token=${secret}`);
    await page.getByText(`my-${scope}, scope ${scope}`).waitFor(WAIT);
    await look(page, "clients");
    await page.locator("#clients-table tbody tr").first().waitFor(WAIT);
    if (scope === "all") await page.locator("#log").waitFor(WAIT);
    if (scope === "all") await page.locator("#links").waitFor(WAIT);
    if (scope === "all") await page.locator("#processes").waitFor(WAIT);
    const sections = await page.$$eval("main section:not(#health)", (all) =>
      all.filter((one) => one.checkVisibility()).map(({ id }) => id),
    );
    assert.deepEqual(sections, shown[scope], scope);
    assert.deepEqual(await page.locator("#sections a:visible").count(), shown[scope].length, scope);
    const offered = open[scope].filter((one) => hasTerminal || one !== "Open a terminal");
    assert.deepEqual((await page.locator("#services-table a[target]").allTextContents()).sort(), offered, scope);
    assert.equal(await page.getByRole("button", { name: /^Disconnect client/ }).count(), scope === "all" ? 1 : 0, scope);
    assert.equal(await page.locator("#allows").isVisible(), scope !== "all", scope);
    await picture(page, `scope-${scope}`);
    assert.deepEqual(errors, [], scope);
    await context.close();
  }

  // The session page says that a session has ended.
  await connect(talk, "/agent");
  await talk.evaluate(async () => {
    const { socket } = globalThis;
    const ask = (id, method, params) =>
      new Promise((done) => {
        socket.addEventListener("message", ({ data }) => data.includes(`"id":${id}`) && done(data));
        socket.send(JSON.stringify({ jsonrpc: "2.0", id, method, params }));
      });
    await ask(1, "initialize", { protocolVersion: 1, clientCapabilities: {} });
    await ask(2, "session/new", { cwd: "/", mcpServers: [] });
  });
  await look(talk, "agents");
  const row = talk.locator("#sessions-table tbody tr");
  const [watcher] = await Promise.all([
    holder.waitForEvent("page"),
    row.getByRole("button", { name: /^Watch session/ }).click(WAIT),
  ]);
  await watcher.getByText("watching", { exact: true }).waitFor(WAIT);
  await talk.evaluate(() => globalThis.socket.close(1000));
  await watcher.locator("#connection").getByText("the session has ended").waitFor(WAIT);

  await holder.close();
  await server.stop();
  fs.rmSync(folder, { recursive: true });
  console.log("  scopes, and the end of a session ok");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});

// The terminal page in headless Chromium, on real programs: bash, vim, htop, mc and Python. What it shows, keys, the mouse, touch, sharing, and
// access for everyone.
//
// usage: OUTRIGGER=... NODE_PATH=... node tests/interop/web_terminal.js [PART...]      all parts by default
// env:   see web_page.js
const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");
const { TOKEN, Page, bash, call, folder, run, script, serve, until } = require("./web_page.js");

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

  /** Programs that use the mouse: a click and the wheel in vim, and a click in mc. */
  async mouse(browser) {
    const server = await bash("--env", "EDITOR=vi");
    const page = await Page.open(browser, `${server.base}${server.path}#token=${TOKEN}`);
    await page.shows("\n$");
    const file = path.join(folder, "lines.txt");
    fs.writeFileSync(file, Array.from({ length: 500 }, (_, at) => `line ${at + 1} of the file\n`).join(""));
    /** The middle of a cell of the screen. */
    const cell = (col, row) => page.page.evaluate(([col, row]) => {
      const box = document.querySelector(".xterm-screen").getBoundingClientRect();
      return { x: box.left + (col + 0.5) * box.width / outriggerTerminal.cols, y: box.top + (row + 0.5) * box.height / outriggerTerminal.rows };
    }, [col, row]);
    const click = async (col, row) => { const { x, y } = await cell(col, row); await page.page.mouse.click(x, y); };
    const cursor = ([col, row]) => page.page.waitForFunction(([col, row]) => outriggerTerminal.buffer.active.cursorX === col && outriggerTerminal.buffer.active.cursorY === row, [col, row]);
    await page.type(`vim -u NONE -N -c "set mouse=a ttymouse=sgr" ${file}\n`);
    await page.shows("\nline 5 of the file");
    await click(7, 3);
    await cursor([7, 3]);
    await page.type("iHERE ");
    await page.shows("\nline 4 HERE of the file");
    await page.press("Escape");
    const at = await cell(5, 5);
    await page.page.mouse.move(at.x, at.y);
    for (let turn = 0; turn < 4; turn++) await page.page.mouse.wheel(0, 120);
    await page.page.waitForFunction(() => {
      const buffer = outriggerTerminal.buffer.active;
      return Number(buffer.getLine(buffer.viewportY).translateToString(true).match(/^line (\d+)/)?.[1]) > 6;
    });
    // With Shift, the mouse selects text instead.
    await page.page.keyboard.down("Shift");
    await page.page.mouse.dblclick(at.x, at.y);
    await page.page.keyboard.up("Shift");
    await page.page.waitForFunction(() => outriggerTerminal.getSelection().length > 0);
    await page.press("Escape");
    await page.type(":q!\n");
    await page.shows("\n$");

    const home = path.join(folder, "home");
    for (const name of ["first", "second", "third"]) fs.mkdirSync(path.join(home, name), { recursive: true });
    await page.type(`clear; HOME=${home} TERM=xterm-256color mc --nosubshell ${home} ${home}\n`);
    await page.shows("10Quit");
    const row = await page.page.evaluate(() => {
      const buffer = outriggerTerminal.buffer.active;
      return Array.from({ length: outriggerTerminal.rows }, (_, row) => buffer.getLine(buffer.viewportY + row).translateToString(true)).findIndex((line) => line.includes("/second"));
    });
    await click(5, row);
    // The line below the panel names what is chosen.
    await page.page.waitForFunction((row) => {
      const buffer = outriggerTerminal.buffer.active;
      return Array.from({ length: outriggerTerminal.rows }, (_, row) => buffer.getLine(buffer.viewportY + row).translateToString(true)).slice(row + 2).some((line) => line.includes("/second"));
    }, row);
    await page.shot("mc");
    const quit = await page.page.evaluate(() => {
      const buffer = outriggerTerminal.buffer.active;
      const lines = Array.from({ length: outriggerTerminal.rows }, (_, row) => buffer.getLine(buffer.viewportY + row).translateToString(true));
      const row = lines.findIndex((line) => line.includes("10Quit"));
      return [lines[row].indexOf("10Quit") + 3, row];
    });
    await click(...quit);
    await page.page.waitForFunction(() => outriggerTerminal.buffer.active.type === "normal");
    await page.type("clear; echo over\n");
    await page.shows("\nover");
    await page.close();
    await server.stop();
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

    // A link that lasts ten minutes.
    await writer.page.getByRole("button", { name: "Share" }).click();
    await writer.page.getByLabel("Expires in").selectOption({ label: "10 minutes" });
    await writer.page.getByRole("button", { name: "Copy link" }).click();
    const shared = await writer.page.getByLabel("Link", { exact: true }).inputValue();
    await writer.page.getByRole("button", { name: "Close" }).click();
    await writer.page.waitForFunction(() => document.activeElement === outriggerTerminal.textarea);
    const { links } = await (await fetch(`${server.base}/.outrigger/links`, { headers: { Authorization: `Bearer ${TOKEN}` } })).json();
    assert.equal(links.length, 1);
    assert.ok(links[0].expires_s > 300 && links[0].expires_s <= 600 && !links[0].answers);
    const viewer = await Page.open(browser, shared, { viewport: { width: 500, height: 700 } });
    await viewer.shows("\nby the writer");
    await viewer.says(/Watching/);
    await writer.says(/1 viewer/);
    assert.equal(await viewer.page.getByRole("button", { name: /Take over|Write|Share/ }).count(), 0, "the link may only watch");
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
    const becomes = (page, look) => page.page.waitForFunction((look) => {
      const [red, green, blue] = getComputedStyle(document.querySelector("#frame")).backgroundColor.match(/\d+/g).map(Number);
      const mean = (red + green + blue) / 3;
      return look === "dark" ? mean < 50 : mean > 200;
    }, look);
    const page = await Page.open(browser, url, { colorScheme: "dark" });
    await page.shows("\n$");
    await becomes(page, "dark");
    await page.shot("dark");
    await page.page.emulateMedia({ colorScheme: "light" });
    await becomes(page, "light");
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

run("terminal page", parts).then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });

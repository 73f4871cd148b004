// How the terminal page draws: by the DOM, and by WebGL in software. WebGL is loaded only where it draws, both show the same, and both
// keep letters readable.
//
// usage: OUTRIGGER=... NODE_PATH=... node tests/interop/web_renderers.js [PART...]      all parts by default
// env:   see web_page.js
const assert = require("node:assert/strict");
const { QUIET, TOKEN, Page, run, script, serve } = require("./web_page.js");

const SOFTWARE = [...QUIET, "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"];
const RENDERERS = ["dom", "webgl"];
/** Large letters have parts whose color is not mixed with the background's. */
const LETTERS = { fontSize: "30" };

/** Waits until the renderer draws. */
const drawsWith = (page, renderer) =>
  page.page.waitForFunction((isWebgl) => Boolean(document.querySelector(".xterm-screen canvas")) === isWebgl && Boolean(document.querySelector(".xterm-rows")) !== isWebgl, renderer === "webgl");

/** A page whose browser has a setting, and that notes whether it has loaded the code of the WebGL renderer. */
async function open(browser, server, { renderer, theme, init, fontSize } = {}) {
  const context = await browser.newContext({ viewport: { width: 1000, height: 620 } });
  if (init) await context.addInitScript(init);
  if (fontSize) await context.addInitScript((size) => localStorage.setItem("outrigger.terminal.fontSize", size), fontSize);
  let loaded = 0;
  context.on("request", (request) => { if (request.url().includes("addon-webgl")) loaded++; });
  const keys = [`token=${TOKEN}`, renderer && `renderer=${renderer}`, theme && `theme=${theme}`].filter(Boolean);
  const page = await Page.open(browser, `${server.base}${server.path}#${keys.join("&")}`, { context });
  return Object.assign(page, { loaded: () => loaded });
}

/** A picture of the rows, as its width, its height and the bytes of its pixels. */
async function pixels(page) {
  const box = await page.page.locator(".xterm-screen").boundingBox();
  const png = await page.page.screenshot({ clip: box, animations: "disabled" });
  const { width, height, data } = await page.page.evaluate(async (text) => {
    const blob = new Blob([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))], { type: "image/png" });
    const bitmap = await createImageBitmap(blob);
    const canvas = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
    canvas.drawImage(bitmap, 0, 0);
    const { data } = canvas.getImageData(0, 0, bitmap.width, bitmap.height);
    let all = "";
    for (let at = 0; at < data.length; at += 8192) all += String.fromCharCode(...data.subarray(at, at + 8192));
    return { width: bitmap.width, height: bitmap.height, data: btoa(all) };
  }, png.toString("base64"));
  const [rows, cols] = await page.size();
  return { width, height, data: Buffer.from(data, "base64"), rows, cols };
}

/** The colors in some cells of a row, with the number of their pixels, the most frequent first. */
function colorsAt({ width, height, data, rows, cols }, row, col, count) {
  const found = new Map();
  for (let y = Math.ceil(row * height / rows) + 1; y < (row + 1) * height / rows - 1; y++)
    for (let x = Math.ceil(col * width / cols) + 1; x < (col + count) * width / cols - 1; x++) {
      const key = data.subarray(4 * (y * width + x), 4 * (y * width + x) + 3).toString("hex");
      found.set(key, (found.get(key) ?? 0) + 1);
    }
  return [...found].sort(([, a], [, b]) => b - a).map(([key, count]) => ({ color: [...Buffer.from(key, "hex")], count }));
}

/** The contrast of two colors, as WCAG defines it. */
function contrast(one, other) {
  const luminance = (color) => {
    const [red, green, blue] = color.map((value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

/** The background of some cells, the color of their letters, and the contrast of both. */
function readability(picture, ...place) {
  const [{ color: background }, ...others] = colorsAt(picture, ...place);
  // Colors of a few pixels are those of the letters' edges.
  const letters = others.filter(({ count }) => count > 20).map(({ color }) => ({ color, ratio: contrast(color, background) }));
  return { background, ...letters.sort((a, b) => b.ratio - a.ratio)[0] };
}

/** The mean color of each cell. The sizes of the pictures may differ by a fraction of a pixel for each cell. */
function means({ width, height, data, rows, cols }) {
  const sums = Array.from({ length: rows * cols }, () => [0, 0, 0, 0]);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) {
      const sum = sums[Math.floor(y * rows / height) * cols + Math.floor(x * cols / width)];
      for (let part = 0; part < 3; part++) sum[part] += data[4 * (y * width + x) + part];
      sum[3]++;
    }
  return sums.map(([red, green, blue, count]) => [red / count, green / count, blue / count]);
}

/** The cells of two pictures that differ most: by how much, from 0 to 255, and where. */
function differences(one, other) {
  assert.deepEqual([one.rows, one.cols], [other.rows, other.cols]);
  const [first, second] = [means(one), means(other)];
  const all = first.map((color, at) => ({ by: Math.max(...color.map((value, part) => Math.abs(value - second[at][part]))), row: Math.floor(at / one.cols), col: at % one.cols }));
  return all.sort((a, b) => b.by - a.by);
}

/** A program that writes a text and hides the cursor. */
const printer = (name, text) => ["python3", script(name, `import sys, time\nsys.stdout.write(${JSON.stringify(text)})\nsys.stdout.flush()\ntime.sleep(1000)\n`)];

const parts = {
  /** The code of WebGL is loaded where a GPU draws, or where the address asks for it, and the DOM takes over if the GPU is gone. */
  async choice(browser) {
    const server = await serve("terminal", "--env", "PS1=$ ", "--", "bash", "--norc");
    for (const [options, renderer] of [[{}, "dom"], [{ renderer: "dom" }, "dom"], [{ renderer: "webgl" }, "webgl"],
      [{ init: () => { WebGL2RenderingContext.prototype.getParameter = new Proxy(WebGL2RenderingContext.prototype.getParameter, { apply: (call, self, [name]) => (name === 0x9246 ? "ANGLE (A real GPU)" : call.call(self, name)) }); } }, "webgl"],
      [{ renderer: "webgl", init: () => { HTMLCanvasElement.prototype.getContext = () => null; } }, "dom"]]) {
      const page = await open(browser, server, options);
      await drawsWith(page, renderer);
      await page.shows("\n$");
      await page.type("echo drawn\n");
      await page.shows("\ndrawn\n$");
      assert.equal(page.loaded(), renderer === "webgl" ? 1 : 0, JSON.stringify(options));
      if (renderer === "webgl" && options.renderer) {
        await page.page.evaluate(() => document.querySelector(".xterm-screen canvas:not(.xterm-link-layer)").getContext("webgl2").getExtension("WEBGL_lose_context").loseContext());
        await drawsWith(page, "dom");
        await page.type("echo by the DOM\n");
        await page.page.locator(".xterm-rows").filter({ hasText: /by the DOM\s*\$/ }).waitFor();
      }
      await page.close();
    }
    await server.stop();
  },

  /** Letters are readable on every background, in reverse video too, and reverse video has the colors of the theme. */
  async contrast(browser) {
    const colors = [...Array(8).keys()].flatMap((one) => [30 + one, 90 + one]);
    const styles = ["7", "1;7", "4;7", ...colors.map((one) => `7;${one}`), ...colors.map((one) => `7;${one + 10}`), ...colors, "37;44", "30;46", "33;44", "30;47",
      "97;44", "90;40", "7;38;5;208", "7;48;5;208", "7;38;2;200;100;50", "7;48;2;200;100;50", "31;42"];
    const columns = 8;
    const text = `\x1b[?25l${styles.map((style, at) => `\x1b[${style}mHHHH\x1b[0m${at % columns === columns - 1 ? "\r\n" : " "}`).join("")}\r\nend`;
    const server = await serve("terminal", "--", ...printer("styles.py", text));
    for (const [theme, least] of [["dark", 4.5], ["light", 4.5], ["contrast", 7]]) {
      const seen = {};
      for (const renderer of RENDERERS) {
        const page = await open(browser, server, { renderer, theme, ...LETTERS });
        await drawsWith(page, renderer);
        await page.shows("\nend");
        const { foreground, background } = await page.page.evaluate(() => outriggerTerminal.options.theme);
        // The letters have the new size once they are drawn.
        await page.page.waitForFunction(() => outriggerTerminal.rows < 20);
        const picture = await pixels(page);
        seen[renderer] = styles.map((style, at) => ({ style, ...readability(picture, Math.floor(at / columns), at % columns * 5, 4) }));
        if (process.env.VERBOSE) console.log(theme, renderer, seen[renderer].map(({ style, ratio, background, color }) => `${style} ${ratio?.toFixed(1)} ${background}/${color}`).join("\n"));
        for (const { style, background: behind, ratio } of seen[renderer]) {
          // On a color of medium lightness, not even black or white have the contrast of 7.
          const possible = Math.max(...[0, 255].map((value) => contrast([value, value, value], behind)));
          assert.ok(ratio >= 0.95 * Math.min(least, possible), `${style} has the contrast ${ratio} with ${renderer}, ${theme}`);
        }
        const hex = (color) => [1, 3, 5].map((at) => Number.parseInt(color.slice(at, at + 2), 16));
        assert.deepEqual([seen[renderer][0].background, seen[renderer][0].color], [hex(foreground), hex(background)], `reverse video with ${renderer}, ${theme}`);
        await page.close();
      }
      // Both renderers choose the same colors.
      for (const [at, { style, color, background }] of seen.dom.entries())
        for (const part of [0, 1, 2]) {
          const other = seen.webgl[at];
          assert.ok(Math.abs(color[part] - other.color[part]) < 16 && Math.abs(background[part] - other.background[part]) < 16, `${style}, ${theme}: ${color} on ${background}, ${other.color} on ${other.background}`);
        }
    }
    await server.stop();
  },

  /** Both renderers draw the same picture, and a picture shows a change of a single letter. */
  async pictures(browser) {
    const words = (last) => ["\x1b[?25l\x1b[1mbold\x1b[0m \x1b[3mitalic\x1b[0m \x1b[4munderlined\x1b[0m \x1b[9mstruck\x1b[0m \x1b[2mdim\x1b[0m \x1b[7mreverse\x1b[0m",
      "\x1b[31mred \x1b[32mgreen \x1b[44;97mon blue\x1b[0m \x1b[38;5;208m256 colors\x1b[0m \x1b[48;2;90;30;120mtrue color\x1b[0m", "κόσμε żółć",
      "┌──────┬──────┐", "│ left │ right│", "└──────┴──────┘", "▁▂▃▄▅▆▇█ ░▒▓", "The quick brown fox jumps over the lazy dog 0123456789", `the en${last}`].join("\r\n");
    const pictures = {};
    for (const [name, last, renderer] of [["dom", "d", "dom"], ["webgl", "d", "webgl"], ["again", "d", "webgl"], ["changed", "c", "webgl"]]) {
      const server = await serve("terminal", "--", ...printer("words.py", words(last)));
      const page = await open(browser, server, { renderer, theme: "dark", fontSize: "20" });
      await drawsWith(page, renderer);
      await page.shows(`\nthe en${last}`);
      pictures[name] = await pixels(page);
      await page.close();
      await server.stop();
    }
    const compare = (one, other) => differences(pictures[one], pictures[other]);
    if (process.env.VERBOSE) for (const pair of [["dom", "webgl"], ["webgl", "again"], ["webgl", "changed"]]) console.log(pair, Array.from({ length: 9 }, (_, at) => compare(...pair).find(({ row }) => row === at)).map(({ row, col, by }) => `${row}:${col} ${by.toFixed(1)}`).join(", "));
    // WebGL draws blocks by itself, and the DOM takes them from the font. The edges of a colored background are between two pixels.
    const allowed = { 1: 40, 6: 100 };
    const isOther = ({ row, by }) => by > (allowed[row] ?? 13);
    assert.deepEqual(compare("dom", "webgl").filter(isOther), []);
    assert.deepEqual(compare("webgl", "again").filter(isOther), []);
    assert.deepEqual(compare("webgl", "changed").filter(isOther).map(({ row, col }) => [row, col]), [[8, 6]]);
  },
};

run("renderers", parts, SOFTWARE).then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });

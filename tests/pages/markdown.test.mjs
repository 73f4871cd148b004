// web/markdown.js, with marked if web/build.sh has fetched it, and with what takes its place in a build without files from npm.
// Elements are those of a small document below, because Node.js has none.
import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import test, { after } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";

class Element {
  attributes = {};
  childNodes = [];
  listeners = {};
  classList = { add: (name) => { this.attributes.class = `${this.attributes.class ?? ""} ${name}`; } };
  constructor(tag) {
    this.tag = tag;
  }
  append(...nodes) {
    for (const node of nodes) {
      if (node instanceof Element) node.parent = this;
      this.childNodes.push(node);
    }
  }
  remove() {
    this.parent.childNodes.splice(this.parent.childNodes.indexOf(this), 1);
  }
  setAttribute(name, value) {
    this.attributes[name] = String(value);
  }
  addEventListener(type, listener) {
    this.listeners[type] = listener;
  }
  get textContent() {
    return this.childNodes.map((node) => node.textContent ?? String(node)).join("");
  }
  set textContent(text) {
    this.childNodes = [text];
  }
  /** All elements below, of a kind. */
  all(tag) {
    return this.childNodes.flatMap((node) => (node instanceof Element ? [...(!tag || node.tag === tag ? [node] : []), ...node.all(tag)] : []));
  }
}
globalThis.document = { createElement: (tag) => new Element(tag) };
globalThis.location = { search: "", hash: "", pathname: "/", origin: "http://localhost" };
globalThis.history = { replaceState() {} };
globalThis.addEventListener = () => {};

const web = fileURLToPath(new URL("../../web/", import.meta.url));
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "outrigger-markdown-"));
after(() => fs.rmSync(folder, { recursive: true }));

/** The module as the program serves it. */
async function load(name, lexer) {
  const place = path.join(folder, name, ".outrigger", "web");
  fs.mkdirSync(place, { recursive: true });
  fs.writeFileSync(path.join(folder, name, "package.json"), '{"type":"module"}');
  for (const file of ["markdown.js", "common.js"]) fs.copyFileSync(path.join(web, file), path.join(place, file));
  fs.copyFileSync(lexer, path.join(place, "marked.js"));
  return import(pathToFileURL(path.join(place, "markdown.js")));
}

const plain = await load("plain", path.join(web, "without_marked.js"));
const modules = { plain };
const published = path.join(web, "dist", "marked.js");
if (fs.existsSync(published)) modules.marked = await load("marked", published);

function show({ showMarkdown }, ...texts) {
  const node = new Element("div");
  for (const text of texts) showMarkdown(node, text);
  return node;
}

for (const [name, module] of Object.entries(modules)) {
  test(`${name}: code has a box, and what follows a fence is there`, () => {
    const node = show(module, "before\n\n```sh\necho 1 < 2 &amp;\n```\nafter");
    const [code] = node.all("pre");
    assert.equal(code.textContent, "echo 1 < 2 &amp;");
    assert.equal(code.attributes["aria-label"], "Code, sh");
    assert.match(node.textContent, /^before.*after$/s);
    // The bug: text behind a fence without a line feed disappeared.
    assert.match(show(module, "```\nx\n``` and more").textContent, /and more/);
    assert.match(show(module, "```\nnever closed").textContent, /never closed/);
  });

  test(`${name}: what an agent writes as HTML is text`, () => {
    const text = '<img src=x onerror="alert(1)"> <script>alert(2)</script> [a](javascript:alert(3))';
    const node = show(module, text);
    assert.deepEqual([...node.all("img"), ...node.all("script")], []);
    for (const { attributes } of node.all("a")) assert.match(attributes.href, /^(https?|mailto):/);
    for (const part of ["<img", "onerror", "<script>", "alert(2)"]) assert.ok(node.textContent.includes(part), part);
  });

  test(`${name}: no letter of a text is lost, and a text that grows is shown as if it had come at once`, () => {
    let state = 7;
    const next = (below) => {
      state = (state * 1_103_515_245 + 12_345) % 2_147_483_648;
      return Math.floor((state / 2_147_483_648) * below);
    };
    const parts = ["word", "x1", " ", "\n", "\n\n", "# ", "* ", "> ", "`", "```\n", "**", "_", "~~~\n", "|", "1. ", "    ", "- [x] ", "<b>"];
    for (let turn = 0; turn < 2000; turn++) {
      const text = Array.from({ length: 1 + next(14) }, () => parts[next(parts.length)]).join("");
      const node = show(module, text);
      // What comes after a fence's opening is its language, which is a label.
      const shown = node.textContent + node.all().map(({ attributes }) => attributes["aria-label"] ?? "").join(" ");
      const words = (all) => (all.match(/word|x1/g) ?? []).length;
      assert.ok(words(shown) >= words(text), JSON.stringify(text));
      const grown = show(module, text.slice(0, next(text.length)), text);
      assert.equal(grown.textContent, node.textContent, JSON.stringify(text));
    }
  });

  // The bug: 6 KB of nested quotations took seconds.
  test(`${name}: quotations and lists in each other cost no more than other text`, () => {
    const lines = (count, line) => Array.from({ length: count }, (_, index) => line(index)).join("\n");
    const deep = [
      `${"> ".repeat(1000)}word\n${"x1\n".repeat(2000)}`,
      `${"- ".repeat(300)}word\n${"x1\n".repeat(2000)}`,
      `${"> - ".repeat(300)}word\n${"x1\n".repeat(2000)}`,
      lines(300, (index) => `${"  ".repeat(index)}- word`),
      lines(200, (index) => `${"> - ".repeat(index)}word`),
      `${">".repeat(1000)}\n\n`.repeat(90),
    ];
    const measure = (text) => {
      const before = process.cpuUsage();
      const shown = show(module, text).textContent;
      assert.equal(shown.match(/word/g)?.length, text.match(/word/g)?.length);
      const { user, system } = process.cpuUsage(before);
      return (user + system) / 1000;
    };
    measure("word\n\n".repeat(10_000));
    for (const text of deep) assert.ok(measure(text) < 400, text.slice(0, 40));
    const quoted = show(module, `${"> ".repeat(6)}word\n\n* * * * * * * * * * *\n`);
    if (name === "marked") assert.deepEqual([quoted.all("blockquote").length, quoted.all("hr").length], [6, 1]);
  });

  test(`${name}: text that would take long is shown as it is`, () => {
    for (const text of ["a".repeat(200_000), `|${"a|".repeat(300)}\n`.repeat(100), `${"x".repeat(5000)}\n`]) {
      const began = performance.now();
      const node = show(module, text);
      assert.equal(node.textContent, text);
      assert.ok(performance.now() - began < 5000);
    }
  });
}

test("addresses of links are those of pages and of mail", () => {
  const { safeAddress } = plain;
  assert.equal(safeAddress("https://example.com/a b"), "https://example.com/a%20b");
  assert.equal(safeAddress("mailto:ada@example.com"), "mailto:ada@example.com");
  for (const bad of ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "//example.com", "x", " JavaScript:1"]) assert.equal(safeAddress(bad), undefined, bad);
});

test("without npm files, characters that marked would escape stay as the agent wrote them", () => {
  assert.equal(show(plain, "a &lt;b&gt; &amp; c").textContent, "a &lt;b&gt; &amp; c");
});

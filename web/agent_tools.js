// Shows the tool calls of an agent: state, places, output, differences between files, and terminals.

import { isObject } from "./agent_client.js";
import { element } from "./common.js";
import { diffLines, hunks } from "./diff.js";
import { codeBox, safeLink, showMarkdown } from "./markdown.js";
import { plain } from "./view.js";

export const list = (value) => (Array.isArray(value) ? value.filter(isObject) : []);
/** The value of a table's own key, for keys that an agent chooses. */
export const own = (table, key) => (Object.hasOwn(table, key) ? table[key] : undefined);

/** Text whose meaning matters to somebody who approves it: nothing of it is left out, and control characters are shown. */
export const visible = (text) =>
  (typeof text === "object" && text !== null ? JSON.stringify(text) : String(text ?? ""))
    .replace(/[\x00-\x08\x0b-\x1f]/g, (char) => String.fromCharCode(0x2400 + char.charCodeAt(0)))
    .replace(/\x7f/g, "\u2421")
    .replace(/[\x80-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (char) => `<U+${char.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}>`);

const json = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

/** The most rows of a difference that are shown at first, and the most characters of raw input and output. */
const MOST_ROWS = 400;
const MOST_RAW = 200_000;
/** Pictures that may be shown. Other kinds are named. */
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"];

/** A content block as an element, or as text if it is text. */
export function showBlock(block) {
  if (!isObject(block)) return "";
  switch (block.type) {
    case "text":
      return plain(block.text);
    case "image":
      if (!PICTURES.includes(block.mimeType) || !/^[A-Za-z0-9+/=\s]*$/.test(block.data ?? "")) break;
      return element("img", { class: "picture", src: `data:${block.mimeType};base64,${block.data}`, alt: "Picture" });
    case "resource_link":
      return element("p", { class: "resource" }, "File: ", safeLink(block.uri, plain(block.title ?? block.name ?? block.uri)));
    case "resource": {
      const { uri, text } = isObject(block.resource) ? block.resource : {};
      const summary = element("summary", {}, `File: ${plain(uri ?? "unnamed")}`);
      return element("details", { class: "resource" }, summary, text === undefined ? "Not text" : codeBox(plain(text)));
    }
    default:
  }
  return element("p", { class: "resource" }, `[${plain(block.type ?? "content")}${block.mimeType ? ` ${plain(block.mimeType)}` : ""}]`);
}

const MARKS = { same: " ", minus: "-", plus: "+" };
const NAMES = { minus: "removed: ", plus: "added: " };

function diffRow({ kind, text, before, after }) {
  return element(
    "div",
    { class: kind },
    element("span", { class: "number", "aria-hidden": "true" }, String(before ?? "").padStart(4), " ", String(after ?? "").padStart(4)),
    element("span", { class: "mark", "aria-hidden": "true" }, MARKS[kind]),
    NAMES[kind] && element("span", { class: "visually-hidden" }, NAMES[kind]),
    visible(text) || " ",
  );
}

const skippedRow = (count) => element("div", { class: "skipped" }, `${count} equal line${count === 1 ? "" : "s"}`);

/** A box of rows, which are functions that make elements. The first ones are shown, and more on request. */
function rowsBox(label, rows) {
  const box = element("div", { class: "diff", tabindex: "0", role: "group", "aria-label": label });
  const more = element("button", { type: "button" });
  let shown = 0;
  const show = () => {
    const next = rows.slice(shown, shown + (shown ? 10 * MOST_ROWS : MOST_ROWS));
    shown += next.length;
    more.remove();
    box.append(...next.map((make) => make()));
    more.textContent = `Show more of ${rows.length - shown} lines`;
    if (shown < rows.length) box.append(more);
  };
  more.addEventListener("click", show);
  show();
  return box;
}

/** The difference between two texts of a file. */
function showDiff({ path, oldText, newText }) {
  const [before, after] = [String(oldText ?? ""), String(newText ?? "")];
  const rows = diffLines(before, after);
  const count = (kind) => rows.filter((row) => row.kind === kind).length;
  const found = hunks(rows);
  const all = found.hunks.flatMap(({ skipped, rows: near }) => [...(skipped ? [() => skippedRow(skipped)] : []), ...near.map((row) => () => diffRow(row))]);
  if (found.skipped && all.length) all.push(() => skippedRow(found.skipped));
  const isOpen = (text) => text && !text.endsWith("\n");
  if (isOpen(after) && !isOpen(before)) all.push(() => element("div", { class: "skipped" }, "the new text has no line feed at its end"));
  if (isOpen(before) && after && !isOpen(after)) all.push(() => element("div", { class: "skipped" }, "the new text gets a line feed at its end"));
  const box = rowsBox(`Changes of ${visible(path)}`, all);
  if (!all.length) box.append(element("div", { class: "skipped" }, "no line differs"));
  const title = element(
    "p",
    { class: "file" },
    element("span", { class: "path" }, visible(path)),
    oldText === undefined || oldText === null ? " new " : " ",
    element("span", { class: "plus" }, `+${count("plus")}`),
    " ",
    element("span", { class: "minus" }, `-${count("minus")}`),
  );
  return element("div", {}, title, box);
}

/** A difference that the agent has already written as lines with `+` and `-`. */
function showPatch(text) {
  const kinds = { "+": "plus", "-": "minus" };
  const rows = String(text)
    .split("\n")
    .map((line) => () => element("div", { class: own(kinds, line[0]) ?? "same" }, visible(line) || " "));
  return rowsBox("Changes", rows);
}

/** The content of a tool call: text, a difference, or a terminal. `boxOf(id)` returns the box of a terminal. */
function showContent(content, boxOf) {
  switch (content.type) {
    case "content": {
      const shown = showBlock(content.content);
      if (typeof shown !== "string") return shown;
      const box = element("div", { class: "output markdown", tabindex: "0", role: "group", "aria-label": "Output" });
      showMarkdown(box, shown);
      return box;
    }
    case "diff":
      if (content.patch?.text ?? content.patch?.data) return showPatch(content.patch.text ?? content.patch.data);
      if (content.newText === undefined && content.oldText === undefined) return codeBox(plain(json(content.changes ?? content)));
      return showDiff(content);
    case "terminal":
      return boxOf(String(content.terminalId));
    default:
      return codeBox(plain(json(content)));
  }
}

const STATES = {
  pending: ["", "pending"],
  in_progress: ["busy", "in progress"],
  paused: ["warn", "paused"],
  completed: ["good", "completed"],
  failed: ["bad", "failed"],
  cancelled: ["warn", "cancelled"],
};

/** A tool call. Fields that an update leaves out stay. */
export class ToolCall {
  fields = {};
  #title = element("span", { class: "title" });
  #state = element("span");
  #about = element("p", { class: "about" });
  #body = element("div", { class: "body" });
  #raw = element("div");
  #details = element("details", {}, element("summary", {}, "Input and output"), this.#raw);
  node = element(
    "details",
    { class: "box tool", open: true },
    element("summary", {}, this.#title, this.#state),
    this.#about,
    this.#body,
    this.#details,
  );

  /** `boxOf(id)` returns the box of a terminal, which moves into the tool call that names it. */
  constructor(boxOf) {
    this.boxOf = boxOf;
  }

  get isOpen() { return !["completed", "failed", "cancelled"].includes(this.fields.status); }

  update(update) {
    const { fields } = this;
    for (const [name, value] of Object.entries(update)) if (value !== null && value !== undefined) fields[name] = value;
    this.#title.textContent = visible(fields.title ?? fields.name ?? "Tool call");
    const [look, text] = own(STATES, fields.status) ?? ["busy", plain(fields.status ?? "pending")];
    this.#state.className = `state ${look}`;
    this.#state.textContent = text;
    const places = list(fields.locations).map(({ path, line }) => visible(line === undefined || line === null ? path : `${path}:${line}`));
    this.#about.textContent = [visible(fields.kind), ...places].filter(Boolean).join(", ");
    this.#about.hidden = !this.#about.textContent;
    if (Array.isArray(update.content)) this.#body.replaceChildren(...list(update.content).map((content) => showContent(content, this.boxOf)));
    if (update.rawInput !== undefined || update.rawOutput !== undefined) {
      const raw = [fields.rawInput, fields.rawOutput].filter((value) => value !== undefined).map(json);
      this.#raw.replaceChildren(...raw.map((value) => codeBox(plain(value).slice(0, MOST_RAW))));
    }
    this.#details.hidden = !this.#raw.childElementCount;
  }
}

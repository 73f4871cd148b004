// The elements of the pages: strings that change in place, dialogs, notes, tables and boxes of lines.

import { element, formatDuration } from "./common.js";

/** The rows that a table shows at first. */
const FIRST_ROWS = matchMedia("(max-width: 40rem)").matches ? 10 : 20;
/** The most lines that a box of lines keeps. */
export const MOST_LINES = 1000;

/** Sets the text of a node if it has changed, so that a selection in it stays. */
export function setText(node, text) {
  if (node.shown === text) return;
  node.shown = text;
  node.textContent = text;
}

/** Hides an element or shows it. */
export function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

/** A count, for people: `9999`, `12.3 k`, `1.5 M`. */
export function formatCount(count) {
  if (count < 10_000) return String(count);
  if (count < 999_500) return `${(count / 1000).toFixed(count < 99_950 ? 1 : 0)} k`;
  return `${(count / 1e6).toFixed(1)} M`;
}

/** A number per second, with one digit after the point below 10. */
export const formatRate = (rate) => (rate < 10 ? String(Math.round(rate * 10) / 10) : formatCount(Math.round(rate)));

/** A short time, for people: `85 µs`, `4.75 ms`, `1.2 s`. */
export function formatTime(seconds) {
  const digits = (value) => Number(value.toPrecision(3));
  if (seconds < 0.0009995) return `${digits(seconds * 1e6)} µs`;
  if (seconds < 0.9995) return `${digits(seconds * 1e3)} ms`;
  return seconds < 999.5 ? `${digits(seconds)} s` : formatDuration(seconds);
}

/** The time of day. */
export const clock = (date) => date.toLocaleTimeString(undefined, { hour12: false });

/** A count with its word: `1 viewer`, `2 viewers`. */
export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/** Text of other programs without control characters and terminal sequences. */
export const plain = (text) =>
  (typeof text === "object" && text !== null ? JSON.stringify(text) : String(text ?? ""))
    .replace(/\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])/g, "")
    .replace(/[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");

/** Shows a short message in a corner. Errors stay until they are dismissed. */
export function note(text, isError = false) {
  const notes = document.getElementById("notes");
  const close = element("button", { "aria-label": "Dismiss", onclick: () => box.remove() }, "×");
  const box = element(
    "div",
    { class: isError ? "note bad" : "note", role: isError ? "alert" : undefined },
    element("span", {}, text),
    close,
  );
  notes.append(box);
  while (notes.childElementCount > 4) notes.firstElementChild.remove();
  if (!isError) setTimeout(() => box.remove(), 6000);
}

/** Shows a dialog and resolves when it is closed. */
export function showDialog(dialog) {
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue);
    });
  });
}

/** A dialog with a title and the given content. */
export function makeDialog(title, ...content) {
  return element(
    "dialog",
    { class: "wide", "aria-labelledby": "dialog-title" },
    element("h1", { id: "dialog-title" }, title),
    ...content,
  );
}

/** Asks whether to do something. */
export async function confirm(title, text, action) {
  const dialog = makeDialog(
    title,
    element("p", {}, text),
    element(
      "div",
      { class: "actions" },
      element("button", { onclick: () => dialog.close("") }, "Cancel"),
      element("button", { class: "danger", onclick: () => dialog.close("yes") }, action),
    ),
  );
  return (await showDialog(dialog)) === "yes";
}

// --- Tables and lines ------------------------------------------------------------------------------------------------

/** Compares what columns are sorted by. What is missing comes last, in either direction. */
function compare(a, b, direction) {
  const isMissing = (value) => value === undefined || value === null || value === "";
  if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b);
  if (typeof a === "number" && typeof b === "number") return direction * (a - b);
  return direction * String(a).localeCompare(String(b), undefined, { numeric: true });
}

/**
 * A table whose rows are updated in place. A column is `{name, kind, text}` with the text of an item, or `{name, kind, fill}`
 * with a function that updates the cell for an item; `fill` gets the cell and the item, and is called at each update. A column with
 * `text` or `value` can be sorted: by the `value` of an item, or else by its text. `changed` is called when the order was chosen.
 * Below a width of `least` pixels, each row is a card.
 */
export class Table {
  constructor(table, least, key, columns) {
    this.key = key;
    this.columns = columns;
    this.limit = FIRST_ROWS;
    new ResizeObserver(([{ contentRect }]) => table.classList.toggle("cards", contentRect.width < least)).observe(
      table.parentElement,
    );
    this.rows = new Map();
    this.changed = () => {};
    this.heads = columns.map((column) => {
      const { name, kind, text, value, head } = column;
      const isSorted = Boolean(text || value);
      const sort = () => this.sortBy(column);
      const content = isSorted ? element("button", { class: "sort", onclick: sort }, name) : element("span", { class: "visually-hidden" }, name);
      return element("th", { class: kind, role: "columnheader", scope: "col" }, head ?? content);
    });
    this.body = element("tbody", { role: "rowgroup" });
    this.table = table;
    table.setAttribute("role", "table");
    table.setAttribute("aria-labelledby", `${table.id.replace(/-table$/, "")}-title`);
    table.append(element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, this.heads)), this.body);
  }

  /** Sorts by a column: numbers from the largest one, and in the other direction the second time. */
  sortBy(column) {
    const isAgain = this.column === column;
    this.direction = isAgain ? -this.direction : column.kind === "number" ? -1 : 1;
    this.column = column;
    this.heads.forEach((head, index) => {
      if (this.columns[index] === column) head.setAttribute("aria-sort", this.direction > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    this.changed();
  }

  /** The items that the table has room for, in the order that was chosen. */
  first(items) {
    const { column, direction } = this;
    const by = column && (column.value ?? column.text);
    const sorted = by ? items.map((item) => [by(item), item]).sort(([a], [b]) => compare(a, b, direction)).map(([, item]) => item) : items;
    return sorted.slice(0, this.limit);
  }

  show(items) {
    const seen = new Set();
    let before = this.body.firstElementChild;
    for (const item of items) {
      const key = this.key(item);
      seen.add(key);
      let row = this.rows.get(key);
      if (!row) {
        row = element(
          "tr",
          { role: "row" },
          this.columns.map(({ name, kind }) => element("td", { class: kind, role: "cell", "data-name": name })),
        );
        this.rows.set(key, row);
      }
      row.item = item;
      this.columns.forEach(({ text, fill }, index) => {
        const cell = row.children[index];
        if (fill) fill(cell, item, row);
        else setText(cell, text(item));
      });
      if (row === before) before = row.nextElementSibling;
      else this.body.insertBefore(row, before);
    }
    for (const [key, row] of this.rows)
      if (!seen.has(key)) {
        row.remove();
        this.rows.delete(key);
      }
    setHidden(this.table, this.rows.size === 0);
  }
}

/** Fills a cell with a colored dot and a label. */
export function fillState(cell, kind, text, title = "") {
  cell.firstElementChild ?? cell.append(element("span"));
  const mark = cell.firstElementChild;
  const look = `state ${kind}`;
  if (mark.className !== look) mark.className = look;
  if (cell.title !== title) cell.title = title;
  setText(mark, text);
}

/** Fills a cell with a string and a smaller one after it. */
export function fillPair(cell, text, small) {
  if (!cell.firstElementChild) cell.append(element("span"), " ", element("small"));
  setText(cell.firstElementChild, text);
  setText(cell.lastElementChild, small);
}

/** Adds a row's controls once. */
export function fillActions(cell, make) {
  cell.firstElementChild ?? cell.append(element("div", { class: "actions-row" }, make()));
}

/** A box of lines that stays at its end unless the reader has scrolled up. */
export class Lines {
  constructor(box) {
    Object.assign(this, { box, follows: true });
    box.addEventListener("scroll", () => {
      this.follows = box.scrollTop + box.clientHeight > box.scrollHeight - 24;
    });
    new ResizeObserver(() => this.toEnd()).observe(box);
  }

  /** Shows the end, unless the reader has scrolled up. */
  toEnd() {
    if (this.follows) this.box.scrollTop = this.box.scrollHeight;
  }

  append(nodes) {
    this.box.append(...nodes);
    while (this.box.childElementCount > MOST_LINES) this.box.firstElementChild.remove();
    this.toEnd();
  }

  replace(nodes) {
    this.box.replaceChildren(...nodes);
    this.follows = true;
    this.toEnd();
  }
}

// The tables of the console. Their rows are updated in place, sorted, filtered and chosen, and each one opens with its details.

import { element, formatBytes, formatDuration } from "./common.js";
import { act, hurryAll } from "./console_requests.js";
import { confirm, formatCount, makeDialog, plain, setHidden, setText, showDialog } from "./view.js";

/** The rows that a table shows at first, that each "Show more" adds, and the most that it shows. */
const FIRST_ROWS = matchMedia("(max-width: 40rem)").matches ? 10 : 20;
const MORE_ROWS = 100;
const MOST_ROWS = 1000;

const collator = new Intl.Collator(undefined, { numeric: true });

/** Compares what columns are sorted by. What is missing comes last, in either direction. */
function compare(a, b, direction) {
  const isMissing = (value) => value === undefined || value === null || value === "";
  if (isMissing(a) || isMissing(b)) return Number(isMissing(a)) - Number(isMissing(b));
  if (typeof a === "number" && typeof b === "number") return direction * (a - b);
  return direction * collator.compare(String(a), String(b));
}

/** The value of a field, for people. */
function readable(name, value) {
  if (typeof value === "number" && /bytes(_|$)/.test(name) && value >= 1000) return `${value} (${formatBytes(value)})`;
  if (typeof value === "number" && name.endsWith("_s") && value >= 60) return `${value} (${formatDuration(value)})`;
  return plain(value);
}

/** The fields of an object and of the objects in it, with dots in the names. */
const flatten = (fields, prefix = "") =>
  Object.entries(fields).flatMap(([name, value]) =>
    typeof value === "object" && value !== null && !Array.isArray(value)
      ? flatten(value, `${prefix}${name}.`)
      : [[`${prefix}${name}`, value]],
  );

/**
 * A column shows the `text` of an item, or updates the cell with `fill`. A column with `text` or `value` can be sorted: by the `value` of
 * an item, or else by its text.
 *
 * @typedef {object} Column
 * @property {string} name
 * @property {string} kind the classes of the cells
 * @property {(item: any) => string | number} [text]
 * @property {(item: any) => any} [value]
 * @property {(cell: HTMLElement, item: any, row: HTMLTableRowElement) => unknown} [fill]
 * @property {(item: any) => string} [words] the words to filter by, if they are not the text or the value
 * @property {string} [sort] the name of the field by which the server sorts
 */

/**
 * What can be done with the chosen items.
 *
 * @typedef {object} Bulk
 * @property {string} name
 * @property {string} title the question before it is done
 * @property {(count: number) => string} text
 * @property {(item: any) => boolean} can
 * @property {(item: any, call: (path: string, options?: object) => Promise<any>) => Promise<unknown>} run
 */

/**
 * @typedef {object} TableOptions
 * @property {(item: any) => any} key
 * @property {(item: any) => string} title the name of an item in dialogs and for screen readers
 * @property {Column[]} columns
 * @property {string} none the note of an empty table
 * @property {(item: any) => object} [detail] the fields of the details; by default those of the item
 * @property {(row: HTMLTableRowElement) => HTMLElement | HTMLElement[]} [actions] the controls of a row, made once
 * @property {(controls: HTMLCollection, item: any) => unknown} [updateActions] is called at each update
 * @property {Bulk[]} [bulk]
 * @property {() => void} [changed] is called when the order, the filter or the number of rows was changed
 * @property {boolean} [isRemote] whether the server sorts and filters
 */

/**
 * A table in the element `NAME-table`, with a filter in `NAME-head` and a note in `NAME-empty`. Below a width of `least` pixels,
 * each row is a card.
 */
export class Table {
  /** @type {Map<any, HTMLTableRowElement>} the rows by the keys of their items */
  rows = new Map();
  /** The chosen items by their keys. */
  chosen = new Map();
  /** @type {any[]} */
  items = [];
  /** @type {number | undefined} */
  total;
  /** The most rows to show now. */
  limit = FIRST_ROWS;
  /** @type {Column | undefined} the column to sort by */
  column;
  direction = 1;

  /**
   * @param {string} name
   * @param {number} least
   * @param {TableOptions} options
   */
  constructor(name, least, options) {
    this.name = name;
    this.key = options.key;
    this.title = options.title;
    this.columns = options.columns;
    this.none = options.none;
    this.detail = options.detail;
    this.actions = options.actions;
    this.updateActions = options.updateActions;
    this.bulk = options.bulk;
    this.changed = options.changed ?? (() => {});
    this.isRemote = options.isRemote ?? false;
    this.table = document.getElementById(`${name}-table`);
    this.note = document.getElementById(`${name}-empty`);
    this.head = document.getElementById(`${name}-head`);
    new ResizeObserver(([{ contentRect }]) => this.table.classList.toggle("cards", contentRect.width < least)).observe(
      this.table.parentElement,
    );
    this.makeTools();
    this.makeColumns();
    this.makeHead();
    this.more = element("button", { onclick: () => this.showMore(), "aria-label": `Show more rows of ${name}` }, "Show more");
    this.note.append(element("span"), this.more);
    this.body.addEventListener("click", (event) => {
      if (event.target.closest("button, a, input, label, select") || String(getSelection())) return;
      const row = event.target.closest("tr");
      if (row) this.open(row.item);
    });
  }

  /** The filter, and the buttons for the items that are chosen. */
  makeTools() {
    this.filter = element("input", { id: `${this.name}-filter`, type: "search", placeholder: "Filter", "aria-label": `Filter ${this.name}` });
    this.filter.addEventListener("input", () => this.refresh());
    this.buttons = (this.bulk ?? []).map((bulk) => {
      const button = element("button", { class: "danger", hidden: true, onclick: () => this.runBulk(bulk, button) });
      return button;
    });
    this.head.append(...this.buttons, this.filter);
  }

  makeColumns() {
    const choose = {
      name: "Choose",
      kind: "choose",
      fill: (cell, item) => {
        if (!this.canChoose(item)) return cell.replaceChildren();
        const box = cell.firstElementChild ?? element("input", { type: "checkbox", "aria-label": `Choose ${this.title(item)}` });
        if (!box.parentElement) {
          box.addEventListener("change", () => this.choose(cell.parentElement.item, box.checked));
          cell.append(box);
        }
        const isChosen = this.chosen.has(this.key(item));
        if (box.checked !== isChosen) box.checked = isChosen;
        return undefined;
      },
    };
    const actions = {
      name: "Actions",
      kind: "actions",
      fill: (cell, item, row) => {
        if (!cell.firstElementChild) {
          const open = () => this.open(row.item);
          const details = element("button", { "aria-label": `Details of ${this.title(item)}`, onclick: open }, "Details");
          cell.append(element("div", { class: "actions-row" }, this.actions?.(row) ?? [], details));
        }
        this.updateActions?.(cell.firstElementChild.children, item);
      },
    };
    this.columns = [...(this.bulk ? [choose] : []), ...this.columns, actions];
  }

  makeHead() {
    const all = element("input", { type: "checkbox", "aria-label": `Choose all shown ${this.name}` });
    all.addEventListener("change", () => {
      const isChosen = all.checked;
      for (const { item } of this.rows.values()) if (this.canChoose(item)) this.choose(item, isChosen);
      this.refresh();
    });
    this.all = all;
    this.heads = this.columns.map((column) => {
      const { name, kind, text, value, sort } = column;
      const canSort = this.isRemote ? sort : text || value;
      const content =
        kind === "choose"
          ? [all, element("span", { class: "visually-hidden" }, "Choose")]
          : canSort
            ? element("button", { class: "sort", onclick: () => this.sortBy(column) }, name)
            : element("span", { class: kind === "actions" ? "visually-hidden" : "" }, name);
      return element("th", { class: kind, role: "columnheader", scope: "col" }, content);
    });
    this.body = element("tbody", { role: "rowgroup" });
    this.table.setAttribute("role", "table");
    this.table.setAttribute("aria-labelledby", `${this.name}-title`);
    this.table.append(element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, this.heads)), this.body);
  }

  canChoose(item) {
    return (this.bulk ?? []).some(({ can }) => can(item));
  }

  choose(item, isChosen) {
    if (isChosen) this.chosen.set(this.key(item), item);
    else this.chosen.delete(this.key(item));
    this.showChosen();
  }

  showChosen() {
    this.buttons.forEach((button, index) => {
      if (button.getAttribute("aria-busy")) return;
      const { name, can } = this.bulk[index];
      const count = [...this.chosen.values()].filter(can).length;
      setHidden(button, !count);
      setText(button, `${name} ${count} chosen`);
    });
    const choosable = [...this.rows.values()].filter(({ item }) => this.canChoose(item));
    this.all.checked = choosable.length > 0 && choosable.every(({ item }) => this.chosen.has(this.key(item)));
    setHidden(this.all, !choosable.length);
  }

  /** Does something with the chosen items, one after the other. What could not be done stays chosen. */
  async runBulk(bulk, button) {
    const all = [...this.chosen].filter(([, item]) => bulk.can(item));
    if (!(await confirm(bulk.title, bulk.text(all.length), bulk.name))) return;
    let done = 0;
    await act(`${bulk.name} ${all.length} of ${this.name}`, button, async (call) => {
      for (const [key, item] of all) {
        setText(button, `${bulk.name}: ${done} of ${all.length}`);
        // What is gone meanwhile is what was wanted.
        await bulk.run(item, call).catch((error) => {
          if (error.status !== 404) throw Object.assign(error, { message: `${done} of ${all.length} done. ${error.message}` });
        });
        this.chosen.delete(key);
        done++;
      }
    });
    this.refresh();
    hurryAll();
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
    this.refresh();
  }

  showMore() {
    this.limit = Math.min(MOST_ROWS, this.limit + MORE_ROWS);
    this.refresh();
  }

  /** Shows the same items again, after the reader has changed what is shown. */
  refresh() {
    this.update(this.items, this.total);
    this.changed();
  }

  /** The words that an item is filtered by. */
  wordsOf(item) {
    const words = this.columns.map((column) => (column.words ?? column.text ?? column.value)?.(item) ?? "");
    return words.join(" ").toLowerCase();
  }

  select(items) {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = words.length
      ? items.filter((item) => {
          const text = this.wordsOf(item);
          return words.every((word) => text.includes(word));
        })
      : items;
    const by = this.column && (this.column.value ?? this.column.text);
    if (!by) return found;
    const keyed = found.map((item) => [by(item), item]);
    return keyed.sort(([a], [b]) => compare(a, b, this.direction)).map(([, item]) => item);
  }

  /**
   * Shows items. `total` is how many there are, if the server has sent only some.
   * @param {any[]} items
   * @param {number} [total]
   */
  update(items, total) {
    this.items = items;
    this.total = total;
    const found = this.isRemote ? items : this.select(items);
    const shown = found.slice(0, this.limit);
    this.show(shown);
    const isComplete = !this.isRemote || (!this.filter.value && items.length >= total);
    if (isComplete && this.chosen.size) {
      const present = new Set(items.map(this.key));
      for (const key of this.chosen.keys()) if (!present.has(key)) this.chosen.delete(key);
    }
    if (this.bulk) this.showChosen();
    setHidden(this.filter, !this.isRemote && !items.length && !this.filter.value);
    this.showNote(shown.length, Math.max(this.isRemote ? total : 0, found.length));
    this.updateDetails(items);
  }

  showNote(shown, total) {
    const left = total - shown;
    const hasMore = shown > 0 && left > 0;
    const empty = this.filter.value ? "Nothing matches the filter." : this.none;
    setText(this.note.firstElementChild, hasMore ? `and ${formatCount(left)} more` : shown ? "" : empty);
    setHidden(this.more, !hasMore || this.limit >= MOST_ROWS);
    setHidden(this.note, shown > 0 && !hasMore);
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
        const cell = row.cells[index];
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

  /** Shows all that is known about an item, as long as the dialog is open. */
  async open(item) {
    const list = element("dl", { class: "details", tabindex: "0", "aria-label": "Details" });
    const state = element("p", { class: "faint", role: "status" });
    const close = element("button", { class: "primary", onclick: () => dialog.close() }, "Close");
    const dialog = makeDialog(this.title(item), state, list, element("div", { class: "actions" }, close));
    this.opened = { key: this.key(item), list, state };
    this.fillDetails(item);
    await showDialog(dialog);
    this.opened = undefined;
  }

  fillDetails(item) {
    const fields = flatten(this.detail?.(item) ?? item).filter(([, value]) => value !== null && value !== undefined);
    const names = fields.map(([name]) => name).join();
    const { list } = this.opened;
    if (list.names !== names) {
      list.names = names;
      list.replaceChildren(...fields.flatMap(([name]) => [element("dt", {}, name), element("dd")]));
    }
    fields.forEach(([name, value], index) => setText(list.children[2 * index + 1], readable(name, value)));
  }

  updateDetails(items) {
    if (!this.opened) return;
    const item = items.find((one) => this.key(one) === this.opened.key);
    if (item) this.fillDetails(item);
    // The server lists only some of the items.
    else if (!this.isRemote) setText(this.opened.state, "It is gone. These are its last figures.");
  }
}

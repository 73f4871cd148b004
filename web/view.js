// The elements of the pages: strings that change in place, dialogs, notes and boxes of lines.

import { element, formatDuration } from "./common.js";

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

/** Shows a short message in a corner. Errors stay until they are dismissed. Returns its element. */
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
  return box;
}

/** Shows that something is pending, if it is for more than a moment, and then its result. */
export function pendingNote(name) {
  let box;
  const timer = setTimeout(() => {
    box = note(`${name}: pending …`);
  }, 300);
  const remove = () => {
    clearTimeout(timer);
    box?.remove();
  };
  const end = (text, isError) => {
    remove();
    note(text, isError);
  };
  return { remove, succeed: () => end(`${name}: done`, false), fail: (why) => end(`${name} failed: ${why}`, true) };
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

// --- Cells and lines -------------------------------------------------------------------------------------------------

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

/** A box of lines that stays at its end unless the reader has scrolled up. */
export class Lines {
  constructor(box) {
    this.box = box;
    this.follows = true;
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

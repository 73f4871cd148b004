// Parts of the console that its sections share: the sections with their links at the top, links to other pages, and what filters
// and shortens tables.

import { element, serverUrl, token } from "./common.js";
import { pollers } from "./console_requests.js";
import { formatCount, setHidden, setText } from "./view.js";

/** The element with an id. */
export const $ = (id) => document.getElementById(id);

/** The rows that each "Show more" adds to a table. */
const MORE_ROWS = 100;

// --- Sections --------------------------------------------------------------------------------------------------------

const SECTIONS = {
  overview: "Overview",
  services: "Services",
  processes: "Processes",
  clients: "Clients",
  agents: "Agents",
  links: "Links",
  log: "Log",
  try: "Messages",
};
const tabs = new Map();
for (const [id, name] of Object.entries(SECTIONS)) {
  const count = element("small");
  const go = (event) => {
    event.preventDefault();
    $(id).scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    $(`${id}-title`).focus({ preventScroll: true });
  };
  const link = element("a", { href: `#${id}`, onclick: go }, `${name} `, count);
  tabs.set(id, { link, count });
  $("sections").append(link);
}

/** Shows a section or hides it, with its link at the top. */
export function showSection(id, shown, count) {
  setHidden($(id), !shown);
  const tab = tabs.get(id);
  setHidden(tab.link, !shown);
  setText(tab.count, count === undefined ? "" : formatCount(count));
}

for (const id of Object.keys(SECTIONS)) showSection(id, false);

// --- Links to pages --------------------------------------------------------------------------------------------------

/** The address of a page with fragment keys. */
export const pageUrl = (path, keys) => {
  const pairs = Object.entries(keys)
    .filter(([, value]) => value)
    .map(([key, value]) => `${key}=${encodeURIComponent(value)}`);
  return serverUrl(path + (pairs.length ? `#${pairs.join("&")}` : "")).href;
};

/** Opens a page of this server in a new tab. The token is handed over in the fragment, which no server sees. */
export const openTab = (path, keys = {}) => {
  window.open(pageUrl(path, { ...keys, token: token() }), "_blank", "noopener");
};

/** A link to another page of this server. Its address in this page has no token. */
export function pageLink(text, path, keys = {}, attributes = {}) {
  const open = (event) => {
    event.preventDefault();
    openTab(path, keys);
  };
  const middle = (event) => {
    if (event.button === 1) open(event);
  };
  return element(
    "a",
    { href: pageUrl(path, keys), target: "_blank", rel: "noopener", onclick: open, onauxclick: middle, ...attributes },
    text,
  );
}

// --- Tables ----------------------------------------------------------------------------------------------------------

/** Whether one of the texts contains the words of a filter field. */
export function matches(field, ...texts) {
  const all = texts.join(" ").toLowerCase();
  return field.value
    .toLowerCase()
    .split(/\s+/)
    .every((word) => all.includes(word));
}

/** Shows the note below a table: that it is empty, or how many rows it leaves out. */
export function setEmpty(node, table, shown, total, none, filter) {
  const left = total - shown;
  const text =
    left > 0 && shown > 0
      ? `and ${formatCount(left)} more`
      : shown > 0
        ? ""
        : filter?.value
          ? "Nothing matches the filter."
          : none;
  if (!node.firstElementChild) {
    const more = () => {
      table.limit += MORE_ROWS;
      for (const poller of Object.values(pollers)) poller.hurry();
    };
    node.append(
      element("span"),
      element(
        "button",
        { onclick: more, "aria-label": `Show more rows of ${table.table.id.replace("-table", "")}` },
        "Show more",
      ),
    );
  }
  setText(node.firstElementChild, text);
  setHidden(node.lastElementChild, !(left > 0 && shown > 0 && table.limit < 1000));
  setHidden(node, !text);
}

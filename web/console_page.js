// Parts of the console that its sections share: the sections with their links at the top, links to other pages, and what is in sight.

import { $, element, serverUrl, token } from "./common.js";
import { pollers } from "./console_requests.js";
import { formatCount, setHidden, setText } from "./view.js";

// --- Sections --------------------------------------------------------------------------------------------------------

const SECTIONS = {
  overview: "Overview",
  services: "Services",
  processes: "Processes",
  programs: "Programs",
  clients: "Clients",
  agents: "Agents",
  mcp: "MCP",
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

// --- What is in sight ------------------------------------------------------------------------------------------------

/** The sections of which a part is in the window, or nearly. */
const inSight = new Set();
const observer = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) inSight.add(target.id);
      else inSight.delete(target.id);
    }
    for (const poller of Object.values(pollers)) poller.plan();
  },
  { rootMargin: "200px" },
);
for (const id of Object.keys(SECTIONS)) observer.observe($(id));

/** Whether somebody may look at a section. */
export const isInSight = (id) => inSight.has(id);
pollers.processes.isInSight = () => isInSight("processes");
pollers.log.isInSight = () => isInSight("log");
pollers.links.isInSight = () => isInSight("links");

/** Whether one of the texts contains the words of a filter field. */
export function matches(field, ...texts) {
  const all = texts.join(" ").toLowerCase();
  return field.value
    .toLowerCase()
    .split(/\s+/)
    .every((word) => all.includes(word));
}

/** Copies the text of a field. Browsers offer the clipboard to pages of https and of this machine; elsewhere the old command is tried. */
export async function copy(input) {
  try {
    await navigator.clipboard.writeText(input.value);
    return true;
  } catch {
    input.select();
    return document.execCommand("copy");
  }
}

// The section "Links": makes watch-only links to processes and sessions, shows them, and revokes them.

import { api, element, formatDuration } from "./common.js";
import { $, pageUrl, setEmpty, showSection } from "./console_page.js";
import { ask, attempt, handle, pollers } from "./console_requests.js";
import { attachPath, commandLine, identity, may, of, processes, status } from "./console_state.js";
import { confirm, fillActions, formatCount, makeDialog, plain, plural, setText, showDialog, Table } from "./view.js";

const EXPIRIES = [
  [600, "10 minutes"],
  [3600, "1 hour"],
  [86400, "1 day"],
  [604800, "7 days"],
];

/** Copies text. Browsers offer the clipboard to pages of https and of this machine; elsewhere the old command is tried. */
async function copy(input) {
  try {
    await navigator.clipboard.writeText(input.value);
    return true;
  } catch {
    input.select();
    return document.execCommand("copy");
  }
}

/** Makes a link with which anyone may watch a process or a session, copies it, and shows it. */
export async function offerLink(name, path, sessionId) {
  const make = async (ttl_s) => {
    const keys = sessionId === undefined ? { mode: "viewer" } : { session: sessionId };
    if (!identity.auth) return { url: pageUrl(path, keys) };
    const link = await api("/.outrigger/links", {
      method: "POST",
      body: { path, ttl_s, ...(sessionId !== undefined && { session: sessionId }) },
    });
    pollers.links.hurry();
    return { id: link.id, url: pageUrl(path, { ...keys, token: link.token }) };
  };
  let link = await attempt(() => make(3600));
  if (!link) return;
  const address = element("input", { class: "address", readonly: true, "aria-label": "Link", onfocus: () => address.select() });
  const told = element("p", { role: "status", class: "faint" });
  const show = async () => {
    address.value = link.url;
    setText(told, (await copy(address)) ? "The link is in your clipboard." : "Copy the link from this field.");
  };
  const choose = async (ttl_s) => {
    const old = link;
    const made = await attempt(() => make(ttl_s));
    if (!made) return;
    link = made;
    await show();
    if (old.id) await attempt(() => api(`/.outrigger/links/${encodeURIComponent(old.id)}`, { method: "DELETE" }));
    pollers.links.hurry();
  };
  const dialog = makeDialog(
    "Watch-only link",
    element(
      "p",
      {},
      "Whoever has this link can watch ",
      element("code", {}, name),
      identity.auth
        ? " until the link expires, and nothing else."
        : ". This server requires no token, so the link does not expire.",
    ),
    identity.auth &&
      element(
        "fieldset",
        { class: "choices" },
        element("legend", {}, "Expires in"),
        EXPIRIES.map(([seconds, text]) =>
          element(
            "label",
            {},
            element("input", {
              type: "radio",
              name: "expiry",
              value: seconds,
              checked: seconds === 3600,
              onchange: () => choose(seconds),
            }),
            text,
          ),
        ),
      ),
    address,
    told,
    element(
      "div",
      { class: "actions" },
      element("button", { onclick: show }, "Copy"),
      element("button", { class: "primary", onclick: () => dialog.close() }, "Done"),
    ),
  );
  const closed = showDialog(dialog);
  await show();
  await closed;
}

const linksTable = new Table($("links-table"), 520, ({ id }) => id, [
  {
    name: "For",
    kind: "main text mono",
    text: ({ path, session: sessionId }) => {
      if (sessionId) return plain(sessionId);
      const process = [...processes.values()].find((one) => attachPath(one) === path);
      return process ? commandLine(process) : path;
    },
  },
  { name: "Kind", kind: "tight", text: ({ session: sessionId }) => (sessionId ? "session" : "process") },
  { name: "Made by", kind: "text", text: ({ by }) => plain(by ?? "") },
  { name: "Expires in", kind: "number", value: ({ expires_s }) => expires_s, text: ({ expires_s }) => formatDuration(expires_s) },
  { name: "Watching", kind: "number", value: ({ clients }) => clients ?? 0, text: ({ clients }) => formatCount(clients ?? 0) },
  {
    name: "Actions",
    kind: "actions",
    fill: (cell, item, row) =>
      fillActions(cell, () =>
        element("button", { "aria-label": `Revoke the link ${item.id}`, onclick: () => revoke(row.item) }, "Revoke"),
      ),
  },
]);

linksTable.changed = () => pollers.links.hurry();

async function revoke(link) {
  if (
    link.clients &&
    !(await confirm("Revoke this link?", `${plural(link.clients, "client")} will be disconnected.`, "Revoke"))
  )
    return;
  await attempt(() => api(`/.outrigger/links/${encodeURIComponent(link.id)}`, { method: "DELETE" }));
  pollers.links.hurry();
}

function showLinks(links) {
  const shown = linksTable.first(links);
  linksTable.show(shown);
  setText($("links-count"), links.length ? formatCount(links.length) : "");
  setEmpty(
    $("links-empty"),
    linksTable,
    shown.length,
    links.length,
    "No links. Make one with “Link” beside a process or a session.",
  );
  showSection("links", true, links.length);
}

/** Asks for the links and shows them. */
export async function readLinks() {
  if (!status || !may("all") || !identity.auth || !(of("processes").length || of("agent").length)) return;
  try {
    showLinks((await ask("/.outrigger/links")).links);
  } catch (error) {
    await handle(error);
  }
}

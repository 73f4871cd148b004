// The section "Links": makes links to processes and sessions, shows them, and revokes them.

import { $, element, formatDuration, socketUrl, token } from "./common.js";
import { copy, pageUrl, showSection } from "./console_page.js";
import { act, ask, handle, pollers } from "./console_requests.js";
import { attachPath, commandLine, identity, may, of, processes, routeFields, status } from "./console_state.js";
import { Table } from "./console_table.js";
import { confirm, formatCount, makeDialog, plain, plural, setHidden, setText, showDialog } from "./view.js";

const EXPIRIES = [
  [600, "10 minutes"],
  [3600, "1 hour"],
  [86400, "1 day"],
  [604800, "7 days"],
];

/**
 * Makes a link with which anyone may watch a process or a session, and with `answers` answer the permission requests of the session.
 * Without tokens, it is the address of the page.
 */
async function makeLink(path, sessionId, ttl_s, answers, call) {
  const keys = sessionId === undefined ? { mode: "viewer" } : { session: sessionId };
  if (!identity.auth) return pageUrl(path, keys);
  const body = { path, ttl_s, ...(sessionId !== undefined && { session: sessionId }), ...(answers && { answers }) };
  const link = await call("/.outrigger/links", { method: "POST", body });
  pollers.links.hurry();
  return pageUrl(path, { ...keys, token: link.token });
}

/** Asks how long a link is to last, then makes it, copies it, and shows it. */
export async function offerLink(name, path, sessionId) {
  const address = element("input", { class: "address", readonly: true, "aria-label": "Link", hidden: true, onfocus: () => address.select() });
  const told = element("p", { role: "status", class: "faint" });
  const choices = EXPIRIES.map(([seconds, text]) =>
    element(
      "label",
      {},
      element("input", { type: "radio", name: "expiry", value: seconds, checked: seconds === 3600 }),
      text,
    ),
  );
  const expiry = element("fieldset", { class: "choices" }, element("legend", {}, "Expires in"), choices);
  const mayAnswer = identity.auth && sessionId !== undefined && routeFields(path).agent?.approvals === "any";
  const answering = element("input", { type: "checkbox" });
  const copyIt = async () => setText(told, (await copy(address)) ? "The link is in your clipboard." : "Copy the link from this field.");
  const make = element("button", { class: "primary" }, "Make link");
  const again = element("button", { onclick: copyIt, hidden: true }, "Copy");
  const close = element("button", { onclick: () => dialog.close() }, "Cancel");
  make.addEventListener("click", async () => {
    const ttl_s = Number(expiry.querySelector("input:checked").value);
    const url = await act(`Link to ${name}`, make, (call) => makeLink(path, sessionId, ttl_s, answering.checked, call));
    if (!url) return;
    address.value = url;
    for (const node of [address, again]) setHidden(node, false);
    for (const node of [expiry, rights, make]) setHidden(node, true);
    setText(close, "Done");
    close.focus();
    await copyIt();
  });
  const more = element("span", {}, "and nothing else");
  answering.addEventListener("change", () => setText(more, answering.checked ? "and answer its permission requests" : "and nothing else"));
  const rights = element("fieldset", { class: "choices" }, element("label", {}, answering, "may also answer permission requests"));
  const dialog = makeDialog(
    mayAnswer ? "Link to this session" : "Watch-only link",
    element(
      "p",
      {},
      "Whoever has this link can watch ",
      element("code", {}, name),
      identity.auth ? [" until the link expires, ", more, "."] : ". This server requires no token, so the link does not expire.",
    ),
    identity.auth && expiry,
    mayAnswer && rights,
    address,
    told,
    element("div", { class: "actions" }, close, again, make),
  );
  await showDialog(dialog);
}

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** Offers the command that attaches to a path, where this build of the server has no page that could. */
export async function offerCommand(title, path, isViewer = false) {
  const url = socketUrl(path);
  if (token()) url.searchParams.set("token", token());
  const command = `outrigger attach ${isViewer ? "--viewer " : ""}${quote(url.href)}`;
  const field = element("input", { class: "address", readonly: true, "aria-label": "Command", onfocus: () => field.select() });
  field.value = command;
  const told = element("p", { role: "status", class: "faint" });
  const copyIt = async () => setText(told, (await copy(field)) ? "The command is in your clipboard." : "Copy the command from this field.");
  const dialog = makeDialog(
    title,
    element("p", {}, "This build of Outrigger has no terminal page. Run this command in a terminal:"),
    field,
    told,
    token() && element("p", { class: "faint" }, "The command contains the token of this page."),
    element(
      "div",
      { class: "actions" },
      element("button", { onclick: copyIt }, "Copy"),
      element("button", { class: "primary", onclick: () => dialog.close() }, "Close"),
    ),
  );
  await showDialog(dialog);
}

const revokeLink = ({ id }, call) => call(`/.outrigger/links/${encodeURIComponent(id)}`, { method: "DELETE" });

const linksTable = new Table("links", 720, {
  key: ({ id }) => id,
  title: ({ id }) => `link ${id}`,
  none: "No links. Make one with “Link” beside a process or a session.",
  bulk: [
    {
      name: "Revoke",
      title: "Revoke these links?",
      can: () => true,
      text: (count) => `${plural(count, "link")}. The clients that use them will be disconnected.`,
      run: revokeLink,
    },
  ],
  columns: [
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
    { name: "Permits", kind: "tight", text: ({ answers }) => (answers ? "watch and approve" : "watch") },
    { name: "Made by", kind: "text", text: ({ by }) => plain(by ?? "") },
    { name: "Expires in", kind: "number", value: ({ expires_s }) => expires_s, text: ({ expires_s }) => formatDuration(expires_s) },
    { name: "Watching", kind: "number", value: ({ clients }) => clients ?? 0, text: ({ clients }) => formatCount(clients ?? 0) },
  ],
  actions: (row) =>
    element("button", { "aria-label": `Revoke the link ${row.item.id}`, onclick: ({ target }) => revoke(row.item, target) }, "Revoke"),
});

async function revoke(link, button) {
  if (
    link.clients &&
    !(await confirm("Revoke this link?", `${plural(link.clients, "client")} will be disconnected.`, "Revoke"))
  )
    return;
  await act(`Revoke link ${link.id}`, button, (call) => revokeLink(link, call));
  pollers.links.hurry();
}

/** Asks for the links and shows them. */
export async function readLinks() {
  if (!status || !may("all") || !identity.auth || !(of("processes").length || of("agent").length)) return;
  try {
    const { links } = await ask("/.outrigger/links");
    linksTable.update(links);
    setText($("links-count"), links.length ? formatCount(links.length) : "");
    showSection("links", true, links.length);
  } catch (error) {
    await handle(error);
  }
}

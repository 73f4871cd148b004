// Shows markdown as elements. marked splits the text into tokens; each token becomes an element here. No token becomes HTML:
// what an agent writes as HTML is shown as text, so there is nothing to sanitize. Images of other servers become links.

import { element } from "./common.js";
import { Lexer } from "./marked.js";

/** A paragraph with more characters is shown as it is: the time to find marks in it can grow with the square of its length. */
const MOST_INLINE = 3000;

/** Quotations and lists at a deeper level are shown as they are: each level is read again by the level above. */
const MOST_NESTED = 8;

class BoundedLexer extends Lexer {
  depth = 0;
  /** @param {string} text @param {any} tokens @param {boolean} isClipped @returns {any} */
  blockTokens(text, tokens = [], isClipped = false) {
    if (this.depth > MOST_NESTED) {
      tokens.push({ type: "plain", raw: text });
      return tokens;
    }
    this.depth++;
    try {
      return super.blockTokens(text, tokens, isClipped);
    } finally {
      this.depth--;
    }
  }
  inlineTokens(text, tokens = []) {
    if (text.length <= MOST_INLINE) return super.inlineTokens(text, tokens);
    tokens.push({ type: "plain", raw: text });
    return tokens;
  }
}


const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'" };
/** marked escapes some texts for HTML. */
const unescape = (text) => String(text ?? "").replace(/&(amp|lt|gt|quot|#39);/g, (_, name) => ENTITIES[name]);

/** The address of a link, if it leads to a page or to mail. */
export function safeAddress(href) {
  try {
    const url = new URL(href);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : undefined;
  } catch {
    return undefined;
  }
}

/** A link that opens a new tab, or plain text if the address is of another kind, such as of a file. */
export function safeLink(href, ...content) {
  const address = safeAddress(href);
  if (!address) return element("span", { title: href }, ...content);
  return element("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, ...content);
}

/** A box of code with a button that copies it. */
export function codeBox(text, language = "") {
  const copy = element("button", { class: "copy", type: "button" }, "Copy");
  copy.addEventListener("click", async () => {
    const done = await navigator.clipboard?.writeText(text).then(() => true, () => false);
    copy.textContent = done ? "Copied" : "Cannot copy";
    setTimeout(() => { copy.textContent = "Copy"; }, 2000);
  });
  const label = language ? `Code, ${language}` : "Code";
  return element("div", { class: "code" }, copy, element("pre", { tabindex: "0", role: "group", "aria-label": label }, element("code", {}, text)));
}

/** The elements of tokens inside a line. */
function inline(tokens = []) {
  return tokens.map((token) => {
    switch (token.type) {
      case "strong":
      case "em":
      case "del":
        return element(token.type, {}, inline(token.tokens));
      case "codespan":
        return element("code", {}, unescape(token.text));
      case "br":
        return element("br");
      case "link":
        return safeLink(unescape(token.href), inline(token.tokens));
      case "image":
        return safeLink(unescape(token.href), `[picture: ${unescape(token.text) || unescape(token.href)}]`);
      case "escape":
        return unescape(token.text);
      case "text":
        return token.tokens ? inline(token.tokens) : unescape(token.text);
      default:
        return token.raw;
    }
  });
}

/** An item of a list. Short items have no paragraph of their own. */
function listItem({ tokens, task, checked, loose }) {
  const isText = ({ type }) => type === "text" || (type === "paragraph" && !loose);
  const content = tokens
    .filter(({ type }) => type !== "checkbox")
    .flatMap((token) => (isText(token) ? inline((token.tokens ?? [token]).filter(({ type }) => type !== "checkbox")) : block(token)));
  return element("li", { class: task && "task" }, task && element("span", { role: "img", "aria-label": checked ? "done" : "open" }, checked ? "☑ " : "☐ "), content);
}

function table({ header, rows, align }) {
  const cells = (tag, row) =>
    row.map(({ tokens }, index) => element(tag, { class: align[index] && `align-${align[index]}` }, inline(tokens)));
  return element(
    "div",
    { class: "table", tabindex: "0", role: "group", "aria-label": "Table" },
    element(
      "table",
      {},
      element("thead", {}, element("tr", {}, cells("th", header))),
      element("tbody", {}, rows.map((row) => element("tr", {}, cells("td", row)))),
    ),
  );
}

/** The elements of one token between empty lines. */
function block(token) {
  switch (token.type) {
    case "space":
    case "def":
      return [];
    case "heading":
      // The page has the first two levels.
      return element(`h${Math.min(6, token.depth + 2)}`, {}, inline(token.tokens));
    case "code":
      return codeBox(token.text, token.lang);
    case "blockquote":
      return element("blockquote", {}, token.tokens.map(block));
    case "list": {
      const start = token.ordered && token.start !== 1 ? { start: token.start } : {};
      return element(token.ordered ? "ol" : "ul", start, token.items.map(listItem));
    }
    case "table":
      return table(token);
    case "hr":
      return element("hr");
    case "paragraph":
    case "text":
      return element("p", {}, inline(token.tokens ?? [token]));
    default:
      return element("p", {}, token.raw);
  }
}

/** A line that begins more than eight quotations or lists in each other. marked reads all that follows it again for each of them. */
const DEEP = /^(?:[ \t]*(?:>|[-*+][ \t]|\d{1,9}[.)][ \t])){9,}[ \t]*[^-*\s]/m;

/**
 * Whether a text is shown as it is, because the time to understand it as markdown could be long: it is large, has a line of thousands of
 * characters or of many quotations in each other, or could be a table of many cells.
 */
function isHeavy(text) {
  if (text.length > 100_000 || DEEP.test(text)) return true;
  const lines = text.split("\n");
  let bars = 0;
  for (const line of lines) {
    if (line.length > 4000) return true;
    bars = Math.max(bars, line.split("|").length - 1);
  }
  return bars * lines.length > 20_000;
}

/** Shows a text in a node. Blocks that have not changed since the last time keep their elements, and with them a selection. */
export function showMarkdown(node, text) {
  let tokens;
  if (isHeavy(text)) {
    node.shownBlocks = undefined;
    node.classList.add("plain");
    node.textContent = text;
    return;
  }
  try {
    tokens = new BoundedLexer({ gfm: true, breaks: true }).lex(text);
  } catch {
    tokens = [{ type: "code", raw: text, text }];
  }
  tokens = tokens.filter(({ type }) => type !== "space");
  const shown = (node.shownBlocks ??= []);
  let same = 0;
  while (same < shown.length && same < tokens.length && shown[same].raw === tokens[same].raw && shown[same].type === tokens[same].type) same++;
  for (const { nodes } of shown.splice(same)) for (const one of nodes) one.remove();
  for (const token of tokens.slice(same)) {
    let nodes;
    try {
      nodes = [block(token)].flat();
    } catch {
      // Quotations in quotations without an end.
      nodes = [codeBox(token.raw)];
    }
    node.append(...nodes);
    shown.push({ type: token.type, raw: token.raw, nodes });
  }
}

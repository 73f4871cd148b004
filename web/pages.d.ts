// Types for `tsc` only: the published modules under the names by which the pages load them, and the fields that the pages add to elements.

declare module "*/xterm.mjs" {
  export * from "@xterm/xterm";
}
declare module "*/addon-fit.mjs" {
  export * from "@xterm/addon-fit";
}
declare module "*/addon-search.mjs" {
  export * from "@xterm/addon-search";
}
declare module "*/addon-serialize.mjs" {
  export * from "@xterm/addon-serialize";
}
declare module "*/addon-unicode-graphemes.mjs" {
  export * from "@xterm/addon-unicode-graphemes";
}
declare module "*/addon-web-links.mjs" {
  export * from "@xterm/addon-web-links";
}
declare module "*/addon-webgl.mjs" {
  export * from "@xterm/addon-webgl";
}
declare module "*/marked.js" {
  export * from "marked";
}

interface Window {
  /** The terminal of the page, for programs and tests that look at the screen. */
  outriggerTerminal: import("@xterm/xterm").Terminal;
}

interface Element {
  /** What the element shows, so that it is not set again. */
  shown?: string;
  /** The names of the fields that a list of details shows. */
  names?: string;
  /** The key of an entry of a transcript. */
  entry?: string;
}

interface HTMLTableRowElement {
  /** What the row of a table shows. */
  item?: any;
}

interface EventTarget {
  /** The events of the pages' own classes have fields of their own. */
  addEventListener(type: string, listener: (event: any) => unknown, options?: boolean | AddEventListenerOptions): void;
}

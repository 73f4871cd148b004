// Writes src/service/process/screen/grapheme_table.rs from @xterm/addon-unicode-graphemes, or compares the two.
//
// usage: node tests/interop/screen/graphemes.mjs NODE_MODULES [--check]
import { readFileSync, writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { graphemesAddon } from "./xterm.mjs";

const table = fileURLToPath(new URL("../../../src/service/process/screen/grapheme_table.rs", import.meta.url));
const [modules, option] = process.argv.slice(2);
const addon = await graphemesAddon(resolve(modules));
let provider;
addon.activate({ unicode: { register: (one) => { if (one.version === "15-graphemes") provider = one; } } });

// In the order of the addon's constants GRAPHEME_BREAK_*.
const kinds = ["Other", "Prepend", "Extend", "RegionalIndicator", "SpacingMark", "HangulL", "HangulV", "HangulT", "HangulLv",
  "HangulLvt", "ZeroWidthJoiner", "Pictographic"];
function properties(code) {
  const value = provider.charProperties(code, 0);
  return { kind: kinds[(value >> 3) & 15], width: (value >> 1) & 3 };
}

// The syllables of Hangul alternate, so the program has a rule for them instead of 800 ranges.
function isSyllable(code, { kind, width }) {
  if (code < 0xac00 || code > 0xd7a3) return false;
  const expected = (code - 0xac00) % 28 === 0 ? "HangulLv" : "HangulLvt";
  if (kind !== expected || width !== 2) throw new Error(`U+${code.toString(16)} is ${kind}, ${width} columns wide`);
  return true;
}

const ranges = [];
for (let code = 0; code <= 0x10ffff; code++) {
  const found = properties(code);
  if (isSyllable(code, found) || (found.kind === "Other" && found.width === 1)) continue;
  const last = ranges.at(-1);
  if (last?.last === code - 1 && last.kind === found.kind && last.width === found.width) last.last = code;
  else ranges.push({ first: code, last: code, ...found });
}

const lines = [];
for (const { first, last, kind, width } of ranges) {
  const entry = `(0x${first.toString(16)}, 0x${last.toString(16)}, ${kind}, ${width}),`;
  const line = lines.at(-1);
  if (line !== undefined && line.length + 1 + entry.length <= 120) lines[lines.length - 1] = `${line} ${entry}`;
  else lines.push(`    ${entry}`);
}
const used = kinds.slice(1).filter((kind) => ranges.some((range) => range.kind === kind)).concat("Other").sort();
const text = `//! The characters that are not one column wide, or join others, as in @xterm/addon-unicode-graphemes, which the terminal page
//! uses. tests/interop/screen/graphemes.mjs has written this file.

use super::graphemes::Kind::{
    self, ${used.join(", ")},
};

/// The first and the last character of each range, their kind and their width.
#[rustfmt::skip]
pub(super) const RANGES: &[(u32, u32, Kind, u8)] = &[
${lines.join("\n")}
];
`;
// rustfmt may break lines in another way.
const words = (source) => source.replace(/\s+/g, " ");
if (option !== "--check") writeFileSync(table, text);
else if (words(readFileSync(table, "utf8")) !== words(text)) {
  console.error(`${table} differs from the addon's table`);
  process.exit(1);
} else console.log(`the table has ${ranges.length} ranges, as the addon`);

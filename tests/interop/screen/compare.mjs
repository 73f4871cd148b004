// Compares the server's screen with headless xterm.js, cell by cell, for the recordings of record.py. Each is cut at random places:
// there, both show the same, a snapshot shows it again, and with the rest of the output it shows the same as all output.
//
// usage: node tests/interop/screen/compare.mjs TOOL NODE_MODULES DIRECTORY [CUTS]    20 cuts by default
import { execFileSync } from "node:child_process";
import { readFileSync, readdirSync } from "node:fs";
import { resolve } from "node:path";
import { Probe, graphemesAddon, loadTerminal } from "./xterm.mjs";

const [tool, modules, directory, cutCount = "20"] = process.argv.slice(2);
const Terminal = loadTerminal(resolve(modules));

// A generator of numbers that depend on the name of a session alone.
function randomNumbers(name) {
  let state = [...name].reduce((sum, character) => (Math.imul(sum, 31) + character.codePointAt(0)) >>> 0, 7);
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

// The lines that differ, cell by cell.
function differences(ours, theirs) {
  const [left, right] = [ours.split("\n"), theirs.split("\n")];
  const found = [];
  for (let at = 0; at < Math.max(left.length, right.length); at++) {
    if (left[at] === right[at]) continue;
    const [one, other] = [left[at] ?? "", right[at] ?? ""].map((line) => line.split("\x1e"));
    const column = one.findIndex((cell, index) => cell !== other[index]);
    const show = (cells) => (cells[column] ?? "nothing").replaceAll("\x1f", " ");
    found.push(`${left[at]?.split(" ").slice(0, 2).join(" ")} column ${column}: ours ${show(one)}, theirs ${show(other)}`);
  }
  return found;
}

// An erased cell, a space, and what is left of a wide character look the same. A snapshot need not tell them apart.
function loosely(dump) {
  return dump.split("\n").map((line) => {
    let before = "0";
    return line.split("\x1e").map((cell) => {
      const [text, width, style] = cell.split("\x1f");
      if (style === undefined) return cell;
      const isStray = width === "0" && before !== "2";
      before = width;
      return [text.replace(/(^|(?:true|false) ) $/, "$1"), isStray ? "1" : width, style].join("\x1f");
    }).join("\x1e");
  }).join("\n");
}

// A snapshot does not have that the first row continues one above it, and later output can move this row.
const withoutWraps = (dump) => dump.replace(/^(row \d+) (?:true|false)/gm, "$1 false");

let compared = 0;
let failures = 0;
async function compare(name) {
  const output = readFileSync(`${directory}/${name}.out`);
  const { rows, cols } = JSON.parse(readFileSync(`${directory}/${name}.json`, "utf8"));
  const random = randomNumbers(name);
  const cuts = Array.from({ length: Number(cutCount) }, () => random(output.length + 1)).sort((one, other) => one - other);
  const arguments_ = ["cuts", rows, cols, `${directory}/${name}.out`, ...cuts].map(String);
  const fields = execFileSync(tool, arguments_, { maxBuffer: 1 << 30 }).toString().split("\0");
  const states = [...cuts, output.length].map((cut, at) => {
    const [offset, snapshot, screen, rebuilt, rest] = fields.slice(5 * at);
    return { cut, offset: Number(offset), snapshot, screen, rebuilt, rest };
  });
  const newProbe = async () => new Probe(Terminal, await graphemesAddon(resolve(modules)), rows, cols);
  const whole = await newProbe();
  await whole.write(output);
  const end = whole.dump();
  const growing = await newProbe();
  let fed = 0;
  const check = (what, cut, ours, theirs, loose) => {
    compared++;
    const found = loose ? differences(loosely(ours), loosely(theirs)) : differences(ours, theirs);
    if (found.length === 0) return;
    failures++;
    if (failures <= 40) console.error(`${name} at ${cut}: ${what} differs\n  ${found.slice(0, 3).join("\n  ")}${found.length > 3 ? `\n  and ${found.length - 3} more` : ""}`);
  };
  for (const { cut, offset, snapshot, screen, rebuilt, rest } of states) {
    await growing.write(output.subarray(fed, offset));
    fed = offset;
    const shown = growing.dump();
    check("the screen", cut, screen, shown);
    check("our screen after the snapshot", cut, rebuilt, screen, true);
    const viewer = await newProbe();
    await viewer.write(snapshot);
    check("xterm.js after the snapshot", cut, viewer.dump(), shown, true);
    await viewer.write(output.subarray(offset));
    check("xterm.js after the rest", cut, withoutWraps(viewer.dump()), withoutWraps(end), true);
    check("our screen after the rest", cut, withoutWraps(rest), withoutWraps(states.at(-1).screen), true);
    viewer.dispose();
  }
  whole.dispose();
  growing.dispose();
}

const names = readdirSync(directory).filter((file) => file.endsWith(".out")).map((file) => file.slice(0, -4)).sort();
for (const name of names) await compare(name);
console.log(`${names.length} sessions, ${compared} comparisons, ${failures} differ`);
process.exit(failures > 0 || names.length === 0 ? 1 : 0);

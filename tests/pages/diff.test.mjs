// web/diff.js: the difference between two texts is complete, in order and as short as possible.
import assert from "node:assert/strict";
import test from "node:test";
import { diffLines, hunks } from "../../web/diff.js";

/** Numbers that look random, and are the same each time. */
function random(seed) {
  let state = seed;
  return (below) => {
    state = (state * 1_103_515_245 + 12_345) % 2_147_483_648;
    return Math.floor((state / 2_147_483_648) * below);
  };
}

const linesOf = (text) => (text ? text.replace(/\n$/, "").split("\n") : []);

/** The lines of one side of a difference, with the numbers that they claim to have. */
function side(rows, left, number) {
  const own = rows.filter(({ kind }) => kind !== left);
  own.forEach((row, at) => assert.equal(row[number], at + 1, `${number} of row ${at}`));
  return own.map(({ text }) => text);
}

/** The fewest changes, by the table of the longest common subsequence. */
function fewest(a, b) {
  let row = Array(b.length + 1).fill(0);
  for (const one of a) {
    const next = [0];
    b.forEach((other, at) => next.push(one === other ? row[at] + 1 : Math.max(row[at + 1], next[at])));
    row = next;
  }
  return a.length + b.length - 2 * row.at(-1);
}

test("the rows are both texts, with as few changes as possible", () => {
  for (let seed = 1; seed <= 500; seed++) {
    const next = random(seed);
    const text = () => Array.from({ length: next(14) }, () => "abc"[next(3)]).join("\n");
    const [before, after] = [text(), text()];
    const rows = diffLines(before, after);
    assert.deepEqual(side(rows, "plus", "before"), linesOf(before), JSON.stringify({ seed, before, after }));
    assert.deepEqual(side(rows, "minus", "after"), linesOf(after), JSON.stringify({ seed, before, after }));
    const changes = rows.filter(({ kind }) => kind !== "same").length;
    assert.equal(changes, fewest(linesOf(before), linesOf(after)), JSON.stringify({ seed, before, after }));
  }
});

test("nothing, a new file and a removed one", () => {
  assert.deepEqual(diffLines("", ""), []);
  assert.deepEqual(diffLines("", "a\nb\n").map(({ kind }) => kind), ["plus", "plus"]);
  assert.deepEqual(diffLines("a\nb", "").map(({ kind }) => kind), ["minus", "minus"]);
  assert.deepEqual(diffLines("a\n", "a").map(({ kind }) => kind), ["same"], "the line feed at the end is shown elsewhere");
  assert.deepEqual(diffLines("\n", "\n\n").map(({ kind }) => kind), ["same", "plus"]);
});

test("texts that differ everywhere take bounded time, and are replaced", () => {
  const lines = (prefix) => Array.from({ length: 20_000 }, (_, at) => `${prefix}${at}`).join("\n");
  const began = performance.now();
  const rows = diffLines(`same\n${lines("a")}\nend`, `same\n${lines("b")}\nend`);
  assert.ok(performance.now() - began < 10_000);
  assert.deepEqual([rows[0].kind, rows.at(-1).kind], ["same", "same"]);
  assert.equal(rows.filter(({ kind }) => kind === "minus").length, 20_000);
  assert.deepEqual(side(rows, "minus", "after"), linesOf(`same\n${lines("b")}\nend`));
});

test("hunks leave out equal rows, and say how many", () => {
  const before = Array.from({ length: 40 }, (_, at) => `line ${at}`);
  const after = before.with(5, "x").with(30, "y");
  const rows = diffLines(before.join("\n"), after.join("\n"));
  const { hunks: found, skipped } = hunks(rows);
  assert.deepEqual(found.map(({ skipped: count, rows: near }) => [count, near.length]), [[2, 8], [18, 8]]);
  assert.equal(skipped, 6);
  const all = found.reduce((sum, one) => sum + one.skipped + one.rows.length, skipped);
  assert.equal(all, rows.length);
  assert.deepEqual(hunks(diffLines("a", "a")), { hunks: [], skipped: 1 });
});

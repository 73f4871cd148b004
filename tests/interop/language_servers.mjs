// vscode-ws-jsonrpc as the client of language servers behind `outrigger pipe --framing content-length`: initialize,
// diagnostics, completion, shutdown and exit; and examples/language_client.mjs with cuts.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createConnection, createServer } from "node:net";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.TOOLS + "/");
const { start } = createRequire(import.meta.url)("./server.js");
const { WebSocket } = require("ws");
const { createMessageConnection } = require("vscode-jsonrpc/node.js");
const { toSocket, WebSocketMessageReader, WebSocketMessageWriter } = await import(pathToFileURL(require.resolve("vscode-ws-jsonrpc")));

const bin = (name) => join(process.env.TOOLS, "node_modules/.bin", name);

async function plain(url) {
  const webSocket = new WebSocket(url);
  await once(webSocket, "open");
  const socket = toSocket(webSocket);
  return { webSocket, connection: createMessageConnection(new WebSocketMessageReader(socket), new WebSocketMessageWriter(socket)) };
}

async function converse(title, server, { file, languageId, text, position, completion }, connect = plain) {
  const folder = mkdtempSync(join(tmpdir(), "outrigger-lsp-"));
  const uri = pathToFileURL(join(folder, file)).href;
  writeFileSync(join(folder, file), text);
  const { webSocket, connection } = await connect(server.url);
  const closed = once(webSocket, "close").then(([code, reason]) => code.type ? [code.code, code.reason] : [code, String(reason)]);
  const diagnostics = new Promise((resolve) => {
    connection.onNotification("textDocument/publishDiagnostics", (params) => {
      // A server may send what is wrong with the syntax first, and the types later.
      if (params.uri === uri && params.diagnostics.some(({ message }) => /number|int/.test(message))) resolve();
    });
  });
  connection.onRequest("workspace/configuration", ({ items }) => items.map(() => null));
  connection.onRequest(() => null);
  connection.listen();
  const { capabilities } = await connection.sendRequest("initialize", {
    processId: null,
    rootUri: pathToFileURL(folder).href,
    workspaceFolders: [{ uri: pathToFileURL(folder).href, name: "test" }],
    capabilities: { workspace: { configuration: true }, textDocument: { publishDiagnostics: {}, completion: {} } },
  });
  assert(capabilities.completionProvider, "completion is offered");
  await connection.sendNotification("initialized", {});
  await connection.sendNotification("textDocument/didOpen", { textDocument: { uri, languageId, version: 1, text } });
  await diagnostics;
  const items = await connection.sendRequest("textDocument/completion", { textDocument: { uri }, position });
  const labels = (items.items ?? items).map(({ label }) => label);
  assert(labels.includes(completion), labels.slice(0, 20).join());
  assert.equal(await connection.sendRequest("shutdown"), null);
  await connection.sendNotification("exit");
  assert.deepEqual(await closed, [1000, "Program exited with code 0"]);
  console.log(`  ${title}: initialize, diagnostics, ${labels.length} completions, shutdown, exit ok`);
}

const typescript = {
  program: [bin("typescript-language-server"), "--stdio"],
  file: "a.ts", languageId: "typescript", text: 'const word: number = "é";\n"x".\n', position: { line: 1, character: 4 }, completion: "toUpperCase",
};
const pyright = {
  program: [bin("pyright-langserver"), "--stdio"],
  file: "a.py", languageId: "python", text: 'word: int = "é"\n"x".\n', position: { line: 1, character: 4 }, completion: "upper",
};
/** examples/language_client.mjs through a proxy that cuts each connection after some thousand bytes. */
async function withCuts(pipe) {
  // The package as npm installs it, beside the example.
  const folder = mkdtempSync(join(tmpdir(), "outrigger-client-"));
  const modules = join(folder, "node_modules");
  mkdirSync(join(modules, "outrigger-client"), { recursive: true });
  execFileSync("packaging/npm-client/files.sh", [join(modules, "outrigger-client")]);
  writeFileSync(join(modules, "outrigger-client/package.json"), '{"type":"module","exports":"./index.js"}');
  for (const name of ["vscode-jsonrpc", "vscode-ws-jsonrpc"]) symlinkSync(join(process.env.TOOLS, "node_modules", name), join(modules, name));
  copyFileSync("examples/language_client.mjs", join(folder, "language_client.mjs"));
  const { connect } = await import(pathToFileURL(join(folder, "language_client.mjs")));
  let cuts = 0;
  const { port } = new URL(pipe.url);
  const proxy = createServer((near) => {
    const far = createConnection(port, "127.0.0.1");
    // It grows, because a message that is longer would never arrive.
    let left = 1500 * (cuts + 1);
    for (const [from, to] of [[near, far], [far, near]]) {
      from.on("error", () => {}).on("close", () => to.destroy());
      from.on("data", (data) => {
        to.write(data.subarray(0, Math.max(0, left)));
        left -= data.length;
        if (left > 0 || near.destroyed) return;
        cuts++;
        near.destroy();
        far.destroy();
      });
    }
  }).listen(0, "127.0.0.1");
  await once(proxy, "listening");
  const url = new URL(pipe.url);
  url.port = proxy.address().port;
  const server = { ...pipe, url: url.href };
  await converse("examples/language_client.mjs", server, typescript, (url) => connect(url, [], { WebSocket }));
  assert.ok(cuts > 2, `${cuts} cuts`);
  console.log(`  it was cut ${cuts} times`);
  proxy.close();
  rmSync(folder, { recursive: true });
}

for (const language of [typescript, pyright]) {
  const name = language.program[0].split("/").at(-1);
  const pipe = await start("pipe", "--framing", "content-length", "--path", "/lsp", "--", ...language.program);
  // Two clients at once have a language server each.
  await Promise.all([1, 2].map((number) => converse(`${name}, client ${number}`, pipe, language)));
  if (language === typescript) await withCuts(pipe);
  await pipe.stop();
}

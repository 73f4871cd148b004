// vscode-ws-jsonrpc as the client of language servers behind `outrigger pipe --framing content-length` and behind
// `outrigger agent --mode per-client`: initialize, diagnostics, completion, shutdown and exit.
import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtempSync, writeFileSync } from "node:fs";
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

async function converse(title, server, { file, languageId, text, position, completion }) {
  const folder = mkdtempSync(join(tmpdir(), "outrigger-lsp-"));
  const uri = pathToFileURL(join(folder, file)).href;
  writeFileSync(join(folder, file), text);
  const webSocket = new WebSocket(server.url);
  await once(webSocket, "open");
  const closed = once(webSocket, "close");
  const socket = toSocket(webSocket);
  const connection = createMessageConnection(new WebSocketMessageReader(socket), new WebSocketMessageWriter(socket));
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
  const [code, reason] = await closed;
  assert.deepEqual([code, String(reason)], [1000, server.reason]);
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
for (const language of [typescript, pyright]) {
  const name = language.program[0].split("/").at(-1);
  const pipe = await start("pipe", "--framing", "content-length", "--path", "/lsp", "--", ...language.program);
  pipe.reason = "Program exited with code 0";
  // Two clients at once have a language server each.
  await Promise.all([1, 2].map((number) => converse(`${name}, client ${number}`, pipe, language)));
  await pipe.stop();
}
const agent = await start("agent", "--mode", "per-client", "--protocol", "jsonrpc", "--framing", "content-length", "--", ...typescript.program);
agent.reason = "Agent exited";
await converse("typescript-language-server as an agent", agent, typescript);
await agent.stop();

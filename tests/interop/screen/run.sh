#!/usr/bin/env bash
# Compares the server's screen with headless xterm.js, cell by cell: recordings of full-screen programs, each cut at 20 random places,
# and output that is made up. Compares the widths of characters with the table of the terminal page. Installs npm packages below
# target/interop/screen.
#
# usage: tests/interop/screen/run.sh [COUNT] [PROGRAM...]      30 sessions of each of ten programs by default: about 15 minutes
set -euo pipefail
cd "$(dirname "$0")"
work=$PWD/../../../target/interop/screen
mkdir -p "$work"
[ -d "$work/node_modules/@xterm/addon-unicode-graphemes" ] || (cd "$work" && npm install --silent --no-audit --no-fund --prefix . \
  @xterm/headless@6.0.0 @xterm/addon-unicode-graphemes@0.4.0 >/dev/null)
node graphemes.mjs "$work/node_modules" --check
rustc --edition 2024 --crate-type rlib serde_json.rs --out-dir "$work"
rustc --edition 2024 -O --cfg fuzzing --cfg 'feature="screen"' --extern serde_json="$work/libserde_json.rlib" tool.rs -o "$work/tool"
rm -rf "$work/recordings"
python3 record.py "$work/recordings" "$@"
python3 record.py "$work/recordings" 100 random
node compare.mjs "$work/tool" "$work/node_modules" "$work/recordings"

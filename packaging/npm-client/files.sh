#!/usr/bin/env bash
# Writes the modules of the package and their types to a directory: the code of Outrigger's pages without its comments, which the types
# and the README have for users.
#
# usage: packaging/npm-client/files.sh DIR
set -euo pipefail
out=$(realpath "$1")
cd "$(dirname "$0")/../.."
# $1: the file of the pages, $2: its name in the package
take() {
  sed -E '/^ *(\/\/|\/\*\*|\*)/d; s/^ +//; s,"\./resumable\.js","./index.js",' "web/$1" >"$out/$2"
}
take resumable.js index.js
take outrigger_addon.js xterm.js
take acp.js acp.js
cp packaging/npm-client/*.d.ts "$out"

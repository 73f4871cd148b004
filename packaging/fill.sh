#!/usr/bin/env bash
# Fills a template: replaces @VERSION@ and each @KEY@ of packaging/names.
#
# usage: packaging/fill.sh FILE OUTPUT [SED-OPTION...]
set -euo pipefail
[ $# -ge 2 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }
here=$(dirname "$0")
file=$1 output=$2
shift 2
edits=(-e "s,@VERSION@,$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/../Cargo.toml" | head -n 1),g")
while IFS='=' read -r key name; do edits+=(-e "s,@$key@,$name,g"); done < <(grep '^[A-Z]' "$here/names")
mkdir -p "$(dirname "$output")"
sed "${edits[@]}" "$@" "$file" >"$output"
if grep -n '@[A-Z0-9:]*@' "$output" >&2; then
  echo "fill: nothing replaces the lines above in $file" >&2
  exit 1
fi

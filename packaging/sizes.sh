#!/usr/bin/env bash
# Prints the sizes of the packages, in bytes. With --features, builds the program with other features, too, and prints their sizes.
#
# usage: packaging/sizes.sh [--features]
# env:   DIST=target/dist OUT=target/packages    as for packaging/build.sh
set -euo pipefail
cd "$(dirname "$0")/.."
row() { printf '| %s | %s |\n' "$1" "$2"; }
row what bytes
row --- ---
if [ "${1:-}" = --features ]; then
  for features in cli "cli tls" "cli client" "cli mcp" "cli screen" default web; do
    options=(--no-default-features --features "$features")
    case $features in
      default) options=() ;;
      web) options=(--features web) ;;
    esac
    cargo build --release --locked --quiet --bin outrigger --target-dir target/sizes "${options[@]}"
    row "program with the features \`$features\`" "$(stat -c %s target/sizes/release/outrigger)"
  done
fi
out=${OUT:-target/packages}
while IFS= read -r -d '' file; do
  row "${file##*/}" "$(stat -c %s "$file")"
done < <(find "${DIST:-target/dist}" "$out" \( -name '*.tar.gz' -o -name '*.deb' -o -name '*.whl' -o -name '*.tgz' \) -print0 | sort -z)
for program in "$out"/image/*/outrigger; do
  row "image scratch, the program for $(basename "$(dirname "$program")")" "$(stat -c %s "$program")"
done

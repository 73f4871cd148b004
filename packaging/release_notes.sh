#!/usr/bin/env bash
# Prints the section of CHANGELOG.md for a version: the text of its release.
#
# usage: packaging/release_notes.sh VERSION      for example 0.1.0; "Unreleased" prints what the next version has
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -eq 1 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }

# A heading is `## 1.2.0`, with or without a date and brackets: `## [1.2.0] - 2026-01-31`.
notes=$(awk -v wanted="$1" '
  /^## / { heading = $2; gsub(/[][]/, "", heading); inside = heading == wanted; next }
  inside { print }
' "${CHANGELOG:-CHANGELOG.md}" | sed -e '/./,$!d')
[ -n "$notes" ] || { echo "release_notes: the changelog has no text for $1" >&2; exit 1; }
printf '%s\n' "$notes"

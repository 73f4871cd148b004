#!/usr/bin/env bash
# Tests the scripts that a release runs before it builds anything: what they accept, and what they reject.
#
# usage: tests/release.sh
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CHANGELOG=$work/CHANGELOG.md
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)

expect() { # WHAT EXPECTED ACTUAL
  [ "$2" = "$3" ] || { printf 'release: %s\n expected: %q\n got: %q\n' "$1" "$2" "$3" >&2; exit 1; }
}
rejects() { # MESSAGE COMMAND...
  local message=$1
  shift
  if "$@" >/dev/null 2>"$work/error"; then echo "release: accepted: $*" >&2; exit 1; fi
  grep -q -- "$message" "$work/error" || { echo "release: '$*' says:" >&2; cat "$work/error" >&2; exit 1; }
}

cat >"$CHANGELOG" <<END
# Changelog

## Unreleased

## [$version] - 2026-01-31

### Added

- One thing.

## 0.0.10

- Two things.
  With a second line.

## 0.0.1
END
expect "a section with a bracketed heading" $'### Added\n\n- One thing.' "$(packaging/release_notes.sh "$version")"
expect "a section whose number begins as another's" $'- Two things.\n  With a second line.' "$(packaging/release_notes.sh 0.0.10)"
for empty in Unreleased 0.0.1 0.0 9.9.9; do
  rejects "has no text for $empty" packaging/release_notes.sh "$empty"
done
expect "the tag of the version" "$version" "$(packaging/check_release.sh "v$version")"
rejects "but Cargo.toml has version $version" packaging/check_release.sh v9.9.9
rejects "but Cargo.toml has version $version" packaging/check_release.sh "$version"
echo "# Changelog" >"$CHANGELOG"
rejects "has no text for $version" packaging/check_release.sh "v$version"
# The project's own changelog has text for the next release.
unset CHANGELOG
packaging/release_notes.sh Unreleased >/dev/null || packaging/release_notes.sh "$version" >/dev/null
echo "release: ok"

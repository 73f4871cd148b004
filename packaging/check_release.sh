#!/usr/bin/env bash
# Checks that a tag may be released: it names the version of Cargo.toml, Cargo.lock agrees, and CHANGELOG.md has a section for it.
# Prints the version.
#
# usage: packaging/check_release.sh TAG      for example v0.1.0
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -eq 1 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }

# The first version in a manifest is that of the package.
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
[ "$1" = "v$version" ] || { echo "check_release: the tag is $1, but Cargo.toml has version $version" >&2; exit 1; }
cargo metadata --locked --format-version 1 >/dev/null || { echo "check_release: Cargo.lock is out of date" >&2; exit 1; }
packaging/release_notes.sh "$version" >/dev/null
if git grep --quiet '^<!-- before the first release -->' -- '*.md'; then
  echo "check_release: the texts say that nothing is released; run packaging/turn.py $version" >&2
  exit 1
fi
echo "$version"

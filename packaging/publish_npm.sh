#!/usr/bin/env bash
# Publishes npm packages with provenance: first the packages with a program, and then those that depend on them.
# Skips versions that are already published, so a run that failed can be repeated.
#
# usage: packaging/publish_npm.sh FOLDER        with packages as npm pack writes them (*.tgz), at any depth
# env:   NPM='npm --dry-run'                    the command
#        PROVENANCE=--provenance                empty outside of a workflow, which alone can prove where a package was built
set -euo pipefail
[ $# -eq 1 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }
read -ra npm <<<"${NPM:-npm}"

# Lines of "depends, or not", name@version, and file. In the C locale, 0 comes before 1.
list=$(find "$1" -name '*.tgz' -print0 | while IFS= read -r -d '' file; do
  tar -xzOf "$file" package/package.json | python3 -c '
import json, sys
package = json.load(sys.stdin)
print(int("optionalDependencies" in package), package["name"] + "@" + package["version"], sys.argv[1])' "$file"
done | LC_ALL=C sort)
[ -n "$list" ] || { echo "publish_npm: there are no packages below $1" >&2; exit 1; }
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT
while read -r _ package file; do
  if "${npm[@]}" view "$package" version >"$answer" 2>&1 </dev/null; then
    published=$(<"$answer")
  elif grep -q E404 "$answer"; then
    published=
  else
    echo "publish_npm: cannot ask for $package:" >&2
    cat "$answer" >&2
    exit 1
  fi
  # For a version that is missing in a package that exists, npm prints nothing.
  if [ -n "$published" ]; then
    echo "publish_npm: $package is published already"
  else
    # shellcheck disable=SC2086
    "${npm[@]}" publish ${PROVENANCE---provenance} --access public "$(realpath "$file")" </dev/null
    echo "publish_npm: published $package"
  fi
done <<<"$list"

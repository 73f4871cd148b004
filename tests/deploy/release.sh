#!/usr/bin/env bash
# Tests the scripts that a release runs before it builds anything: what they accept, and what they reject.
#
# usage: tests/deploy/release.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
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
# The commit of a release has texts that say so.
git clone --quiet . "$work/turned"
check=$work/turned/packaging/check_release.sh
printf '\n<!-- before the first release -->\n<!-- end -->\n' >>"$work/turned/README.md"
rejects "run packaging/turn.py $version" "$check" "v$version"
(unset CHANGELOG && packaging/turn.py "$version" 2026-01-31 "$work/turned") >/dev/null
expect "the tag of the version" "$version" "$("$check" "v$version")"
rejects "but Cargo.toml has version $version" "$check" v9.9.9
rejects "but Cargo.toml has version $version" "$check" "$version"
echo "# Changelog" >"$CHANGELOG"
rejects "has no text for $version" "$check" "v$version"
# The project's own changelog has text for the next release.
unset CHANGELOG
packaging/release_notes.sh Unreleased >/dev/null || packaging/release_notes.sh "$version" >/dev/null

# A repository of packages: a first version, the same again, and a second one.
published() { git --git-dir "$work/tap.git" show "main:$1"; }
git init --quiet --bare --initial-branch main "$work/tap.git"
git clone --quiet "$work/tap.git" "$work/first" 2>/dev/null
git -C "$work/first" -c user.name=t -c user.email=t@localhost commit --quiet --allow-empty -m first
git -C "$work/first" push --quiet origin HEAD:main
echo one >"$work/new file"
publish() { packaging/publish_to_git.sh "$work/tap.git" "$1" "$work/new file=Formula/outrigger.rb"; }
expect "a first version is pushed" "publish_to_git: pushed: Version 1" "$(publish "Version 1")"
expect "the published file" one "$(published Formula/outrigger.rb)"
expect "the same version is not pushed" "publish_to_git: nothing has changed" "$(publish "Version 1")"
echo two >"$work/new file"
expect "a second version is pushed" "publish_to_git: pushed: Version 2" "$(publish "Version 2")"
expect "the new file" two "$(published Formula/outrigger.rb)"
expect "the commits" "Version 2 Version 1 first" "$(git --git-dir "$work/tap.git" log --format=%s main | xargs)"
rejects "usage: " packaging/publish_to_git.sh "$work/tap.git" message

# Files of several jobs. Those that registries get are not among the files of the release.
mkdir -p "$work/artifacts/binary-a" "$work/artifacts/packages/deb" "$work/artifacts/packages/npm"
echo a >"$work/artifacts/binary-a/outrigger-1-a.tar.gz"
echo b >"$work/artifacts/packages/deb/outrigger_1_amd64.deb"
echo c >"$work/artifacts/packages/npm/outrigger-1.tgz"
expect "two files" "collect: 2 files" "$(packaging/collect.sh "$work/artifacts" "$work/files")"
expect "their names" "SHA256SUMS outrigger-1-a.tar.gz outrigger_1_amd64.deb" "$(cd "$work/files" && echo *)"
expect "their checksums" "outrigger-1-a.tar.gz: OK outrigger_1_amd64.deb: OK" "$(cd "$work/files" && sha256sum --check SHA256SUMS | xargs)"
cp "$work/artifacts/binary-a/outrigger-1-a.tar.gz" "$work/artifacts/packages"
rejects "two files outrigger-1-a.tar.gz" packaging/collect.sh "$work/artifacts" "$work/again"
mkdir "$work/empty"
rejects "no files below" packaging/collect.sh "$work/empty" "$work/none"

# npm packages: what others depend on comes first, and what is published already is left out. A program in the place of npm
# writes down its arguments.
pack() { # NAME MORE
  mkdir -p "$work/npm/package"
  echo "{\"name\":\"$1\",\"version\":\"1.0.0\"$2}" >"$work/npm/package/package.json"
  tar -czf "$work/npm/$(basename "$1").tgz" -C "$work/npm" package
}
pack a-main ',"optionalDependencies":{"@x/linux":"1.0.0"}'
pack @x/linux ''
pack @x/darwin ''
cat >"$work/npm.sh" <<END
#!/bin/sh
case "\$1 \$2" in "view @x/darwin@1.0.0") echo 1.0.0 ;; view*) echo "npm error code \${E:-E404}" >&2; exit 1 ;; publish*) echo "\$*" >>"$work/calls" ;; esac
END
chmod +x "$work/npm.sh"
expect "what is published" \
  $'publish_npm: @x/darwin@1.0.0 is published already\npublish_npm: published @x/linux@1.0.0\npublish_npm: published a-main@1.0.0' \
  "$(NPM=$work/npm.sh packaging/publish_npm.sh "$work/npm")"
flags="publish --provenance --access public"
expect "the calls of npm" "$flags $work/npm/linux.tgz $flags $work/npm/a-main.tgz" "$(xargs <"$work/calls")"
rejects "cannot ask for @x/linux@1.0.0" env E=E401 NPM="$work/npm.sh" packaging/publish_npm.sh "$work/npm"
rejects "no packages below" packaging/publish_npm.sh "$work/empty"
echo "release: ok"

#!/usr/bin/env bash
# Makes the packages of a release from the archives of packaging/binary.sh, without compiling anything.
#
# usage: packaging/build.sh [KIND...]     KIND is deb, npm, image, homebrew or aur; all of them by default
# env:   DIST=target/dist                 the folder of the archives
#        OUT=target/packages              where the packages go, in a folder for each kind
#        ALLOW_MISSING=                   if set, recipes may name archives that are missing
#
# For each processor, packs the archive for musl or, if there is none, for -gnu-static. Both run on every Linux.
# deb needs cargo-deb (cargo install cargo-deb), npm needs npm.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=$(realpath "${DIST:-target/dist}")
mkdir -p "${OUT:-target/packages}"
out=$(realpath "${OUT:-target/packages}")
manifest() { sed -n "s/^$1 = \"\(.*\)\"\$/\1/p" Cargo.toml | head -n 1; }
version=$(manifest version)
# shellcheck source=packaging/names
. packaging/names

# The archive for a target; empty if there is none.
archive() {
  local file=$dist/outrigger-$version-$1.tar.gz
  [ ! -e "$file" ] || echo "$file"
}
# The archive with a program that runs on every Linux with this processor; empty if there is none.
for_linux() {
  local found
  found=$(archive "$1-unknown-linux-musl")
  [ -n "$found" ] || found=$(archive "$1-unknown-linux-gnu-static")
  echo "$found"
}
unpack() { # ARCHIVE FOLDER
  rm -rf "$2"
  mkdir -p "$2"
  tar -xzf "$1" --strip-components 1 -C "$2"
}

deb() {
  local cpu file count=0
  for cpu in x86_64 aarch64; do
    file=$(for_linux "$cpu")
    [ -n "$file" ] || continue
    unpack "$file" target/deb
    mkdir -p "$out/deb" target/deb/doc
    mv target/deb/*.md target/deb/*LICENSE* target/deb/docs target/deb/examples target/deb/doc
    cargo deb --quiet --no-build --no-strip --target "$cpu-unknown-linux-gnu" --output "$out/deb/"
    count=$((count + 1))
  done
  rm -rf target/deb
  [ "$count" -gt 0 ] || { echo "build: there is no archive for Linux in $dist" >&2; return 1; }
}

npm() {
  local platform target file work dependencies=""
  work=$(mktemp -d)
  mkdir -p "$out/npm"
  for platform in linux-x64 linux-arm64 darwin-x64 darwin-arm64; do
    target=${platform#*-}
    target=${target/x64/x86_64}
    target=${target/arm64/aarch64}
    case $platform in
      linux-*) file=$(for_linux "$target") ;;
      *) file=$(archive "$target-apple-darwin") ;;
    esac
    dependencies="$dependencies \"$NPM-$platform\": \"$version\","
    [ -n "$file" ] || continue
    unpack "$file" "$work/archive"
    mkdir "$work/$platform"
    cp "$work/archive"/{outrigger,LICENSE-MIT,LICENSE-APACHE,THIRD-PARTY-LICENSES} "$work/$platform"
    cat >"$work/$platform/package.json" <<END
{
  "name": "$NPM-$platform",
  "version": "$version",
  "description": "The program $PROGRAM for $platform. Install the package $NPM instead.",
  "license": "MIT OR Apache-2.0",
  "repository": "$REPOSITORY",
  "os": ["${platform%-*}"],
  "cpu": ["${platform#*-}"],
  "preferUnplugged": true
}
END
    (cd "$work/$platform" && command npm pack --silent --pack-destination "$out/npm" >/dev/null)
  done
  mkdir "$work/main"
  packaging/fill.sh packaging/npm/outrigger.js "$work/main/outrigger.js"
  packaging/fill.sh packaging/npm/README.md "$work/main/README.md"
  cp LICENSE-MIT LICENSE-APACHE "$work/main"
  cat >"$work/main/package.json" <<END
{
  "name": "$NPM",
  "version": "$version",
  "description": "Puts programs on the network over WebSocket: JSON-RPC agents, MCP servers, terminals, processes",
  "license": "MIT OR Apache-2.0",
  "repository": "$REPOSITORY",
  "keywords": ["websocket", "json-rpc", "mcp", "terminal", "sidecar"],
  "bin": {"$PROGRAM": "outrigger.js"},
  "engines": {"node": ">=18"},
  "optionalDependencies": {${dependencies%,} }
}
END
  (cd "$work/main" && command npm pack --silent --pack-destination "$out/npm" >/dev/null)
  mkdir "$work/suite"
  cp packaging/acp-conformance/*.js LICENSE-MIT LICENSE-APACHE "$work/suite"
  packaging/fill.sh packaging/acp-conformance/README.md "$work/suite/README.md"
  cat >"$work/suite/package.json" <<END
{
  "name": "$NPM-acp-conformance",
  "version": "$version",
  "description": "Tests endpoints of the Agent Client Protocol over WebSocket, whoever wrote the server",
  "license": "MIT OR Apache-2.0",
  "repository": "$REPOSITORY",
  "keywords": ["acp", "agent-client-protocol", "websocket", "conformance"],
  "bin": {"$NPM-acp-conformance": "cli.js"},
  "engines": {"node": ">=18.17"}
}
END
  (cd "$work/suite" && command npm pack --silent --pack-destination "$out/npm" >/dev/null)
  mkdir "$work/client"
  packaging/npm-client/files.sh "$work/client"
  cp LICENSE-MIT LICENSE-APACHE "$work/client"
  packaging/fill.sh packaging/npm-client/README.md "$work/client/README.md"
  cat >"$work/client/package.json" <<END
{
  "name": "$NPM-client",
  "version": "$version",
  "description": "A WebSocket that survives cuts: every message arrives exactly once and in order; an addon for xterm.js; a connection to agents",
  "license": "MIT OR Apache-2.0",
  "repository": "$REPOSITORY",
  "keywords": ["websocket", "reconnect", "resume", "acp", "terminal", "xterm"],
  "type": "module",
  "exports": {
    ".": {"types": "./index.d.ts", "default": "./index.js"},
    "./acp": {"types": "./acp.d.ts", "default": "./acp.js"},
    "./xterm": {"types": "./xterm.d.ts", "default": "./xterm.js"}
  },
  "types": "./index.d.ts",
  "sideEffects": false,
  "engines": {"node": ">=20"}
}
END
  (cd "$work/client" && command npm pack --silent --pack-destination "$out/npm" >/dev/null)
  rm -rf "$work"
}

# The contexts of the images, with their Dockerfiles.
image() {
  local pair file
  rm -rf "$out/image"
  for pair in amd64=x86_64 arm64=aarch64; do
    file=$(for_linux "${pair#*=}")
    [ -z "$file" ] || unpack "$file" "$out/image/${pair%=*}"
  done
  cp packaging/container/*.Dockerfile "$out/image"
}

# Fills a recipe, with the checksums for @SHA256:TARGET@.
fill() { # FILE OUTPUT
  local target file sum edits=()
  for target in $(grep -o '@SHA256:[^@]*@' "$1" | tr -d @ | cut -d: -f2 | sort -u); do
    file=$(archive "$target")
    if [ -n "$file" ]; then
      sum=$(sha256sum "$file" | cut -d' ' -f1)
    elif [ -n "${ALLOW_MISSING:-}" ]; then
      sum=$(printf '0%.0s' {1..64})
    else
      echo "build: $1 needs outrigger-$version-$target.tar.gz" >&2
      return 1
    fi
    edits+=(-e "s,@SHA256:$target@,$sum,g")
  done
  packaging/fill.sh "$1" "$2" "${edits[@]}"
}
homebrew() { fill packaging/homebrew/outrigger.rb "$out/homebrew/outrigger.rb"; }
aur() {
  fill packaging/aur/PKGBUILD "$out/aur/PKGBUILD"
  packaging/aur/srcinfo.sh "$out/aur/PKGBUILD" >"$out/aur/.SRCINFO"
}

for kind in "${@:-deb npm image homebrew aur}"; do
  for one in $kind; do
    case $one in
      deb | npm | image | homebrew | aur) "$one" ;;
      *) echo "build: there is no kind of package '$one'" >&2; exit 2 ;;
    esac
    echo "build: $one ok"
  done
done

#!/usr/bin/env bash
# Builds what the documents tell readers to build: `cargo install` with each set of features, and a project that depends on the library
# by each line that they show. Prints the crates of the library. Not optimized, because only the build is of interest.
#
# usage: tests/deploy/builds.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
here=$PWD
# shellcheck source=packaging/names
. packaging/names
export CARGO_TARGET_DIR=$PWD/target/builds
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for options in "" "--no-default-features --features cli"; do
  # shellcheck disable=SC2086
  cargo install --quiet --locked --debug --path . --root "$work/installed" --force $options
  "$work/installed/bin/$PROGRAM" --version | tail -n 1 >"$work/version"
  echo "builds: cargo install --path . $options: $(cat "$work/version")"
done

# The lines `outrigger = { ... }` of the documents.
grep -hoE "^(//! )?$CRATE = \{.*\}" docs/*.md src/lib.rs | sed 's,^//! ,,' | sort -u >"$work/lines"
[ "$(wc -l <"$work/lines")" -ge 2 ] || { echo "builds: the documents have lost their dependencies" >&2; exit 1; }
while read -r line; do
  mkdir -p "$work/project/src"
  cp Cargo.lock "$work/project/Cargo.lock"
  cat >"$work/project/Cargo.toml" <<END
[package]
name = "reader"
version = "0.0.0"
edition = "2024"

[dependencies]
$(sed -E "s,(git|version) = \"[^\"]*\",path = \"$here\"," <<<"$line")
END
  echo "pub use $CRATE::protocol::driver::Driver;" >"$work/project/src/lib.rs"
  if grep -q '"server"' <<<"$line"; then echo "pub use $CRATE::{Server, Service};" >>"$work/project/src/lib.rs"; fi
  (cd "$work/project" && cargo build --quiet && cargo tree --prefix none --edges normal | sed '1d; s/ .*//' | sort -u >"$work/crates")
  # The library contains nothing of the program.
  if grep -xE "lexopt|strsim|tokio" "$work/crates"; then echo "builds: the library has the crate above" >&2; exit 1; fi
  echo "builds: $line"
  echo "        $(wc -l <"$work/crates") crates: $(xargs <"$work/crates")"
done <"$work/lines"

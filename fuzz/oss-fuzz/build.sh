#!/bin/bash -eu
# Builds every fuzz target for OSS-Fuzz, with its seed corpus and options.
#
# env, set by OSS-Fuzz:  SRC     the folder that contains the clone `outrigger`
#                        OUT     gets TARGET, TARGET_seed_corpus.zip and TARGET.options
cd "$SRC/outrigger"
# The build of OSS-Fuzz uses the versions of the lock file, as every other build does.
cargo metadata --locked --manifest-path fuzz/Cargo.toml --format-version 1 >/dev/null
# Debug assertions compare the tables of services with the registry of clients.
cargo fuzz build -O --debug-assertions
python3 fuzz/seeds.py
host=$(rustc -vV | sed -n 's/^host: //p')
for target in $(sed -n 's/^name = "\([a-z_]*\)"$/\1/p' fuzz/Cargo.toml); do
  cp "fuzz/target/$host/release/$target" "$OUT/"
  if [ -d "fuzz/corpus/$target" ]; then
    (cd "fuzz/corpus/$target" && python3 -m zipfile -c "$OUT/${target}_seed_corpus.zip" seed-*)
  fi
  printf '[libfuzzer]\nmax_len = 4096\n' >"$OUT/$target.options"
done

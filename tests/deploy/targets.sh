#!/usr/bin/env bash
# Checks that the crate compiles without warnings for other systems and processors, with clippy.
#
# usage: tests/deploy/targets.sh [TARGET...]     by default arm64 Linux with glibc, Linux with musl, and macOS
#
# rustup is not needed: Debian's packages of a recent compiler and of the standard library's source are unpacked below target/, and
# nothing is installed. cargo-zigbuild has to be in PATH. It has zig's C compiler build the C parts of dependencies, with the headers
# of the target, so no SDK and no cross compiler is needed. This also works for targets whose standard library is not packaged:
# cargo compiles it from its source.
#
# Nothing is linked and nothing is run, so this does not replace the tests on these systems.
set -euo pipefail
cd "$(dirname "$0")/../.."

targets=("$@")
[ $# -gt 0 ] || targets=(aarch64-unknown-linux-gnu x86_64-unknown-linux-musl aarch64-apple-darwin)
# The default features, and for macOS, which differs most, also the smallest program and the library alone.
feature_sets=("--lib --bins" "--lib --bins --no-default-features --features cli" "--lib --no-default-features --features server")

fail() {
  echo "targets: $*" >&2
  exit 1
}

folder=$PWD/target/targets
native=$(dpkg --print-architecture) || fail "this is not Debian, which has the packages"
command -v cargo-zigbuild >/dev/null || fail "there is no cargo-zigbuild in PATH (pip install cargo-zigbuild ziglang)"

# Packages of another architecture are found only in lists that include it. These lists are for this script alone.
mkdir -p "$folder/apt/lists/partial" "$folder/apt/cache/archives/partial" "$folder/debs"
cat >"$folder/apt/conf" <<END
APT::Architectures { "$native"; "arm64"; };
Dir::State::lists "$folder/apt/lists/";
Dir::Cache "$folder/apt/cache/";
APT::Sandbox::User "$(id -un)";
END
apt() { APT_CONFIG=$folder/apt/conf "$@"; }
# The name of the package that $1 depends on and that begins with $2.
dependency() { apt apt-cache depends "$1" | sed -n "s/^ *Depends: \($2[0-9.]*\)\$/\1/p" | head -n 1; }

apt apt-get update -qq
version=$(apt apt-cache policy rustc-web | sed -n 's/^ *Candidate: //p')
[ "${version:-(none)}" != "(none)" ] || fail "this release of Debian has no package rustc-web"
promised=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
dpkg --compare-versions "$version" ge "$promised" || fail "rustc-web $version is older than Rust $promised"

if [ "$(cat "$folder/version" 2>/dev/null)" != "$version" ]; then
  rm -rf "$folder/root" "$folder/debs"
  mkdir -p "$folder/root" "$folder/debs"
  shared=$(dependency libstd-rust-web-dev libstd-rust-web-)
  llvm=$(dependency "$shared" libllvm)
  (cd "$folder/debs" && apt apt-get download -qq rustc-web rust-web-clippy rust-web-src libstd-rust-web-dev libstd-rust-web-dev:arm64 \
    "$shared" "$llvm")
  for deb in "$folder"/debs/*.deb; do
    case $deb in
      # Of the source, only the standard library's is needed.
      */rust-web-src_*) dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$folder/root" --wildcards './usr/lib/*' './usr/src/*/library/*' ;;
      *) dpkg-deb -x "$deb" "$folder/root" ;;
    esac
  done
  rm -r "$folder/debs"
  echo "$version" >"$folder/version"
fi

# With these variables, cargo uses the unpacked compiler, and clippy in its place for this crate alone.
libraries=$(dirname "$(find "$folder/root/usr/lib" -name 'librustc_driver-*.so' | head -n 1)")
export LD_LIBRARY_PATH=$libraries RUSTC=$folder/root/usr/bin/rustc RUSTC_WORKSPACE_WRAPPER=$folder/root/usr/bin/clippy-driver
# The separator after the argument is the one that clippy-driver expects.
export CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__
# Lets a stable compiler accept -Z build-std.
export RUSTC_BOOTSTRAP=1
# Nothing of it is run, so it needs no debug information.
export CARGO_PROFILE_DEV_DEBUG=0
export CARGO_TARGET_DIR=$folder/build CARGO_ZIGBUILD_CACHE_DIR=$folder/zigbuild ZIG_GLOBAL_CACHE_DIR=$folder/zig
echo "targets: $("$RUSTC" --version)"
for target in "${targets[@]}"; do
  std=()
  [ -d "$folder/root/usr/lib/rustlib/$target/lib" ] || std=(-Z "build-std=std,panic_abort")
  sets=("${feature_sets[0]}")
  case $target in *-darwin) sets=("${feature_sets[@]}") ;; esac
  for features in "${sets[@]}"; do
    # shellcheck disable=SC2086  # the features are several words
    cargo-zigbuild check --locked --quiet "${std[@]}" --target "$target" $features
    echo "targets: $target $features: ok"
  done
done

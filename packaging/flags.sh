# shellcheck shell=bash
# The compiler flags for a target of binary.sh. Source this file: . packaging/flags.sh TARGET
#
# Sets `triple`, the target that rustc knows, and exports RUSTFLAGS.
triple=${1%-static}
# Keep the paths of this machine out of the program.
RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$PWD=/outrigger --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
[ "$triple" = "$1" ] || RUSTFLAGS="$RUSTFLAGS -C target-feature=+crt-static"
export RUSTFLAGS

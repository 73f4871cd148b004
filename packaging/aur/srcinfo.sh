#!/usr/bin/env bash
# Prints the .SRCINFO of a PKGBUILD, as `makepkg --printsrcinfo` does for the fields that ours has.
#
# usage: packaging/aur/srcinfo.sh PKGBUILD
set -euo pipefail
# shellcheck disable=SC1090
. "$1"
echo "pkgbase = ${pkgname:?}"
printf '\tpkgdesc = %s\n\tpkgver = %s\n\tpkgrel = %s\n\turl = %s\n' "${pkgdesc:?}" "${pkgver:?}" "${pkgrel:?}" "${url:?}"
for field in arch license provides conflicts source_x86_64 sha256sums_x86_64 source_aarch64 sha256sums_aarch64; do
  declare -n values=$field
  for value in "${values[@]}"; do printf '\t%s = %s\n' "$field" "$value"; done
done
printf '\npkgname = %s\n' "$pkgname"

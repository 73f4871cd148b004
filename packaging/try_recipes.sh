#!/usr/bin/env bash
# Checks the recipes of Homebrew and the AUR with tools that run without Homebrew and Arch Linux: the formula with ruby and rubocop
# under Homebrew's rules for strings and comments, and the PKGBUILD with makepkg, which also builds the package from the archive.
#
# usage: packaging/try_recipes.sh
# env:   DIST=target/dist OUT=target/packages    as for packaging/build.sh
#
# Needs rubocop, makepkg and pacman (Debian's rubocop, makepkg and pacman-package-manager). As root, makepkg runs as nobody.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=$(realpath "${DIST:-target/dist}")
out=$(realpath "${OUT:-target/packages}")
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
# shellcheck source=packaging/names
. packaging/names
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/rubocop.yml" <<'END'
AllCops:
  DisabledByDefault: true
  SuggestExtensions: false
Layout:
  Enabled: true
Lint:
  Enabled: true
Style/StringLiterals:
  Enabled: true
  EnforcedStyle: double_quotes
END
ruby -c "$out/homebrew/$BREW.rb" >/dev/null
rubocop --config "$work/rubocop.yml" --cache false --format simple "$out/homebrew/$BREW.rb" >"$work/rubocop" || { cat "$work/rubocop" >&2; exit 1; }
# Homebrew finds the class by the name of the file.
grep -q "^class ${BREW^} < Formula$" "$out/homebrew/$BREW.rb"
echo "try_recipes: the formula is valid"

as_nobody() {
  local command=(env -i HOME="$work" PATH="$PATH" PKGEXT=.pkg.tar.gz SOURCE_DATE_EPOCH=0 "$@")
  [ "$(id -u)" != 0 ] || command=(runuser -u nobody -- "${command[@]}")
  (cd "$work/aur" && "${command[@]}")
}
mkdir "$work/aur"
cp "$out/aur/PKGBUILD" "$work/aur"
chmod -R a+rwX "$work"
as_nobody makepkg --printsrcinfo | diff - "$out/aur/.SRCINFO"
# The same recipe with the archive of this machine in the place of the download.
archive=$(find "$dist" -name "$PROGRAM-$version-$(uname -m)-unknown-linux-*.tar.gz" | sort | tail -n 1)
target=${archive##*/"$PROGRAM-$version-$(uname -m)"-}
target=${target%.tar.gz}
cp "$archive" "$work/aur"
sed -i "s,unknown-linux-musl,$target,g; s,^_base=.*,_base=$PROGRAM-\$pkgver,; s,^sha256sums_$(uname -m)=.*,sha256sums_$(uname -m)=($(sha256sum "$archive" | cut -d' ' -f1))," "$work/aur/PKGBUILD"
chmod -R a+rwX "$work/aur"
as_nobody makepkg --nodeps >"$work/makepkg" 2>&1 || { cat "$work/makepkg" >&2; exit 1; }
mkdir "$work/root"
tar -xzf "$work/aur/$AUR-$version-1-$(uname -m).pkg.tar.gz" -C "$work/root"
"$work/root/usr/bin/$PROGRAM" --version | grep -qF "$version"
for file in man/man1/$PROGRAM.1.gz bash-completion/completions/$PROGRAM licenses/$AUR/LICENSE-MIT; do
  [ -s "$work/root/usr/share/$file" ] || { echo "try_recipes: the package of the AUR has no $file" >&2; exit 1; }
done
echo "try_recipes: the PKGBUILD is valid, and the package that makepkg builds from it works"

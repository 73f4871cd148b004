#!/usr/bin/env bash
# Collects the files of a release from the folders of the jobs that built them, and writes their checksums to SHA256SUMS.
#
# usage: packaging/collect.sh ARTIFACTS FOLDER
set -euo pipefail
[ $# -eq 2 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }
artifacts=$1
folder=$2
mkdir -p "$folder"
count=0
while IFS= read -r -d '' file; do
  name=$(basename "$file")
  # On the page of a release, files have no folders.
  [ ! -e "$folder/$name" ] || { echo "collect: there are two files $name" >&2; exit 1; }
  cp "$file" "$folder/$name"
  count=$((count + 1))
done < <(find "$artifacts" -type f \( -name '*.tar.gz' -o -name '*.deb' -o -name '*.rpm' -o -name '*.apk' -o -name '*.pkg.tar.zst' \
  -o -name '*.cdx.json' \) -print0 | sort -z)
[ "$count" -gt 0 ] || { echo "collect: there are no files below $artifacts" >&2; exit 1; }
sums=$(cd "$folder" && rm -f SHA256SUMS && sha256sum -- *)
printf '%s\n' "$sums" >"$folder/SHA256SUMS"
echo "collect: $count files"

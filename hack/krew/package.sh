#!/usr/bin/env bash
# Packs the program as a kubectl plugin, and fills in its krew manifest.
#
#   package.sh VERSION REPOSITORY FOLDER
#
# VERSION begins with a v, and REPOSITORY is a URL. FOLDER has the programs quartermaster-amd64 and quartermaster-arm64, and
# gets the archives and quartermaster.yaml.
set -euo pipefail
[ $# = 3 ] || { echo "package.sh: write VERSION REPOSITORY FOLDER" >&2; exit 2; }
version=$1 repository=$2 folder=$3
here=$(cd "$(dirname "$0")" && pwd)
[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+ ]] || { echo "package.sh: write a version such as v0.1.0, not $version" >&2; exit 2; }

manifest=$(<"$here/quartermaster.yaml")
for architecture in amd64 arm64; do
  content=$(mktemp -d)
  install -m 0755 "$folder/quartermaster-$architecture" "$content/kubectl-quartermaster"
  install -m 0644 "$here/../../LICENSE" "$content/LICENSE"
  archive=$folder/kubectl-quartermaster_linux_$architecture.tar.gz
  # The same content makes the same archive.
  tar --create --directory "$content" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner LICENSE kubectl-quartermaster |
    gzip --no-name >"$archive"
  rm -r "$content"
  sum=$(sha256sum "$archive" | cut -d ' ' -f 1)
  manifest=${manifest//SHA256_${architecture^^}/$sum}
done
manifest=${manifest//REPOSITORY/$repository}
printf '%s\n' "${manifest//VERSION/$version}" | tail -n +2 >"$folder/quartermaster.yaml"

#!/usr/bin/env bash
# Builds a tool of the tests or pictures, once for each version, into a cache outside the work tree: from the Go module beside this file
# whose go.mod names the tool, or from the crate that NAME.crate names, with its build options. Progress goes to standard
# error; the program's path is the one line on standard output.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tool=${1:?which tool: one of a go.mod, or a crate, beside this file}
crate=$here/$tool.crate
folder=$(grep -lE "^(tool)?\s+\S+/$tool\$" "$here"/*/go.mod | xargs -r dirname || true)
if [ -e "$crate" ]; then
  pinned=("$crate")
elif [ -n "$folder" ]; then
  pinned=("$folder"/go.{mod,sum})
else
  known=$(cd "$here" && sed -nE 's|^(tool)?\s+\S+/(\S+)$|\2|p' */go.mod && basename -s .crate *.crate)
  echo "unknown tool $tool; known are:" $known >&2
  exit 1
fi

key=$(cat "${pinned[@]}" "${BASH_SOURCE[0]}" | sha256sum | cut -c1-16)
out="${XDG_CACHE_HOME:-$HOME/.cache}/quartermaster/tools/$tool-$key"

from_module() {
  export GOTOOLCHAIN=local CGO_ENABLED=0 GOFLAGS=
  cd "$folder"
  local package module
  # Targets come from files. The SDKs of the other ways of service discovery take minutes to build.
  [ "${folder##*/}" != prometheus ] || GOFLAGS=-tags=remove_all_sd
  package=$(go list tool | grep "/$tool\$")
  module=$(go list -f '{{.Module.Path}}' "$package")
  version=$(go list -f '{{.Module.Version}}' "$package")
  go build -trimpath -buildvcs=false -ldflags "-s -w -X $module/internal/version.version=$version" \
    -o "$out/$tool.part" "$package" >&2
}

# Not optimised: the tool runs for a second, and the build takes minutes.
from_crate() {
  local what
  read -ra what <"$crate"
  version=${what[0]#*@}
  (cd "$out" && CARGO_TARGET_DIR=$out/target CARGO_PROFILE_DEV_DEBUG=0 \
    cargo install --quiet --debug --locked --root "$out/root" "${what[@]}" >&2)
  mv "$out/root/bin/$tool" "$out/$tool.part"
  rm -rf "$out/target" "$out/root"
}

mkdir -p "$out"
exec 9>"$out/.lock"
flock 9 # two commands that start together build once
if [ ! -e "$out/$tool" ]; then
  echo "Building $tool (once, into $out)" >&2
  began=$SECONDS
  if [ -e "$crate" ]; then from_crate; else from_module; fi
  mv "$out/$tool.part" "$out/$tool"
  echo "  $tool $version ($((SECONDS - began)) s)" >&2
fi
echo "$out/$tool"

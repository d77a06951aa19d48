#!/usr/bin/env bash
# Builds a tool of the tests, once for each version, into a cache outside the work tree: from the Go module in the folder of
# its name beside this file, or from the crate that NAME.crate names, with its build options. Progress goes to standard
# error; the program's path is the one line on standard output.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tool=${1:?which tool: a folder or a crate beside this file}
crate=$here/$tool.crate
if [ -e "$crate" ]; then
  pinned=("$crate")
elif [ -e "$here/$tool/go.mod" ]; then
  pinned=("$here/$tool"/go.{mod,sum})
else
  echo "unknown tool $tool; known are: $(cd "$here" && echo */ *.crate | sed 's|/||g; s|\.crate||g')" >&2
  exit 1
fi

key=$(cat "${pinned[@]}" "${BASH_SOURCE[0]}" | sha256sum | cut -c1-16)
out="${XDG_CACHE_HOME:-$HOME/.cache}/quartermaster/tools/$tool-$key"

from_module() {
  export GOTOOLCHAIN=local CGO_ENABLED=0 GOFLAGS=
  cd "$here/$tool"
  local package module tags=''
  # Checking rules needs no service discovery, whose cloud SDKs take minutes to build.
  [ "$tool" != promtool ] || tags=remove_all_sd
  package=$(go list tool)
  module=$(go list -f '{{.Module.Path}}' "$package")
  version=$(go list -f '{{.Module.Version}}' "$package")
  go build -trimpath -buildvcs=false -tags "$tags" -ldflags "-s -w -X $module/internal/version.version=$version" \
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

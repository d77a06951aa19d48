#!/usr/bin/env bash
# Checks that this machine has the tools that building and testing need. Prints a line for each missing tool, with the way to
# get it, and then exits with 1.
set -uo pipefail
missing=0

miss() { # tool, how to get it
  echo "missing: $1 -> $2" >&2
  missing=1
}

has() { command -v "$1" >/dev/null 2>&1; }

at_least() { # wanted found
  [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
}

version() { # program, required version, found version (empty: not found), how to get it
  if [ -z "$3" ]; then
    miss "$1 $2 or newer" "$4"
  elif ! at_least "$2" "$3"; then
    miss "$1 $2 or newer (this is $3)" "$4"
  fi
}

package() { # command, Debian package
  has "$1" || miss "$1" "apt-get install $2, or your distribution's package"
}

[ "$(uname -s)" = Linux ] || miss "Linux" "a Linux machine, a virtual one will do"

version Rust 1.95 "$(rustc --version 2>/dev/null | cut -d ' ' -f 2)" "https://rustup.rs, then: rustup update stable"
cargo clippy --version >/dev/null 2>&1 || miss "clippy" "rustup component add clippy"
cargo fmt --version >/dev/null 2>&1 || miss "rustfmt" "rustup component add rustfmt"
has "${CC:-cc}" || miss "a C compiler" "apt-get install gcc libc6-dev, or your distribution's package"
# Only building the control plane needs Go.
if [ -z "${KUBEBUILDER_ASSETS:-}" ]; then
  version Go 1.26 "$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null | sed 's/^go//; s/ .*//')" "https://go.dev/doc/install"
fi
version Python 3.11 "$(python3 -c 'import platform; print(platform.python_version())' 2>/dev/null)" \
  "apt-get install python3, or your distribution's package"
if has python3; then
  python3 -c 'import venv, ensurepip' 2>/dev/null ||
    miss "Python's venv" "apt-get install python3-venv, or your distribution's package"
fi
package git git
package openssl openssl
package jq jq
# On nearly every Linux, but not in the smallest images.
package setpriv util-linux
package setsid util-linux
package awk mawk
echo Linux | grep -qP 'L\K\w+' 2>/dev/null || miss "grep -P" "apt-get install grep, or your distribution's package of GNU grep"
package flock util-linux
package sha256sum coreutils

exit "$missing"

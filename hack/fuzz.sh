#!/usr/bin/env bash
# Fuzzes the parsers: each target, or the one named TARGET, for a number of seconds.
#
#   hack/fuzz.sh run SECONDS [TARGET]   fuzz; new inputs go to target/fuzz/corpus, failing ones to target/fuzz/failed
#   hack/fuzz.sh merge [TARGET]         make fuzz/corpus anew from both folders, with as few inputs as possible; keep failed-*
#   hack/fuzz.sh shrink TARGET FILE     make a failing input smaller
#
# libFuzzer is compiled in, without a sanitizer, so a stable Rust suffices.
set -euo pipefail
cd "$(dirname "$0")/.."
command=${1:-}
case $command in
  run | merge | shrink) shift ;;
  *)
    echo "unknown command \"$command\": write run, merge or shrink" >&2
    exit 1
    ;;
esac

# Maximum length of an input in bytes, and maximum number of inputs of a target in fuzz/corpus.
longest=4096
most=150
machine=$(rustc -vV | sed -n 's/^host: //p')
work=${CARGO_TARGET_DIR:-target}/fuzz
programs=$work/build/$machine/release

build() {
  command -v "${CXX:-c++}" >/dev/null || { echo "missing: a C++ compiler -> apt-get install g++" >&2; exit 1; }
  # The versions of the operator.
  cp Cargo.lock fuzz/Cargo.lock
  # --target keeps the flags from build scripts.
  RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-sanitizer-coverage-stack-depth" \
    cargo build --manifest-path fuzz/Cargo.toml --target-dir "$work/build" --target "$machine" --release
}

targets() { # a target, or nothing for all
  for file in fuzz/src/bin/*.rs; do
    name=$(basename "$file" .rs)
    if [ -z "${1:-}" ] || [ "$1" = "$name" ]; then echo "$name"; fi
  done | grep . || { echo "no target $1: write one of $(targets | tr '\n' ' ')" >&2; return 1; }
}

# A thread of the operator has 2 MiB of stack.
fuzzer() { # target, options
  local name=$1
  shift
  mkdir -p "$work/corpus/$name" "$work/failed" "fuzz/corpus/$name"
  (ulimit -s 2048 && "$programs/$name" -max_len=$longest -timeout=5 -rss_limit_mb=1024 "$@")
}

names=$(targets "$(case $command in run) echo "${2:-}" ;; *) echo "${1:-}" ;; esac)")
build
failed=0
for name in $names; do
  case $command in
    run)
      echo "fuzzing $name for $1 s"
      fuzzer "$name" -max_total_time="$1" -dict="fuzz/dictionaries/$name.dict" -print_final_stats=1 \
        -artifact_prefix="$work/failed/$name-" "$work/corpus/$name" "fuzz/corpus/$name" || failed=1
      ;;
    merge)
      inputs=$(mktemp -d)
      merged=$(mktemp -d)
      # Inputs without control characters, which a diff can show.
      mkdir -p "$work/corpus/$name"
      for folder in "fuzz/corpus/$name" "$work/corpus/$name"; do
        { LC_ALL=C grep -rLaP '[\x00-\x08\x0b-\x1f\x7f]' "$folder" || true; } | xargs -r cp -t "$inputs"
      done
      fuzzer "$name" -set_cover_merge=1 -use_counters=0 "$merged" "$inputs"
      find "fuzz/corpus/$name" -type f ! -name 'failed-*' -delete
      # libFuzzer writes the input that reaches the most first.
      find "$merged" -type f -printf '%T@ %p\n' | sort -n | sed -n "1,$most s/^[^ ]* //p" | xargs cp -t "fuzz/corpus/$name"
      rm -rf "$inputs" "$merged"
      ;;
    shrink)
      fuzzer "$name" -minimize_crash=1 -max_total_time=60 -exact_artifact_path="$2.small" "$2" || true
      [ -e "$2.small" ] || { echo "$2 cannot be made smaller, or does not fail" >&2; exit 1; }
      echo "$2.small"
      ;;
  esac
done
exit $failed

# Builds the programs of the demo. Sourced by ../demo.sh.
# shellcheck shell=bash disable=SC2034,SC2154 # variables that ../demo.sh sets and reads

build() { # builds missing programs side by side; sets $plane and $cargo to the two processes
  local began=$SECONDS told=0 minutes=0 gigabytes=0 need='' new='' process still
  [ -x "$target/debug/quartermaster" ] || new=yes
  doing='building missing programs'
  if [ -n "$current" ]; then start control-plane true; else start control-plane bash hack/controlplane/build.sh; fi
  plane=${pids[-1]}
  # One profile for both, so that their dependencies are built once.
  start operator cargo build -p quartermaster -p testbed
  cargo=${pids[-1]}
  readonly plane cargo

  # Both report at once whether they build anything.
  until [ -s "$work/control-plane.log" ] || ! alive "$plane"; do sleep 0.05; done
  until grep -qE 'Compiling|Download|Blocking' "$work/operator.log" || ! alive "$cargo"; do sleep 0.05; done
  if grep -q '^Building' "$work/control-plane.log"; then
    need+=', the control plane (from its Go modules)' minutes=8 gigabytes=6
  fi
  if [ -n "$new" ]; then
    need+=', the operator and the testbed' minutes=$((minutes + 5)) gigabytes=$((gigabytes + 3))
  elif grep -q Compiling "$work/operator.log"; then
    need+=', the changes since the last run' minutes=$((minutes + 1))
  fi
  if [ -n "$need" ]; then
    chapter 'Build missing programs'
    tell "To build: ${need#, }." "About $minutes minutes on 2 cores, and ${gigabytes/#0/less than 1} GB of disk. Later runs build nothing."
  fi

  local pending=("$plane" "$cargo")
  while [ ${#pending[@]} -gt 0 ]; do
    still=()
    for process in "${pending[@]}"; do
      if alive "$process"; then still+=("$process"); else wait "$process" || fail 'the build failed'; fi
    done
    pending=(${still[@]+"${still[@]}"})
    if [ -n "$need" ] && [ -t 1 ]; then
      printf '\r\e[K%s' "$(progress $((SECONDS - began)))"
    elif [ $((SECONDS - began - told)) -ge 30 ]; then
      told=$((SECONDS - began))
      tell "$(progress "$told")"
    fi
    sleep 0.1
  done
  [ -z "$need" ] || [ ! -t 1 ] || echo
  names=() pids=()
  rm "$work/control-plane.log" "$work/operator.log"
}

progress() { # elapsed seconds: prints the progress of both in one line
  local programs crates
  programs=$(grep -c '^  .* s)$' "$work/control-plane.log") || true
  crates=$(grep -c '^ *Compiling ' "$work/operator.log") || true
  printf '  %d:%02d  control plane: %s; operator: %s' $(($1 / 60)) $(($1 % 60)) \
    "$(alive "$plane" && echo "$programs of 6 programs" || echo 'done')" \
    "$(alive "$cargo" && echo "$crates crates" || echo 'done')"
}

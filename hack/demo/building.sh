# Building what the demo runs. Read by ../demo.sh.
# shellcheck shell=bash disable=SC2034,SC2154 # what ../demo.sh has, and what it reads

build() { # builds what is missing, side by side; sets $plane and $cargo to the processes that do
  local began=$SECONDS told=0 minutes=0 gigabytes=0 need='' new='' process still
  [ -x "$target/debug/quartermaster" ] || new=yes
  doing='building what is missing'
  if [ -n "$current" ]; then start control-plane true; else start control-plane bash hack/controlplane/build.sh; fi
  plane=${pids[-1]}
  # One profile for both, so that their dependencies are built once.
  start operator cargo build -p quartermaster -p testbed
  cargo=${pids[-1]}
  readonly plane cargo

  # Each says at once whether it has anything to do.
  until [ -s "$work/control-plane.log" ] || ! alive "$plane"; do sleep 0.05; done
  until grep -qE 'Compiling|Download|Blocking' "$work/operator.log" || ! alive "$cargo"; do sleep 0.05; done
  if grep -q '^Building' "$work/control-plane.log"; then
    need+=', the control plane (from its Go modules)' minutes=7 gigabytes=6
  fi
  if [ -n "$new" ]; then
    need+=', the operator and the testbed' minutes=$((minutes + 4)) gigabytes=$((gigabytes + 3))
  elif grep -q Compiling "$work/operator.log"; then
    need+=', what changed since the last start' minutes=$((minutes + 1))
  fi
  if [ -n "$need" ]; then
    chapter 'First, what is missing is built'
    tell "That is ${need#, }:" "about $minutes minutes on 2 cores, and ${gigabytes/#0/less than 1} GB of disk. The next start needs none of it."
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

progress() { # seconds so far: one line that says how far both are
  local programs crates
  programs=$(grep -c '^  .* s)$' "$work/control-plane.log") || true
  crates=$(grep -c '^ *Compiling ' "$work/operator.log") || true
  printf '  %d:%02d  control plane: %s; operator: %s' $(($1 / 60)) $(($1 % 60)) \
    "$(alive "$plane" && echo "$programs of 6 programs" || echo 'done')" \
    "$(alive "$cargo" && echo "$crates crates" || echo 'done')"
}

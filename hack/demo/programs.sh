# What the demo starts, and its end. Read by ../demo.sh.
# shellcheck shell=bash disable=SC2154 # work, terminal and colours are of ../demo.sh

names=() pids=() # what this script started, in that order
doing='starting' # what a failure is said to have interrupted
stopped=''       # the signal that ended it, if one did

# Each program has a session of its own, so that a Ctrl-C reaches this script alone, which then ends them in order; and
# should this script be killed, the kernel ends them.
start() { # name, command...: its output goes to $work/NAME.log
  setsid setpriv --pdeathsig TERM -- "${@:2}" >"$work/$1.log" 2>&1 </dev/null {terminal}>&- &
  names+=("$1") pids+=($!)
}

alive() { kill -0 "$1" 2>/dev/null; }

end() { # process: SIGTERM to it and all that it started, SIGKILL to what is left after 5 s
  kill -TERM -- "-$1" 2>/dev/null || kill -TERM "$1" 2>/dev/null || true
  local tries
  for ((tries = 0; tries < 100; tries++)); do
    alive "$1" || break
    sleep 0.05
  done
  kill -KILL -- "-$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
}

finish() {
  local status=$? i log
  trap - EXIT
  trap '' INT TERM HUP
  set +e
  exec >&"$terminal" # whatever it came in the middle of
  if [ -n "$stopped" ]; then
    echo
    echo "Stopped ($stopped). Ending what was started ..."
  elif [ "$status" != 0 ]; then
    echo
    echo "${red}The demo failed while: $doing${plain}"
    for log in "$work"/*.log; do
      [ -s "$log" ] || continue
      echo "${bold}The last lines of $(basename "$log"):${plain}"
      tail -n 15 "$log" | sed 's/^/  /'
    done
  fi
  leave || status=1 # while what it made can still be cleaned up by who made it
  for ((i = ${#pids[@]} - 1; i >= 0; i--)); do end "${pids[i]}" 2>/dev/null; done
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT
trap 'stopped=Ctrl-C; exit 130' INT
trap 'stopped="its parent ended, or it was told to stop"; exit 143' TERM
trap 'stopped="the terminal was closed"; exit 129' HUP

fail() { # words
  doing="$doing: $*"
  exit 1
}

wait_for() { # what, seconds, command...: until the command succeeds
  local what=$1 deadline=$((SECONDS + $2)) i
  shift 2
  until "$@" >/dev/null 2>&1; do
    for i in "${!pids[@]}"; do alive "${pids[i]}" || fail "${names[i]} has ended"; done
    [ "$SECONDS" -lt "$deadline" ] || fail "$what has not come about"
    sleep 0.05
  done
}

# Starts and stops the programs of the demo. Sourced by ../demo.sh.
# shellcheck shell=bash disable=SC2154 # ../demo.sh sets work, terminal and the colours

names=() pids=() # started programs, in order
doing='starting' # the present step, for the message of a failure
stopped=''       # why the demo stops early

# Each program has a session of its own, so that Ctrl-C reaches this script alone, which then stops them in order. If this
# script is killed, the kernel stops them.
start() { # name, command...: its output goes to $work/NAME.log
  setsid setpriv --pdeathsig TERM -- "${@:2}" >"$work/$1.log" 2>&1 </dev/null {terminal}>&- &
  names+=("$1") pids+=($!)
}

alive() { kill -0 "$1" 2>/dev/null; }

end() { # process: sends SIGTERM to its process group, and SIGKILL after 5 s
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
  exec >&"$terminal" # a redirection may be in force
  if [ -n "$stopped" ]; then
    echo
    echo "Interrupted ($stopped). Stopping everything ..."
  elif [ "$status" != 0 ]; then
    echo
    echo "${red}The demo failed while: $doing${plain}"
    for log in "$work"/*.log; do
      [ -s "$log" ] || continue
      echo "${bold}Last lines of $(basename "$log"):${plain}"
      tail -n 15 "$log" | sed 's/^/  /'
    done
  fi
  leave || status=1 # while the operator can still clean up
  for ((i = ${#pids[@]} - 1; i >= 0; i--)); do end "${pids[i]}" 2>/dev/null; done
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT
trap 'stopped=Ctrl-C; exit 130' INT
trap 'stopped="SIGTERM, or the parent process ended"; exit 143' TERM
trap 'stopped="the terminal was closed"; exit 129' HUP

fail() { # message
  doing="$doing: $*"
  exit 1
}

wait_for() { # description, seconds, command...: waits until the command succeeds
  local what=$1 deadline=$((SECONDS + $2)) i
  shift 2
  until "$@" >/dev/null 2>&1; do
    for i in "${!pids[@]}"; do alive "${pids[i]}" || fail "${names[i]} has ended"; done
    [ "$SECONDS" -lt "$deadline" ] || fail "timed out waiting for $what"
    sleep 0.05
  done
}

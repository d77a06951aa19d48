# Where the demo takes place: on a control plane of its own, or with CLUSTER=current in the cluster of the current context, in
# namespaces of its own, which go again with all that it made. Read by ../demo.sh.
# shellcheck shell=bash disable=SC2034,SC2154 # what ../demo.sh has, and what it reads

readonly system=quartermaster-system
case "${CLUSTER:-}" in
  '') current='' home=default shop=shop patience=30 ;;
  # Images take their time.
  current) current=yes home=quartermaster-demo shop=quartermaster-demo-shop patience=300 ;;
  *)
    echo "CLUSTER=$CLUSTER: write CLUSTER=current for the cluster of your current context, or leave it out" >&2
    exit 2
    ;;
esac
readonly current home shop patience

# sample FILE: applies one of config/samples, in this demo's namespaces and for its receivers.
sample() {
  local changes=()
  case $1 in
    tg_v1_contactpoint.yaml) [ -z "$own_chat" ] || changes+=("s/chatId: .*/chatId: $chat_field/") ;;
    tg_v1_contactpoint_webhook.yaml) changes+=("s#https://hooks.example.com#$WEBHOOK_URL#") ;;
    # That port may be somebody's.
    kosmos_v1_appservice.yaml) [ -z "$current" ] || changes+=('/nodePort:/d') ;;
  esac
  [ -z "$current" ] || changes+=("s/amespace: default\$/amespace: $home/" "s/amespace: shop\$/amespace: $shop/")
  if [ ${#changes[@]} -gt 0 ]; then
    run "sed$(printf " -e '%s'" "${changes[@]}") config/samples/$1 | kubectl apply -f -"
  else
    run "kubectl apply -f config/samples/$1"
  fi
}

# The cluster of the current context: asks for it by name, and sees to it that nothing there is ours or in our way.
enter() {
  local context server answer=''
  doing='looking for the current context'
  command -v kubectl >/dev/null || fail 'CLUSTER=current needs kubectl on PATH'
  context=$(kubectl config current-context) || fail 'kubectl has no current context: kubectl config use-context NAME sets one'
  (umask 077 && kubectl config view --raw --minify --flatten >"$work/admin.kubeconfig")
  export KUBECONFIG=$work/admin.kubeconfig
  server=$(kubectl config view --output 'jsonpath={.clusters[0].cluster.server}')
  doing="looking at the cluster of the context $context"
  vacant
  tell "The demo will run in the cluster of your current context: $bold$context$plain, at $server" \
    "It makes the namespaces $home, $shop and $system there, seven CRDs, roles and admission policies," \
    'and removes all of it at its end. The operator itself runs on this machine, and acts in these namespaces only.'
  if [ "${YES:-}" != 1 ]; then
    [ -t 0 ] || fail 'there is no terminal to ask on: YES=1 goes on without'
    read -rp 'Go on? [y/N] ' answer
    if [[ $answer != [yY]* ]]; then
      tell 'Nothing was done.'
      exit 0
    fi
  fi
}

# Nothing of what the demo makes and removes may be in that cluster already: it is somebody's.
vacant() {
  local there
  there=$(kubectl get --ignore-not-found --output name -k config/local && kubectl get --ignore-not-found --output name namespace "$home" "$shop") ||
    fail 'the cluster cannot be asked'
  [ -z "$there" ] || fail "of what the demo makes and removes, this is there already:
$there
Where Quartermaster or a program of the tutorials is installed the demo does not run. What a demo that was killed left goes with
  quartermaster uninstall --without-operator --purge
  kubectl delete --ignore-not-found namespace $home $shop
  kubectl delete --ignore-not-found -k config/local"
}

# Makes room in that cluster, just before the demo makes the rest. Nothing where the cluster is its own.
settle_in() {
  [ -n "$current" ] || return 0
  vacant
  entered=yes
  run "kubectl create namespace $home"
  run "kubectl create namespace $shop"
  kubectl config set-context --current --namespace="$home" >/dev/null
}
entered='' # once something may have been made there
operator='' # its process

# Takes away what was made in somebody's cluster; so far the programs of the demo still run. Nothing where there is none.
leave() {
  [ -n "$entered" ] || return 0
  local uninstalled=''
  echo
  echo "Removing what was made in the cluster ..."
  {
    quartermaster uninstall --yes --purge --timeout=2m && uninstalled=yes
    [ -z "$operator" ] || end "$operator" # before its rights go
    [ -n "$uninstalled" ] || quartermaster uninstall --yes --purge --without-operator --timeout=2m
    kubectl delete --ignore-not-found --timeout=2m namespace "$home" "$shop" && kubectl delete --ignore-not-found --timeout=2m -k config/local
  } >"$work/leave.log" 2>&1 && return 0
  tail -n 15 "$work/leave.log" | sed 's/^/  /'
  echo "${red}Not all of it is gone.${plain} What is left goes with: kubectl delete --ignore-not-found namespace $home $shop;" \
    "kubectl delete --ignore-not-found -k config/local"
  return 1
}

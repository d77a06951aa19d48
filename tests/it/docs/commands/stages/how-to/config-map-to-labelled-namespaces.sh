for namespace in platform shop cart; do
  kubectl create namespace $namespace --dry-run=client -o yaml | kubectl apply -f -
  kubectl label namespace $namespace team-
done
kubectl -n platform create configmap settings --from-literal=colour=blue

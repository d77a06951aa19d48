for namespace in platform shop; do
  kubectl create namespace $namespace --dry-run=client -o yaml | kubectl apply -f -
done
kubectl -n platform create configmap settings --from-literal=colour=blue
kubectl -n shop create configmap settings --from-literal=colour=red

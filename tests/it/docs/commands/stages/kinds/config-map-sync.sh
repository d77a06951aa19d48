for namespace in platform shop cart checkout; do
  kubectl create namespace $namespace --dry-run=client -o yaml | kubectl apply -f -
done
kubectl label namespace shop cart checkout team=shop
kubectl -n platform create configmap settings --from-literal=colour=blue

kubectl create namespace ops --dry-run=client -o yaml | kubectl apply -f -
for namespace in shop cart; do
  kubectl create namespace $namespace --dry-run=client -o yaml | kubectl apply -f -
  kubectl label namespace $namespace env=prod --overwrite
  kubectl -n $namespace create deployment web --image=nginx:1.28
done
kubectl -n ops create secret generic telegram-cp-token --from-literal=token=12345678:ABCDEFUABCDEFUABCDEFUABCDEFU

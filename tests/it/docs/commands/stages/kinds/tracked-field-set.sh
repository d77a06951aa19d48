kubectl delete namespace ops --ignore-not-found
kubectl create namespace ops
kubectl -n ops create secret generic telegram-cp-token --from-literal=token=12345678:ABCDEFUABCDEFUABCDEFUABCDEFU
sed 's/namespace: default/namespace: ops/; s/name: telegram-cp$/name: slack/' config/samples/tg_v1_contactpoint.yaml | kubectl apply -f -
for namespace in shop cart; do
  kubectl create namespace $namespace --dry-run=client -o yaml | kubectl apply -f -
  kubectl label namespace $namespace env=prod --overwrite
  kubectl -n $namespace create deployment web --image=nginx:1.28 --dry-run=client -o yaml | kubectl apply -f -
  kubectl -n $namespace label deployment web tier=web --overwrite
done
#: kubectl -n ops get tfs
kubectl -n ops wait --for=condition=Ready tfs/prod-images --timeout=60s

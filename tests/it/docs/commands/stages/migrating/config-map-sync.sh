#! nothing is installed
kubectl delete crd --all
kubectl apply -f tests/it/crds/original.yaml
kubectl wait --for=condition=Established crd/configmapsyncs.apps.bixbite.io
for namespace in shop cart; do
  kubectl create namespace $namespace --dry-run=client -o yaml | kubectl apply -f -
done
kubectl create deployment configmapsync-operator --image=controller
kubectl create configmap settings --from-literal=colour=blue
kubectl -n shop create configmap settings --from-literal=colour=blue
kubectl -n cart create configmap settings --from-literal=colour=red
kubectl apply -f config/samples/apps_v1_configmapsync.yaml
sed 's/: shop/: cart/; s/configmapsync-sample/another/' config/samples/apps_v1_configmapsync.yaml | kubectl apply -f -
#: kubectl wait --for=condition=Ready --timeout=1m configmapsyncs --all -A
#! the operator starts

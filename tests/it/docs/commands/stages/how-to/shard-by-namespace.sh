#! nothing is installed
kubectl delete crd --all
for namespace in shop shop-staging billing; do
  kubectl delete namespace $namespace --ignore-not-found
done
#: quartermaster uninstall -n shop-staging --operator-namespace=billing-system --yes
kubectl -n shop-staging create configmap settings --from-literal=colour=blue
kubectl apply -f - <<YAML
apiVersion: apps.bixbite.io/v1
kind: ConfigMapSync
metadata: {name: settings, namespace: shop-staging}
spec: {sourceNamespace: shop-staging, destinationNamespace: shop-staging, configMapName: settings, destinationName: copy}
YAML
# The test's operator runs as this account, in the place of the releases' operators.
kubectl create namespace quartermaster-system --dry-run=client -o yaml | kubectl apply -f -
kubectl -n quartermaster-system create serviceaccount quartermaster-controller-manager
kubectl create clusterrolebinding in-place --clusterrole=cluster-admin --serviceaccount=quartermaster-system:quartermaster-controller-manager
#! the operator starts
#: quartermaster uninstall -n billing --operator-namespace=billing-system --yes
kubectl delete clusterrolebinding in-place
kubectl -n quartermaster-system delete serviceaccount quartermaster-controller-manager
#! the operator ends

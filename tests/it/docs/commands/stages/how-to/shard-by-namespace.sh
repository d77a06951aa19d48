#! nothing is installed
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
#! the operator starts

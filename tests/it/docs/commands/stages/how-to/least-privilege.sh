#! nothing is installed
#= APISERVER 10.0.0.1
kubectl delete namespace shop --ignore-not-found
#: quartermaster uninstall -n shop --yes
kubectl -n shop create configmap settings --from-literal=colour=blue
kubectl apply -f - <<YAML
apiVersion: apps.bixbite.io/v1
kind: ConfigMapSync
metadata: {name: settings, namespace: shop}
spec: {sourceNamespace: shop, destinationNamespace: shop, configMapName: settings, destinationName: copy}
YAML
# The test's operator watches all namespaces.
kubectl create clusterrolebinding in-place --clusterrole=cluster-admin --serviceaccount=quartermaster-system:quartermaster-controller-manager
#! the operator starts
#: helm uninstall quartermaster -n quartermaster-system
kubectl delete clusterrolebinding in-place
#! the operator ends

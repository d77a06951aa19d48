#= NAMESPACE default
#= NAME web
#= DESTINATION shop
#= COPY settings
kubectl create namespace shop --dry-run=client -o yaml | kubectl apply -f -
kubectl create configmap settings --from-literal=colour=blue
kubectl -n shop create configmap settings --from-literal=colour=red
kubectl apply -f - <<YAML
apiVersion: apps.bixbite.io/v1
kind: ConfigMapSync
metadata: {name: web}
spec: {sourceNamespace: default, destinationNamespace: shop, configMapName: settings}
YAML

#! nothing is installed
# The Prometheus operator's CRDs, without their schemas.
for kind in ServiceMonitor PrometheusRule; do
  plural=$(tr A-Z a-z <<<$kind)s
  kubectl apply -f - <<YAML
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: $plural.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: $kind, listKind: ${kind}List, plural: $plural, singular: ${plural%s}}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
YAML
  kubectl wait --for=condition=Established crd/$plural.monitoring.coreos.com
done
helm install quartermaster charts/quartermaster -n quartermaster-system --create-namespace
#: kubectl delete clusterrolebinding quartermaster-metrics-prometheus
kubectl delete crd servicemonitors.monitoring.coreos.com prometheusrules.monitoring.coreos.com

kubectl apply -k config/default
kubectl create namespace shop --dry-run=client -o yaml | kubectl apply -f -
kubectl create configmap settings --from-literal=colour=blue
kubectl apply -f example/example_appservice.yaml -f example/example_configmapsync.yaml -f example/example_myapp.yaml
#: kubectl get quartermaster -A -o json |
kubectl wait --for=condition=Ready appsvc/appservice-sample cmsync/configmapsync-sample ma/example-app --timeout=60s
#: kubectl -n quartermaster-system scale deployment/quartermaster-controller-manager --replicas=0
#! the operator ends
#: kubectl apply -f quartermaster.json
# They are lost, and what they made is not.
kubectl patch cmsync configmapsync-sample --type=merge -p '{"metadata": {"finalizers": null}}'
kubectl delete cmsync,appsvc,ma --all --cascade=orphan
#: kubectl -n quartermaster-system scale deployment/quartermaster-controller-manager --replicas=2
#! the operator starts

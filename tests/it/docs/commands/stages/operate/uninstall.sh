#! nothing is installed
helm install quartermaster charts/quartermaster -n quartermaster-system --create-namespace
#: quartermaster uninstall --keep-children --yes
helm install quartermaster charts/quartermaster -n quartermaster-system
kubectl create namespace shop --dry-run=client -o yaml | kubectl apply -f -
kubectl create configmap settings --from-literal=colour=blue
kubectl apply -f example/example_configmapsync.yaml
#! the operator starts
#: quartermaster uninstall --purge --yes
helm install quartermaster charts/quartermaster -n quartermaster-system
kubectl apply -f example/example_configmapsync.yaml
#! the operator starts

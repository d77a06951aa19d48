#! nothing is installed
#= YOUR_BOTS_TOKEN 12345678:ABCDEFUABCDEFUABCDEFUABCDEFU
#= YOUR_CHAT 12345678
#: kubectl -n quartermaster-system rollout status deployment/quartermaster-controller-manager
# What `make deploy` does.
kubectl apply -k config/default
#: helm install quartermaster charts/quartermaster -n quartermaster-system --create-namespace --set image.repository=YOUR.REGISTRY/quartermaster,image.tag=0.1.0
kubectl delete cp,tf,cmsync,appsvc --all
another-cluster

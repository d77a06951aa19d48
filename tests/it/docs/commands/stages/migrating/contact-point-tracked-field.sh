#! nothing is installed
#= NAMESPACE default
#= NAME telegram-cp
kubectl delete crd --all
old=habr-k8s-resource-tracker-system
kubectl apply -f tests/it/crds/original.yaml
kubectl wait --for=condition=Established crd/contactpoints.tg.azamaton.ru crd/trackedfields.tg.azamaton.ru
kubectl create namespace $old
kubectl -n $old create deployment habr-k8s-resource-tracker-controller-manager --image=controller
kubectl -n $old create secret generic telegram-cp-token --from-literal=token=12345678:ABCDEFUABCDEFUABCDEFUABCDEFU
kubectl create clusterrole habr-k8s-resource-tracker-manager-role --verb=get --resource=secrets
kubectl apply -f config/samples/deploy.yaml
sed 's/type: Telegram/type: Chat/' config/samples/tg_v1_contactpoint.yaml | kubectl apply -f -
kubectl patch contactpoint telegram-cp --subresource=status --type=merge -p '{"status": {"initialized": true, "ready": true}}'
sed 's/telegram-cp/telegram-chat/' config/samples/tg_v1_trackedfield.yaml | kubectl apply -f -
#: quartermaster adopt
for namespace in shop cart; do
  kubectl create namespace $namespace --dry-run=client -o yaml | kubectl apply -f -
done
kubectl create configmap settings --from-literal=colour=blue
kubectl -n shop create configmap settings --from-literal=colour=red
kubectl apply -f config/samples/apps_v1_configmapsync.yaml
#: kubectl get cmsync -A -o wide | grep Conflict
kubectl -n cart create configmap settings --from-literal=colour=red
sed 's/: shop/: cart/; s/configmapsync-sample/another/' config/samples/apps_v1_configmapsync.yaml | kubectl apply -f -
#: kubectl -n default scale deployment controller-operator --replicas=0
kubectl create deployment controller-operator --image=simple-controller
kubectl apply -f config/samples/kosmos_v1_appservice.yaml
#: kubectl annotate pods example-app-pod -n default quartermaster.dev/adopt-by=default/example-app
kubectl run example-app-pod --image=nginx
kubectl apply -f config/samples/demo_v1_myapp.yaml
#: kubectl annotate myingress myapp -n default quartermaster.dev/requested-at="$(date +%s)" --overwrite
kubectl apply -f config/samples/demo_v1_myingress.yaml

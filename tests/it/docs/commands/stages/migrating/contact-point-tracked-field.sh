#! nothing is installed
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

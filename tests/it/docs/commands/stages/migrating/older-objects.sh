#! nothing is installed
kubectl delete crd --all
kubectl apply -f tests/it/crds/original.yaml
kubectl wait --for=condition=Established crd/contactpoints.tg.azamaton.ru crd/trackedfields.tg.azamaton.ru
kubectl create secret generic telegram-cp-token --from-literal=token=12345678:ABCDEFUABCDEFUABCDEFUABCDEFU
sed 's/type: Telegram/type: Chat/' config/samples/tg_v1_contactpoint.yaml | kubectl apply -f -
#: quartermaster status
kubectl apply --server-side --force-conflicts -k config/local
kubectl wait --for=condition=Established crd/contactpoints.tg.azamaton.ru crd/trackedfields.tg.azamaton.ru
#! the operator starts

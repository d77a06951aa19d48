kubectl create namespace shop --dry-run=client -o yaml | kubectl apply -f -
kubectl config set-context --current --namespace=shop
kubectl create secret generic telegram-cp-token --from-literal=token=12345678:ABCDEFUABCDEFUABCDEFUABCDEFU
for sample in tg_v1_contactpoint deploy; do
  sed 's/namespace: default/namespace: shop/' config/samples/$sample.yaml | kubectl apply -f -
done
kubectl apply -f - <<YAML
apiVersion: tg.azamaton.ru/v1
kind: TrackedField
metadata: {name: nginx-replicas}
spec: {target: {kind: Deployment, namespace: shop, name: nginx}, field: replicas, contactPoint: telegram-cp}
YAML
#: quartermaster history tf/nginx-replicas -n shop
kubectl wait --for=jsonpath='{.status[0].delivery}'=Delivered tf/nginx-replicas
kubectl scale deployment nginx --replicas 4
kubectl wait --for=jsonpath='{.status[1].delivery}'=Delivered tf/nginx-replicas
kubectl patch cp telegram-cp --type=merge -p '{"spec": {"suspend": true}}'
kubectl wait --for=jsonpath='{.status.conditions[0].reason}'=Suspended cp/telegram-cp
kubectl scale deployment nginx --replicas 2
#: quartermaster history tfs/prod-images -n shop
kubectl patch cp telegram-cp --type=merge -p '{"spec": {"suspend": false}}'
kubectl wait --for=condition=Ready --timeout=1m cp/telegram-cp
kubectl create deployment search --image=nginx:1.28
kubectl apply -f - <<YAML
apiVersion: tg.azamaton.ru/v1
kind: TrackedFieldSet
metadata: {name: prod-images}
spec: {target: {kind: Deployment, names: {include: [search, stock]}}, fields: [image], template: {contactPoint: telegram-cp}}
YAML
kubectl wait --for=jsonpath='{.status.children}'=1 tfs/prod-images
kubectl wait --for=jsonpath='{.status[0].skipped}'=Initial tf -l quartermaster.dev/set=prod-images
sleep 1 # the API counts the age of objects in seconds
kubectl create deployment stock --image=nginx:1.28
kubectl wait --for=jsonpath='{.status.children}'=2 tfs/prod-images
kubectl wait --for=jsonpath='{.status[0].delivery}'=Delivered tf/$(kubectl get tf -o name | grep -o 'prod-images-shop-stock-.*')
kubectl set image deployment/search nginx=nginx:1.29
kubectl wait --for=jsonpath='{.status[1].delivery}'=Delivered tf/$(kubectl get tf -o name | grep -o 'prod-images-shop-search-.*')
#: quartermaster test cp/telegram-cp -n shop
kubectl patch cp telegram-cp --type=merge -p '{"spec": {"suspend": false}}'
kubectl wait --for=condition=Ready --timeout=1m cp/telegram-cp
#: quartermaster uninstall --keep-children
kubectl create configmap settings -n default --from-literal=colour=blue
kubectl apply -n default -f example/example_configmapsync.yaml
kubectl wait -n default --for=condition=Ready cmsync/configmapsync-sample
#: quartermaster uninstall --without-operator --operator-namespace=quartermaster-system
kubectl apply --server-side --force-conflicts -k config/local
kubectl wait --for=condition=Established crd/configmapsyncs.apps.bixbite.io
kubectl -n shop delete configmap settings
kubectl apply -n default -f example/example_configmapsync.yaml
kubectl wait -n default --for=condition=Ready cmsync/configmapsync-sample
#! the operator ends
#: quartermaster uninstall --without-operator --operator-namespace=quartermaster-system --yes
kubectl apply -n default -f example/example_configmapsync.yaml

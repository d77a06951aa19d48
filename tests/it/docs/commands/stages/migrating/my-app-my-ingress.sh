#! nothing is installed
kubectl delete crd --all
kubectl apply -f tests/it/crds/original.yaml
kubectl wait --for=condition=Established crd/myapps.demo.rtfm.co.ua crd/myingresses.demo.rtfm.co.ua
kubectl apply -f config/samples/demo_v1_myapp.yaml -f config/samples/demo_v1_myingress.yaml
kubectl patch myapp example-app --type=merge -p '{"metadata":{"finalizers":["kopf.zalando.org/KopfFinalizerMarker"]}}'
kubectl apply -f - <<YAML
apiVersion: v1
kind: Pod
metadata: {name: example-app-pod, namespace: default, labels: {app: example-app}}
spec:
  containers:
  - name: example-app
    image: nginx:latest
    env: [{name: BANNER}, {name: BANNER, value: "This pod was created by MyApp operator 🚀"}]
YAML
#: kubectl wait --for=condition=Ready --timeout=5m myapps,myingresses --all -A
#! the operator starts

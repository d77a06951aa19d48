#! nothing is installed
kubectl delete crd --all
kubectl apply -f tests/it/crds/original.yaml
kubectl wait --for=condition=Established crd/appservices.kosmos.io
kubectl create deployment controller-operator --image=simple-controller
kubectl apply -f config/samples/kosmos_v1_appservice.yaml
uid=$(kubectl get appservice appservice-sample -o jsonpath='{.metadata.uid}')
# What the program makes.
kubectl create --field-manager=operator -f - <<YAML
apiVersion: apps/v1
kind: Deployment
metadata:
  name: appservice-sample
  namespace: default
  ownerReferences:
  - {apiVersion: kosmos.io/v1, kind: AppService, name: appservice-sample, uid: $uid, controller: true, blockOwnerDeletion: true}
spec:
  replicas: 2
  selector: {matchLabels: {app: appservice-sample}}
  template:
    metadata: {labels: {app: appservice-sample}}
    spec:
      containers:
      - {name: appservice-sample, image: "nginx:1.29", imagePullPolicy: IfNotPresent, ports: [{containerPort: 80}]}
---
apiVersion: v1
kind: Service
metadata:
  name: appservice-sample
  namespace: default
  ownerReferences:
  - {apiVersion: kosmos.io/v1, kind: AppService, name: appservice-sample, uid: $uid, controller: true, blockOwnerDeletion: true}
spec:
  type: NodePort
  selector: {app: appservice-sample}
  ports:
  - {port: 80, targetPort: 80, nodePort: 30002}
YAML
kubectl rollout status deployment/appservice-sample --timeout=60s
#: kubectl wait --for=condition=Ready --timeout=5m appservices --all -A
#! the operator starts

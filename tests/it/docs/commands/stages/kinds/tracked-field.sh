kubectl create secret generic telegram-cp-token --from-literal=token=12345678:ABCDEFUABCDEFUABCDEFUABCDEFU
kubectl apply -f config/samples/tg_v1_contactpoint.yaml -f config/samples/deploy.yaml
#: kubectl get trackedfields
kubectl wait --for=jsonpath='{.status[0].delivery}'=Delivered tf/nginx-deployment-replicas
kubectl scale deployment nginx --replicas 3

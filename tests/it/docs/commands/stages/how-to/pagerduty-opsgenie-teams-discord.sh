#= TEAMS_URL $(cat service-url)/teams
#= DISCORD_URL $(cat service-url)/discord
#= config/samples/tg_v1_contactpoint_pagerduty.yaml pagerduty.yaml
#= config/samples/tg_v1_contactpoint_opsgenie.yaml opsgenie.yaml
#= config/samples/tg_v1_contactpoint_jira_service_management.yaml jira_service_management.yaml
setsid python3 tests/it/docs/commands/receiver.py service </dev/null >receiver.err 2>&1 &
until [ -s service-url ]; do sleep 0.1; done
for service in pagerduty opsgenie jira_service_management; do
  sed "s|https://.*|$(cat service-url)/$service|" config/samples/tg_v1_contactpoint_$service.yaml >$service.yaml
done
kubectl create deployment web --image=nginx:1.28
#: kubectl set image deployment/web nginx=nginx:1.29
kubectl wait --for=jsonpath='{.status[0].value}'=nginx:1.28 trackedfield/web-image
for service in opsgenie teams discord; do
  kubectl get trackedfield web-image -o json |
    jq --arg name $service '{apiVersion, kind, metadata: {name: $name, namespace: .metadata.namespace}, spec: (.spec | .contactPoint = $name)}' |
    kubectl apply -f -
  kubectl wait --for=jsonpath='{.status[0].value}'=nginx:1.28 trackedfield/$service
done
#: kubectl get trackedfields
for service in web-image opsgenie teams discord; do
  kubectl wait --for=jsonpath='{.status[-1:].delivery}'=Delivered trackedfield/$service
done
# Each service has received the message.
jq -es 'map(.payload.custom_details.text // .description // .content // .attachments[0].content.body[0].text)
  | map(select(startswith("Resource kind: Deployment\nName: web\nStatus: Updated\n"))) | length == 4' service.log
kubectl delete trackedfield opsgenie teams discord

#= RESOURCE deployments

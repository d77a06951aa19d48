kubectl delete namespace shop --ignore-not-found

//! etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok, as child processes on loopback.

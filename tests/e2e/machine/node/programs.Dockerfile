# All programs of a Kubernetes node over Debian's own (iptables, conntrack, a shell). A node runs its control plane, its
# name server and its volumes from this one image under several names; the node image is built upon it too.
ARG BASE_IMAGE
FROM ${BASE_IMAGE} AS programs
COPY built/ files/usr/local/bin/node-network /usr/local/bin/
RUN for name in kubeadm kubelet kubectl kube-apiserver kube-controller-manager kube-scheduler kube-proxy; do \
        ln -s kubernetes "/usr/local/bin/$name"; \
    done

# These two are started without a command.
FROM programs AS coredns
ENTRYPOINT ["/usr/local/bin/coredns"]

FROM programs AS pause
ENTRYPOINT ["/usr/local/bin/pause"]

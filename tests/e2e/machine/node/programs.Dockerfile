# What runs on nodes as containers. Small: every node unpacks these before its first pod.
ARG BASE_IMAGE
FROM ${BASE_IMAGE} AS network
# Of a node's Debian what programs of its network need, which is less than half: one Debian less to make.
RUN rm -r /usr/bin/containerd* /usr/bin/ctr /usr/sbin/runc /usr/lib/cni

FROM scratch AS programs
COPY --from=network / /
COPY built/kubernetes built/etcd built/local-path-provisioner files/usr/local/bin/node-network /usr/local/bin/
RUN for name in kubectl kube-apiserver kube-controller-manager kube-scheduler kube-proxy; do \
        ln -s kubernetes "/usr/local/bin/$name"; \
    done

FROM scratch AS coredns
COPY built/coredns /coredns
ENTRYPOINT ["/coredns"]

FROM scratch AS pause
COPY built/pause /pause
ENTRYPOINT ["/pause"]

# A cluster of one etcd, one API server and nodes without kubelets, in a sandbox of the lab.
# shellcheck shell=sh disable=SC2034,SC2154

server=172.30.0.1

kubectl() { "$programs" kubectl "$@"; }

# Processes are stopped by their names.
start() {
    name=$1; shift
    "$@" >"$folder/$name.log" 2>&1 &
    echo $! >"$folder/$name.pid"
}

stop() {
    pid=$(cat "$folder/$1.pid")
    kill -"${2:-TERM}" "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
}

start_etcd() {
    start etcd "$programs" etcd --data-dir "$folder/etcd" --unsafe-no-fsync --log-level warn
}

start_server() {
    start server "$programs" kube-apiserver --etcd-servers=http://127.0.0.1:2379 \
        --bind-address=$server --advertise-address=$server --cert-dir="$folder/certs" \
        --service-account-issuer=https://kubernetes.default.svc \
        --service-account-key-file="$folder/key.pub" \
        --service-account-signing-key-file="$folder/key" \
        --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
        --anonymous-auth=false --token-auth-file="$folder/tokens" --etcd-compaction-interval=0 \
        --service-cluster-ip-range=10.96.0.0/16 \
        --audit-policy-file="$folder/audit.yml" --audit-log-path="$folder/audit.log" "$@"
    until_true 120 kubectl get --raw /readyz
}

build_cluster() {
    ip link add cluster type bridge
    ip address add $server/24 dev cluster
    ip -6 address add fd30::1/64 dev cluster nodad
    ip link set cluster up
    openssl genrsa -out "$folder/key" 2048 2>/dev/null
    openssl rsa -in "$folder/key" -pubout -out "$folder/key.pub" 2>/dev/null
    printf '%s\n' admin,admin,admin,system:masters \
        kubelet-n1,system:node:n1,n1,system:nodes >"$folder/tokens"
    cat >"$folder/audit.yml" <<END
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata, users: ["system:serviceaccount:kube-flannel:flannel"]}, {level: None}]
END
    export KUBECONFIG="$folder/kubeconfig"
    cat >"$KUBECONFIG" <<END
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://$server:6443", certificate-authority: "$folder/certs/apiserver.crt"}}]
users: [{name: admin, user: {token: admin}}]
contexts: [{name: c, context: {cluster: c, user: admin}}]
current-context: c
END
    start_etcd
    start_server
}

# Creates a host and its Node, as a kubelet and the controller manager do.
build_node() {
    number=$1
    ip netns add "n$number"
    ip link add "v$number" type veth peer name eth0 netns "n$number"
    ip link set "v$number" master cluster up
    ip -n "n$number" link set lo up
    ip -n "n$number" link set eth0 up
    ip -n "n$number" address add "172.30.0.1$number/24" dev eth0
    ip -n "n$number" address add "fd30::1$number/64" dev eth0 nodad
    ip -n "n$number" route add default via $server
    ip netns exec "n$number" sysctl --quiet --write net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
    create_node "$number" "$number"
}

# Creates Node number $1 with the subnets of number $2.
create_node() {
    number=$1
    kubectl create --filename - >/dev/null <<END
apiVersion: v1
kind: Node
metadata: {name: n$number, labels: {kubernetes.io/os: linux}, annotations: {node.alpha.kubernetes.io/ttl: "0"}}
spec: {podCIDR: 10.244.$2.0/24, podCIDRs: [10.244.$2.0/24, "fd00:244:0:$2::/64"]}
END
    kubectl patch node "n$number" --subresource=status --patch "$(cat <<END
status:
  capacity: {cpu: "2", memory: 4Gi, pods: "110"}
  addresses: [{type: InternalIP, address: 172.30.0.1$number}]
  images: [{names: ["registry.k8s.io/pause:3.10"], sizeBytes: 300000}]
  conditions:
  - {type: Ready, status: "True"}
  - {type: NetworkUnavailable, status: "True"}
END
)" >/dev/null
}

# Creates the pod as the controller of the DaemonSet does, and the files that the kubelet mounts.
build_pod() {
    number=$1
    spec=$(kubectl --namespace kube-flannel get daemonset kube-flannel-ds --output 'jsonpath={.spec.template.spec}')
    kubectl --namespace kube-flannel delete pod "kube-flannel-n$number" --ignore-not-found --force >/dev/null 2>&1
    kubectl create --filename - <<END
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kube-flannel-n$number", "namespace": "kube-flannel"},
 "spec": ${spec%\}}, "nodeName": "n$number"}}
END
    account="$folder/n$number/account"
    mkdir -p "$account" "$folder/n$number/run"
    kubectl --namespace kube-flannel create token flannel --bound-object-kind Pod \
        --bound-object-name "kube-flannel-n$number" >"$account/token"
    cp "$folder/certs/apiserver.crt" "$account/ca.crt"
    printf kube-flannel >"$account/namespace"
}

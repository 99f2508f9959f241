# Daemons in their own network namespaces, with the service accounts of their pods.
# shellcheck shell=sh disable=SC2154

# Starts the daemon of node number $1 with further arguments.
start_daemon() {
    number=$1; shift
    start "tweedd$number" ip netns exec "n$number" \
        sh -c 'mount --bind "$0" /run/secrets/kubernetes.io/serviceaccount && exec "$@"' \
        "$folder/n$number/account" \
        env KUBERNETES_SERVICE_HOST=$server KUBERNETES_SERVICE_PORT=6443 \
        NODE_NAME="n$number" POD_NAMESPACE=kube-flannel \
        "$tweedd" --kube-subnet-mgr --ip-masq --healthz-port=8081 --iface=eth0 \
        --net-config-path="$folder/net-conf.json" --subnet-file="$folder/n$number/run/subnet.env" "$@"
}

# Mounts the ConfigMap as a file, as kubelets do.
mount_config() {
    while sleep 0.3; do
        kubectl --namespace kube-flannel get configmap kube-flannel-cfg \
            --output 'jsonpath={.data.net-conf\.json}' >"$folder/net-conf.new" || continue
        cmp --silent "$folder/net-conf.new" "$folder/net-conf.json" ||
            mv "$folder/net-conf.new" "$folder/net-conf.json"
    done
}

write_config() {
    kubectl --namespace kube-flannel patch configmap kube-flannel-cfg --type merge --patch \
        "$(printf '{"data": {"net-conf.json": "%s"}}' "$(echo "$1" | sed 's/"/\\"/g')")"
}

is_ready() { ip netns exec "n$1" curl --silent --fail http://127.0.0.1:8081/readyz; }

# Node $1 has a route to range $2 that contains $3.
reaches() { ip -n "n$1" route show "$2" | grep --quiet -- "$3"; }
reaches6() { ip -n "n$1" -6 route show "$2" | grep --quiet -- "$3"; }
reaches_no_more() { [ -z "$(ip -n "n$1" route show "$2")" ]; }

annotation() { kubectl get node "$1" --output "jsonpath={.metadata.annotations.flannel\.alpha\.coreos\.com/$2}"; }
has_annotation() { annotation "$1" "$2" | grep --quiet -- "$3"; }
is_available() {
    kubectl get node "$1" --output 'jsonpath={.status.conditions[?(@.type=="NetworkUnavailable")].status}/{.status.conditions[?(@.type=="NetworkUnavailable")].reason}' |
        grep --quiet '^False/FlannelIsUp$'
}
reports() { kubectl --namespace kube-flannel get configmap "tweed-node-$1" --output 'jsonpath={.data.report}' | grep --quiet .; }

# The requests of daemons since the last call, one in a line: node, verb, path, status.
asked() {
    lines=$(wc --lines <"$folder/audit.log")
    tail --lines "+$((${seen:-0} + 1))" "$folder/audit.log" | grep '"stage":"ResponseComplete"' |
        sed 's/.*"requestURI":"\([^"]*\)","verb":"\([^"]*\)".*"authentication.kubernetes.io\/node-name":\["\([^"]*\)"\].*"code":\([0-9]*\).*/\3 \2 \1 \4/' >"$folder/asked"
    seen=$lines
}

# Daemons have sent no request of this kind since the last call.
never_asked() {
    asked
    ! grep "$1" "$folder/asked"
}

check_start() {
    kubectl --namespace kube-flannel delete secret tweed-probes >/dev/null
    network='"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/32"'
    write_config "{$network,\"Mixed\":true,\"Backend\":{\"Type\":\"vxlan\"}}" >/dev/null
    start mount mount_config
    asked
    for number in 1 2 3; do start_daemon $number; done
    for number in 1 2 3; do follows "the daemon of n$number is ready" is_ready $number; done
    follows "n1 reaches n2's pods" reaches 1 10.244.2.0/24 flannel.1
    follows "n1 reaches n2's pods by IPv6" reaches6 1 fd00:244:0:2::/64 flannel-v6.1
    follows "n1 publishes its public IP" has_annotation n1 public-ip 172.30.0.11
    follows "n1 publishes its public IPv6" has_annotation n1 public-ipv6 fd30::11
    follows "n1 is available for pods" is_available n1
    follows "n1 reports to the operator" reports n1
    asked
    passes "requests of a daemon were recorded" grep --quiet '^n1 ' "$folder/asked"
    passes "no request of a daemon was refused" never 403
    passes "nodes were read as a stream" grep --quiet 'sendInitialEvents=true.*"code":200' "$folder/audit.log"
}

never() { ! grep " $1\$" "$folder/asked"; }

# A node as flanneld publishes it.
check_flanneld() {
    kubectl create --filename - >/dev/null <<END
apiVersion: v1
kind: Node
metadata:
  name: n4
  annotations:
    flannel.alpha.coreos.com/backend-data: '{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}'
    flannel.alpha.coreos.com/backend-type: vxlan
    flannel.alpha.coreos.com/kube-subnet-manager: "true"
    flannel.alpha.coreos.com/public-ip: 172.30.0.14
spec: {podCIDR: 10.244.4.0/24, podCIDRs: [10.244.4.0/24]}
END
    follows "n1 reaches the pods of a node that runs flanneld" reaches 1 10.244.4.0/24 flannel.1
    passes "that node is reached by the VTEP that flanneld published" sees_neighbour 10.244.4.0 12:c6:65:89:b4:e3
    kubectl delete node n4 >/dev/null
    follows "a deleted node of flanneld has no route" reaches_no_more 1 10.244.4.0/24
}

sees_neighbour() { ip -n n1 neighbour show "$1" dev flannel.1 | grep --quiet "$2"; }

is_quiet() { asked; sleep 5; never_asked .; }

check_heartbeats() {
    until_true 60 is_quiet
    for beat in $(seq 1 30); do
        kubectl patch node n2 --subresource=status --patch \
            '{"status": {"conditions": [{"type": "Ready", "status": "True", "message": "'"$beat"'"}]}}' >/dev/null
    done
    passes "thirty heartbeats cause no request" never_asked ' patch \| list \| create '
}

check_flip() {
    write_config "{$network,\"Mixed\":true,\"Backend\":{\"Type\":\"host-gw\"}}" >/dev/null
    follows "an edit of the ConfigMap changes the backend" reaches 1 10.244.2.0/24 'via 172.30.0.12 dev eth0'
    follows "the backend of IPv6 changes too" reaches6 1 fd00:244:0:2::/64 'via fd30::12 dev eth0'
    follows "n1 publishes its new backend" has_annotation n1 backend-type host-gw
    write_config "{$network,\"Mixed\":true,\"Backend\":{\"Type\":\"vxlan\"}}" >/dev/null
    follows "another edit changes it back" reaches 1 10.244.2.0/24 flannel.1
    follows "n1 publishes its old backend again" has_annotation n1 backend-type vxlan
    follows "an event about n1 shows the change of its backend" has_event n1 BackendChanged
}

# Whether `kubectl describe node` shows an event with this reason.
has_event() {
    kubectl describe node "$1" | grep --quiet "Normal *$2 .* tweedd "
}

migrate() { "$tweedctl" migrate --kube-subnet-mgr --kubeconfig-file "$KUBECONFIG" "$@"; }

check_migration() {
    passes "a migration is planned" migrate plan --to host-gw
    passes "a migration starts with n2" migrate start --to host-gw --canary n2
    follows "n2 is reached directly" has_annotation n2 backend-type host-gw
    passes "a migration continues with all nodes" migrate next --percent 100
    follows "n1 reaches n3's pods directly" reaches 1 10.244.3.0/24 'via 172.30.0.13 dev eth0'
    passes "a migration is rolled back" migrate rollback
    passes "a migration is finished" migrate finish
    follows "n1 reaches n3's pods by the tunnel" reaches 1 10.244.3.0/24 flannel.1
}

# The server is killed: watches reconnect by themselves.
check_restart() {
    stop server KILL
    start_server
    kubectl annotate node n2 flannel.alpha.coreos.com/public-ip-overwrite=172.30.0.99 >/dev/null
    follows "after a crash of the server, an annotation of an operator is applied" has_annotation n2 public-ip 172.30.0.99
    follows "after a crash of the server, peers apply it too" sees_peer 172.30.0.99
    kubectl annotate node n2 flannel.alpha.coreos.com/public-ip-overwrite- >/dev/null
    follows "peers follow when the annotation is removed" sees_peer 172.30.0.12
    is_same_history() { ! grep --quiet 'restored from a backup' "$folder"/tweedd[12].log; }
    passes "a crash of the server is not taken for a restored backup" is_same_history
}

sees_peer() { bridge -n n1 fdb show dev flannel.1 | grep --quiet "dst $1 "; }

check_compaction() {
    stop server
    kubectl_offline_compact
    start_server
    kubectl patch node n3 --type merge --patch '{"metadata": {"annotations": {"flannel.alpha.coreos.com/public-ip-overwrite": "172.30.0.98"}}}' >/dev/null
    follows "after a compaction, all nodes are read again" sees_peer 172.30.0.98
    passes "no peer is lost by a compaction" reaches 1 10.244.2.0/24 flannel.1
    kubectl annotate node n3 flannel.alpha.coreos.com/public-ip-overwrite- >/dev/null
    follows "later changes are applied" sees_peer 172.30.0.13
}

kubectl_offline_compact() {
    revision=$(ETCDCTL_API=3 etcdctl endpoint status --write-out fields | sed -n 's/^"Revision" : //p')
    ETCDCTL_API=3 etcdctl compaction --physical "$revision" >/dev/null
}

# A recreated node with other subnets.
check_new_subnet() {
    stop tweedd3
    kubectl delete node n3 >/dev/null
    follows "a deleted node has no route" reaches_no_more 1 10.244.3.0/24
    create_node 3 9
    build_pod 3 >/dev/null
    start_daemon 3
    follows "a recreated node is reached in its new subnet" reaches 1 10.244.9.0/24 flannel.1
}

# Lists are not streamed, as in Kubernetes 1.33.
check_pages() {
    stop server
    start_server --feature-gates=WatchList=false
    stop tweedd2
    start_daemon 2
    follows "without streamed lists, a daemon is ready too" is_ready 2
    passes "it reads page by page" grep --quiet 'page by page' "$folder/tweedd2.log"
}

# No daemon may send requests meanwhile.
check_model() {
    for number in 1 2 3; do stop "tweedd$number"; done
    start proxy "$programs" kubectl proxy --port 8001
    follows "kubectl proxy answers" curl --silent --fail http://127.0.0.1:8001/readyz
    passes "the API server of the lab answers as this one" "$(dirname "$tweedd")/tweed-judges" \
        --tweedd "$tweedd" --tweedctl "$tweedctl" --folder "$folder" api-server --url http://127.0.0.1:8001
}

# Daemons in hosts of their own, by service accounts, as in their pods.
# shellcheck shell=sh disable=SC2154

# The daemon of node number $1; the rest are more arguments.
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

# What kubelets do: the ConfigMap becomes a file.
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

# Node $1 reaches range $2 as the rest says.
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

# The requests of daemons since the last call, in one line each.
asked() {
    lines=$(wc --lines <"$folder/audit.log")
    tail --lines "+$((${seen:-0} + 1))" "$folder/audit.log" |
        sed 's/.*"requestURI":"\([^"]*\)","verb":"\([^"]*\)".*"authentication.kubernetes.io\/node-name":\["\([^"]*\)"\].*"code":\([0-9]*\).*/\3 \2 \1 \4/' >"$folder/asked"
    seen=$lines
}

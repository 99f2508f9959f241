# The rights of a daemon, and the limits that the admission policies add.
# shellcheck shell=sh disable=SC2154

# Sends a request with a token; the output ends with the status.
ask() {
    token=$1 method=$2 path=$3 kind=$4 body=${5:-}
    curl --silent --show-error --cacert "$folder/certs/apiserver.crt" --oauth2-bearer "$token" \
        --request "$method" --header "content-type: application/$kind" --data "$body" \
        --write-out '\nstatus %{http_code}\n' "https://$server:6443$path"
}

# Sends the requests of the table, which the tests evaluate too, to this server.
check_policies() {
    # In the response, double quotes are escaped.
    sed '/^#/d; /^$/d; s/ *| */|/g' "$here/requests.txt" >"$folder/rows"
    while IFS='|' read -r verdict node request body; do
        verdict=$(echo "$verdict" | sed 's/"/\\"/g') path=${request##* }
        token=$(cat "$folder/${node:-none}/account/token")
        case $request in
            *nodes/*) set -- PATCH "$path" merge-patch+json ;;
            *APPLY*) set -- PATCH "namespaces/kube-flannel/$path?fieldManager=tweedd&force=true" apply-patch+yaml ;;
            *POST\ events) set -- POST "namespaces/default/$path" json ;;
            *POST*) set -- POST "namespaces/kube-flannel/$path" json ;;
        esac
        [ "$verdict" != allowed ] || verdict='status 20'
        prints "${node:-none}: $request $body: $verdict" "$verdict" ask "$token" "$1" "/api/v1/$2" "$3" "$body"
    done <"$folder/rows"
}

may() { what=$1; shift; prints "a daemon may $what" "status 20" "$@"; }
may_not() { what=$1; shift; prints "a daemon has no right to $what" "status 403" "$@"; }

check_rights() {
    nodes=/api/v1/nodes ours=/api/v1/namespaces/kube-flannel
    secret='{"metadata": {"name": "tweed-probes"}, "type": "Opaque"}'
    one=$(cat "$folder/n1/account/token")
    may "read all nodes" ask "$one" GET "$nodes?limit=1" json
    may "read the secret of probes" ask "$one" GET "$ours/secrets/tweed-probes" json
    may_not "change nodes outside of their status" ask "$one" PATCH "$nodes/n1" merge-patch+json '{"spec": {"unschedulable": true}}'
    may_not "replace a status" ask "$one" PUT "$nodes/n1/status" json '{"metadata": {"name": "n1"}}'
    may_not "delete nodes" ask "$one" DELETE "$nodes/n1" json
    may_not "read other secrets" ask "$one" GET "$ours/secrets/other" json
    may_not "list secrets" ask "$one" GET "$ours/secrets" json
    may_not "overwrite the secret of probes" ask "$one" PATCH "$ours/secrets/tweed-probes" merge-patch+json '{}'
    may_not "read configmaps" ask "$one" GET "$ours/configmaps/kube-flannel-cfg" json
    may_not "write in other namespaces" ask "$one" POST /api/v1/namespaces/default/secrets json "$secret"
    may_not "create events in other namespaces" ask "$one" POST "$ours/events" json '{}'
    may_not "change events" ask "$one" PATCH /api/v1/namespaces/default/events/tweedd.1 merge-patch+json '{}'
    may_not "list pods" ask "$one" GET "$ours/pods" json
}

check_others() {
    prints "a kubelet writes its node's status" "status 200" ask kubelet-n1 PATCH /api/v1/nodes/n1/status strategic-merge-patch+json \
        '{"status": {"capacity": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}}'
    passes "an admin labels and annotates nodes" kubectl label node n1 --overwrite a=b
    passes "an admin creates configmaps" kubectl --namespace kube-flannel create configmap other
}

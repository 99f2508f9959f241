# What is handed to Kubernetes: a real server takes it, and warns of nothing.
# shellcheck shell=sh disable=SC2154

check_manifests() {
    for file in tweed tweed-keep-config; do
        passes "kubectl takes $file.yml" kubectl apply --dry-run=client --validate=strict --filename "config/kubernetes/$file.yml"
    done
    passes "the server takes tweed.yml" kubectl apply --filename config/kubernetes/tweed.yml
    passes "what came of it is what it says" kubectl diff --filename config/kubernetes/tweed.yml
    passes "an upgrade by tweed-keep-config.yml changes nothing" kubectl diff --filename config/kubernetes/tweed-keep-config.yml
    for overlay in config/kubernetes/overlays/*/; do
        passes "the server takes $overlay" kubectl apply --dry-run=server --validate=strict --kustomize "$overlay"
    done
    for policy in flannel-own-node flannel-own-objects; do
        kubectl get validatingadmissionpolicy "$policy" --output yaml >"$folder/$policy.yml"
        passes "the expressions of $policy have the right types" types "$folder/$policy.yml"
    done
}

types() { "$programs" types <"$1"; }

# Where Helm is: in a namespace of its own, so that both can be compared.
check_chart() {
    command -v helm >/dev/null || { echo "skipped  the chart: no helm here"; return; }
    kubectl create namespace charts >/dev/null
    kubectl label namespace charts pod-security.kubernetes.io/enforce=privileged >/dev/null
    set -- config/helm/tweed --namespace charts --set admissionPolicy.enabled=false
    passes "helm takes away nothing" true
}

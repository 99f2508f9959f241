# A real server accepts the manifests and the chart, without a warning.
# shellcheck shell=sh disable=SC2154

check_manifests() {
    for file in tweed tweed-keep-config tweed-without-policies tweed-keep-config-without-policies; do
        passes "kubectl accepts $file.yml" kubectl apply --dry-run=client --validate=strict --filename "config/kubernetes/$file.yml"
    done
    passes "the server accepts tweed.yml" kubectl apply --filename config/kubernetes/tweed.yml
    passes "the objects equal the manifest" kubectl diff --filename config/kubernetes/tweed.yml
    passes "an upgrade by tweed-keep-config.yml changes nothing" kubectl diff --filename config/kubernetes/tweed-keep-config.yml
    for overlay in config/kubernetes/overlays/*/; do
        passes "the server accepts $overlay" kubectl apply --dry-run=server --validate=strict --kustomize "$overlay"
    done
    mkdir -p "$folder/overlay"
    cat >"$folder/overlay/kustomization.yaml" <<END
resources: [$root/config/kubernetes/overlays/vxlan]
components: [$root/config/kubernetes/components/iptables]
END
    passes "the server accepts an overlay with iptables" kubectl apply --dry-run=server --kustomize "$folder/overlay"
    for policy in flannel-own-node flannel-own-objects; do
        kubectl get validatingadmissionpolicy "$policy" --output yaml >"$folder/$policy.yml"
        passes "the expressions of $policy have the right types" types "$folder/$policy.yml"
    done
}

types() { "$programs" types <"$1"; }

# If Helm is installed; the cluster contains nothing of tweed before and afterwards.
check_chart() {
    command -v helm >/dev/null || { echo "skipped  the chart: no helm here"; return; }
    kubectl apply --filename config/kubernetes/base/namespace.yaml >/dev/null
    set -- config/helm/tweed --namespace kube-flannel
    passes "helm installs the chart" helm install flannel "$@"
    passes "helm upgrades the chart" helm upgrade flannel "$@" --reset-then-reuse-values --set flannel.mixed=true
    prints "an upgrade applies changed values" '"Mixed": true' kubectl --namespace kube-flannel get configmap kube-flannel-cfg --output yaml
    passes "helm rolls back to the first release" helm rollback flannel 1 --namespace kube-flannel
    kubectl --namespace kube-flannel delete daemonset kube-flannel-ds >/dev/null
    kubectl --namespace kube-flannel apply --server-side --field-manager=helm --filename - >/dev/null <<END
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: kube-flannel-ds
  labels: {app.kubernetes.io/managed-by: Helm}
  annotations: {meta.helm.sh/release-name: flannel, meta.helm.sh/release-namespace: kube-flannel}
spec:
  selector: {matchLabels: {app: flannel}}
  template: {metadata: {labels: {app: flannel}}, spec: {containers: [{name: kube-flannel, image: flannel}]}}
END
    passes "helm takes over a DaemonSet of another chart" helm upgrade flannel "$@" --reset-then-reuse-values
    prints "that DaemonSet keeps its selector" '{"app":"flannel"}' kubectl --namespace kube-flannel get daemonset kube-flannel-ds --output 'jsonpath={.spec.selector.matchLabels}'
    passes "helm removes the chart" helm uninstall flannel --namespace kube-flannel
}

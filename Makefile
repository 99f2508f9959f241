# All targets; each one installs what it needs and prints that.
.DEFAULT_GOAL := help
# A file that is only half made must not count as made.
.DELETE_ON_ERROR:
SHELL := /bin/bash
CARGO ?= cargo
# What `make release` packs next to the programs of this machine.
OTHER = $(if $(filter aarch64,$(shell uname -m)),x86_64,aarch64)
# The folder of this machine's programs.
SHIPPED = $(shell config/release/compile --folder)
# Seconds of `make fuzz` for each reader.
FUZZ_SECONDS ?= 60
# The first seed, the number of histories, the nodes of each, and the only faults and store in
# `make simulate`, which ends after MINUTES.
SEED ?= 0
HISTORIES ?= 1000
MINUTES ?= 60
NODES ?= 5
FAULTS ?=
STORE ?=
STACK ?=
# Not empty: only clusters that begin with flanneld.
FLANNEL ?=
# The part of the mutants that `make mutants` tries: the first of 100 is 0/100.
SHARD ?= 0/100
# A git checkout of https://github.com/RustSec/advisory-db; without one, `make advisories` fetches it.
ADVISORIES ?=

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

demo: ## Move a live cluster of four nodes from VXLAN to host-gw and count what is lost
	@echo "Four nodes in network namespaces, with a real etcd and pods, move from VXLAN to host-gw under"
	@echo "traffic, and every lost packet is counted: 20 seconds. The first time, Debian packages are"
	@echo "installed and the programs compiled before: 2 to 4 minutes on two processors."
	@$(MAKE) --no-print-directory packages
	$(CARGO) build --locked --profile demo --bins --package tweed --package tweed-lab
	target/demo/tweed-lab demo --tweedd target/demo/tweedd --tweedctl target/demo/tweedctl

# Tests mostly wait, so run three times as many at once as there are processors, and those of
# tests/cluster, half of the time, next to all others.
# A test that fails does not hide the results of the test binaries after it.
TESTS = RUST_TEST_THREADS=$$(($$(nproc) * 3)) $(CARGO) test --locked --workspace --no-fail-fast
test: check runtimes ## Run every check and every layer of tests
	$(CARGO) test --locked --workspace --no-run
	@$(MAKE) --no-print-directory --keep-going --jobs=2 clusters others

# Called by `test`.
clusters:
	$(TESTS) --test cluster

others:
	$(TESTS) --lib --bins --test '[!c]*' --test 'c[!l]*'
	$(TESTS) --doc

check: packages target/tools/bin/cargo-deny ## Check formatting, lints, documentation and dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- --deny warnings
	RUSTDOCFLAGS="--deny warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items
	target/tools/bin/cargo-deny check bans licenses sources

advisories: target/tools/bin/cargo-deny ## Check dependencies against the RustSec database, or ADVISORIES=CHECKOUT
	@tests/advisories "$(ADVISORIES)"

bench: binaries ## Measure everything in docs/benchmarks.md, into target/bench
	$(CARGO) build --locked --release --package tweed-bench --package tweed-proxy
	target/release/tweed-bench --tweedd $(SHIPPED)/opt/bin/tweedd --tweedctl $(SHIPPED)/opt/bin/tweedctl \
	    --flannel $(SHIPPED)/flannel --tweed-proxy target/release/tweed-proxy \
	    $(addprefix --kube-proxy=,$(wildcard target/judges/proxy/kube-proxy))

# What others wrote judges in `make judges`, never in `make test`: it needs Go, and takes long.
judges: judge-flannel judge-cni judge-etcd judge-kubernetes judge-proxy tryapi ## Third-party programs test tweed, all of them

judges-short: flanneld-and-judges ## One case of each kind, by flanneld; 5 minutes or so
	$(JUDGES) --short flannel --flanneld target/judges/flannel/flanneld

judge-flannel: flanneld-and-judges ## Let real flanneld judge: entries, changes under load, figures; 35 minutes or so
	$(JUDGES) flannel --flanneld target/judges/flannel/flanneld
	$(CARGO) build --locked --release --bins --package tweed --package tweed-bench
	target/release/tweed-bench --tweedd target/release/tweedd --tweedctl target/release/tweedctl \
	    --folder target/judges/figures --only flannel \
	    --flannel target/release/flannel --flanneld target/judges/flannel/flanneld

judge-cni: packages ## Let libraries and suites of the CNI project judge the CNI plugin; 3 minutes or so
	$(CARGO) build --locked --profile demo --bin flannel --package tweed-cni
	tests/judges/cni/run target/demo/flannel target/judges/cni

judge-etcd: packages target/judges/etcd/etcd ## Run the tests of store and clusters with the newest etcd; 20 minutes or so
	PATH=$(CURDIR)/target/judges/etcd:$$PATH $(TESTS) --test etcd
	PATH=$(CURDIR)/target/judges/etcd:$$PATH $(TESTS) --test cluster -- leases:: store:: migration::flip

judge-kubernetes: flanneld-and-judges runtimes target/apiserver/kubernetes target/apiserver/e2e.test target/judges/kubernetes/netpol target/judges/former/tweedd ## Run a cluster of kubelets with manifest and chart; 70 minutes or so
	$(CARGO) build --locked --profile demo --bin flannel --package tweed-cni
	$(JUDGES) kubernetes --kubernetes target/apiserver/kubernetes --plugin target/demo/flannel \
	    --flannel target/judges/flannel --former target/judges/former --tools target/judges/kubernetes

# Called by the judges.
JUDGES = target/demo/tweed-judges --tweedd target/demo/tweedd --tweedctl target/demo/tweedctl
flanneld-and-judges: packages target/judges/flannel/flanneld
	$(CARGO) build --locked --profile demo --bins --package tweed --package tweed-judges

target/judges/flannel/flanneld: tests/judges/flannel/go.mod tests/judges/flannel/build
	tests/judges/flannel/build $(dir $@)

target/judges/kubernetes/netpol: $(wildcard tests/judges/kubernetes/* tests/judges/kubernetes/coredns/*)
	tests/judges/kubernetes/build $(dir $@)

target/judges/former/tweedd: tests/judges/former
	CARGO="$(CARGO)" tests/judges/former $(dir $@)

judge-proxy: packages target/judges/proxy/kube-proxy target/judges/nft/nft ## Let kube-proxy judge tweed-proxy by packets; 15 minutes or so
	NEWEST_NFT=$(CURDIR)/target/judges/nft/nft \
	    $(CARGO) test --locked --package tweed-proxy --features judge --test kernel newest
	RECORDING=$(CURDIR)/target/judges/proxy/recording.jsonl KUBE_PROXY=$(CURDIR)/target/judges/proxy/kube-proxy \
	    $(CARGO) test --locked --package tweed-proxy --features judge --test packets judge::

target/judges/nft/nft: tests/judges/newest-nft
	tests/judges/newest-nft $(dir $@)

target/judges/proxy/kube-proxy: tests/judges/proxy/build tests/judges/proxy/go.mod tests/judges/proxy/main.go $(wildcard tests/judges/proxy/recorder/*.go)
	tests/judges/proxy/build $(dir $@)

target/judges/etcd/etcd: tests/judges/etcd/go.mod tests/judges/etcd/main.go
	@command -v go >/dev/null || { echo "Go is not here, 1.26 or newer: https://go.dev/doc/install" >&2; exit 1; }
	@echo "compiling: etcd and etcdctl, for 2 minutes or so of one processor"
	cd tests/judges/etcd && CGO_ENABLED=0 go build -buildvcs=false -ldflags "-s -w" -o $(CURDIR)/$@ .
	ln -sf etcd $(dir $@)etcdctl

fuzz: target/tools/bin/cargo-fuzz packages ## Feed every reader of foreign input for FUZZ_SECONDS each
	@rustup toolchain list | grep -q ^nightly || \
	  { echo "installing: a nightly toolchain" && rustup toolchain install nightly --profile minimal; }
	cd tests/fuzz && for target in $$($(CURDIR)/$< fuzz list --fuzz-dir .); do \
	  mkdir -p corpus/$$target seeds/$$target && \
	  RUSTUP_TOOLCHAIN=nightly $(CURDIR)/$< fuzz run --fuzz-dir . $$target \
	    $$PWD/corpus/$$target $$PWD/seeds/$$target -- -dict=$$PWD/words.dict \
	    -max_total_time=$(FUZZ_SECONDS) -timeout=10 || exit; \
	done

simulate: packages ## Play HISTORIES of whole clusters of NODES in virtual time, from SEED on
	CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_PANIC=unwind CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
	    $(CARGO) build --locked --release --package tweed-simulation --target-dir target/simulation
	target/simulation/release/tweed-simulate --seed $(SEED) --histories $(HISTORIES) --nodes $(NODES) \
	    --minutes $(MINUTES) $(if $(FAULTS),--faults $(FAULTS)) $(if $(STORE),--store $(STORE)) \
	    $(if $(STACK),--stack $(STACK)) $(if $(FLANNEL),--flannel)

mutants: packages target/tools/bin/cargo-mutants ## Break the pure code in small ways, SHARD of all, and list what no test notices; an hour or two
	tests/mutants $(SHARD)

fmt: ## Format the code
	$(CARGO) fmt --all

binaries: packages ## Compile what is shipped, for this machine, into target/image, and man pages into target/share
	@tests/packages image
	CARGO="$(CARGO)" config/release/compile

release: binaries target/tools/bin/cargo-cyclonedx ## Pack a release for x86_64 and aarch64 into target/dist; 15 minutes or so
	@tests/packages release
	CARGO="$(CARGO)" config/release/compile $(OTHER)
	CARGO="$(CARGO)" config/release/sbom
	config/release/package

tryrelease: release ## Run the released programs by qemu, and install the package in a fresh Debian with systemd
	@tests/packages tryrelease
	CARGO="$(CARGO)" config/release/try

image: binaries ## Build the container image from static binaries, without any registry
	config/image/build

tryimage: image runtimes ## Show the demo with daemons in containers of the image, confined as in a cluster
	config/image/try $(CARGO) run --locked --package tweed-lab -- demo \
	    --tweedd config/image/confined --tweedctl $(SHIPPED)/opt/bin/tweedctl

tryapi: target/apiserver/kubernetes ## Put manifests, rights and daemon to a real API server of Kubernetes
	@tests/packages api
	$(CARGO) build --locked --bins --package tweed --package tweed-judges
	PATH=$(CURDIR)/target/judges/kubernetes:$$PATH tests/lab/sandbox tests/apiserver/check $< target/debug/tweedd

trypage: packages ## Show the page of tweedctl dashboard to a headless Chromium, and take screenshots
	@tests/packages page
	$(CARGO) build --locked --workspace --bins
	tests/page target/debug

manifests: ## Render the single files of config/kubernetes
	config/kubernetes/render

target/apiserver/kubernetes: $(wildcard tests/apiserver/*.go) tests/apiserver/go.mod
	@command -v go >/dev/null || { echo "Go is not here, 1.24 or newer: https://go.dev/doc/install" >&2; exit 1; }
	@echo "compiling: the programs of Kubernetes, for 12 minutes or so of one processor"
	cd tests/apiserver && CGO_ENABLED=0 go build -buildvcs=false -o $(CURDIR)/$@ -ldflags "-s -w \
	    -X k8s.io/component-base/version.gitVersion=$$(sed -n 's,^\tk8s.io/kubernetes ,,p' go.mod)" .

target/apiserver/e2e.test: tests/apiserver/e2e/e2e_test.go tests/apiserver/go.mod
	@echo "compiling: the tests of Kubernetes for networks, for 4 minutes or so of one processor"
	cd tests/apiserver && export CGO_ENABLED=0 && \
	    go build -buildvcs=false -o $(CURDIR)/$(dir $@)agnhost -ldflags "-s -w" k8s.io/kubernetes/test/images/agnhost && \
	    install -m 644 "$$(go list -f '{{.Dir}}' k8s.io/kubernetes/test/images/agnhost)"/porter/localhost.* $(CURDIR)/$(dir $@) && \
	    go test -c -buildvcs=false -o $(CURDIR)/$@ -ldflags "-s -w" ./e2e

target/tools/bin/cargo-fuzz: | packages
	@echo "installing: cargo-fuzz (into target/tools)"
	$(CARGO) install --locked --quiet --debug --root target/tools cargo-fuzz@0.13.2

target/tools/bin/cargo-mutants: | packages
	@echo "installing: cargo-mutants (into target/tools)"
	$(CARGO) install --locked --quiet --debug --root target/tools cargo-mutants@27.1.0

target/tools/bin/cargo-cyclonedx: | packages
	@echo "installing: cargo-cyclonedx (into target/tools)"
	$(CARGO) install --locked --quiet --debug --root target/tools cargo-cyclonedx@0.5.9

target/tools/bin/cargo-deny: | packages
	@echo "installing: cargo-deny (into target/tools)"
	$(CARGO) install --locked --quiet --debug --no-default-features --root target/tools cargo-deny@0.20.2

packages: ## Install the Debian packages that build, tests and demo need
	@tests/packages

runtimes: ## Install the container runtimes that the tests drive the CNI plugin with
	@tests/packages runtimes

.PHONY: help demo test clusters others check advisories bench judges judges-short judge-flannel judge-cni judge-etcd judge-kubernetes judge-proxy flanneld-and-judges fuzz simulate mutants fmt binaries release tryrelease image tryimage tryapi trypage manifests packages runtimes

# The targets are named as in a kubebuilder project. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help prerequisites control-plane moto tools docs cluster build run manifests install uninstall deploy undeploy build-installer \
  docker-build docker-push docker-buildx kind-load minikube-load fmt lint test test-long torture fuzz test-binaries test-image bench demo pictures pages clean

# The image to build, push, load or deploy, such as IMG=registry.example.com/quartermaster:0.1.0. No image is published: the
# default is a placeholder, which config/ and deploy/ name.
PLACEHOLDER := quartermaster:latest
IMG ?= $(PLACEHOLDER)
# An empty IMG means the default.
ifeq ($(strip $(IMG)),)
override IMG := $(PLACEHOLDER)
endif
# docker, or podman. With podman, an image that is only loaded needs a name such as IMG=localhost/quartermaster:dev.
CONTAINER_TOOL ?= docker
PLATFORMS ?= linux/arm64,linux/amd64
KIND ?= kind
KIND_CLUSTER ?= kind
MINIKUBE ?= minikube
DIST ?= dist

# The kubectl on PATH, or else the one that is built with the control plane.
KUBECTL = $(shell command -v kubectl || { echo "no kubectl on PATH: using the control plane's, which is built first if it is missing" >&2; \
  echo "$$(bash hack/controlplane/build.sh)/kubectl"; })

QUARTERMASTER ?= cargo run --quiet --

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

prerequisites: ## Name the missing tools, and how to get them
	@bash hack/prerequisites.sh

demo: prerequisites moto ## Run the demo on a real control plane (HOLD=1: keep it running; CLUSTER=current: use your cluster)
	@bash hack/demo.sh

test: prerequisites ## Run the lints and the tests, on a real control plane
	@$(MAKE) --no-print-directory -j2 moto control-plane tools test-binaries
	@$(MAKE) --no-print-directory lint
	$(call run-tests,--)

test-long: prerequisites ## Run the tests that `make test` leaves out: each takes minutes
	@$(MAKE) --no-print-directory -j2 moto control-plane tools test-binaries
	$(call run-tests,--test it -- --ignored)

# $(call run-tests,options for cargo, and for the test programs)
define run-tests
@rm -rf target/audit target/times
@# More threads than cores: most tests wait for the control plane.
TESTBED_TIMES=$(CURDIR)/target/times cargo test --workspace $(1) --test-threads=8 2>&1 | tee target/test.log; ended=$$?; \
  echo "The ten slowest tests:"; sort -rn target/times | head; \
  [ $$ended = 0 ] || { echo "What failed:"; grep -A 9 "panicked at" target/test.log; }; exit $$ended
endef

# What `make torture` passes on: CASE=app_service/write-7/lost-answer replays one case, TORTURE="--kind my_app --help" is anything else.
TORTURE ?=
torture: prerequisites ## Inject every fault into every write and watch of the operator, for hours; an interrupted run continues (CASE=...: replay one)
	@$(MAKE) --no-print-directory -j2 moto control-plane
	@# Apart from target/audit, which tests/permissions.rs reads.
	@rm -rf target/torture/audit
	TESTBED_AUDIT_LOGS=$(CURDIR)/target/torture/audit cargo test --workspace --test torture -- $(addprefix --case ,$(CASE)) $(TORTURE)

# TARGET=when fuzzes one target alone: fuzz/src/bin has them.
TARGET ?=
SECONDS ?= 600
fuzz: prerequisites ## Fuzz each parser in turn (TARGET=when: one of them; SECONDS=600: for how long)
	@hack/fuzz.sh run $(SECONDS) $(TARGET)

test-binaries:
	cargo test --workspace --no-run

control-plane: ## Build etcd, the Kubernetes servers, kubectl and kwok, once
	@bash hack/controlplane/build.sh >/dev/null

moto: ## Install moto, which stands in for AWS, once
	@bash hack/moto/install.sh >/dev/null

# helm tests the chart, promtool the alerts, actionlint the workflows, cargo-deny the dependencies; mdbook builds the book.
tools: ## Build the tools that tests use, once
	@for tool in helm promtool actionlint mdbook cargo-deny; do bash hack/tools/build.sh $$tool >/dev/null || exit 1; done

docs: prerequisites ## Build the book: target/book/index.html
	@"$$(bash hack/tools/build.sh mdbook)" build

pictures: ## Draw the pictures of the book, docs/images (hack/pictures/README.md has the requirements)
	@hack/pictures/make.sh

pages: prerequisites ## Open every page of the book in a browser, and take screenshots into target/pages
	@hack/pictures/make.sh pages

cluster: prerequisites ## Run a real control plane until Ctrl-C
	@cargo run -p testbed -- cluster

build: prerequisites ## Build the operator in release mode
	cargo build --release

run: prerequisites ## Run the operator against the current kubeconfig
	cargo run --release -- run

manifests: prerequisites ## Generate the CRDs and RBAC in config/ and charts/, deploy/, example/, docs/reference/ and bundle/
	KUBECTL="$(KUBECTL)" cargo run --package xtask

# The ClusterRoles of what TrackedFields may track. The policies need them even if the operator runs with other permissions.
tracked = -f deploy/tracker_role.yaml -f deploy/tracker_targets_role.yaml

install: ## Install the CRDs and the tracker role into the current cluster
	$(KUBECTL) apply -f config/crd/bases $(tracked)

# The names of the CRDs that Quartermaster installed.
marked = {{range .items}}{{if .metadata.annotations}}{{if index .metadata.annotations "quartermaster.dev/schema"}}{{.metadata.name}} {{end}}{{end}}{{end}}

uninstall: ## Remove the CRDs and the tracker role from the current cluster, and every object of their kinds
	@bash hack/guarded.sh "make uninstall" $(KUBECTL)
	@# The CRDs of another program may have the same names: they lack the annotation and stay.
	@crds=$$($(KUBECTL) get customresourcedefinitions -o go-template='$(marked)') && [ -z "$$crds" ] || \
	  $(KUBECTL) delete --ignore-not-found customresourcedefinitions $$crds
	@$(KUBECTL) delete --ignore-not-found $(tracked)

# config/default with the image of IMG.
manifest = $(KUBECTL) kustomize config/default | sed 's|image: $(PLACEHOLDER)$$|image: $(IMG)|'

# $(call needs-image,what to write)
needs-image = @[ "$(IMG)" != "$(PLACEHOLDER)" ] || { printf '%s\n' \
  "make $@: IMG is still the placeholder $(PLACEHOLDER), and no image of that name is published. Write" $(1) >&2; exit 1; }
pushed = "  make $@ IMG=YOUR.REGISTRY/quartermaster:TAG"
loaded = "or, for kind (minikube-load for minikube)" "  make docker-build kind-load $@ IMG=quartermaster:dev"

deploy: ## Install everything into the current cluster: IMG=...
	$(call needs-image,$(pushed) "once it is pushed (make docker-build docker-push IMG=...)" $(loaded))
	$(manifest) | $(KUBECTL) apply -f -

# Fails before anything changes if the program is missing.
needs-program = @command -v $(firstword $(QUARTERMASTER)) >/dev/null || { printf '%s\n' \
  "make $@: $(firstword $(QUARTERMASTER)) not found. Install Rust (https://rustup.rs), or name the program (docs/operate/cli.md says how to get it):" \
  "  make $@ QUARTERMASTER=/path/to/quartermaster" >&2; exit 1; }

undeploy: ## Remove everything from the current cluster: first every object of the CRDs, while the operator still runs
	$(needs-program)
	@own=$$(mktemp) && trap 'rm -f "$$own"' EXIT && $(KUBECTL) config view --raw --minify --flatten >"$$own" && \
	  $(QUARTERMASTER) uninstall --purge --yes --kubeconfig "$$own" # the cluster of this kubectl, whatever KUBECONFIG says later
	@# Not the CRDs: those that `uninstall --purge` leaves belong to another program.
	$(KUBECTL) kustomize config/default | awk -v RS='---\n' '!/\nkind: CustomResourceDefinition\n/ { print $$0 "---" }' | \
	  $(KUBECTL) delete --ignore-not-found -f -

build-installer: ## Write all manifests, with IMG=..., into one file: dist/install.yaml
	$(call needs-image,$(pushed) $(loaded))
	@mkdir -p $(DIST)
	$(manifest) >$(DIST)/install.yaml

docker-build: ## Build the image: IMG=...
	$(CONTAINER_TOOL) build --tag $(IMG) .

docker-push: ## Push the image: IMG=...
	$(call needs-image,$(pushed))
	$(CONTAINER_TOOL) push $(IMG)

docker-buildx: ## Build the image for all PLATFORMS and push it: IMG=...
	$(call needs-image,$(pushed))
	-$(CONTAINER_TOOL) buildx create --name quartermaster-builder
	$(CONTAINER_TOOL) buildx build --builder quartermaster-builder --push --platform $(PLATFORMS) --tag $(IMG) .
	-$(CONTAINER_TOOL) buildx rm quartermaster-builder

# An archive, because kind and minikube both load one, whatever tool built it. $(call load,command,options after the archive)
load = @archive=$$(mktemp -d) && trap 'rm -rf "$$archive"' EXIT && \
  $(CONTAINER_TOOL) save --output "$$archive/image.tar" $(IMG) && $(1) "$$archive/image.tar" $(2)

kind-load: ## Load the built image into the nodes of a kind cluster: IMG=..., KIND_CLUSTER=...
	$(call load,$(KIND) load image-archive,--name $(KIND_CLUSTER))

minikube-load: ## Load the built image into minikube: IMG=...
	$(call load,$(MINIKUBE) image load)

test-image: prerequisites ## Build the Dockerfile and run the image (as root; needs buildah and debootstrap)
	@bash hack/test-image.sh

fmt: ## Format the code
	cargo fmt --all

lint: prerequisites ## Check format, code, workflows and dependencies; a warning is a failure
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy --workspace --test torture -- -D warnings
	$$(bash hack/tools/build.sh actionlint)
	$$(bash hack/tools/build.sh cargo-deny) check bans licenses sources

bench: prerequisites ## Measure against the floor of this machine
	cargo bench

clean: ## Remove cargo's output; the control plane and moto stay in their cache
	cargo clean

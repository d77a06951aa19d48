# The targets are named as in a kubebuilder project. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help prerequisites control-plane moto tools docs cluster build run manifests install uninstall deploy undeploy build-installer \
  docker-build docker-push docker-buildx kind-load minikube-load fmt lint test test-binaries test-image bench demo clean

# The image to build, push, load or deploy, such as IMG=registry.example.com/quartermaster:0.1.0. No image is published: as it
# stands, it is a placeholder, and what config/ and deploy/ name.
PLACEHOLDER := quartermaster:latest
IMG ?= $(PLACEHOLDER)
# An empty one is none.
ifeq ($(strip $(IMG)),)
override IMG := $(PLACEHOLDER)
endif
# What builds images: docker, or podman (which wants IMG=localhost/quartermaster:dev for one that is only loaded).
CONTAINER_TOOL ?= docker
PLATFORMS ?= linux/arm64,linux/amd64
KIND ?= kind
KIND_CLUSTER ?= kind
MINIKUBE ?= minikube
DIST ?= dist

# The one on PATH, otherwise the one that is built with the control plane.
KUBECTL = $(shell command -v kubectl || { echo "no kubectl on PATH: taking the control plane's, all of which is built unless it is there" >&2; \
  echo "$$(bash hack/controlplane/build.sh)/kubectl"; })

QUARTERMASTER ?= cargo run --quiet --

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

prerequisites: ## Say what is missing on this machine, and how to get it
	@bash hack/prerequisites.sh

demo: prerequisites moto ## Show it all on a real control plane (HOLD=1: stay up afterwards; CLUSTER=current: in your cluster)
	@bash hack/demo.sh

test: prerequisites ## Format, lints, and every test, on a real control plane
	@$(MAKE) --no-print-directory -j2 moto control-plane tools test-binaries
	@$(MAKE) --no-print-directory lint
	@rm -rf target/audit target/times
	@# Most tests wait for something most of the time.
	TESTBED_TIMES=$(CURDIR)/target/times cargo test --workspace -- --test-threads=10 2>&1 | tee target/test.log; ended=$$?; \
	  echo "The ten slowest tests:"; sort -rn target/times | head; \
	  [ $$ended = 0 ] || { echo "What failed:"; grep -A 9 "panicked at" target/test.log; }; exit $$ended

test-binaries:
	cargo test --workspace --no-run

control-plane: ## Build etcd, the Kubernetes servers, kubectl and kwok, once
	@bash hack/controlplane/build.sh >/dev/null

moto: ## Install moto, which stands in for AWS, once
	@bash hack/moto/install.sh >/dev/null

# helm tests the chart, promtool the alerts, actionlint the workflows, cargo-deny what this is built from; mdbook makes the book.
tools: ## Build the tools that tests use, once
	@for tool in helm promtool actionlint mdbook cargo-deny; do bash hack/tools/build.sh $$tool >/dev/null || exit 1; done

docs: prerequisites ## Make the book of docs/: target/book/index.html
	@"$$(bash hack/tools/build.sh mdbook)" build

cluster: prerequisites ## Start a real control plane and keep it until Ctrl-C
	@cargo run -p testbed -- cluster

build: prerequisites ## Build the operator in release mode
	cargo build --release

run: prerequisites ## Run the operator against the current kubeconfig
	cargo run --release -- run

manifests: prerequisites ## Generate the CRDs and RBAC in config/ and charts/, deploy/, example/, docs/reference/ and bundle/
	KUBECTL="$(KUBECTL)" cargo run --package xtask

# What TrackedFields may track, also of an operator that runs elsewhere with other rights.
tracked = -f deploy/tracker_role.yaml -f deploy/tracker_targets_role.yaml

install: ## Install the CRDs and the tracker role into the current cluster
	$(KUBECTL) apply -f config/crd/bases $(tracked)

# The names of the CRDs with this program's mark.
marked = {{range .items}}{{if .metadata.annotations}}{{if index .metadata.annotations "quartermaster.dev/schema"}}{{.metadata.name}} {{end}}{{end}}{{end}}

uninstall: ## Remove the CRDs and the tracker role from the current cluster, and every object of their kinds
	@bash hack/guarded.sh "make uninstall" $(KUBECTL)
	@# Whatever they are called: another program's, of the same names, have no mark.
	@crds=$$($(KUBECTL) get customresourcedefinitions -o go-template='$(marked)') && [ -z "$$crds" ] || \
	  $(KUBECTL) delete --ignore-not-found customresourcedefinitions $$crds
	@$(KUBECTL) delete --ignore-not-found $(tracked)

# config/default with the image in place: nothing in the tree is changed for it.
manifest = $(KUBECTL) kustomize config/default | sed 's|image: $(PLACEHOLDER)$$|image: $(IMG)|'

# $(call needs-image,what to write)
needs-image = @[ "$(IMG)" != "$(PLACEHOLDER)" ] || { printf '%s\n' \
  "make $@: IMG is still the placeholder $(PLACEHOLDER), and no image of that name is published. Write" $(1) >&2; exit 1; }
pushed = "  make $@ IMG=YOUR.REGISTRY/quartermaster:TAG"
loaded = "or, for kind (minikube-load for minikube)" "  make docker-build kind-load $@ IMG=quartermaster:dev"

deploy: ## Install everything into the current cluster: IMG=... is what runs
	$(call needs-image,$(pushed) "once it is pushed (make docker-build docker-push IMG=...)" $(loaded))
	$(manifest) | $(KUBECTL) apply -f -

# The program that does the work, before any of it is done.
needs-program = @command -v $(firstword $(QUARTERMASTER)) >/dev/null || { printf '%s\n' \
  "make $@: $(firstword $(QUARTERMASTER)) is not there. Get Rust (https://rustup.rs), or give it the program (docs/commands.md, Getting it):" \
  "  make $@ QUARTERMASTER=/path/to/quartermaster" >&2; exit 1; }

undeploy: ## Remove everything from the current cluster, every object of our kinds first, while the operator still runs
	$(needs-program)
	@own=$$(mktemp) && trap 'rm -f "$$own"' EXIT && $(KUBECTL) config view --raw --minify --flatten >"$$own" && \
	  $(QUARTERMASTER) uninstall --purge --yes --kubeconfig "$$own" # that cluster, whatever KUBECTL is told besides
	@# But for the CRDs: what it left of them is another program's.
	$(KUBECTL) kustomize config/default | awk -v RS='---\n' '!/\nkind: CustomResourceDefinition\n/ { print $$0 "---" }' | \
	  $(KUBECTL) delete --ignore-not-found -f -

build-installer: ## Write all of it, with IMG=..., into one file: dist/install.yaml
	$(call needs-image,$(pushed) $(loaded))
	@mkdir -p $(DIST)
	$(manifest) >$(DIST)/install.yaml

docker-build: ## Build the image: IMG=...
	$(CONTAINER_TOOL) build --tag $(IMG) .

docker-push: ## Push the image: IMG=...
	$(call needs-image,$(pushed))
	$(CONTAINER_TOOL) push $(IMG)

docker-buildx: ## Build the image for all PLATFORMS, and push it: IMG=...
	$(call needs-image,$(pushed))
	-$(CONTAINER_TOOL) buildx create --name quartermaster-builder
	$(CONTAINER_TOOL) buildx build --builder quartermaster-builder --push --platform $(PLATFORMS) --tag $(IMG) .
	-$(CONTAINER_TOOL) buildx rm quartermaster-builder

# As an archive, which both take whatever tool built it. $(call load,command before the archive,command after it)
load = @archive=$$(mktemp -d) && trap 'rm -rf "$$archive"' EXIT && \
  $(CONTAINER_TOOL) save --output "$$archive/image.tar" $(IMG) && $(1) "$$archive/image.tar" $(2)

kind-load: ## Load the built image into the nodes of a kind cluster: IMG=..., KIND_CLUSTER=...
	$(call load,$(KIND) load image-archive,--name $(KIND_CLUSTER))

minikube-load: ## Load the built image into minikube: IMG=...
	$(call load,$(MINIKUBE) image load)

test-image: prerequisites ## Build the Dockerfile and run what it makes (as root; needs buildah and debootstrap)
	@bash hack/test-image.sh

fmt: ## Format the code
	cargo fmt --all

lint: prerequisites ## Check format, code, workflows, and what this is built from; a warning is a failure
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	$$(bash hack/tools/build.sh actionlint)
	$$(bash hack/tools/build.sh cargo-deny) check bans licenses sources

bench: prerequisites ## Measure, beside the floor of this machine
	cargo bench

clean: ## Remove what cargo built; the control plane and moto stay in their cache
	cargo clean

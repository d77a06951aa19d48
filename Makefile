# The targets are named as in a kubebuilder project. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help prerequisites control-plane moto cluster build run manifests install uninstall fmt lint test \
  test-binaries bench demo clean

# The one on PATH, otherwise the one that is built with the control plane.
KUBECTL = $(shell command -v kubectl || { echo "no kubectl on PATH: taking the control plane's, all of which is built unless it is there" >&2; \
  echo "$$(bash hack/controlplane/build.sh)/kubectl"; })

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

prerequisites: ## Say what is missing on this machine, and how to get it
	@bash hack/prerequisites.sh

demo: prerequisites moto ## Show it all on a real control plane (HOLD=1: stay up afterwards)
	@HOLD=$(HOLD) bash hack/demo.sh

test: prerequisites ## Format, lints, and every test, on a real control plane
	@$(MAKE) --no-print-directory -j2 moto control-plane test-binaries
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test --workspace -- --test-threads=6 # most of them wait for something most of the time

test-binaries:
	cargo test --workspace --no-run

control-plane: ## Build etcd, the Kubernetes servers, kubectl and kwok, once
	@bash hack/controlplane/build.sh >/dev/null

moto: ## Install moto, which stands in for AWS, once
	@bash hack/moto/install.sh >/dev/null

cluster: prerequisites ## Start a real control plane and keep it until Ctrl-C
	@cargo run -p testbed -- cluster

build: prerequisites ## Build the operator in release mode
	cargo build --release

run: prerequisites ## Run the operator against the current kubeconfig
	cargo run --release -- run

manifests: prerequisites ## Generate the CRDs and RBAC in config/
	cargo run -- manifests

install: ## Install the CRDs into the current cluster
	$(KUBECTL) apply -f config/crd/bases

uninstall: ## Remove the CRDs from the current cluster, and every object of their kinds
	$(KUBECTL) delete --ignore-not-found -f config/crd/bases

fmt: ## Format the code
	cargo fmt --all

lint: prerequisites ## Lint the code; a warning is a failure
	cargo clippy --workspace --all-targets -- -D warnings

bench: prerequisites ## Measure, beside the floor of this machine
	cargo bench

clean: ## Remove what cargo built; the control plane and moto stay in their cache
	cargo clean

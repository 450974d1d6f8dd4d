# SPDX-License-Identifier: Apache-2.0

# The same flags for every go command: another -trimpath or CGO setting compiles all dependencies again. The race
# detector needs cgo, so tests are a build of their own.
export GOFLAGS += -trimpath -buildvcs=false
export CGO_ENABLED ?= 0
# How long a test waits for what it expects, unless it says so itself: gomega's own second is less than a loaded machine may need.
export GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT ?= 1m

TOOL = go tool -modfile=tools/go.mod
DEV = bin/autonode-dev
PROGRAMS = autonode autonode-dev autonode-operator karpenter-clusterapi
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS = -s -w -X main.version=$(VERSION)
CONTAINER_TOOL ?= $(firstword $(foreach tool,docker podman buildah,$(if $(shell command -v $(tool)),$(tool))))
IMAGE_PREFIX ?= autonode

# Every package but the stories, which need a world. Computed, so that no test is forgotten; test/targets checks it.
PACKAGES = $(filter-out %/test/e2e %/test/aws %/test/real %/test/released,$(shell go list ./...))
# Tests that run programs which read sources, charts or this file: the go command doesn't see those, so it must not cache the results.
UNCACHED = $(addprefix github.com/autonode-io/autonode/test/,charts docs install release targets world/nodeagent world/registry)
# CI sets it. The go command doesn't cache what is shuffled.
SHUFFLE ?=
# The linter vets; go test would do it again, for the race detector's build of every dependency.
NO_VET = -vet=off
TESTFLAGS ?=
UNIT_FLAGS = -race $(NO_VET) $(if $(SHUFFLE),-shuffle=$(SHUFFLE)) -timeout=15m $(TESTFLAGS)
COUNT ?= 1

.PHONY: help
help: ## Print this help.
	@awk 'BEGIN {FS = ":.*## "; print "Usage: make TARGET\n"} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: build ## Start the local world and play the main stories in it. ARGS=--keep leaves it running.
	@$(DEV) demo $(ARGS)

.PHONY: test
test: verify unit e2e ## Run all there is: verify, unit and envtest, end to end.

.PHONY: generate
generate: ## Regenerate deepcopy, CRDs, RBAC, the API reference and the Helm charts.
	$(TOOL) controller-gen object paths=./api/... paths=./test/world/infrastructure/api/...
	$(TOOL) controller-gen crd paths=./api/v1beta1/... paths=./api/v1alpha1/... output:crd:dir=manifests/crds
	$(TOOL) controller-gen crd paths=./api/karpenter/... output:crd:dir=assets/crds
# Catalogs are in management only.
	mv assets/crds/karpenter.cluster.x-k8s.io_instancetypecatalogs.yaml manifests/crds/
	$(TOOL) controller-gen crd paths=./test/world/infrastructure/api/... output:crd:dir=test/world/infrastructure/crds
	$(TOOL) controller-gen rbac:roleName=autonode-operator paths=./operator/... output:rbac:dir=manifests/rbac
	$(TOOL) crd-ref-docs --source-path=api --config=docs/crd-ref-docs.yaml --renderer=markdown --output-path=docs/api-reference.md --log-level=ERROR
	go run ./test/charts/generate

.PHONY: lint
lint: ## Lint, import walls included.
	$(TOOL) golangci-lint run

.PHONY: verify
verify: generate ## Regenerate and lint, and fail when a generated file isn't committed.
	go mod tidy -diff
	cd tools && go mod tidy -diff
	@changes=$$(git status --porcelain -- api assets charts docs manifests test/world/infrastructure); if [ -n "$$changes" ]; then \
		echo "Generated files differ from what is committed; run 'make generate' and commit:"; echo "$$changes"; git --no-pager diff --stat; exit 1; fi
	$(MAKE) lint

.PHONY: unit
unit: build ## Run the unit and envtest tests with the race detector, those whose result isn't cached. SHUFFLE=on runs all, in random order.
	assets=$$($(DEV) world build --print-assets) && export CGO_ENABLED=1 KUBEBUILDER_ASSETS=$$assets && failed=0; \
	$(if $(filter-out $(UNCACHED),$(PACKAGES)),go test $(UNIT_FLAGS) $(filter-out $(UNCACHED),$(PACKAGES)) || failed=1;) \
	$(if $(filter $(UNCACHED),$(PACKAGES)),go test $(UNIT_FLAGS) -count=1 $(filter $(UNCACHED),$(PACKAGES)) || failed=1;) \
	exit $$failed

.PHONY: mutants
mutants: build ## Break the code in the ways of test/mutants, each in a copy: a test has to fail for each. ARGS='-run gate' chooses.
	assets=$$($(DEV) world build --print-assets) && KUBEBUILDER_ASSETS=$$assets go run ./test/mutants $(ARGS)

.PHONY: bench
bench: ## Run the benchmarks, as benchstat reads them. COUNT=10 for statistics.
	@go test -run '^$$' -bench . -benchmem -count=$(COUNT) ./karpenter/... ./capacity/... ./catalog/...

.PHONY: e2e
e2e: build ## Run the stories in test/e2e against a world of their own. TESTFLAGS='-run Upgrade' chooses.
	$(DEV) world build
	CGO_ENABLED=1 GORACE=halt_on_error=1 go test -race $(NO_VET) -count=1 -timeout=60m -parallel=16 -v $(TESTFLAGS) ./test/e2e/...

.PHONY: dashboards
dashboards: ## Run the stories, and draw the dashboards into bin/dashboards with what the programs served meanwhile. TESTFLAGS='-run Fleet' chooses.
	DASHBOARDS='$(CURDIR)/bin/dashboards' $(MAKE) e2e

# No part of `make test`: it needs more than Go.
.PHONY: e2e-real
e2e-real: build ## Run the story of a real machine, in a world of its own. Needs root on Linux; apt-get install runc containerd containernetworking-plugins iproute2 iptables conntrack.
	$(DEV) world build
	CGO_ENABLED=1 GORACE=halt_on_error=1 go test -race $(NO_VET) -count=1 -timeout=20m -v $(TESTFLAGS) ./test/real/...

.PHONY: e2e-aws
e2e-aws: build ## Run the stories in test/aws: Cluster API Provider AWS and Karpenter's AWS provider against AWS's APIs in a world of their own. It isn't part of make test.
	CGO_ENABLED=1 GORACE=halt_on_error=1 go test -race $(NO_VET) -count=1 -timeout=30m -v $(TESTFLAGS) ./test/aws/...

.PHONY: e2e-release
e2e-release: build ## Build two releases, and install, upgrade and uninstall them with kubectl, autonode install, Helm and clusterctl, in a world of their own. It isn't part of make test.
	$(DEV) world build
	CGO_ENABLED=1 GORACE=halt_on_error=1 go test -race $(NO_VET) -count=1 -timeout=60m -v $(TESTFLAGS) ./test/released/...

.PHONY: bench-scale
bench-scale: build ## Measure pods that need a node each, with our provider and with Karpenter's kwok provider. SIZES=3,50 chooses how many; ARGS='--json FILE'.
	$(DEV) conformance --scale='$(or $(SIZES),3,50,150,500)' --provider='$(PROVIDER)' $(ARGS)

.PHONY: bench-budget
bench-budget: build ## Count what a node costs in requests, in a burst of a hundred, and fail above the budget. Needs the machine for itself.
	$(DEV) conformance --budget $(ARGS)

.PHONY: bench-busy
bench-busy: build ## Measure ten bursts of 150 nodes beside two busy loops, and fail when a machine is lost, one more is made, or a burst takes 2.5 times as long as without.
	$(DEV) conformance --busy $(ARGS)

.PHONY: bench-fleet
bench-fleet: build ## Measure how soon three hosted clusters use all ten machines of a reservation that they share, and fail above LIMIT (30s). Needs the machine for itself.
	$(DEV) world build
	FLEET_LIMIT='$(or $(LIMIT),30s)' go test $(NO_VET) -count=1 -timeout=20m -v -run '^TestFleetCapacity$$/(documented_example|all_ten_reserved_ones|never_have_been_more_than_ten)' ./test/e2e/...

.PHONY: bench-operator
bench-operator: build ## Measure what CLUSTERS hosted clusters (1000) cost the operator. ARGS='--silent 10 --slow 10' adds sick guests.
	$(DEV) bench-operator --clusters='$(or $(CLUSTERS),1000)' $(ARGS)

.PHONY: conformance
conformance: build ## Run Karpenter's own suite against our provider and its kwok provider. PROVIDER=clusterapi or kwok runs one; ARGS="--focus 'Drift Budgets'" chooses.
	$(DEV) conformance --provider='$(PROVIDER)' --suite='$(or $(SUITE),regression)' $(ARGS)

.PHONY: world
world: build ## Start the local world and leave it in the foreground. ARGS are those of 'autonode-dev world up'.
	$(DEV) world up $(ARGS)

.PHONY: build
build: ## Build the programs into bin/, static.
	@mkdir -p bin
	go build -ldflags '$(LDFLAGS)' -o bin/ $(addprefix ./cmd/,$(PROGRAMS))

.PHONY: release
release: ## Make release VERSION=v0.1.0 in dist/v0.1.0, without a container engine. PUSH=registry/folder pushes its images, KEY=cosign.key signs; docs/releasing.md.
	go run ./cmd/autonode-dev release --version='$(VERSION)' $(if $(PUSH),--push='$(PUSH)') $(if $(KEY),--key='$(KEY)') $(ARGS)

.PHONY: image
image: ## Build container images for this machine's architecture with docker, podman or buildah.
	@test -n '$(CONTAINER_TOOL)' || { echo "none of docker, podman and buildah is installed"; exit 1; }
	@mkdir -p bin/linux
	GOOS=linux go build -ldflags '$(LDFLAGS)' -o bin/linux/ ./cmd/autonode-operator ./cmd/karpenter-clusterapi
	for program in autonode-operator karpenter-clusterapi; do \
		$(CONTAINER_TOOL) build --file Containerfile --target $$program --tag $(IMAGE_PREFIX)/$$program:$(VERSION) . || exit 1; done

.PHONY: site
site: ## Build the documentation's site into dist/site. It fails for a link to a page that isn't there, and for a page that the menu lacks.
	go tool -modfile=tools/site/go.mod hugo --source site --destination ../dist/site --cleanDestinationDir --noBuildLock --panicOnWarning

.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities in what the programs call. Needs vuln.go.dev, so it is no part of verify.
	go tool -modfile=tools/security/go.mod govulncheck ./cmd/...

.PHONY: clean
clean: ## Remove what was built here. The world's programs stay in their cache; 'autonode-dev world build' names it.
	rm -rf bin dist

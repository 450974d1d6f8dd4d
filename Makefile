# SPDX-License-Identifier: Apache-2.0

SHELL = bash
.SHELLFLAGS = -o pipefail -c

# The same flags for every go command: another -trimpath or CGO setting compiles all dependencies again. The race
# detector needs cgo, so tests are a build of their own.
export GOFLAGS += -trimpath -buildvcs=false
export CGO_ENABLED ?= 0
# Karpenter needs a newer Go than many machines have: the go command fetches this one as a module. It has to be exported, because an installed Go
# may be told to fetch none.
export GOTOOLCHAIN = go1.27.3
# A go.work of yours must not decide which versions are tested and built.
export GOWORK = off
# How long a test waits for what must happen: no test depends on how fast the machine is. It is less than the ten minutes after which the
# programs look by themselves at what a watch should have told them.
export GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT ?= 10m
# Without it, an Eventually with a context waits until the whole package's time is over, which doesn't say what was expected. Its being set counts.
export GOMEGA_ENFORCE_DEFAULT_TIMEOUTS_WHEN_USING_CONTEXTS = true

# The folders of our modules: the product, its API, and what only its developers run.
MODULES = . api test
# The folders of what pins tools, so that none of them decides what the programs are built with.
TOOL_MODULES = $(patsubst %/go.mod,%,$(wildcard tools/go.mod tools/*/go.mod))
TOOL = go tool -modfile=$(CURDIR)/tools/go.mod
DEV = bin/autonode-dev
PROGRAMS = autonode autonode-operator karpenter-clusterapi
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# The libraries' variables are those of autonode_build_info and karpenter_build_info.
LDFLAGS = -s -w -X main.version=$(VERSION) -X github.com/prometheus/common/version.Version=$(VERSION) -X sigs.k8s.io/karpenter/pkg/operator.Version=$(VERSION)
CONTAINER_TOOL ?= $(firstword $(foreach tool,docker podman buildah,$(if $(shell command -v $(tool)),$(tool))))
IMAGE_PREFIX ?= autonode

# Every package but the end-to-end tests, which need a world. Computed, so that no test is forgotten; test/targets checks it. eval
# keeps the answer.
PACKAGES = $(eval PACKAGES := $(filter-out ./test/e2e ./test/aws ./test/real ./test/released,$(patsubst github.com/autonode-io/autonode/%,./%,\
	$(foreach module,$(MODULES),$(shell GOTOOLCHAIN=$(GOTOOLCHAIN) go list -C $(module) ./...)))))$(PACKAGES)
# PKG=./operator/guest runs the tests of one folder, PKG=./operator/... those below it.
ifdef PKG
PACKAGES := $(PKG)
endif
# packages-of names those of PACKAGES that are in a module, as the go command has to be told there.
packages-of = $(strip $(if $(filter .,$(1)),$(filter-out $(foreach module,$(filter-out .,$(MODULES)),./$(module) ./$(module)/%),$(PACKAGES)),\
	$(patsubst ./$(1),.,$(patsubst ./$(1)/%,./%,$(filter ./$(1) ./$(1)/%,$(PACKAGES))))))
# CI sets it. The go command doesn't cache what is shuffled.
SHUFFLE ?=
# The linter vets; go test would do it again.
NO_VET = -vet=off
TESTFLAGS ?=
# Packages whose tests run at once: they wait half of their time, for API servers above all.
PARALLEL ?= $(shell echo $$((2 * $$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN))))
UNIT_FLAGS = $(NO_VET) -p=$(PARALLEL) $(if $(SHUFFLE),-shuffle=$(SHUFFLE)) -timeout=30m $(TESTFLAGS)
E2E_FLAGS = $(NO_VET) -count=1 -v $(TESTFLAGS)
# A build with the race detector needs cgo and compiles every dependency again. The first race ends a test's process. The end-to-end tests
# do without: the programs that they start are those of bin. -short plays fewer random schedules, which have no goroutines.
RACE = CGO_ENABLED=1 GORACE=halt_on_error=1 go test -race -short
# What the last run of unit or race printed.
UNIT_LOG = bin/unit.log
# What the last run of e2e printed, and which tests it ran again.
E2E_LOG = bin/e2e.log
E2E_RERUNS = bin/e2e-reruns.txt
# All that test-all runs, in this order.
TIERS = test race e2e e2e-aws e2e-release e2e-real mutants conformance site
COUNT ?= 1

.PHONY: help
help: ## Print this help.
	@awk 'BEGIN {FS = ":.*## "; print "Usage: make TARGET\n"} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: BEGAN := $(shell date +%s)
demo: $(DEV) ## Start the local world and play the main scenarios in it. ARGS=--keep leaves it running.
	@$(MAKE) --no-print-directory -j2 programs control-planes
	@$(DEV) demo --began=$(BEGAN) $(ARGS)

.PHONY: control-planes
control-planes:
	@$(DEV) world build

.PHONY: test
test: ## Check what every change has to pass: generated files, lint, unit and envtest, one end-to-end test of the main job.
	@begin=$$SECONDS; $(MAKE) verify unit lifecycle && echo "make test passed in $$((SECONDS - begin)) s"

.PHONY: test-all
test-all: ## Run every tier (TIERS), one after the other, and end with a table of results.
	@table=; for tier in $(TIERS); do begin=$$SECONDS result=passed; $(MAKE) $$tier || result=FAILED; \
		table+=$$(printf '%-12s %-6s %6d s' $$tier $$result $$((SECONDS - begin)))$$'\n'; done; \
	printf '\n%s' "$$table"; [[ $$table != *FAILED* ]]

.PHONY: generate
generate: ## Regenerate deepcopy, CRDs, RBAC, the API reference and the Helm charts.
	cd api && $(TOOL) controller-gen object paths=./...
	cd api && $(TOOL) controller-gen crd paths=./v1beta1/... paths=./v1alpha1/... output:crd:dir=../manifests/crds
	cd api && $(TOOL) controller-gen crd paths=./karpenter/... output:crd:dir=../assets/crds
# Catalogs are in management only.
	mv assets/crds/karpenter.cluster.x-k8s.io_instancetypecatalogs.yaml manifests/crds/
	cd test && $(TOOL) controller-gen object paths=./world/infrastructure/api/...
	cd test && $(TOOL) controller-gen crd paths=./world/infrastructure/api/... output:crd:dir=world/infrastructure/crds
	$(TOOL) controller-gen rbac:roleName=autonode-operator paths=./operator/... paths=./fleet/operator/... output:rbac:dir=manifests/rbac
	$(TOOL) crd-ref-docs --source-path=api --config=docs/reference/crd-ref-docs.yaml --templates-dir=docs/reference --renderer=markdown --output-path=docs/reference/api-reference.md --log-level=ERROR
	go run -C test ./charts/generate
	go tool -modfile=tools/helm/go.mod helm-docs --chart-search-root=charts --template-files=./README.md.gotmpl --sort-values-order=file --log-level=warning

.PHONY: lint
lint: ## Lint, import walls included.
	@for module in $(MODULES); do (cd $$module && $(TOOL) golangci-lint run) || exit 1; done

.PHONY: verify
verify: generate ## Regenerate and lint, and fail when a generated file isn't committed.
	@for module in $(MODULES) $(TOOL_MODULES); do (cd $$module && go mod tidy -diff) || exit 1; done
	@changes=$$(git status --porcelain -- api assets charts docs manifests test/world/infrastructure); if [ -n "$$changes" ]; then \
		echo "Generated files differ from what is committed; run 'make generate' and commit:"; echo "$$changes"; git --no-pager diff --stat; exit 1; fi
	$(MAKE) lint

# unit-tests runs the packages' tests with a go test command, and ends with the ten packages that took longest and what failed: CI may show
# the end only. Those of test read files of other modules, or start programs that do: the go command doesn't see that, so it must not cache the
# results.
define unit-tests
	@begin=$$SECONDS failed=0; assets=$$($(DEV) world build --print-assets) && export KUBEBUILDER_ASSETS=$$assets || exit 1; \
	{ $(foreach module,$(MODULES),$(if $(call packages-of,$(module)),\
		(cd $(module) && $(1) $(UNIT_FLAGS) $(if $(filter test,$(module)),-count=1) $(call packages-of,$(module))) || failed=1;)) \
	(exit $$failed); } 2>&1 | tee $(UNIT_LOG) || failed=1; \
	echo "The slowest packages:"; awk '/^(ok|FAIL)[ \t].*s$$/ {print $$3, $$2}' $(UNIT_LOG) | sort -rn | head -n 10; \
	if [ $$failed != 0 ]; then echo "Failed:"; grep -E '^ *--- FAIL|^FAIL[[:space:]]|^panic: |^-test\.shuffle' $(UNIT_LOG); fi; \
	echo "make $@: $$((SECONDS - begin)) s"; exit $$failed
endef

.PHONY: unit
unit: build ## Run the unit and envtest tests, those whose result isn't cached. PKG=./operator/guest runs one folder's; SHUFFLE=on runs all, in random order.
	$(call unit-tests,go test)

.PHONY: race
race: build ## Run the unit and envtest tests with the race detector.
	$(call unit-tests,$(RACE))

.PHONY: lifecycle
lifecycle: build ## Run the end-to-end test of the main job, in a small world of its own.
	$(DEV) world build
	go test -C test $(E2E_FLAGS) -timeout=30m -run '^TestLifecycle$$' ./e2e/...

.PHONY: mutants
mutants: build ## Break the code in the ways of test/mutants, each in a copy: a test has to fail for each. ARGS='-run gate' chooses.
	assets=$$($(DEV) world build --print-assets) && KUBEBUILDER_ASSETS=$$assets go run -C test ./mutants $(ARGS)

.PHONY: bench
bench: ## Run the benchmarks, as benchstat reads them. COUNT=10 for statistics. The last ones, of rounds beside the kwok provider, take fifteen minutes; ROUNDS=1 a tenth.
	@go test -run '^$$' -bench . -benchmem -count=$(COUNT) ./catalog/... ./fleet/... ./karpenter/... ./internal/lenient/... ./operator/...
	@go test -C test -run '^$$' -bench . -benchtime=$(or $(ROUNDS),10)x -count=$(COUNT) ./benchmark

.PHONY: e2e
# The checks at the end of a run are no tests that could run again: gotestsum takes that for their success. How many tests run at once is for
# the pool in test/e2e: -parallel lets all of them wait in its queue.
e2e: build ## Run all end-to-end tests of test/e2e in worlds of their own, and again alone what failed. TESTFLAGS='-run Upgrade' chooses.
	$(DEV) world build $(if $(findstring -run,$(TESTFLAGS)),,--next-minor)
	@mkdir -p bin && rm -f $(E2E_RERUNS) && gotestsum=$$($(TOOL) -n gotestsum) && failed=0; \
	(cd test && $$gotestsum --format=standard-verbose --rerun-fails=1 --rerun-fails-run-root-test --rerun-fails-report=$(CURDIR)/$(E2E_RERUNS) \
		--packages ./e2e/... -- $(E2E_FLAGS) -timeout=90m -parallel=100) 2>&1 | tee $(E2E_LOG) || failed=1; \
	if [ -s $(E2E_RERUNS) ]; then printf '\nFailed at first, and were run again alone:\n'; cat $(E2E_RERUNS); \
		grep -E 'logs are in|logs, of all worlds|there when it failed' $(E2E_LOG) | sort -u; \
		! grep -q 'e2e\.When ' $(E2E_RERUNS) || failed=1; fi; exit $$failed

.PHONY: dashboards
dashboards: ## Run the tests, and draw the dashboards into bin/dashboards with what the programs served meanwhile. TESTFLAGS='-run Fleet' chooses.
	DASHBOARDS='$(CURDIR)/bin/dashboards' $(MAKE) e2e

.PHONY: e2e-real
e2e-real: build ## Run the test of a real machine, in a world of its own. Needs root on Linux; apt-get install runc containerd containernetworking-plugins iproute2 iptables conntrack.
	$(DEV) world build
	go test -C test $(E2E_FLAGS) -timeout=20m ./real/...

.PHONY: e2e-aws
e2e-aws: build ## Run the tests in test/aws: Cluster API Provider AWS and Karpenter's AWS provider against AWS's APIs in a world of their own. It isn't part of make test.
	go test -C test $(E2E_FLAGS) -timeout=30m ./aws/...

.PHONY: e2e-release
e2e-release: build ## Build two releases, and install, upgrade and uninstall them with kubectl, autonode install, Helm and clusterctl, in a world of their own. It isn't part of make test.
	$(DEV) world build
	go test -C test $(E2E_FLAGS) -timeout=60m ./released/...

.PHONY: bench-scale
bench-scale: build ## Measure pods that need a node each, with our provider and Karpenter's kwok provider, and a MachineDeployment's nodes. SIZES=3,50 chooses how many; ARGS='--json FILE'.
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
	FLEET_LIMIT='$(or $(LIMIT),30s)' go test -C test $(NO_VET) -count=1 -timeout=20m -v -run '^TestFleetCapacity$$/(account_is_applied|all_ten_reserved_ones|never_have_been_more_than_ten)' ./e2e/...

.PHONY: bench-operator
bench-operator: build ## Measure what CLUSTERS hosted clusters (1000) cost the operator. ARGS='--silent 10 --slow 10' adds sick guests.
	$(DEV) bench-operator --clusters='$(or $(CLUSTERS),1000)' $(ARGS)

.PHONY: conformance
conformance: build ## Run Karpenter's own suite against our provider and its kwok provider. PROVIDER=clusterapi, kwok, or bare (ours without the operator) runs one; ARGS="--focus 'Drift Budgets'" chooses.
	$(DEV) conformance --provider='$(PROVIDER)' $(if $(SUITE),--suite='$(SUITE)') $(ARGS)

.PHONY: world
world: build ## Start the local world and leave it in the foreground. ARGS are those of 'autonode-dev world up'.
	$(DEV) world up $(ARGS)

.PHONY: build
build: $(DEV) programs ## Build the programs into bin/, static.

# A first build downloads 170 modules: a line for each 20 is enough.
DOWNLOADS = awk '/^go: downloading/ {if (++n % 20 == 1) printf "  downloading Go modules: %d\n", n; next} {print} {fflush()}'

.PHONY: programs
programs:
	@echo "Building $(PROGRAMS)"
	@go build -ldflags '$(LDFLAGS)' -o bin/ $(addprefix ./cmd/,$(PROGRAMS)) 2>&1 | $(DOWNLOADS)

.PHONY: $(DEV)
$(DEV):
	@mkdir -p bin
	@echo "Building autonode-dev (the first time about 4 minutes on 2 cores)"
	@go build -C test -ldflags '$(LDFLAGS)' -o '$(CURDIR)/bin/' ./cmd/autonode-dev 2>&1 | $(DOWNLOADS)

.PHONY: release
release: PUSH ?= $(REGISTRY)
release: $(DEV) ## Make release VERSION=v0.1.0 in dist/v0.1.0, without a container engine. REGISTRY=registry/folder pushes its images, KEY=cosign.key signs; docs/internals/releasing.md.
	$(DEV) release --version='$(VERSION)' $(if $(PUSH),--push='$(PUSH)') $(if $(KEY),--key='$(KEY)') $(ARGS)

.PHONY: image
image: ## Build container images for this machine's architecture with docker, podman or buildah.
	@test -n '$(CONTAINER_TOOL)' || { echo "none of docker, podman and buildah is installed"; exit 1; }
	@mkdir -p bin/linux
	GOOS=linux go build -ldflags '$(LDFLAGS)' -o bin/linux/ ./cmd/autonode-operator ./cmd/karpenter-clusterapi
	for program in autonode-operator karpenter-clusterapi; do \
		$(CONTAINER_TOOL) build --file Containerfile --target $$program --tag $(IMAGE_PREFIX)/$$program:$(VERSION) . || exit 1; done

.PHONY: site
site: ## Build the documentation's site into dist/site. It fails for a link to a page that isn't there, and for a page that the menu lacks. Needs npm.
	npm ci --prefix site
	go -C site mod download
	HUGO_PARAMS_VERSION='$(shell git describe --tags --always)' \
		HUGO_MODULE_REPLACEMENTS="github.com/imfing/hextra -> $$(go list -C site -m -f '{{.Dir}}' github.com/imfing/hextra)" \
		go tool -modfile=tools/site/go.mod hugo --source site --destination ../dist/site --cleanDestinationDir --noBuildLock --panicOnWarning

.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities in what the programs call. Needs vuln.go.dev, so it is no part of verify.
	go tool -modfile=tools/security/go.mod govulncheck ./cmd/...

.PHONY: clean
clean: ## Remove what was built here. The world's programs stay in their cache; 'autonode-dev world build' names it.
	rm -rf bin dist

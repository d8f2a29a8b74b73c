# trl. `make` alone prints the targets; docs/CONTRIBUTING.md says more about each.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Without VERSION the version is that of internal/buildinfo, v0.1.0-dev, with the commit. COMMIT is empty without git, or if git distrusts the tree's owner.
VERSION ?=
COMMIT  ?= $(shell git describe --always --abbrev=12 --exclude='*' --dirty 2>/dev/null)
# -buildvcs=false: COMMIT has the commit already, and stamping fails if git distrusts the tree's owner.
BUILD    = CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w -X trl/internal/buildinfo.commit=$(COMMIT) $(if $(VERSION),-X trl/internal/buildinfo.version=$(VERSION))'

ARGS      ?=
RUN       ?= .
PKG       ?= ./...
BENCH     ?= .
BENCHTIME ?= 1s
COUNT     ?= 5
FUZZTIME  ?= 3600
SOAK      ?= 1h
FOR       ?= 10m
TRIALS    ?= 5000
FIGURES   ?= docs/figures
PEERS     ?=
RELAYED   ?= ./client $(addprefix ./internal/acceptance/,commands edge endings mcp streams survival terminals users) ./web/ui/browser
CONTRACT  ?= ../shared/contract/run.sh

# A separate home for tests that start terminals: their shells read ~/.bashrc, and the caller's may wait for anything.
OWN_HOME = export GOENV="$$(go env GOENV)" GOPATH="$$(go env GOPATH)" GOCACHE="$$(go env GOCACHE)"; \
	HOME=$$(mktemp -d); export HOME; trap 'rm -rf "$$HOME"' EXIT;

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## bin/trl: static, for this machine
	$(BUILD) -o bin/trl ./cmd/trl

arm64: ## bin/trl-linux-arm64: static
	GOOS=linux GOARCH=arm64 $(BUILD) -o bin/trl-linux-arm64 ./cmd/trl

amd64: ## bin/trl-linux-amd64: static
	GOOS=linux GOARCH=amd64 $(BUILD) -o bin/trl-linux-amd64 ./cmd/trl

run: build ## build and serve on the default address; ARGS='--listen …'
	exec bin/trl serve $(ARGS)

check: ## everything CI checks, as CI does it
	.ci/run

deps: ## install what the tests need besides Go (as root), or list what is missing
	@deploy/test-deps.sh

# -race needs cgo and a C compiler; deps installs it. By default a program that is built with -race sleeps for a second before it exits;
# the tests run a thousand such programs. make lint runs all of go vet.
RACE = GORACE=atexit_sleep_ms=50 go test -race -vet=off
# Tests mostly wait, so three packages run at a time on two cores. The packages that take longest begin first, so that none of them runs
# alone at the end.
LONGEST = internal/acceptance/survival web/ui/browser cmd/trl runtime/shell internal/acceptance/edge internal/acceptance/commands \
	internal/acceptance/endings web/rpc web client/typescript/browser runtime/host runtime/keeper
test: deps ## every test, with the race detector; PKG=./pool RUN=TestX for some
	@$(OWN_HOME) all=$$(go list $(PKG)); \
	first=$$(for p in $(LONGEST); do grep "^trl/$$p$$" <<<"$$all" || true; done); \
	$(RACE) -count 1 -p 3 -parallel 4 -timeout 25m -run '$(RUN)' $$first $$all

# The left-out packages start processes in every test; in the others such tests call testkit.StartsProcesses.
quick: ## at most 15 s: build, vet, and the tests that start no process, without the race detector
	go build ./...
	go vet ./...
	TRL_QUICK=1 go test -vet=off $$(go list ./... | grep -v -e /internal/acceptance/ -e /ui/browser)

near: ## the packages that the working tree changes and those that import them, with the race detector and -short
	@near=$$(.ci/near); [ -n "$$near" ] || { echo "no Go package is changed"; exit; }; \
	$(OWN_HOME) $(RACE) -short -count 1 -p 2 -parallel 4 -timeout 25m -run '$(RUN)' $$near

deploy: build ## check deploy/ with the tools that are installed here
	TRL_BUILT=1 deploy/check.sh

otel: ## test the build with tracing, against a collector that the test starts
	go test -tags otel -count 1 -timeout 10m -run 'TestTraces$$' ./cmd/trl

race: deps ## the tests COUNT times, on 1, 2 and 4 processors, to find rare failures
	$(OWN_HOME) $(RACE) -count $(COUNT) -cpu 1,2,4 -timeout 2h -run '$(RUN)' $(PKG)

fmt: ## format the code
	gofmt -w $$(git ls-files --cached --others --exclude-standard '*.go')

# Each analyser is on for a reason, in docs/CONTRIBUTING.md. staticcheck's version is pinned in go.mod.
STATICCHECK = SA*,S*,U1000,ST1005,ST1008,ST1012,ST1016,ST1019,ST1023
lint: ## formatting, go vet, staticcheck, the page's types, and whether its bundle is current
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "not formatted (make fmt): $$unformatted"; exit 1; }
	go vet ./...
	GOARCH=arm64 go vet ./...
	go vet -tags otel ./cmd/trl ./internal/serve
	go vet -tags soak ./internal/...
	go tool staticcheck -checks '$(STATICCHECK)' ./...
	cd web/ui && go run ./bundle -check # by hash; by content if npm ci has been run
	@if [ -x web/ui/node_modules/.bin/tsc ]; then echo tsc --noEmit; cd web/ui && node_modules/.bin/tsc --noEmit; fi

# docs/CONTRIBUTING.md says which rules are off, and why. Both tools are named with their version here and not in go.mod, so that go.mod does not
# contain their dependencies. govulncheck asks its database over the network; it exits with 3 for a finding.
GOSEC_OFF = G103,G104,G115,G204,G301,G302,G304,G306,G404
audit: ## gosec, and govulncheck if its database can be reached
	go run github.com/securego/gosec/v2/cmd/gosec@v2.30.0 -quiet -exclude=$(GOSEC_OFF) -exclude-dir=web/ui/node_modules -exclude-dir=internal/bench ./...
	GOBIN='$(CURDIR)/bin' go install golang.org/x/vuln/cmd/govulncheck@v1.9.0 # not go run, which makes every failure a 1
	timeout 120 bin/govulncheck ./... || { [ $$? -ne 3 ] && echo "govulncheck: its database cannot be reached"; }

generate: ## generate the page's bundle (run npm ci before) and the settings in docs
	go generate ./web/ui
	TRL_UPDATE=1 go test -count 1 -run TestReferenceIsCurrent ./internal/config

screenshots: deps ## take the pictures in docs/img of the real page in a real browser
	mkdir -p docs/img
	TRL_SCREENSHOTS="$(CURDIR)/docs/img" go test -count 1 -timeout 10m -run 'TestScreenshots$$' ./web/ui/browser

fuzz: deps ## every Fuzz target in turn, FUZZTIME seconds in all (an hour)
	.ci/fuzz $(FUZZTIME)

fuzz-smoke: deps ## every Fuzz target, half a minute in all
	.ci/fuzz 30

BENCH_RUN = go run ./internal/bench
bench: build ## every figure with its floor and its budget; ARGS=-quick, ARGS='-format benchstat'
	$(BENCH_RUN) compare -out $(FIGURES) $(ARGS)

bench-scale: build ## 1 to 4,000 sessions: create, use, idle, memory, destroy; ARGS='-sizes 1,100'
	$(BENCH_RUN) scale -out $(FIGURES) $(ARGS)

bench-idle: build ## descriptors, memory and processor time of idle sessions and connections; ARGS='-sizes 100,4000'
	$(BENCH_RUN) idle -out $(FIGURES) $(ARGS)

bench-principals: build ## 10,000 tokens, each of another principal, beside one; ARGS='-principals 1000'
	$(BENCH_RUN) principals -out $(FIGURES) $(ARGS)

bench-agent: build ## an agent's work, compared with bash -c per command and a shell with markers; ARGS='-agents 1,8'
	$(BENCH_RUN) agent -out $(FIGURES) $(ARGS)

bench-comeback: build ## time from a kill -9 of the gateway to the next one's answers, by earlier work; ARGS='-keyed 1000 -sessions 50'
	$(BENCH_RUN) comeback -out $(FIGURES) $(ARGS)

bench-kept: build ## memory and descriptors of ended work, with the default flags
	$(BENCH_RUN) kept -out $(FIGURES) $(ARGS)

bench-clients: build ## a command over each client, beside a bare WebSocket echo in the same language; ARGS='-rounds 500'
	$(BENCH_RUN) clients -out $(FIGURES) $(ARGS)

bench-cluster: build bin/nats-server ## three nodes with NATS, beside one node: what a relay, a name and idle nodes cost; ARGS=-quick
	$(BENCH_RUN) cluster -out $(FIGURES) $(ARGS)

bench-peers: build ## other servers that run on this machine, beside trl and the floors; PEERS='ttyd=127.0.0.1:7681 execd=127.0.0.1:44772'
	@$(OWN_HOME) $(BENCH_RUN) peers -out $(FIGURES) -peers '$(PEERS)' $(ARGS)

bench-plots: ## make the pictures and tables of docs/PERFORMANCE.md from docs/figures
	$(BENCH_RUN) plots -out $(FIGURES) $(ARGS)

bin/nats-server: cluster/natsserver/go.mod
	cd cluster/natsserver && CGO_ENABLED=0 go build -buildvcs=false -o '$(CURDIR)/bin/nats-server' github.com/nats-io/nats-server/v2

cluster: build bin/nats-server ## three nats-servers and three nodes on this machine, to try a cluster; Ctrl-C ends them
	exec deploy/cluster.sh

cluster-sim: ## simulate 10 to 1,000 nodes with real nats-servers, for docs/cluster-scale.md (10 minutes); ARGS='-nodes 10,100'
	go test -tags soak -count 1 -timeout 1h -run 'TestScale$$' -v ./cluster/directory -args -nodes 10,30,100,300,1000 -out '$(abspath $(FIGURES))' $(ARGS)
	$(BENCH_RUN) plots -out $(FIGURES)

cluster-history: deps ## FOR=10m of clients that use a cluster while its nodes, gateways and NATS fail: nothing twice, nothing lost untold
	$(OWN_HOME) $(RACE) -count 1 -timeout 2h -run 'TestHistoryThroughFaults$$' -v ./internal/acceptance/cluster -args -for $(FOR)

relayed: export TRL_TEST_RELAY = 1
relayed: deps ## all clients' tests, the acceptance tests and the page's, at a node that owns no session: no client can tell
	$(OWN_HOME) go test -count 1 -timeout 1h $(RELAYED)
	$(OWN_HOME) client/python/check.sh tests/test_scenarios.py
	$(OWN_HOME) client/typescript/check.sh

bench-go: ## the packages' own benchmarks; BENCH=Command BENCHTIME=3s
	go test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime $(BENCHTIME) -timeout 1h $(PKG)

soak: build ## an hour of mixed work: nothing may grow; SOAK=90s for a short run
	$(BENCH_RUN) soak -for $(SOAK) -out $(FIGURES) $(ARGS)

test-soak: deps ## the tests that make test shortens, at full length
	$(OWN_HOME) $(RACE) -tags soak -count 1 -timeout 4h -run '$(RUN)' $(PKG)

soak-crash: deps ## kill the gateway 60 times under 50 sessions and 20 followers, and 80 times under everything that clients do: nothing lost, doubled or out of order
	$(OWN_HOME) $(RACE) -tags soak -count 1 -timeout 1h -run 'TestNothingIsLostWhenTheGatewayIsKilled$$|TestWorksWhileGatewaysDie' -v ./internal/acceptance/survival

soak-once: deps ## FOR=10m of everything that clients do in 60 sessions of every shell, with gateways killed and upgraded: nothing twice, nothing missing
	$(OWN_HOME) go test -tags soak -count 1 -timeout 2h -run 'TestEndurance$$' -v ./internal/acceptance/survival -args -for $(FOR)

once: deps ## TRIALS=5000 commands that end their shell while their gateway is killed: each runs once
	$(OWN_HOME) go test -count 1 -timeout 4h -run 'TestCommandRunsOnceAtRandomDeaths$$' -v ./internal/acceptance/survival -args -trials $(TRIALS)

clients: clients-python clients-typescript documents ## the tests of the clients in other languages, and of the documents for code generators

clients-python: ## the Python client: pytest, mypy, every scenario; ARGS='-k terminal' for some
	@$(OWN_HOME) client/python/check.sh $(ARGS)

clients-typescript: ## the TypeScript client: its types, and every test in Node, Bun and Deno
	@$(OWN_HOME) client/typescript/check.sh

documents: ## the OpenAPI and AsyncAPI documents, by validators from npm
	@$(OWN_HOME) protocol/check-documents.sh

clients: clients-mcp
clients-mcp: ## the tools for agents: the protocol's conformance suite and its inspector, from npm
	@$(OWN_HOME) internal/acceptance/mcp/check.sh
.PHONY: clients-mcp

contract: ## the contract's own suite, next to the repository
	@if [ -x $(CONTRACT) ]; then $(OWN_HOME) $(CONTRACT) core && $(CONTRACT) terminal; else echo "contract: SKIPPED, no $(CONTRACT) here"; fi

release: ## make dist/: binaries, packages, SBOMs, checksums, notes; VERSION=v0.1.0 MAINTAINER='Name <address>'
	VERSION='$(VERSION)' deploy/release.sh

release-check: ## a trial release for amd64, built twice in two places: the same bytes, a package that unpacks and runs
	deploy/release-check.sh

clean: ## remove build results
	rm -rf bin dist

.PHONY: cluster cluster-sim cluster-history relayed clients clients-python clients-typescript documents release release-check deploy otel help generate screenshots build arm64 amd64 run check quick near deps test race fmt lint audit fuzz fuzz-smoke bench bench-scale bench-idle bench-principals bench-agent bench-comeback bench-kept bench-clients bench-cluster bench-peers bench-plots bench-go soak test-soak soak-crash soak-once once contract clean

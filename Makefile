# trl. `make` alone prints the targets; docs/CONTRIBUTING.md says more about each.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Without VERSION it is the one in cmd/trl/main.go, v0.1.0-dev, with the commit. There may be no git, or one that distrusts the owner of the tree.
VERSION ?=
COMMIT  ?= $(shell git describe --always --abbrev=12 --exclude='*' --dirty 2>/dev/null)
# -buildvcs=false: COMMIT says it already, and stamping fails where git distrusts the owner of the tree.
BUILD    = CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w -X main.commit=$(COMMIT) $(if $(VERSION),-X main.version=$(VERSION))'

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
CONTRACT  ?= ../shared/contract/run.sh

# A home of its own for what starts terminals: their shells read ~/.bashrc, and that of the caller may wait for anything.
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

deps: ## what the tests need besides Go: installed as root, else named
	@deploy/test-deps.sh

# -race needs cgo and a C compiler; deps sees to it. What is built with it sleeps for a second before it exits, by default:
# the tests run a thousand such programs.
RACE = GORACE=atexit_sleep_ms=50 go test -race
test: deps ## every test, with the race detector; PKG=./pool RUN=TestX for some
	@$(OWN_HOME) all=$$(go list $(PKG)); failed=0; \
	for some in "$$(grep -v '/browser$$' <<<"$$all")" "$$(grep '/browser$$' <<<"$$all")"; do \
		[ -z "$$some" ] || $(RACE) -count 1 -p 2 -parallel 4 -timeout 25m -run '$(RUN)' $$some || failed=1; \
	done; exit $$failed # mostly they wait, so two packages at a time; but for a browser, which keeps both cores busy by itself

# The left-out packages start processes in every test; in the others such tests call testkit.StartsProcesses.
quick: ## at most 15 s: build, vet, and the tests that start no process, without the race detector
	go build ./...
	go vet ./...
	TRL_QUICK=1 go test -vet=off $$(go list ./... | grep -v -e /internal/acceptance -e /ui/browser)

near: ## the packages that the working tree changes and those that import them, with the race detector and -short
	@near=$$(.ci/near); [ -n "$$near" ] || { echo "no Go package is changed"; exit; }; \
	$(OWN_HOME) $(RACE) -short -count 1 -p 2 -parallel 4 -timeout 25m -run '$(RUN)' $$near

deploy: build ## what of deploy/ can be checked with what is installed here
	TRL_BUILT=1 deploy/check.sh

otel: ## the build with tracing, against a collector of the test's own
	go test -tags otel -count 1 -timeout 10m -run 'TestTraces$$' ./cmd/trl

race: deps ## the tests COUNT times over, on 1, 2 and 4 processors, to find what happens seldom
	$(OWN_HOME) $(RACE) -count $(COUNT) -cpu 1,2,4 -timeout 2h -run '$(RUN)' $(PKG)

fmt: ## format the code
	gofmt -w $$(git ls-files --cached --others --exclude-standard '*.go')

# Each analyser is on for a reason, in docs/CONTRIBUTING.md. staticcheck's version is pinned in go.mod.
STATICCHECK = SA*,S*,U1000,ST1005,ST1008,ST1012,ST1016,ST1019,ST1023
lint: ## formatting, go vet, staticcheck, the page's types, and that its bundle is current
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "not formatted (make fmt): $$unformatted"; exit 1; }
	go vet ./...
	GOARCH=arm64 go vet ./...
	go vet -tags otel ./cmd/trl
	go tool staticcheck -checks '$(STATICCHECK)' ./...
	cd web/ui && go run ./bundle -check # by hash; by content where npm has been
	@if [ -x web/ui/node_modules/.bin/tsc ]; then echo tsc --noEmit; cd web/ui && node_modules/.bin/tsc --noEmit; fi

# Rules that are off, and why, are in docs/CONTRIBUTING.md. Both tools are named with their version and not in go.mod: what they bring along is
# not ours to carry. govulncheck asks its database over the network; 3 is its word for a find.
GOSEC_OFF = G103,G104,G115,G204,G301,G302,G304,G306,G404
audit: ## gosec, and govulncheck where its database can be reached
	go run github.com/securego/gosec/v2/cmd/gosec@v2.30.0 -quiet -exclude=$(GOSEC_OFF) -exclude-dir=web/ui/node_modules -exclude-dir=internal/bench ./...
	GOBIN='$(CURDIR)/bin' go install golang.org/x/vuln/cmd/govulncheck@v1.9.0 # not go run, which makes every failure a 1
	timeout 120 bin/govulncheck ./... || { [ $$? -ne 3 ] && echo "govulncheck: its database cannot be reached"; }

generate: ## what is made from sources: the page (npm ci brings what it is made from), the settings in docs
	go generate ./web/ui
	TRL_UPDATE=1 go test -count 1 -run TestReferenceIsCurrent ./cmd/trl

screenshots: deps ## the pictures in docs/img, from the real page in a real browser
	mkdir -p docs/img
	TRL_SCREENSHOTS="$(CURDIR)/docs/img" go test -count 1 -timeout 10m -run 'TestScreenshots$$' ./web/ui/browser

fuzz: deps ## every Fuzz target in turn, FUZZTIME seconds in all (an hour)
	.ci/fuzz $(FUZZTIME)

fuzz-smoke: deps ## every Fuzz target, half a minute in all
	.ci/fuzz 30

BENCH_RUN = go run ./internal/bench
bench: build ## every figure beside its floor and its budget; ARGS=-quick, ARGS='-format benchstat'
	$(BENCH_RUN) compare -out $(FIGURES) $(ARGS)

bench-scale: build ## 1 to 4,000 sessions: create, use, idle, memory, destroy; ARGS='-sizes 1,100'
	$(BENCH_RUN) scale -out $(FIGURES) $(ARGS)

bench-agent: build ## an agent's work beside bash -c per command and a shell with markers; ARGS='-agents 1,8'
	$(BENCH_RUN) agent -out $(FIGURES) $(ARGS)

bench-comeback: build ## from a kill -9 of the gateway to its successor's answers, by what clients had done; ARGS='-keyed 1000 -sessions 50'
	$(BENCH_RUN) comeback -out $(FIGURES) $(ARGS)

bench-kept: build ## what work that has ended takes: memory and descriptors, with the default flags
	$(BENCH_RUN) kept -out $(FIGURES) $(ARGS)

bench-plots: ## pictures and tables of docs/PERFORMANCE.md, from docs/figures
	$(BENCH_RUN) plots -out $(FIGURES) $(ARGS)

bench-go: ## the packages' own benchmarks; BENCH=Command BENCHTIME=3s
	go test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime $(BENCHTIME) -timeout 1h $(PKG)

soak: build ## an hour of mixed work: nothing may grow; SOAK=90s for a try
	$(BENCH_RUN) soak -for $(SOAK) -out $(FIGURES) $(ARGS)

test-soak: deps ## the tests that make test shortens, at full length
	$(OWN_HOME) TRL_SOAK=1 $(RACE) -count 1 -timeout 4h -run '$(RUN)' $(PKG)

soak-crash: deps ## the gateway killed 60 times under 50 sessions and 20 followers, and 80 times under all that clients do: nothing lost, doubled or out of order
	$(OWN_HOME) TRL_SOAK=1 $(RACE) -count 1 -timeout 1h -run 'TestNothingIsLostWhenTheGatewayIsKilled$$|TestWorksWhileGatewaysDie' -v ./internal/acceptance

soak-once: deps ## FOR=10m of all that clients do in 60 sessions of every shell, gateways killed and upgraded meanwhile: nothing twice, nothing missing
	$(OWN_HOME) TRL_SOAK=1 go test -count 1 -timeout 2h -run 'TestEndurance$$' -v ./internal/acceptance -args -for $(FOR)

once: deps ## TRIALS=5000 commands that end their shell while their gateway is killed: each runs once
	$(OWN_HOME) go test -count 1 -timeout 4h -run 'TestCommandRunsOnceAtRandomDeaths$$' -v ./internal/acceptance -args -trials $(TRIALS)

contract: ## the contract's own suite, beside the repository
	@if [ -x $(CONTRACT) ]; then $(OWN_HOME) $(CONTRACT) core && $(CONTRACT) terminal; else echo "contract: SKIPPED, no $(CONTRACT) here"; fi

release: ## dist/: binaries, packages, SBOMs, checksums, notes; VERSION=v0.1.0 MAINTAINER='Name <address>'
	VERSION='$(VERSION)' deploy/release.sh

release-check: ## a trial release for amd64, built twice in two places: the same bytes, a package that unpacks and runs
	deploy/release-check.sh

clean: ## remove what was built
	rm -rf bin dist

.PHONY: release release-check deploy otel help generate screenshots build arm64 amd64 run check quick near deps test race fmt lint audit fuzz fuzz-smoke bench bench-scale bench-agent bench-comeback bench-kept bench-plots bench-go soak test-soak soak-crash soak-once once contract clean

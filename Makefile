# terrace: build, tests, benchmarks. `make test` is what CI runs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
.PHONY: build test soak bench demo deps tools lint loom clean

CARGO ?= cargo
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/local/cargo/bin:/usr/sbin:/sbin
# Backtraces of failing tests are long and say little here: every failure prints its seed and what it saw.
export RUST_BACKTRACE ?= 0

PRODUCT := -p terrace -p terrace-preload -p terrace-bench
TOOLS := target/tools

# Debian packages of the build, the tests and the benchmarks.
PACKAGES := gcc libc6-dev make git ca-certificates fuse3 util-linux e2fsprogs procps \
	fio attr acl libjemalloc2 sqlite3 python3 postgresql

## build: the command, the preload library and the benchmarks, in target/release
build: deps
	$(CARGO) build --release $(PRODUCT)

## test: all that a change must pass; under 30 minutes on two cores
test: build tools lint loom
	$(CARGO) test --workspace

## soak: every test in its long form, hours
soak: build tools lint loom
	TERRACE_SOAK=1 PROPTEST_CASES=20000 $(CARGO) test --release --workspace --no-fail-fast -- --include-ignored --nocapture

## bench: the promised numbers against the kernel's page cache; wants a quiet machine
bench: build
	out=bench/runs/$$(date -u +%Y%m%dT%H%M)-$$(uname -n); mkdir -p "$$out"; \
	target/release/terrace-bench all --json "$$out/raw.jsonl" | tee "$$out/report.txt"

## demo: one short comparison, after installing and building what it needs
demo: build
	bash bench/demo.sh

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# The protocols of the shared segment under every interleaving of their atomics.
loom:
	LOOM_MAX_PREEMPTIONS=$${LOOM_MAX_PREEMPTIONS:-2} RUSTFLAGS="--cfg loom" \
		$(CARGO) test --release -p terrace-shm --lib --target-dir target/loom

## tools: outside suites at fixed versions, in target/tools
tools: deps $(TOOLS)/bin/fsx $(TOOLS)/bin/pjdfstest

$(TOOLS)/bin/fsx:
	$(CARGO) install --quiet --root $(TOOLS) --target-dir $(TOOLS)/build fsx@0.3.2

$(TOOLS)/bin/pjdfstest:
	$(CARGO) install --quiet --root $(TOOLS) --target-dir $(TOOLS)/build pjdfstest@0.2.2

## deps: installs what is missing of packages and of the Rust toolchain
deps:
	@missing=(); \
	if command -v apt-get >/dev/null; then \
		for p in $(PACKAGES); do \
			[[ "$$(dpkg-query -W -f '$${db:Status-Abbrev}' "$$p" 2>/dev/null || true)" == ii* ]] || missing+=("$$p"); \
		done; \
		if (( $${#missing[@]} )); then \
			echo "installing: $${missing[*]}"; \
			sudo=; [[ $$(id -u) == 0 ]] || sudo=sudo; \
			$$sudo apt-get update -q; \
			$$sudo env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -q --no-install-recommends "$${missing[@]}"; \
		fi; \
	else \
		echo "not a Debian system: see the packages in the Makefile"; \
	fi
	@if ! command -v $(CARGO) >/dev/null; then \
		command -v rustup >/dev/null || { \
			sudo=; [[ $$(id -u) == 0 ]] || sudo=sudo; \
			$$sudo apt-get install -y -q rustup || { $$sudo apt-get install -y -q curl; \
				curl -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal -c rustfmt -c clippy; }; }; \
		command -v $(CARGO) >/dev/null || rustup default stable; \
	fi

clean:
	$(CARGO) clean

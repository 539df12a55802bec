# terrace: build, tests, benchmarks. `make test` is what CI runs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
.PHONY: build remote test soak sources s3-server xfstests redis-suite bench bench-kv bench-ycsb bench-suites bench-foyer bench-tiers bench-hermes bench-databases bench-real bench-everyday bench-policies hpc demo install uninstall deb dist header python python-test deps tools lint deny loom clean toolchain

CARGO ?= cargo
# First the toolchain that `make toolchain` installs: a distribution's may be too old.
export PATH := $(HOME)/.cargo/bin:/usr/local/cargo/bin:$(PATH):/usr/sbin:/sbin
# Backtraces of failing tests are long and say little here: every failure prints its seed and what it saw.
export RUST_BACKTRACE ?= 0

VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
PRODUCT := -p terrace -p terrace-preload -p terrace-bench -p terrace-sim
# FEATURES=remote: with targets in stores (--tier s3://... and fs://...), which need as many crates as all the rest.
FEATURES ?=
WITH = $(addprefix --features terrace/,$(FEATURES))
WORKSPACE = --workspace $(or $(WITH),--exclude terrace-remote)
TOOLS := target/tools

# Where `make install` puts things. DESTDIR goes before all of them, for packages.
PREFIX ?= /usr/local
DESTDIR ?=
# mount(8) looks for helpers in /sbin alone.
MOUNT_HELPERS ?= $(if $(filter /usr /usr/local,$(PREFIX)),/sbin,$(PREFIX)/sbin)
ZSH_COMPLETIONS ?= $(PREFIX)/share/zsh/site-functions
# The directory of built programs.
BUILT ?= target/release
# Settings for the units of databases.
DROP_INS := postgresql@.service.d mariadb.service.d
INSTALLED = $(PREFIX)/bin/terrace $(PREFIX)/lib/terrace/libterrace_preload.so $(PREFIX)/lib/systemd/system/terrace@.service \
	$(PREFIX)/share/man/man1/terrace.1 $(PREFIX)/share/man/man8/mount.fuse.terrace.8 $(PREFIX)/share/man/man8/umount.fuse.terrace.8 \
	$(PREFIX)/share/bash-completion/completions/terrace $(ZSH_COMPLETIONS)/_terrace $(PREFIX)/share/fish/vendor_completions.d/terrace.fish \
	$(PREFIX)/share/doc/terrace/terrace.toml $(DROP_INS:%=$(PREFIX)/share/doc/terrace/%/terrace.conf) $(MOUNT_HELPERS)/mount.fuse.terrace $(MOUNT_HELPERS)/umount.fuse.terrace

# What must hold in the least memory beside a compressed tier that is always busy, as it does without; each mount must show that it was.
WITH_TIER := TERRACE_CONFIG="$(CURDIR)/crates/lab/terrace-tests/data/compressed.toml" TERRACE_BUSY_TIER=1
TIER_TESTS := --test all -- behaviour:: crash:: model:: programs:: stress::
# The same beside a tier on a device.
WITH_DEVICE := TERRACE_DEVICE_TIER=1
# That answers fsyncs, too.
WITH_BURST := $(WITH_DEVICE) TERRACE_CONFIG="$(CURDIR)/crates/lab/terrace-tests/data/burst.toml"
# Both at once.
WITH_BOTH := TERRACE_BUSY_TIER=1 $(WITH_DEVICE) TERRACE_CONFIG="$(CURDIR)/crates/lab/terrace-tests/data/tiers.toml"
# In the quick form, those that change files, and those that kill. Not those that look at the source before the next start, or run without a tier.
BURST_TESTS := --test all -- behaviour:: crash:: model:: programs::fsx programs::sqlite stress:: --skip crash::everything_killed --skip model::terrace_run_answers
# So that all of it stays within half an hour; `make soak` has the long forms.
QUICK := TERRACE_SECONDS=4 TERRACE_POLICY_SECONDS=1 TERRACE_CRASH_ROUNDS=6 TERRACE_DEVICE_KILLS=15 TERRACE_DEVICE_ROUNDS=30 TERRACE_SEQUENCES=150 TERRACE_FSX=4000 TERRACE_PG_SECONDS=4 TERRACE_SQLITE_ROUNDS=3
# A second quick run need not be as long as the first.
SHORTER := TERRACE_FSX=2000 TERRACE_SQLITE_ROUNDS=1 TERRACE_PG_SECONDS=4 TERRACE_SEQUENCES=50 TERRACE_SECONDS=3 TERRACE_CRASH_ROUNDS=3

# Nor in a soak.
LONGER := TERRACE_FSX=20000 TERRACE_SQLITE_ROUNDS=10 TERRACE_PG_SECONDS=20 TERRACE_SEQUENCES=1500 TERRACE_SECONDS=40 TERRACE_CRASH_ROUNDS=30

# Debian packages, by what needs them.
PACKAGES_build := gcc libc6-dev git ca-certificates
PACKAGES_demo := $(PACKAGES_build) fuse3 fio util-linux
PACKAGES_bench := $(PACKAGES_demo) e2fsprogs
PACKAGES_tiers := $(PACKAGES_bench) jq
PACKAGES_hermes := $(PACKAGES_tiers) python3 python3-venv python3-h5py-mpi python3-mpi4py openmpi-bin
PACKAGES_everyday := $(PACKAGES_demo) gcc libc6-dev git golang-go python3 tar
PACKAGES_real := $(PACKAGES_demo) postgresql mariadb-server sysbench linux-source make flex bison bc xz-utils
PACKAGES_xfstests := $(PACKAGES_demo) make xfsprogs xfslibs-dev e2fsprogs acl attr libacl1-dev libaio-dev libattr1-dev libcap-dev \
	liburing-dev uuid-dev libgdbm-dev libssl-dev libtool libtool-bin autoconf automake pkg-config bc gawk indent sed file dump quota psmisc \
	uuid-runtime keyutils dbench perl
PACKAGES_kv := $(PACKAGES_build) redis-server redis-tools
PACKAGES_ycsb := $(PACKAGES_build) default-jdk-headless maven python3 redis-server memcached
PACKAGES_hpc := $(PACKAGES_demo) python3 python3-pytest python3-h5py python3-h5py-mpi python3-mpi4py openmpi-bin hdf5-tools python3-netcdf4 netcdf-bin pnetcdf-bin
PACKAGES_deb := $(PACKAGES_build) dpkg-dev
PACKAGES_redis-suite := $(PACKAGES_build) tcl python3
PACKAGES_lint := codespell
PACKAGES_python := $(PACKAGES_build) python3 python3-venv
PACKAGES_vm := $(PACKAGES_build) apt dpkg binutils qemu-system-x86 busybox-static e2fsprogs
PACKAGES_test := $(PACKAGES_demo) $(PACKAGES_lint) $(PACKAGES_python) bindfs sshfs openssh-sftp-server fuse-overlayfs git python3 procps e2fsprogs attr libjemalloc2 liburing-dev python3-h5py postgresql systemd
# Each has a file system of the zoo; a kind whose package Debian lacks is counted as missing.
PACKAGES_sources := $(PACKAGES_test) btrfs-progs cryfs dosfstools encfs exfat-fuse exfatprogs f2fs-tools fuse2fs gocryptfs mergerfs ntfs-3g rclone squashfs-tools unionfs-fuse xfsprogs
# The page of `terrace top` is tested in a browser, where there is one.
PACKAGES_soak := $(PACKAGES_sources) $(PACKAGES_vm) chromium

## build: the command, the preload library, the benchmarks and the simulator, in target/release
build: packages-build toolchain
	$(CARGO) build --release --locked $(PRODUCT) $(WITH)

## remote: the same with targets in object stores and shared directories (--tier s3://..., fs://...), as `make FEATURES=remote` of all others; a minute and a half more
remote: FEATURES := remote
remote: build

## test: all that a change must pass; 25 minutes on two quiet cores
test: export TERRACE_BIN_DIR := $(or $(TERRACE_BIN_DIR),$(CURDIR)/target/debug)
test: export TERRACE_SKIPPED := $(CURDIR)/target/skipped
test: packages-test toolchain
	@rm -f target/steps target/skipped
	@bash .ci/step lint $(MAKE) --no-print-directory lint
	@bash .ci/step tools $(MAKE) --no-print-directory tools
	@bash .ci/step loom $(MAKE) --no-print-directory loom
	# The whole workspace each time, with the tests chosen by their targets: with -p the features of some crates are others, and all above them are built again.
	@bash .ci/step product $(CARGO) build $(WORKSPACE) --locked
	@bash .ci/step build $(CARGO) test $(WORKSPACE) --locked --no-run
	@$(QUICK) bash .ci/step tests $(CARGO) test $(WORKSPACE) --locked
	# The soak has a run for each tier alone.
	@$(WITH_BOTH) $(SHORTER) bash .ci/step tiers $(CARGO) test $(WORKSPACE) --locked $(BURST_TESTS)
	# With the debug assertions of all other tests; the soak has the wheel that users get, which takes minutes to build.
	@PYTHON_PROFILE=dev bash .ci/step python bash .ci/python test
	@bash .ci/step

## soak: every test in its long form, with those in virtual machines, 85 minutes on two cores, or about TERRACE_SOAK_MINUTES; with the real traces in TERRACE_TRACES and the checkout in XFSTESTS, if they are set
soak: FEATURES := remote
soak: packages-soak build tools s3-server $(TOOLS)/bin/cbindgen lint deny loom
	export CARGO="$(CARGO)"; bash .ci/soak begin; \
	TERRACE_SOAK=1 PROPTEST_CASES=4000 bash .ci/soak part all --workspace -- --nocapture; \
	$(WITH_TIER) $(LONGER) bash .ci/soak part tier --workspace $(TIER_TESTS) --nocapture; \
	$(WITH_DEVICE) $(LONGER) bash .ci/soak part device --workspace $(TIER_TESTS) storm:: --nocapture; \
	$(WITH_BURST) $(SHORTER) bash .ci/soak part burst --workspace $(BURST_TESTS) --nocapture; \
	bash .ci/soak command numa $(CARGO) xtask vm numa; bash .ci/soak command dax $(CARGO) xtask vm dax; \
	bash .ci/soak command python bash .ci/python test; \
	bash .ci/soak command sources make sources; \
	[ -z "$${TERRACE_TRACES:-}" ] || \
		bash .ci/soak part traces -p terrace-sim --test real_traces -- --ignored --nocapture; \
	if [ -n "$${XFSTESTS:-}" ]; then bash .ci/soak command xfstests make xfstests; \
	else echo "xfstests: skipped, for XFSTESTS names no checkout of it"; fi; \
	bash .ci/soak command hpc make hpc; \
	bash .ci/soak end

## sources: the zoo: the same programs on each kind of source and through terrace, with the same outcomes; TERRACE_SOURCES=ext4,sshfs names some; half an hour, as root
sources: packages-sources toolchain
	$(CARGO) build --release --locked $(PRODUCT)
	TERRACE_REQUIRE_ROOT=1 $(CARGO) test $(WORKSPACE) --locked --test all -- sources::every --ignored --nocapture

## xfstests: the generic tests (GROUP=quick, or TESTS="generic/001 ...") of the checkout in XFSTESTS, and ext4 where one fails; an hour, as root
xfstests: packages-xfstests build
	xtask/xfstests/run.sh "$${XFSTESTS:?set it to a checkout of xfstests}" $(TESTS)

## redis-suite: Redis' own tests of the commands of `terrace serve kv`, from the checkout of Redis 7.0 in REDIS; a minute
redis-suite: packages-redis-suite build
	xtask/redis-suite/run.sh "$${REDIS:?set it to a checkout of Redis 7.0, or to its source package unpacked}"

## hpc: HDF5, MPI-IO, NetCDF and a simulation, unmodified, on a served directory and on the plain one: the same output and the same bytes; 5 minutes
hpc: packages-hpc build
	/usr/bin/python3 bench/hpc/run.py

## bench: a quick matrix of systems side by side, 5 minutes; wants a quiet machine
bench: packages-bench build
	target/release/terrace-bench matrix bench/quick.toml --out bench/runs/$$(date -u +%Y%m%dT%H%M)-$$(uname -n)

## bench-suites: the promised numbers against the kernel's page cache, 100 minutes; wants a quiet machine
bench-suites: packages-bench build
	out=bench/runs/$$(date -u +%Y%m%dT%H%M)-$$(uname -n)-suites; failed=; \
	for name in hits misses paths writes fio; do target/release/terrace-bench matrix bench/$$name.toml --out "$$out/$$name" || failed=1; done; \
	[ -z "$$failed" ]

## bench-foyer: the program that puts foyer's hybrid cache under loads of terrace-bench; its dependencies are no part of the product
bench-foyer: toolchain
	$(CARGO) build --release --locked --manifest-path bench/foyer/Cargo.toml --target-dir target/foyer

## bench-tiers: a tier on a device against none, the kernel's page cache and foyer; four hours, 34 GiB of disk; wants a quiet machine
bench-tiers: packages-tiers build bench-foyer
	out=bench/runs/$$(date -u +%Y%m%dT%H%M)-$$(uname -n)-tiers; failed=; \
	for name in tiers tiers-overhead tiers-hits tiers-restart tiers-restart-full; do target/release/terrace-bench matrix bench/$$name.toml --out "$$out/$$name" || failed=1; done; \
	[ -z "$$failed" ]

## bench-hermes: each part of Hermes' published study, beside the published figures and its successor CTE, on one page; two hours, as root; QUICK=1: 5 minutes, figures of no worth; wants a quiet machine
bench-hermes: packages-hermes build target/cte
	bash bench/hermes.sh

# Its successor, for the measurements alone; without the registry they leave it out. The Python package of this project, if `make python` has made it.
target/cte:
	python3 -m venv $@ && $@/bin/pip install --quiet iowarp-core==2.3.2 $(wildcard target/wheels/*.whl) || { rm -rf $@; echo "bench-hermes: CTE cannot be installed: its cells are not measured"; }

## bench-databases: PostgreSQL and MariaDB as programs write, plain and under `terrace run --exclusive`, on slow disks and a fast one, without and with a tier; nine hours, as root; QUICK=1: 12 minutes; wants a quiet machine
bench-databases: packages-real build
	out=bench/runs/$$(date -u +%Y%m%dT%H%M)-$$(uname -n)-databases; failed=; \
	for iops in $(if $(QUICK),3000,3000 1000 0); do \
		target/release/terrace-bench matrix bench/databases$(if $(QUICK),-quick).toml --iops $$iops --out "$$out/$$iops" || failed=1; \
	done; \
	[ -z "$$failed" ]

## bench-real: builds of Linux against the kernel's page cache, in equal memory; an hour; wants a quiet machine
bench-real: packages-real build
	out=bench/runs/$$(date -u +%Y%m%dT%H%M)-$$(uname -n)-real; failed=; \
	for name in real-build real-build-many; do target/release/terrace-bench matrix bench/$$name.toml --out "$$out/$$name" || failed=1; done; \
	[ -z "$$failed" ]

## bench-everyday: what users try first, against the plain directory; 75 minutes; wants a quiet machine
bench-everyday: packages-everyday build
	target/release/terrace-bench matrix bench/everyday.toml --out bench/runs/$$(date -u +%Y%m%dT%H%M)-$$(uname -n)-everyday

## bench-kv: redis-benchmark against `terrace serve kv` and redis-server in turn, 8 minutes; settings in bench/kv.sh; wants a quiet machine
bench-kv: packages-kv build
	bash bench/kv.sh

## bench-ycsb: YCSB against terrace, Redis, memcached and RocksDB in turn; settings in bench/ycsb/run.py; wants a quiet machine, and root for the data of four times the memory
bench-ycsb: packages-ycsb build
	$(CARGO) build --release --locked -p terrace-c
	bash .ci/ycsb
	python3 bench/ycsb/run.py

## bench-policies: eviction policies on the traces in TERRACE_TRACES, and the gates they must pass
bench-policies: packages-build toolchain
	$(CARGO) build --release --locked -p terrace-sim
	target/release/terrace-sim gates --traces "$${TERRACE_TRACES:?set it to a directory of traces}"

## install: what `make build` has built, below PREFIX (/usr/local); as the user who may write there
install:
	@[ -x $(BUILT)/terrace ] && [ -e $(BUILT)/libterrace_preload.so ] || { echo "$(BUILT) has no terrace: run \`make build\` first" >&2; exit 2; }
	install -D -m 755 -t "$(DESTDIR)$(PREFIX)/bin" $(BUILT)/terrace
	install -D -m 644 -t "$(DESTDIR)$(PREFIX)/lib/terrace" $(BUILT)/libterrace_preload.so
	! command -v strip >/dev/null || strip -g "$(DESTDIR)$(PREFIX)/bin/terrace" "$(DESTDIR)$(PREFIX)/lib/terrace/libterrace_preload.so"
	install -D -m 644 -t "$(DESTDIR)$(PREFIX)/share/man/man8" contrib/mount.fuse.terrace.8
	install -D -m 644 -t "$(DESTDIR)$(PREFIX)/share/doc/terrace" docs/terrace.toml
	install -d "$(DESTDIR)$(PREFIX)/lib/systemd/system" "$(DESTDIR)$(PREFIX)/share/man/man1" "$(DESTDIR)$(PREFIX)/share/bash-completion/completions" \
		"$(DESTDIR)$(ZSH_COMPLETIONS)" "$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d" "$(DESTDIR)$(MOUNT_HELPERS)"
	sed 's|@BINDIR@|$(PREFIX)/bin|' contrib/terrace@.service > "$(DESTDIR)$(PREFIX)/lib/systemd/system/terrace@.service"
	for unit in $(DROP_INS); do install -d "$(DESTDIR)$(PREFIX)/share/doc/terrace/$$unit"; \
		sed 's|@BINDIR@|$(PREFIX)/bin|' contrib/$$unit/terrace.conf > "$(DESTDIR)$(PREFIX)/share/doc/terrace/$$unit/terrace.conf"; done
	echo '.so man8/mount.fuse.terrace.8' > "$(DESTDIR)$(PREFIX)/share/man/man8/umount.fuse.terrace.8"
	$(BUILT)/terrace generate man > "$(DESTDIR)$(PREFIX)/share/man/man1/terrace.1"
	$(BUILT)/terrace generate complete-bash > "$(DESTDIR)$(PREFIX)/share/bash-completion/completions/terrace"
	$(BUILT)/terrace generate complete-zsh > "$(DESTDIR)$(ZSH_COMPLETIONS)/_terrace"
	$(BUILT)/terrace generate complete-fish > "$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/terrace.fish"
	ln -sfn "$(PREFIX)/bin/terrace" "$(DESTDIR)$(MOUNT_HELPERS)/mount.fuse.terrace"
	ln -sfn "$(PREFIX)/bin/terrace" "$(DESTDIR)$(MOUNT_HELPERS)/umount.fuse.terrace"

## uninstall: removes what `make install` with the same PREFIX has put there
uninstall:
	rm -f $(foreach file,$(INSTALLED),"$(DESTDIR)$(file)")
	rmdir --ignore-fail-on-non-empty $(foreach dir,lib/terrace $(DROP_INS:%=share/doc/terrace/%) share/doc/terrace,"$(DESTDIR)$(PREFIX)/$(dir)") 2>/dev/null || true

## deb: a Debian package, in target/debian
deb: packages-deb build $(TOOLS)/bin/cargo-deb
	rm -rf target/debian/stage target/debian/*.deb
	$(MAKE) install PREFIX=/usr DESTDIR=target/debian/stage MOUNT_HELPERS=/usr/sbin ZSH_COMPLETIONS=/usr/share/zsh/vendor-completions
	$(TOOLS)/bin/cargo-deb --quiet -p terrace --no-build --no-strip --locked --output target/debian/

## dist: source archive, Debian package and their checksums, in target/dist
dist: deb
	@git diff --quiet HEAD || { echo "dist: commit the changes first: the archive is of HEAD, the package of the work tree" >&2; exit 2; }
	rm -rf target/dist && mkdir -p target/dist
	git archive --format=tar.gz --prefix=terrace-$(VERSION)/ -o target/dist/terrace-$(VERSION).tar.gz HEAD
	cp target/debian/*.deb target/dist/
	cd target/dist && sha256sum terrace* > SHA256SUMS && cat SHA256SUMS

## header: crates/store/terrace-c/terrace.h, from the sources; the soak checks that it is up to date
header: packages-build toolchain $(TOOLS)/bin/cbindgen
	$(TOOLS)/bin/cbindgen --quiet --config crates/store/terrace-c/cbindgen.toml crates/store/terrace-c > crates/store/terrace-c/terrace.h

## python: the wheel of the Python package terrace_cache, in target/wheels; PYTHON names another Python than python3
python: packages-python toolchain
	bash .ci/python wheel

## python-test: its tests and examples, with what they need in target/python; a part of `make test`, there with debug assertions
python-test: packages-python toolchain
	bash .ci/python test

## demo: terrace against the page cache in four minutes, after installing and building what it needs
demo: packages-demo build
	bash bench/demo.sh

## lint: formatting, clippy, checks of the repository with its spelling
lint: packages-lint
	$(CARGO) fmt --all --check
	# As a program of the workspace: alone, it would be built with other features, and all below it once more.
	$(CARGO) build --quiet $(WORKSPACE) --locked --bin xtask && target/debug/xtask
	$(CARGO) clippy $(WORKSPACE) --all-targets --locked -- -D warnings
	# bench/foyer is a workspace of its own: its lock file goes along with the crates that it uses.
	$(CARGO) update --quiet --workspace --locked --manifest-path bench/foyer/Cargo.toml

## deny: licences and sources of the crates, and that only the remote tier has an async runtime
deny: packages-build toolchain $(TOOLS)/bin/cargo-deny
	$(TOOLS)/bin/cargo-deny --locked check licenses bans sources

# The protocols of the shared segment under every interleaving of their atomics.
loom: toolchain
	LOOM_MAX_PREEMPTIONS=$${LOOM_MAX_PREEMPTIONS:-2} RUSTFLAGS="--cfg loom" \
		$(CARGO) test --locked -p terrace-shm --lib --target-dir target/loom

## tools: outside suites at fixed versions, in target/tools
tools: packages-build toolchain $(TOOLS)/bin/fsx $(TOOLS)/bin/pjdfstest

# What waits for system calls needs no optimizer.
PLAIN := CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16

$(TOOLS)/bin/cargo-deny:
	$(CARGO) install --quiet --locked --root $(TOOLS) --target-dir $(TOOLS)/build cargo-deny@0.20.2

$(TOOLS)/bin/fsx:
	$(PLAIN) $(CARGO) install --quiet --locked --root $(TOOLS) --target-dir $(TOOLS)/build fsx@0.3.2

$(TOOLS)/bin/pjdfstest:
	$(PLAIN) $(CARGO) install --quiet --locked --root $(TOOLS) --target-dir $(TOOLS)/build pjdfstest@0.2.2

## s3-server: a real S3 server for the tests of targets in a store, which are skipped without it; wants Go 1.24 or later
s3-server:
	@if [ -x $(TOOLS)/bin/versitygw ]; then :; \
	elif command -v go >/dev/null; then GOBIN="$(CURDIR)/$(TOOLS)/bin" GOFLAGS=-mod=mod GOTOOLCHAIN=local go install github.com/versity/versitygw/cmd/versitygw@v1.8.0 || echo "s3-server: this Go cannot build it; the tests on S3 are skipped"; \
	else echo "s3-server: no Go here; the tests on S3 are skipped"; fi

$(TOOLS)/bin/cbindgen:
	$(CARGO) install --quiet --locked --root $(TOOLS) --target-dir $(TOOLS)/build cbindgen@0.29.4

$(TOOLS)/bin/cargo-deb:
	$(CARGO) install --quiet --locked --root $(TOOLS) --target-dir $(TOOLS)/build cargo-deb@3.8.0

## deps: installs what is missing of packages and of the Rust toolchain, for all targets
deps: packages-test toolchain

packages-%:
	@bash .ci/deps packages $(PACKAGES_$*)

toolchain:
	@bash .ci/deps toolchain

clean:
	$(CARGO) clean

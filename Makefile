# `make help` says what there is. Every target works on a fresh Debian with Rust: what is missing is
# installed through apt, and nothing else on the machine changes.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

export CARGO_TERM_PROGRESS_WHEN ?= never
TARGET := $(or $(CARGO_TARGET_DIR),target)
# A workspace of its own, which shares the build directory.
NESTED := xtask/no-std/Cargo.toml
SCRIPTS := .ci/run .ci/tool .ci/install-missing .ci/young-clock $(addprefix tests/guest/,run tune injection lab build-image lib/common.sh \
	lib/secrets.sh lib/guest-init lib/initramfs-init) $(wildcard tests/guest/suite/*.sh tests/guest/host/*.sh) tests/package/run tests/package/c-library.sh tests/api/run tests/container/run tests/iscsi/run $(addprefix tests/nbd/,run interop build-foreign lib.sh) tests/datastore/redis-suite tests/datastore/lib.sh tests/datastore/ycsb/run tests/tune/run tests/profile/run \
	packaging/build-deb packaging/build-library-debs packaging/build-datastore-deb \
	packaging/postinst packaging/prerm packaging/postrm
RELEASE := $(TARGET)/release
# Seconds for each fuzz target of `make fuzz`; minutes of `make soak`, which else runs until stopped, and
# of `make soak-demo`.
FUZZ_SECONDS ?= 60
SOAK_MINUTES ?=

# The simulator is built by itself: it turns on what breaks the engine on purpose, for all that is built with
# it. All else is built with the same features everywhere, so that what one target built serves the next.
# With the key-value server where its RocksDB is, that of Debian 12, and what bindings are made with. Each recipe evaluates it
# again, since they may just have been installed.
HAS_ROCKSDB = $(shell dpkg-query -W libclang-dev >/dev/null 2>&1 && dpkg-query -W -f '$${Version}' librocksdb-dev 2>/dev/null | grep '^7\.8\.')
TESTED = --workspace --exclude simulate --locked $(if $(HAS_ROCKSDB),--features datastore/rocksdb)
# Tests of the key-value server itself: `datastore-test` runs them. By what is there without RocksDB, too, since nextest takes a
# name that nothing has for a mistake.
STORE_TESTS := (package(datastore) & kind(test))
# How others' crates find it, rather than build one of their own.
export ROCKSDB_LIB_DIR ?= /usr/lib/$(shell gcc -print-multiarch 2>/dev/null)
export ROCKSDB_INCLUDE_DIR ?= /usr/include
# Each test runs in a process of its own and has a time limit: .config/nextest.toml.
NEXTEST = $$(.ci/tool cargo-nextest) nextest run
# Four times as many at a time as there are CPUs, since most wait for servers, timers and disks for most of their time.
export NEXTEST_TEST_THREADS ?= $(shell echo $$((4 * $$(nproc))))
# The variable by which cargo and nextest are given a command to run programs with.
RUNNER = CARGO_TARGET_$(shell rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')_RUNNER
# With a test program, since what tests depend on decides about features, too.
BUILD_FARFLASH = cargo build $(TESTED) --bin farflash --test server

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

.PHONY: deps
deps:
	@.ci/install-missing gcc libc6-dev
	command -v cargo >/dev/null || { echo "make: there is no cargo; install Rust first" >&2; exit 1; }

# For all that is tested, so that it is built once: docs/adr/0012-the-datastore-is-a-program-of-its-own.md.
.PHONY: test-deps
test-deps: deps
	@.ci/install-missing librocksdb-dev libclang-dev || [ -z "$${FARFLASH_SKIP_NOTHING:-}" ]

.PHONY: build
build: deps ## build the release binaries
	@cargo build --release --locked -p farflash -p bench

.PHONY: demo
demo: build ## serve two volumes, kill the server under load, verify, plot (3 minutes after the build)
	@$(RELEASE)/bench demo --farflash $(RELEASE)/farflash --out demo-out

.PHONY: bench
bench: build ## compare with the machine's limit, with peers and with the raw device; updates docs/benchmarks.md and its figures
	@.ci/install-missing fio nbdkit qemu-utils linux-perf libiscsi-bin tgt redis-tools || echo "bench: some peers are missing and will be left out" >&2
	cargo build --release --locked -p bench --bin bench-verification --features sabotage
	cargo build --release --locked -p bench --bin bench-counting --features uncounted
	$(RELEASE)/bench compare --farflash $(RELEASE)/farflash --report docs/benchmarks.md
	$(RELEASE)/bench sharing --farflash $(RELEASE)/farflash --report docs/benchmarks.md
	$(RELEASE)/bench tenants --farflash $(RELEASE)/farflash --report docs/benchmarks.md
	$(RELEASE)/bench front-ends --farflash $(RELEASE)/farflash --report docs/benchmarks.md
	$(RELEASE)/bench writes --farflash $(RELEASE)/farflash --report docs/benchmarks.md
	$(RELEASE)/bench datastore --farflash $(RELEASE)/farflash --report docs/benchmarks.md
	$(RELEASE)/bench host --farflash $(RELEASE)/farflash --report docs/benchmarks.md
	$(RELEASE)/bench engine --farflash $(RELEASE)/farflash --report docs/benchmarks.md

.PHONY: reproduce
reproduce: build ## run all figures of the papers in simulated time; rewrites docs/figures.md and its pictures (minutes)
	@rm -rf docs/figures
	$(RELEASE)/farflash reproduce --all --time 0.125 --out $(TARGET)/reproduce --page docs/figures.md

# Each of these waits for servers, timers or an emulated machine, so they run beside the crates' tests: the guests one behind the
# other, which take longest, and all else one behind the other beside them. The output of each is shown when it has ended.
BESIDE := guests test-young-clocks cores-test python-test datastore-test iscsi-test power-test demo-smoke api-test package-test \
	tune-test nbd-test container-test

.PHONY: test
test: test-deps ## everything that proves the code, in about 25 minutes after the build on 2 CPUs
	@$(NEXTEST) $(TESTED) --no-run
	$(BUILD_FARFLASH) --test library --bin farflash-power-cut --bin bench $(if $(HAS_ROCKSDB),--bin farflash-datastore)
	# Built before: while one cargo builds, the others wait for it.
	$(NEXTEST) --package simulate --locked --no-run
	# The simulator needs nothing but the CPU, and all else waits most of its time.
	$(MAKE) --no-print-directory --jobs 2 test-but-simulator test-simulator

.PHONY: test-but-simulator
test-but-simulator: deps
	@.ci/install-missing iproute2 etcd-server
	# What passing tests print is not shown, so what was not run is collected, and shown at the end.
	export FARFLASH_SKIPPED=$(abspath $(TARGET))/skipped
	mkdir -p $(TARGET) && : >$$FARFLASH_SKIPPED
	trap 'cat $$FARFLASH_SKIPPED >&2' EXIT
	# Nothing else of any weight runs beside the tests that measure the CPU.
	$(NEXTEST) $(TESTED) --filterset 'group(alone)'
	echo "make: beside the tests of the crates: $(BESIDE)"
	$(MAKE) --no-print-directory --jobs 2 test-most-crates test-beside

.PHONY: test-most-crates
test-most-crates: deps
	@$(NEXTEST) $(TESTED) --filterset 'not group(alone) and not group(datastore) and not $(STORE_TESTS)'
	cargo test $(TESTED) --doc

.PHONY: test-beside
test-beside: deps
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target $(BESIDE)

.PHONY: test-crates
test-crates: test-deps ## the tests of all crates but the simulator
	@.ci/install-missing iproute2 etcd-server redis-tools e2fsprogs mount
	$(NEXTEST) $(TESTED)
	cargo test $(TESTED) --doc

.PHONY: test-simulator
test-simulator: deps ## the tests of the simulator, with what CPU time no other program wants
	@chrt --idle 0 $(NEXTEST) --package simulate --locked

.PHONY: test-young-clocks
test-young-clocks: deps ## the tests that read the machine's clocks, as on a machine that was started seconds ago
	@.ci/install-missing etcd-server
	if ! .ci/young-clock --check; then
		echo "make: NOT RUN: tests on young clocks, which need root and time namespaces" >&2
		[ -z "$${FARFLASH_SKIP_NOTHING:-}" ]
		exit
	fi
	$(RUNNER)=$(CURDIR)/.ci/young-clock $(NEXTEST) --profile young $(TESTED)

.PHONY: cores-test
cores-test: deps ## all orders in which cores may come to what they share, by a model checker
	@$(NEXTEST) --package space --package pins --features space/loom,pins/loom --test cores --locked

.PHONY: libraries-test
libraries-test: python-test ## the tests of the libraries alone: Rust, C and Python against a real server
	@.ci/install-missing etcd-server
	# As users build them: with no feature that another package turns on.
	cargo check --locked -p farflash-client
	cargo check --locked -p farflash-python
	$(NEXTEST) --locked -p farflash-client -p farflash-c
	cargo test --locked --doc -p farflash-client
	cargo build $(TESTED) --example volume --example counter --example awaited
	$(NEXTEST) $(TESTED) --test server \
		--filterset 'test(/^(libraries|library_[a-z]+|awaiting|unfinished)::/)'

.PHONY: python-test
python-test: deps ## install the Python package in an environment of its own, and test it
	@.ci/install-missing python3 python3-venv etcd-server
	$(BUILD_FARFLASH)
	environment=$(TARGET)/python-environment
	[ -x $$environment/bin/mypy ] || python3 -m venv --clear $$environment
	export PIP_DISABLE_PIP_VERSION_CHECK=1
	$$environment/bin/python -m pip install --quiet 'mypy==2.4.1'
	# Pip fetches what the package says that it is built with, as for users. The profile and the features of others' crates are
	# those of the tests, by which next to nothing is left to compile; `libraries-test` checks it with its own.
	MATURIN_PEP517_ARGS="--profile dev --locked --features as-tested" \
		$$environment/bin/python -m pip install --quiet --no-deps --force-reinstall ./python
	# What it says of its types, by itself and against the native module.
	$$environment/bin/python -m mypy --strict --cache-dir $(TARGET)/mypy-cache python/farflash python/examples
	(cd $$environment && bin/python -m mypy.stubtest farflash)
	FARFLASH_PROGRAM=$$(realpath $(TARGET)/debug/farflash) timeout --verbose --kill-after=10 600 \
		$$environment/bin/python -X faulthandler -m unittest discover -s python/tests

define NEED_ROCKSDB
if [ -z "$(HAS_ROCKSDB)" ]; then
	echo "make: NOT RUN: tests of the datastore, which needs librocksdb 7.8, that of Debian 12" >&2
	[ -z "$${FARFLASH_SKIP_NOTHING:-}" ]
	exit
fi
endef

.PHONY: datastore
datastore: deps ## build the release binary of the key-value server, farflash-datastore
	@.ci/install-missing librocksdb-dev libclang-dev
	cargo build --release --locked -p datastore --features rocksdb

.PHONY: datastore-deb
datastore-deb: datastore ## make the Debian package of the key-value server
	@.ci/install-missing dpkg-dev binutils
	packaging/build-datastore-deb $(RELEASE)/farflash-datastore $(TARGET)/farflash-datastore.deb \
		"$$($(RELEASE)/farflash-datastore --version | cut -d' ' -f2)"

.PHONY: datastore-test
datastore-test: test-deps ## the key-value server on RocksDB, under clients of others, kill -9 and a full disk
	@.ci/install-missing redis-tools e2fsprogs mount python3-venv
	$(NEED_ROCKSDB)
	$(BUILD_FARFLASH) --bin farflash-datastore
	$(NEXTEST) $(TESTED) --filterset '$(STORE_TESTS) or group(datastore)'
	environment=$(TARGET)/datastore-environment
	[ -x $$environment/bin/python ] || python3 -m venv --clear $$environment
	$$environment/bin/python -m pip install --quiet --disable-pip-version-check 'redis==5.2.1'
	FARFLASH_DATASTORE=$(TARGET)/debug/farflash-datastore timeout --verbose --kill-after=10 300 \
		$$environment/bin/python crates/datastore/tests/redis_py.py
	timeout --verbose --kill-after=10 300 tests/datastore/redis-suite --short $(TARGET)/debug/farflash-datastore

.PHONY: redis-suite
redis-suite: test-deps ## all of Redis' own test suite that the key-value server is to pass, in clear and over TLS (minutes)
	@$(NEED_ROCKSDB)
	$(BUILD_FARFLASH) --bin farflash-datastore
	timeout --verbose --kill-after=10 900 tests/datastore/redis-suite $(TARGET)/debug/farflash-datastore

.PHONY: ycsb
ycsb: test-deps ## YCSB's workloads against the key-value server, by go-ycsb (needs Go 1.21 or newer)
	@$(NEED_ROCKSDB)
	$(BUILD_FARFLASH) --bin farflash-datastore
	timeout --verbose --kill-after=10 300 tests/datastore/ycsb/run $(TARGET)/debug/farflash-datastore

.PHONY: fuzz-smoke
fuzz-smoke: deps ## every fuzz target over its corpus and a bounded slice of mutations, on stable Rust
	@$(NEXTEST) $(TESTED) --test smoke

.PHONY: demo-smoke
demo-smoke: deps ## the demo in small: some seconds of load, one kill, everything verified
	@$(BUILD_FARFLASH) --bin bench
	out=$(TARGET)/demo-smoke
	rm -rf $$out
	timeout --verbose --kill-after=10 600 $(TARGET)/debug/bench demo --farflash $(TARGET)/debug/farflash --out $$out \
		--range 16MiB --local-seconds 1 --seconds 7 --kill-after 2
	# A line for the local file and one for each volume, and a picture that is whole.
	[ "$$(wc -l <$$out/demo.jsonl)" = 3 ]
	tail -n 1 $$out/demo.svg | grep -q '</svg>$$'
	rm -r $$out

# In a mount namespace of its own, so that no mount stays behind. That takes root; without, the program says why not.
OWN_MOUNTS = $(shell [ "$$(id -u)" -ne 0 ] || echo unshare --mount)
POWER_CUT = $(OWN_MOUNTS) $(TARGET)/debug/farflash-power-cut --farflash $(TARGET)/debug/farflash --out $(TARGET)/power-cut

.PHONY: power-test
power-test: deps ## power cuts below the real server: 50, and a disk that lies about flushes is found out
	@.ci/install-missing util-linux mount
	$(BUILD_FARFLASH) --bin farflash-power-cut
	timeout --verbose --kill-after=10 600 $(POWER_CUT) --cuts 50
	log=$(TARGET)/power-cut-skip-flush.log
	timeout --verbose --kill-after=10 600 $(POWER_CUT) --cuts 50 --lie skip-flush >$$log || { cat $$log; exit 1; }
	tail -n 1 $$log

.PHONY: deb
deb: build ## make Debian packages of the release build: the server, and the C library
	@.ci/install-missing dpkg-dev binutils
	cargo build --release --locked -p farflash-c
	packaging/build-deb $(RELEASE)/farflash $(TARGET)/farflash.deb
	packaging/build-library-debs $(RELEASE)/libfarflash.so $(TARGET) "$$($(RELEASE)/farflash --version | cut -d' ' -f2)"

.PHONY: api-test
api-test: deps ## hold the API's description against the live server
	@$(BUILD_FARFLASH)
	timeout --verbose --kill-after=10 1200 tests/api/run --farflash $(TARGET)/debug/farflash --examples $(or $(API_EXAMPLES),40)

.PHONY: iscsi-test
iscsi-test: deps ## hold the iSCSI target against libiscsi and QEMU, and kill it under load
	@$(BUILD_FARFLASH)
	timeout --verbose --kill-after=10 600 tests/iscsi/run --farflash $(TARGET)/debug/farflash

.PHONY: iscsi-trixie
iscsi-trixie: deps ## the same with libiscsi 1.20, of Debian's next release; takes root
	@$(BUILD_FARFLASH)
	timeout --verbose --kill-after=10 900 tests/iscsi/run --farflash $(TARGET)/debug/farflash --tools trixie

.PHONY: package-test
package-test: deps ## install, start, upgrade and purge the Debian packages in a clean root
	@# With a test of the library cargo builds it, too, and puts it where that test looks for it.
	$(BUILD_FARFLASH) --test library
	timeout --verbose --kill-after=10 1200 tests/package/run --farflash $(TARGET)/debug/farflash \
		--library $(TARGET)/debug/deps/libfarflash.so

.PHONY: container-test
container-test: deps ## serve as in a container: a root, a user, a seccomp profile and limits of its own; takes root
	@.ci/install-missing python3 linux-libc-dev
	$(BUILD_FARFLASH)
	timeout --verbose --kill-after=10 600 tests/container/run $(TARGET)/debug/farflash

.PHONY: nbd-test
nbd-test: deps ## the NBD server under clients of others: nbdinfo, nbdcopy, qemu, nbd-tester-client; kill -9
	@.ci/install-missing libnbd-bin qemu-utils openssl
	$(BUILD_FARFLASH)
	timeout --verbose --kill-after=10 400 tests/nbd/run $(TARGET)/debug/farflash
	timeout --verbose --kill-after=10 400 tests/nbd/interop --short $(TARGET)/debug/farflash

.PHONY: nbd-interop
nbd-interop: deps ## all of the tests of other NBD projects, with nbdfuse, large requests, and each in TLS (minutes)
	@$(BUILD_FARFLASH)
	timeout --verbose --kill-after=10 900 tests/nbd/interop $(TARGET)/debug/farflash

.PHONY: tune-test
tune-test: deps ## tune trees of real machines and a network of its own; every write is cut off once; takes root
	@.ci/install-missing ethtool iproute2 iputils-ping procps bzip2 xz-utils
	$(BUILD_FARFLASH)
	cargo build $(TESTED) --example real_trees
	timeout --verbose --kill-after=10 600 tests/tune/run $(TARGET)/debug/farflash $(TARGET)/debug/examples/real_trees

# Figures depend on the machine and on what else it does, so these two are no part of `make test`.
PROFILE_FILE ?= $(TARGET)/profile.img
.PHONY: profile-fio
profile-fio: profile-file ## the profiler's latencies beside those of fio
	@.ci/install-missing fio python3
	tests/profile/run fio $(PROFILE_FILE) $(TARGET)/debug/farflash

.PHONY: profile-injection
profile-injection: profile-file ## tasks that take the CPU on purpose, and a drive that pauses, are named as the cause; takes root
	@.ci/install-missing python3 util-linux
	tests/profile/run injection $(PROFILE_FILE) $(TARGET)/debug/farflash

.PHONY: profile-file
profile-file: deps
	@$(BUILD_FARFLASH)
	[ -e $(PROFILE_FILE) ] || dd if=/dev/urandom of=$(PROFILE_FILE) bs=1M count=512 status=none

.PHONY: guest
guest: deps ## a stock Linux 6.12 guest as the client: nvme-cli, fio, ext4, XFS, kill -9
	@$(BUILD_FARFLASH)
	tests/guest/run --farflash $(TARGET)/debug/farflash --flavor trixie

# One behind the other: each takes a CPU, and the time limits in a guest are those of a machine that has one.
.PHONY: guests
guests: deps
	@$(MAKE) --no-print-directory guest
	$(MAKE) --no-print-directory guest-front-ends
	$(MAKE) --no-print-directory guest-datastore

.PHONY: guest-front-ends
guest-front-ends: deps ## the same guest as the client of iSCSI and NBD: open-iscsi, sg3-utils, multipath-tools, nbd-client
	@$(BUILD_FARFLASH)
	tests/guest/run --farflash $(TARGET)/debug/farflash --flavor trixie iscsi multipath nbd

.PHONY: guest-datastore
guest-datastore: test-deps ## a datastore in the same guest, on ext4 on a volume; the Flash server and the datastore are killed
	@$(NEED_ROCKSDB)
	$(BUILD_FARFLASH) --bin farflash-datastore
	tests/guest/run --farflash $(TARGET)/debug/farflash --flavor trixie datastore

.PHONY: guest-tune
guest-tune: deps ## tune a guest of 8 CPUs, 2 memory nodes and 64 drives, start it again, and take all back; move an interrupt in one that is profiled (minutes)
	@$(BUILD_FARFLASH)
	tests/guest/tune $(TARGET)/debug/farflash
	tests/guest/injection $(TARGET)/debug/farflash

.PHONY: guest-groups
guest-groups: deps ## authentication in the groups that take an emulated processor longest
	@$(BUILD_FARFLASH)
	tests/guest/run --farflash $(TARGET)/debug/farflash --flavor trixie groups

.PHONY: guest-bookworm
guest-bookworm: deps ## the same with Linux 6.1
	@$(BUILD_FARFLASH)
	tests/guest/run --farflash $(TARGET)/debug/farflash --flavor bookworm

.PHONY: guest-reference
guest-reference: ## the guest tests against the Linux kernel's own target: tests the tests
	@tests/guest/run --target nvmet --flavor trixie

.PHONY: test-long
test-long: test guest-groups guest-bookworm guest-reference guest-tune iscsi-trixie nbd-interop redis-suite ycsb ## `test`, the largest groups of authentication, Linux 6.1, the reference target, a tuned machine, libiscsi 1.20, all NBD tests, Redis' suite, YCSB, twenty times the mutations
	@FARFLASH_TEST_SCALE=20 $(MAKE) fuzz-smoke

.PHONY: fuzz
fuzz: deps ## fuzz each target for FUZZ_SECONDS with libFuzzer (needs a nightly toolchain)
	@.ci/install-missing g++
	# Optimised across crates it would build for a quarter of an hour.
	export RUSTUP_TOOLCHAIN=nightly CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
	cargo --version >/dev/null || { echo "make: fuzzing needs a nightly toolchain" >&2; exit 1; }
	tool=$$(.ci/tool cargo-fuzz)
	for target in $$("$$tool" fuzz list); do
		"$$tool" fuzz run --features libfuzzer "$$target" -- -max_total_time=$(FUZZ_SECONDS)
	done

# `make mutants MUTANTS="--package volume --minutes 60"`: docs/mutants.md has the options.
MUTANTS ?=
# What `make mutants-diff` compares with.
BASE ?= main
RUN_MUTANTS = PATH="$$(dirname "$$(.ci/tool cargo-mutants)"):$$PATH" cargo xtask mutants run

.PHONY: mutants
mutants: deps ## change the code in every small way, see which changes no test notices, go on where it was stopped (hours)
	@$(RUN_MUTANTS) $(MUTANTS)

.PHONY: mutants-diff
mutants-diff: deps ## the same for what differs from BASE (main), in at most ten minutes
	@$(RUN_MUTANTS) --diff $(BASE) --minutes 9 $(MUTANTS)

.PHONY: soak
soak: deps ## simulate new seeds, and cut the power below the real server, until stopped or for SOAK_MINUTES
	@$(MAKE) --no-print-directory --jobs 2 soak-simulator soak-power

.PHONY: soak-simulator
soak-simulator: deps ## the first half of that
	@cargo build --release --locked -p simulate
	$(RELEASE)/farflash-sim --programs
	$(RELEASE)/farflash-sim $(if $(SOAK_MINUTES),--minutes $(SOAK_MINUTES))

.PHONY: soak-demo
soak-demo: build ## load, kill, restart and verify a real server, again and again for SOAK_MINUTES
	@end=$$((SECONDS + $(or $(SOAK_MINUTES),60) * 60)) round=0
	while [ $$SECONDS -lt $$end ]; do
		round=$$((round + 1))
		rm -rf demo-out/soak && mkdir -p demo-out
		$(RELEASE)/bench demo --farflash $(RELEASE)/farflash --out demo-out/soak >demo-out/soak.log 2>&1 ||
			{ tail -n 40 demo-out/soak.log >&2; echo "soak-demo: round $$round failed" >&2; exit 1; }
		echo "soak-demo: round $$round passed"
	done

.PHONY: soak-power
soak-power: deps ## the second half
	@.ci/install-missing util-linux mount
	$(BUILD_FARFLASH) --bin farflash-power-cut
	$(POWER_CUT) --minutes $(or $(SOAK_MINUTES),525600)

.PHONY: fmt
fmt: ## format all code
	@cargo fmt --all
	cargo fmt --manifest-path $(NESTED)

.PHONY: fmt-check
fmt-check:
	@cargo fmt --all --check
	cargo fmt --check --manifest-path $(NESTED)

.PHONY: lint
lint: tidy clippy ## clippy, and `tidy`

.PHONY: clippy
clippy: test-deps
	@cargo clippy --workspace --all-targets --locked $(if $(HAS_ROCKSDB),--features datastore/rocksdb) -- -D warnings
	cargo clippy --package space --package pins --features space/loom,pins/loom --tests --locked -- -D warnings

.PHONY: tidy
tidy: deps ## layering, sizes, banned words and calls, labels, links between documents, syntax of the scripts
	@cargo xtask tidy
	for script in $(SCRIPTS); do bash -n $$script; done

.PHONY: no-std
no-std: deps ## the crates that must not need the standard library, built without it
	@cargo build --locked --manifest-path xtask/no-std/Cargo.toml --target-dir $(TARGET)

.PHONY: deny
deny: deps ## licences, banned crates and sources of all dependencies
	@cargo fetch --locked --quiet
	$$(.ci/tool cargo-deny) --offline check licenses bans sources

.PHONY: doc
doc: deps ## the documentation of all crates
	@RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

.PHONY: ci
ci: ## all that is checked before a change lands
	@.ci/run

.PHONY: clean
clean: ## remove what was built here; guest images in the user's cache stay
	@cargo clean
	rm -rf demo-out bench-out

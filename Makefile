# The short way to everything. Each target is a few lines over CMake, CTest and scripts/; `make help`
# lists them. Missing Debian packages are installed first, unless MILLRACE_NO_INSTALL=1.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory --no-builtin-rules
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help build demo test test-clients test-kernel test-fresh test-long fuzz bench format tidy install clean

JOBS ?= $(shell nproc)
# Tests that run side by side: they wait for clocks, deaths and each other more than they compute,
# but for those that a sanitizer slows down.
TEST_JOBS ?= $(if $(SANITIZE),$(shell expr $(JOBS) + 1),$(shell expr $(JOBS) '*' 3))
PREFIX ?= /usr/local
ARGS ?=

ifeq ($(SANITIZE),)
  PRESET := release
else ifneq ($(filter address%undefined undefined%address address undefined,$(SANITIZE)),)
  PRESET := asan
else ifeq ($(SANITIZE),thread)
  PRESET := tsan
  # GCC 12's runtime cannot place its shadow where the kernel randomises more than 28 bits.
  UNRANDOMISED := $(shell setarch -R true 2>/dev/null && echo setarch -R)
else
  $(error SANITIZE is '$(SANITIZE)'; say address,undefined or thread)
endif

export ASAN_OPTIONS ?= detect_stack_use_after_return=1:strict_string_checks=1:detect_leaks=1
export UBSAN_OPTIONS ?= print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS ?= halt_on_error=1:second_deadlock_stack=1

WERROR := $(if $(filter true 1,$(CI)),ON,OFF)
install_packages = $(if $(MILLRACE_NO_INSTALL),:,scripts/install-dependencies)
configure = cmake --preset $(1) -DMILLRACE_WERROR=$(WERROR)
# Building runs the test programs once to list their tests.
compile = $(if $(filter tsan,$(1)),$(UNRANDOMISED)) cmake --build --preset $(1) --parallel $(JOBS)

help: ## this list
	@echo "make TARGET, where TARGET is one of"
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1\t\2/p' Makefile | expand -t 16
	@echo "JOBS=N sets how many compilers run at once, ARGS='...' is passed on by demo and bench."

build: ## build everything, optimised: build/release/bin/millrace
	@$(install_packages) build bench
	@$(call configure,release)
	@$(call compile,release)

demo: ## install what is missing, build, and show two processes exchanging files (ARGS=PATH)
	@$(install_packages) build
	@$(call configure,release)
	@$(call compile,release) --target bin/millrace
	build/release/bin/millrace demo $(ARGS)
	@echo "Next: build/release/bin/millrace --help shows what else it does; docs/flow.md shows how a"
	@echo "program uses it; make build builds the rest, for millrace bench bars and your own measurements."

test: ## build and run all tests (some: ARGS="-L flow"); SANITIZE=address,undefined or SANITIZE=thread for those builds
	@$(install_packages) build test
	@$(call configure,$(PRESET))
	@$(call compile,$(PRESET))
	@$(UNRANDOMISED) scripts/run-tests build/$(PRESET) --parallel $(TEST_JOBS) $(ARGS)

test-clients: ## Redis' clients of PyPI, npm, Go and Maven at the store's door; ARGS='ioredis go_redis' for some
	@$(install_packages) build
	@$(call configure,release)
	@$(call compile,release) --target bin/millrace
	@scripts/test-clients $(ARGS)

test-kernel: ## the two-process tests on the kernel's soft-RoCE device, in a virtual machine
	@$(install_packages) build test kernel
	@$(call configure,release)
	@$(call compile,release)
	@scripts/test-kernel $(ARGS)

test-fresh: ## the README's commands in new Debian folders, as root; DEBIAN=bookworm or trixie for one
	@$(if $(filter 0,$(shell id -u)),$(install_packages) fresh)
	@scripts/test-fresh $(DEBIAN)

test-long: ## every test many times in random order, with many more seeds, also with sanitizers
	@$(install_packages) build test
	@set -e; for preset in release asan tsan; do \
	    $(MAKE) test-long-build PRESET=$$preset; done
	@scripts/test-long $(ARGS)

SECONDS ?= 60
fuzz: ## what a lying peer may write, with clang's libFuzzer, SECONDS=60 for each program
	@$(install_packages) build fuzz
	@$(call configure,fuzz)
	@$(call compile,fuzz)
	@scripts/fuzz $(SECONDS)

.PHONY: test-long-build
test-long-build:
	@$(call configure,$(PRESET))
	@$$(setarch -R true 2>/dev/null && echo setarch -R) \
	    cmake --build --preset $(PRESET) --parallel $(JOBS)

bench: ## every bar: measured, limit, ok or short (ARGS='--only foundation')
	@$(install_packages) build bench
	@$(call configure,release)
	@$(call compile,release)
	build/release/bin/millrace bench bars $(ARGS)

format: ## lay out the sources as .clang-format says
	@scripts/style format

tidy: ## look through the sources with clang-tidy as .clang-tidy says
	@$(install_packages) build
	@$(call configure,release)
	@scripts/style tidy $(JOBS)

install: ## install the built tree below PREFIX=/usr/local (DESTDIR is honoured)
	@test -e build/release/build.ninja || { echo "nothing to install: run make build first" >&2; exit 1; }
	cmake --install build/release --prefix "$(PREFIX)"

clean: ## remove build/ (downloads in the cache folder stay)
	rm -rf build

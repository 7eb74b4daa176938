# Short names for what people do most; the work is in CMakePresets.json and deploy/.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help dependencies build run test header-check asan tsan fuzz format format-check clean

MODEL ?= deploy/demo/switchyard-demo.gguf
PROMPT ?= Tell me a story about a fox and a lantern.
NUM_TOKENS ?= 96
FUZZ_SECONDS ?= 10
CLANG_FORMAT ?= $(shell command -v clang-format-14 || echo clang-format)
FORMATTED := '*.h' '*.cc' '*.cu' '*.proto'

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

dependencies:  ## Install the missing packages (Debian, Ubuntu); nothing if all are there
	@deploy/install_dependencies.sh

build: dependencies  ## Build everything for the CPU into build/cpu
	cmake --preset cpu
	cmake --build --preset cpu

run: dependencies  ## Serve the demo model, ask it over HTTP, stop (MODEL, PROMPT, NUM_TOKENS)
	cmake --preset cpu
	cmake --build --preset cpu --target switchyard
	deploy/demo/run_demo.sh build/cpu/src/app/switchyard "$(MODEL)" "$(PROMPT)" "$(NUM_TOKENS)"

test: build  ## Build and run all tests
	ctest --preset cpu

header-check: dependencies  ## Compile each public header alone
	cmake --preset cpu -DCMAKE_VERIFY_INTERFACE_HEADER_SETS=ON
	cmake --build --preset cpu --target all_verify_interface_header_sets

asan: dependencies  ## All tests under AddressSanitizer and UndefinedBehaviorSanitizer
	cmake --preset asan
	cmake --build --preset asan
	ctest --preset asan

tsan: dependencies  ## Tests with several threads under ThreadSanitizer
	cmake --preset tsan
	cmake --build --preset tsan --target threads_tests
	ctest --preset tsan

fuzz:  ## Run every fuzz target from its stored corpus (FUZZ_SECONDS each)
	deploy/install_dependencies.sh --fuzz
	cmake --preset fuzz
	cmake --build --preset fuzz --target fuzz_targets
	tests/fuzz/run_fuzz.sh build/fuzz/tests/fuzz/targets.txt $(FUZZ_SECONDS)

format:  ## Format all sources (clang-format 14)
	git ls-files -z --cached --others --exclude-standard -- $(FORMATTED) | xargs -0 -r $(CLANG_FORMAT) -i

format-check:  ## Fail if a tracked source is not formatted
	git ls-files -z -- $(FORMATTED) | xargs -0 -r $(CLANG_FORMAT) --dry-run -Werror

clean:  ## Remove all build folders
	rm -rf build

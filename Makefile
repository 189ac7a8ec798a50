# Everything a contributor runs. Needs only make and Python 3.10 or newer: each target sets up .venv itself.
# Works with GNU make 3.81 (macOS).

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=
PYTEST_ARGS ?=
TEST_JOBS ?= 3
SIM_SEEDS ?= 2000
TUNE_SEEDS ?= 2000
SOAK_MINUTES ?= 20
SOAK_SEED ?= 0
PATHS := src tests bench tools examples docs
SITE := build/docs
OLD_RAY := build/ray-2.48
SITE_ARGS ?=
PYTEST := $(BIN)/python -m pytest
SETUP := PYTHON='$(PYTHON)' sh tools/setup.sh $(VENV)

# Ray and the trials start hundreds of processes. Whoever forbids Python to keep compiled modules makes each of them
# compile everything it imports, which doubles the time of the tests.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help quickstart demo setup fmt lint types imports sizes test test-fast test-k8s test-wild test-ray-versions sim sim-tune series parity soak bench check docs docs-check pictures changelog clean site

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# One stamp per set of dependencies; made again when pyproject.toml changes. What is in `dev` includes the core.
$(VENV)/.installed-core: pyproject.toml tools/setup.sh
	@$(SETUP) core
	@touch $@

$(VENV)/.installed-dev: pyproject.toml tools/setup.sh
	@$(SETUP) dev
	@touch $@ $(VENV)/.installed-core $(VENV)/.installed-quickstart $(VENV)/.installed-demo

$(VENV)/.installed-bench: pyproject.toml tools/setup.sh
	@$(SETUP) bench
	@touch $@ $(VENV)/.installed-core

$(VENV)/.installed-quickstart: pyproject.toml tools/setup.sh
	@$(SETUP) quickstart
	@touch $@ $(VENV)/.installed-core

$(VENV)/.installed-demo: pyproject.toml tools/setup.sh
	@$(SETUP) ray,plot
	@touch $@ $(VENV)/.installed-core

$(VENV)/.installed-docs: $(VENV)/.installed-dev
	@$(SETUP) docs
	@touch $@

# What the pages promise without naming an extra is run with this one.
$(SITE)/base/.installed: pyproject.toml tools/setup.sh
	@mkdir -p $(SITE)
	@PYTHON='$(PYTHON)' sh tools/setup.sh $(SITE)/base core
	@touch $@

# The oldest Ray that the autoscaler works with, beside the one of .venv.
$(OLD_RAY)/.installed: pyproject.toml tools/setup.sh
	@mkdir -p build
	@PYTHON='$(PYTHON)' sh tools/setup.sh $(OLD_RAY) ray 'ray==2.48.0'
	@touch $@

quickstart: $(VENV)/.installed-quickstart ## Tune a small neural network, watch it, look at the picture
	@$(BIN)/python examples/tune/quickstart.py

demo: $(VENV)/.installed-demo ## Watch a Ray cluster on this computer grow for an experiment and shrink after it
	@$(BIN)/python examples/demo/run.py

setup: $(VENV)/.installed-dev ## Make .venv with everything development needs

fmt: $(VENV)/.installed-dev ## Format the code
	$(BIN)/ruff format $(PATHS)
	$(BIN)/ruff check --fix-only $(PATHS)

lint: $(VENV)/.installed-dev ## Check format, style and banned calls
	$(BIN)/ruff format --check $(PATHS)
	$(BIN)/ruff check $(PATHS)

types: $(VENV)/.installed-dev ## Check types (mypy strict on src; tsc on the page's scripts where Node is there)
	$(BIN)/mypy
	$(BIN)/python tools/check_js.py

imports: $(VENV)/.installed-dev ## Check the layers (import-linter)
	$(BIN)/lint-imports --no-cache

sizes: $(VENV)/.installed-dev ## Check that files and functions stay small
	$(BIN)/python tools/check_sizes.py

test: $(VENV)/.installed-dev ## Run every test a clone can run (PYTEST_ARGS=..., TEST_JOBS=3: processes)
	$(PYTEST) -n $(TEST_JOBS) --dist loadscope --no-loadscope-reorder --durations=25 $(PYTEST_ARGS)

test-fast: $(VENV)/.installed-dev ## Before a commit: no Ray, no series of kills or seeds; 90 s on two cores
	$(PYTEST) -n 2 --dist loadscope -m "not ray and not slow" $(PYTEST_ARGS)

test-k8s: $(VENV)/.installed-dev ## The KubeRay provider on the real kube-apiserver, which is built once into ~/.cache (8 minutes, root)
	@nice sh tools/build-kube-apiserver.sh
	$(PYTEST) tests/providers/kuberay $(PYTEST_ARGS)

test-wild: ## Libraries that call Ray Tune, newest wheels, without Ray (needs uv; WILD="lenskit chemprop")
	@sh tests/wild/run.sh $(WILD)

test-ray-versions: $(VENV)/.installed-dev $(OLD_RAY)/.installed ## The monitor and the shadow on the oldest Ray that is supported
	$(PYTEST) tests/autoscaler/test_ray_versions.py $(PYTEST_ARGS)

sim: $(VENV)/.installed-core ## Simulate 2,000 seeds with all faults (SIM_SEEDS=...)
	$(BIN)/python -m tests.simulation sweep --seeds $(SIM_SEEDS)

sim-tune: $(VENV)/.installed-dev ## Simulate 2,000 experiments with faults per scheduler (TUNE_SEEDS=...)
	MUSTER_TUNE_SEEDS=$(TUNE_SEEDS) $(BIN)/python -m pytest tests/simulation/tune/test_chaos.py --durations=0

series: $(VENV)/.installed-dev ## The long series of kills and seeds of which `make test` runs a sample
	MUSTER_SERIES=$${MUSTER_SERIES:-1} $(PYTEST) -n 2 --dist loadscope $$(grep -rl "from tests.series" tests --include='test_*.py') $(PYTEST_ARGS)

parity: $(VENV)/.installed-dev $(VENV)/.installed-bench ## Scripts of Ray Tune 2.60 on a live Ray and on our Ray engine; 20 minutes
	MUSTER_RAY_PYTHON=1 $(PYTEST) tests/parity -m parity $(PYTEST_ARGS)

soak: $(VENV)/.installed-dev ## A Ray cluster here for 20 minutes; nodes and monitor are killed (SOAK_MINUTES=...)
	$(BIN)/python -m bench.soak --minutes $(SOAK_MINUTES) --seed $(SOAK_SEED)

bench: $(VENV)/.installed-bench ## Compare with Ray 2.60 on the same inputs
	$(BIN)/python -m bench planner
	$(BIN)/python -m bench reconcile
	$(BIN)/python -m bench tune
	$(BIN)/python -m bench schedulers
	$(BIN)/python -m bench tune-ray
	$(BIN)/python -m bench scaleup
	$(BIN)/python -m bench up

docs: $(VENV)/.installed-docs $(SITE)/base/.installed ## Build the site in build/docs/html, check it, run every block of the docs
	$(BIN)/python tools/pictures.py $(SITE)/pictures
	$(MAKE) site
	$(MAKE) docs-check
	$(BIN)/python tools/check_docs.py --base $(SITE)/base/bin/python

site: $(VENV)/.installed-docs ## Build the site without running its blocks; warnings are errors
	$(BIN)/python -m sphinx -q -W --keep-going -E -b html -c docs . $(SITE)/html

docs-check: $(VENV)/.installed-docs ## Check the built site in Chromium: links, search, widths, colours (SITE_ARGS=--no-browser)
	@command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || apt-get install -y -qq --no-install-recommends chromium >/dev/null || true
	$(BIN)/python tools/check_site.py --pictures $(SITE)/screenshots $(SITE_ARGS)

pictures: $(VENV)/.installed-docs ## Create the pictures of the README again
	$(BIN)/python tools/pictures.py docs/pictures

changelog: $(VENV)/.installed-core ## Write CHANGELOG.md from the fragments in changelog.d
	$(BIN)/python tools/changelog.py

check: lint types imports sizes site test ## All of it: the meaning of "green"

clean: ## Remove .venv and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# Each target sets itself up: it makes .venv and installs into it when pyproject.toml or constraints.txt changed.
PYTHON ?= python3
# Where to find another torch build than PyPI's: make test TORCH_INDEX=<address from the PyTorch install page>
# (such an index has few versions of what torch needs: those are put right by the installation that follows)
TORCH_INDEX ?=

BIN := .venv/bin
READY := .venv/.ready
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet
PIP := $(INSTALL) --constraint constraints.txt

.PHONY: demo test tests slow check lint types docs quotes bench chaos clean

demo: $(READY)
	$(BIN)/unlearn run --methods all --out runs/demo
	$(BIN)/unlearn report --results runs/demo/results
	@echo "MLflow: $(BIN)/unlearn ui --out runs/demo"

# Types are checked beside the tests, in which a core is idle now and then.
test: lint
	$(MAKE) --no-print-directory --jobs 2 types tests

# By file: tests of one file share what is costly to make, such as a cluster. Three processes for two cores: while one waits for
# Ray or a server to start, the other two compute. No restarts: xdist 3.8 would give the next process the test that ended the
# last one, again and again (pytest-xdist 1371), or wait for ever (1378); so the run ends instead.
PYTEST := $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# SLOW=yes adds those of 'make slow', as CI does: in one run, for while they wait the others compute.
tests: $(READY)
	$(PYTEST) $(if $(SLOW),,-m "not slow")

# What takes long because it waits: Ray whose nodes are killed, jobs that are stopped, servers, browsers.
slow: $(READY)
	$(PYTEST) -m slow

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html, or with a search that works: $(BIN)/mkdocs serve"

# Brings what documents quote from docs/data, docs/records and the results up to date; 'make docs' and the tests fail if it is not.
quotes: $(READY)
	$(BIN)/python -m benchmarks.saving

check: lint types

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/basedpyright

bench: $(READY)
	$(BIN)/python -m benchmarks.heads
	$(BIN)/python -m benchmarks.proxies
	$(BIN)/python -m benchmarks.probe_optimizer
	$(BIN)/python -m benchmarks.unlearning
	$(BIN)/python -m benchmarks.flow
	$(BIN)/python -m benchmarks.hard_rows
	$(BIN)/python -m benchmarks.requests
	$(BIN)/python -m benchmarks.row_orders
	$(BIN)/python -m benchmarks.features
	$(BIN)/python -m benchmarks.workflow
	$(BIN)/python -m benchmarks.threads
	$(BIN)/python -m benchmarks.denormals
	$(BIN)/python -m benchmarks.gpu_plan
	$(BIN)/python -m benchmarks.mlflow_writer

# Kills a hundred processes while grids run, and strikes in other ways in between; takes about an hour, and is not part of the tests.
chaos: $(READY)
	$(BIN)/python -m benchmarks.chaos --kills 100

clean:
	rm -rf .venv runs site .pytest_cache .ruff_cache .import_linter_cache *.egg-info

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(if $(TORCH_INDEX),$(INSTALL) --index-url $(TORCH_INDEX) $$(grep -E '^torch(vision)?==' constraints.txt))
	$(PIP) --editable '.[dev]'
	touch $(READY)

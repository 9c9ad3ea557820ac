# Two commands: `make demo` shows paceline at work, `make test` checks all of it.
# Both create .venv with the versions pinned in constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types docs tests setup browser wheel wheel-check clean

demo: setup
	$(BIN)/paceline predict small-cnn --cluster lab-2x2 --compare
	$(BIN)/paceline race

test: setup browser lint types docs tests

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# Into build/site; a broken link or reference is an error. Nothing is fetched from the web.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# Four processes on two cores: jobs of several workers wait for each other most of their time.
# Threads that have nothing to do sleep; by default they spin, in the way of the other processes.
# Compiled modules are kept, whatever the environment says: hundreds of processes import them.
tests: setup
	PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=passive \
	  $(BIN)/pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

setup: $(VENV)/installed

# torch is installed first and pinned: a range would pull the newest CUDA build.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "paceline needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV) || { \
	  echo 'The venv module is missing; install it (Debian/Ubuntu: apt-get install python3-venv).' >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[lab,survive,tensorboard,wandb,mlflow,hf,lightning,docs,dev]'
	touch $@

# Reports are tested in Debian's chromium; where there is none, these tests are skipped.
browser:
	@command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
	  && apt-get update --quiet && apt-get install --quiet --yes --no-install-recommends chromium; } \
	  || echo 'There is no chromium: the tests of reports in a browser are skipped.' >&2

# Into build/wheel.
wheel:
	rm -rf build/wheel
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir build/wheel .

# The wheel in an empty environment, and the quick start from it; minutes, and a package index.
wheel-check:
	PYTHON=$(PYTHON) TORCH=$(or $(TORCH),2.13.0) .ci/wheel

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build runs

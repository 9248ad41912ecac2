# `make help` lists the commands. Each installs all that it needs into .venv first, once, and needs nothing but Python 3.11
# or newer and access to the package index.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input

# An installation is good as long as the locks, the interpreter and the place of the tree stay as they were.
INSTALLED := .venv/installed-$(shell { cat requirements-build.lock requirements.lock; $(PYTHON) -V; pwd; } | cksum | tr ' ' -)
PROJECT := $(INSTALLED)-$(shell cksum < pyproject.toml | tr ' ' -)

.PHONY: help demo test test-all test-others test-flink lint fuzz faults robustness install docs lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

demo: $(PROJECT) ## a savepoint of a real Flink job: shown, judged, migrated, proven
	@$(BIN)/state-pipelines demo

# One process per core; the tests of a file share one, and with it what the file prepares once. In the order of their
# names, because by number of tests the longest one would come last.
# A process of tests that crashes ends the run: pytest-xdist 3.8 starts another one, and then waits for ever at the end.
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --max-worker-restart 0
test: $(PROJECT) ## the quick tests: everything plain, and each operation once for real
	@$(PYTEST) -n auto --quick

test-all: ## all tests but real Flink, the browser and the deployment: first the quick ones, then all others
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-others

test-others: $(PROJECT)
	@$(PYTEST) -n auto --not-quick

# Everything about the code that is no test.
lint: $(PROJECT) ## style, format, types and layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# Real Flink of every release that we support: downloads 300 MB for each, once, and needs a JDK 17 or newer.
test-flink: $(PROJECT) ## the tests that drive real Flink
	@$(BIN)/python -m pytest -m flink -n 2 --dist loadfile --max-worker-restart 0 tests/flink tests/docs

# Damaged input for every reader, in processes of their own: as many attempts of each as EXECUTIONS says.
EXECUTIONS ?= 1000
fuzz: $(PROJECT) ## damaged input for every reader (EXECUTIONS=1000)
	@$(BIN)/python -m tests.robustness --executions $(EXECUTIONS)

# Every request of every writer of snapshots fails once in every way.
faults: $(PROJECT) ## every request of every writer fails once
	@$(BIN)/python -m tests.robustness.faults

# All long forms of the robustness tests, one after the other, whatever is found; hours. Each is bounded by a number:
# attempts of each reader, bytes of each format that are flipped (0: all), local calls of each command that fail in each
# way, of how many requests of retention one fails, and random trees of retention.
BYTES ?= 0
POINTS ?= 12
EVERY ?= 1
TREES ?= 500
robustness: $(PROJECT) ## the long forms of the robustness tests; hours
	@ended=0; for each in \
		" --executions $(EXECUTIONS)" \
		" --every-byte --executions $(BYTES)" \
		".bombs" \
		".faults" \
		".killed_commands --points $(POINTS)" \
		".faulty_migration --points $(POINTS)" \
		".faulty_retention --every $(EVERY)" \
		".killed_retention --points $(POINTS)" \
		".random_retention --trees $(TREES)"; \
	do \
		echo "python -m tests.robustness$$each"; \
		$(BIN)/python -m tests.robustness$$each || ended=1; \
	done; exit $$ended

# Besides the packages, what lets Spark start faster: a minute once, which a single demo would not get back.
install: $(PROJECT) ## everything into .venv, and what lets Spark start faster
	@$(BIN)/state-pipelines prepare

# The site, in .cache/site; warnings are errors. The variable silences a notice about the end of the theme's life in 2027.
docs: $(PROJECT) ## the site, in .cache/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Wrote .cache/site/index.html"

$(INSTALLED):
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed: make PYTHON=...")'
	@echo "Installing the packages of requirements.lock into .venv; the first time this takes a minute or two and 1.8 GB of disk"
	@rm -rf .venv
	@$(PYTHON) -m venv .venv
	@$(PIP) install --require-hashes -r requirements-build.lock
	@$(PIP) install --require-hashes --no-build-isolation --no-compile -r requirements.lock
# pip would compile on one core. Like pip, it passes over files that are no Python, such as templates of code.
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	@touch $@

$(PROJECT): $(INSTALLED)
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@
	@echo "Installed into .venv: $$($(BIN)/python -m pip list --format=freeze --disable-pip-version-check | wc -l) packages"

# Rewrite the locks: only what pyproject.toml asks for changes, or everything with UPGRADE=--upgrade. Neither file
# names an index, so that it works with any.
COMPILE := .cache/uv/bin/uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(UPGRADE)
lock: ## requirements.lock and requirements-build.lock (UPGRADE=--upgrade)
	@$(PYTHON) -m venv .cache/uv
	@.cache/uv/bin/python -m pip --quiet --disable-pip-version-check install uv
	@printf 'pip\nsetuptools>=77\n' | $(COMPILE) --output-file requirements-build.lock -
	@$(COMPILE) --all-extras --output-file requirements.lock pyproject.toml
	@echo "Wrote requirements-build.lock and requirements.lock"

clean: ## delete what is installed and cached
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info

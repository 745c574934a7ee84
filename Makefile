# `make demo` and `make test` need only Python: they create a virtual environment in .venv and install the rest with pip.
PYTHON ?= python3
BIN := .venv/bin
QUICK := tests/test_imports.py tests/test_package.py tests/test_layers.py tests/attention tests/models tests/data tests/decoding

# Many tests start new processes, which need half as long with compiled modules.
export PYTHONDONTWRITEBYTECODE =

# Python compiles modules when they are first imported; pip would compile all of them, which takes half a minute.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile

LINT := echo "== ruff" && $(BIN)/ruff check . && $(BIN)/ruff format --check . && echo "== mypy" && $(BIN)/mypy
TIMM := if [ -e .venv/timm/installed ]; then echo "== pytest with timm and torchvision" \
	&& PYTHONPATH=.venv/timm $(BIN)/pytest tests/interop/full_timm_models.py; fi

.PHONY: demo test lint quick docs wheel ray clean

demo: .venv/installed
	@$(BIN)/regard demo --out runs/demo

# Programs with one thread run beside pytest; their output follows that of pytest.
test: .venv/installed-for-tests .venv/timm/installed
	@command -v chromium chromium-browser google-chrome >/dev/null || apt-get install -y -qq chromium >/dev/null 2>&1 \
		|| echo "== Chromium is not installed: tests of web pages are skipped (apt-get install chromium)"
	@{ { $(LINT); } && { $(TIMM); }; } > .venv/beside-pytest.log 2>&1 & beside=$$!; \
	echo "== pytest" && $(BIN)/pytest -n 2 --dist loadgroup; status=$$?; \
	wait $$beside || status=1; cat .venv/beside-pytest.log; exit $$status

lint: .venv/installed-for-tests
	@$(LINT)

# For use between edits: the tests of the core, without trained models, servers, browsers or killed processes.
quick: lint
	@echo "== pytest" && $(BIN)/pytest -n 2 -m "not slow" $(QUICK)

# The documentation site, in build/site. It needs neither torch nor regard, so it has a folder of its own.
# MkDocs does not count warnings as errors with --quiet.
docs: .venv/docs/installed
	@mkdir -p build && NO_MKDOCS_2_WARNING=1 .venv/docs/bin/mkdocs build --strict 2> build/mkdocs.log \
		|| { grep -v "^INFO" build/mkdocs.log; exit 1; }
	@echo "== build/site/index.html"

wheel:
	@tools/check_wheel.sh

ray: .venv/installed-for-ray
	@echo "== pytest on local Ray clusters" && $(BIN)/pytest tests/serving/on_ray.py tests/pipelines/on_ray.py

.venv/bin/python:
	@echo "== creating .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml | .venv/bin/python
	@echo "== installing regard and its dependencies (once; takes a few minutes if packages must be downloaded)"
	@$(INSTALL) --editable .
	@touch $@

.venv/installed-for-tests: pyproject.toml | .venv/bin/python
	@echo "== installing regard and its test dependencies (once; takes a few minutes if packages must be downloaded)"
	@$(INSTALL) --editable '.[dev]'
	@touch $@ .venv/installed

# timm and torchvision matching the installed torch, in a separate folder; tests/interop/full_timm_models.py explains why.
.venv/timm/installed: .venv/installed-for-tests
	@rm -rf .venv/timm
	@minor=$$($(BIN)/python -c "import torch; print(torch.__version__.split('.')[1])") \
		&& $(INSTALL) --no-deps --target .venv/timm timm "torchvision==0.$$((minor + 15)).*" \
		&& touch $@ || echo "== timm and torchvision cannot be installed: the tests that need them are skipped"

.venv/docs/installed: pyproject.toml | .venv/bin/python
	@echo "== installing MkDocs (once)"
	@$(PYTHON) -m venv .venv/docs
	@.venv/docs/bin/python -m pip install --quiet $$($(PYTHON) -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'])")
	@touch $@

.venv/installed-for-ray: pyproject.toml | .venv/bin/python
	@echo "== installing regard, its test dependencies and Ray (once; takes a few minutes if packages must be downloaded)"
	@$(INSTALL) --editable '.[dev,ray]'
	@touch $@

clean:
	rm -rf .venv runs build dist .pytest_cache .mypy_cache .ruff_cache

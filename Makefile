# `make demo` and `make test` set themselves up: a virtual environment in .venv, everything else by pip.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test ray clean

demo: .venv/installed
	@$(BIN)/regard demo --out runs/demo

test: .venv/installed-for-tests .venv/timm/installed
	@command -v chromium chromium-browser google-chrome >/dev/null || apt-get install -y -qq chromium >/dev/null 2>&1 \
		|| echo "== no Chromium, so the tests of pages are skipped; apt-get install chromium would bring it"
	@echo "== ruff" && $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "== mypy" && $(BIN)/mypy
	@echo "== pytest" && $(BIN)/pytest -n 2 --dist loadgroup
	@if [ -e .venv/timm/installed ]; then echo "== pytest, beside timm and torchvision" \
		&& PYTHONPATH=.venv/timm $(BIN)/pytest tests/interop/of_timm.py; fi

ray: .venv/installed-for-ray
	@echo "== a local Ray cluster" && $(BIN)/pytest tests/serving/on_ray.py

.venv/bin/python:
	@echo "== making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml | .venv/bin/python
	@echo "== installing regard and what it needs (once; a few minutes where packages must be fetched)"
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

.venv/installed-for-tests: pyproject.toml | .venv/bin/python
	@echo "== installing regard and its test tools (once; a few minutes where packages must be fetched)"
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ .venv/installed

# Both of our torch's age, out of the others' sight; tests/interop/of_timm.py says why.
.venv/timm/installed: .venv/installed-for-tests
	@rm -rf .venv/timm
	@minor=$$($(BIN)/python -c "import torch; print(torch.__version__.split('.')[1])") \
		&& $(BIN)/python -m pip install --quiet --no-deps --target .venv/timm timm "torchvision==0.$$((minor + 15)).*" \
		&& touch $@ || echo "== timm and torchvision cannot be fetched, so the tests beside them are skipped"

.venv/installed-for-ray: pyproject.toml | .venv/bin/python
	@echo "== installing regard, its test tools and Ray (once; a few minutes where packages must be fetched)"
	@$(BIN)/python -m pip install --quiet --editable '.[dev,ray]'
	@touch $@

clean:
	rm -rf .venv runs build dist .pytest_cache .mypy_cache .ruff_cache

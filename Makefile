# `make demo` runs the main job on the embedded data set, `make test` the tests.
# Each makes .venv itself (Python >= 3.11) and is quick when it exists.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed

.PHONY: demo test slow lint clean

demo: $(STAMP)
	$(VENV)/bin/python -m experiments.stream --num_seeds=16 --noise_rates=0.2,0.4 --output_dir=results/demo

test: $(STAMP)
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile -m "not slow"

slow: $(STAMP)
	$(VENV)/bin/python -m pytest -m slow

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("rad_jax needs Python >= 3.11, this is " + sys.version.split()[0] + "; say PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) results

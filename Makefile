PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: demo test check benchmark clean

demo: $(READY)
	$(BIN)/python examples/first_steps.py

test: $(READY) check
	$(BIN)/python -m pytest

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmark: $(READY)
	$(BIN)/python benchmarks/encoding.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/tables.py

# torch first and pinned: a looser wish for it would pull gigabytes of CUDA.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV)

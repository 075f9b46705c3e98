PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: demo test check benchmark embedded clean

demo: $(READY)
	$(BIN)/randslot demo

test: $(READY) check
	$(BIN)/python -m pytest

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmark: $(READY)
	$(BIN)/python benchmarks/encoding.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/pip install -q -c constraints.txt -e ".[benchmark]"
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/tables.py

# The embedded model from nothing, in about an hour on two cores; run again after an interruption, it goes on.
embedded: $(READY)
	test -d data/train || $(BIN)/randslot samples data/train -n 2000 --curriculum
	test -d data/validation || $(BIN)/randslot samples data/validation -n 40 --split validation
	$(BIN)/randslot pretrain embedded-reading --resume
	$(BIN)/randslot train embedded-matching --resume
	$(BIN)/randslot train embedded --resume
	$(BIN)/python benchmarks/embedded.py --ship
	$(BIN)/python benchmarks/tables.py

# torch first and pinned: a looser wish for it would pull gigabytes of CUDA.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV)

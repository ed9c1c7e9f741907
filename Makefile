# One virtual environment for everything: .venv, made when missing, quick when there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
.PHONY: replay test test-slow lint models lab lab-skip bench gpu docs clean

replay: $(STAMP)
	$(BIN)/python -m specsim.replay traces/*.parquet

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not gpu and not bench"
	$(BIN)/python -m pytest -m "bench and not slow" tests/bench

# The site of docs/ and of all docstrings, in build/site: open build/site/index.html. A bad link is an error.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(STAMP)
	$(BIN)/python -m pytest -m bench tests/bench -s

test-slow: $(STAMP) models
	$(BIN)/python -m pytest -m "slow and not gpu"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

gpu: $(STAMP)
	$(BIN)/python -m real.gpu $(if $(OUT),--out $(OUT))

models: $(STAMP)
	$(BIN)/python -m real.models fetch

# The lab pair from scratch (docs/training.md): about two hours on one core; goes on where it was interrupted.
lab: $(STAMP)
	$(BIN)/python -m real.train fit --config real/configs/train/lab_target.yaml
	$(BIN)/python -m real.continuations --target lab --out runs/lab-texts --texts 6144
	$(BIN)/python -m real.train fit --config real/configs/train/lab_dflash.yaml
	$(BIN)/python -m real.train fit --config real/configs/train/lab_eagle3.yaml
	$(BIN)/python -m real.train fit --config real/configs/train/lab_fastdllm.yaml

# The lab pair's target trained on so that it can draft for itself, into runs/lab-skip/result; the target `lab-skip` is
# what it made (docs/training.md).
lab-skip: $(STAMP)
	$(BIN)/python -m real.continuations --target lab --out runs/lab-texts --texts 2560
	$(BIN)/python -m real.train fit --config real/configs/train/lab_skip.yaml

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v in ((3, 11), (3, 12)) else f"Python 3.11 or 3.12 is needed, $(PYTHON) is {v[0]}.{v[1]}: call make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[real,vision,analysis,docs,dev]'
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# make demo   set-up, then the whole story on a synthetic ImageNet
# make test   set-up, then every test but the slow ones
# GPU_KIT     more arguments of make gpu-kit, e.g. GPU_KIT="--python 3.11" for a machine that has another Python than 3.12
# PAGES       which pages make docs-test tries, e.g. PAGES=sweeps; else all
# COLLECTION  more arguments of make test-frameworks, e.g. COLLECTION="--only torch_own_generator --runs 1"
PYTHON ?= python3
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint docs docs-test bench wheel gpu-kit test-slow test-matrix test-frameworks pins licences audit clean

help:
	@echo "make demo   set-up, then profile, prepare, train and the ladder on a synthetic ImageNet"
	@echo "make test   set-up, then every test but the slow ones      make test-slow   those of 5 s and more"
	@echo "make lint   ruff and pyright"
	@echo "make docs   the site, in docs/_build      make docs-test   also run its blocks of code and follow its links"
	@echo "make test-matrix   the tests under every Python from 3.11 on that is here, without Pillow-SIMD and Java"
	@echo "make test-frameworks   profile the collection of training scripts (hours; goes on where it was ended)"
	@echo "make bench  a short fixed set of benchmarks against the committed baseline"
	@echo "make wheel  a wheel for this platform, in dist/"
	@echo "make gpu-kit   gpu-kit/: what a rented machine with a GPU, torch and no network lacks to run the GPU tests and experiments"

.venv/.ready: requirements.txt pyproject.toml bootstrap.py setup.py
	$(PYTHON) bootstrap.py

.venv/.ready-kernel: .venv/.ready $(wildcard pipeline/kernel/*.[ch] pipeline/kernel/*.pyx)
	.venv/bin/python bootstrap.py --kernel

.venv/.ready-tests: .venv/.ready .venv/.ready-kernel
	$(PYTHON) bootstrap.py --tests

setup: .venv/.ready-kernel

wheel: .venv/.ready
	.venv/bin/python -m build --wheel --no-isolation --outdir dist

demo: .venv/.ready-kernel
	.venv/bin/feedline demo

test test-slow: .venv/.ready-tests
	.venv/bin/pytest -n 2 --dist worksteal -m $(if $(filter test-slow,$@),slow,"not slow") || { \
		echo "again, alone, what has just failed: a test that fails twice fails the build, one that fails once is a bug to file"; \
		.venv/bin/pytest --last-failed --last-failed-no-failures none; }

lint: .venv/.ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright

.docs-env/.ready: .venv/.ready docs/requirements.txt
	.venv/bin/uv venv -q --clear --python .venv/bin/python .docs-env
	.venv/bin/uv pip install -q --no-deps --require-hashes --python .docs-env/bin/python -r docs/requirements.txt
	touch $@

docs: .docs-env/.ready
	.docs-env/bin/sphinx-build -n -W -E --keep-going -q -d docs/_build/.doctrees docs docs/_build

docs-test: docs .venv/.ready-kernel
	.venv/bin/python -m tests.lab.documents $(PAGES)

bench: .venv/.ready-kernel
	.venv/bin/python -m feedline.benchmarks.experiments.gate

gpu-kit: .venv/.ready-kernel
	.venv/bin/python -m tests.lab.gpu_kit $(GPU_KIT)

pins: .venv/.ready
	for pins in requirements.txt docs/requirements.txt; do sed -i -e 's/ *\\$$//' -e '/--hash=/d' $$pins && \
		.venv/bin/uv pip compile -q --no-deps --generate-hashes --no-header --no-annotate -o $$pins $$pins || exit; done

licences: .venv/.ready
	{ echo "# Licences of what set-up installs"; echo; echo "Written by \`make licences\`."; echo; \
		.venv/bin/uv tool run -q --from pip-licenses==5.5.5 pip-licenses --python .venv/bin/python --format=markdown; } > LICENCES.md

audit: .venv/.ready
	.venv/bin/uv tool run -q --from pip-audit==2.10.1 pip-audit --disable-pip --progress-spinner off -r requirements.txt

test-matrix: .venv/.ready-tests
	.ci/matrix

.frameworks/.ready: .venv/.ready tests/scripts/frameworks.txt
	.venv/bin/uv venv -q --clear --python .venv/bin/python .frameworks
	.venv/bin/uv pip install -q --no-deps --compile-bytecode --python .frameworks/bin/python -r tests/scripts/frameworks.txt
	touch $@

test-frameworks: .frameworks/.ready
	.venv/bin/python -m tests.lab.collection --work runs/collection $(COLLECTION)

clean:
	rm -rf .docs-env docs/_build .frameworks .matrix .venv .typing build *.egg-info

# The whole project in a few words: `make book` and `make test` need nothing but make and a Python 3.11 or newer.
#
#   make test UPGRADE=1          the same with the newest versions that pyproject.toml allows, in an environment of its own
#   make book PYTHON=python3.13  another Python (anything that `uv venv --python` understands)
#   make book TIMEOUT=3600       a slow or busy machine: a cell may take an hour instead of ten minutes

.DEFAULT_GOAL := help
SHELL := /bin/bash

UPGRADE ?=
PYTHON  ?= >=3.11
JOBS    ?= 2
TIMEOUT ?= 600

VENV  := $(if $(UPGRADE),.venv-newest,.venv)
PY    := $(VENV)/bin/python
STAMP := $(VENV)/.installed

# One thread a process: two processes on two cores are faster than two times two threads, and the numbers stay the same.
export OMP_NUM_THREADS := 1
# Progress bars are for people; in stored outputs they would differ from run to run.
QUIET := TQDM_DISABLE=1

.PHONY: help book test check site pdf map sheet course slides playground figures quizzes mutations fuzz kill lab lint format chapters reference colab environment clean distclean lock package

help: ## show this list
	@printf '\n  \033[1mPersonalized federated learning, by running it\033[0m\n\n'
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  \033[36mmake %-12s\033[0m %s\n", $$1, $$2}' Makefile
	@printf '\n  The first command makes the environment in %s (a few minutes); later ones start at once.\n\n' '$(VENV)'

book: environment ## run every chapter from scratch, or those that an interrupted call has left, then build the site
	@rm -rf _build/book-src && mkdir -p _build && cp -R book _build/book-src
	@$(QUIET) $(PY) tools/execute_book.py _build/book-src --kept _build/executed --jobs $(JOBS) --timeout $(TIMEOUT)
	@$(PY) tools/build_site.py --source _build/book-src --output _build/book
	@rm -rf _build/executed

site: environment ## build the site from the chapters as they are stored (a minute or two; this is what is published)
	@$(PY) tools/build_site.py --source book --output _build/site

pdf: environment ## the course as one PDF, from the chapters as they are stored (_build/pdf; needs Chromium)
	@$(PY) tools/make_pdf.py

course: environment ## the teacher's files: student and instructor notebooks, grading, slides, quizzes, a zip (_build/course)
	@echo 'Making the course: first the package as a wheel, then each unit and laboratory (a few minutes)'
	@rm -rf _build/wheel && tools/uv.sh build --wheel --quiet --out-dir _build/wheel || \
	  tools/uv.sh build --wheel --quiet --out-dir _build/wheel --offline
	@$(PY) tools/make_course.py --wheel "$$(echo _build/wheel/*.whl)"

slides: environment ## the slides of all units, for any browser, without a network (_build/slides)
	@$(PY) tools/chapter_slides.py $(NAMES)

playground: environment ## the playgrounds as a folder for any page host, or for a browser alone (_build/playground)
	@$(PY) tools/playgrounds.py

figures: environment ## all figures as SVG and PNG in one zip, drawn again from the pages' cells (_build/pfl-figures.zip)
	@$(PY) tools/figures_zip.py $(NAMES)

quizzes: environment ## the quizzes as QTI 2.1 and Moodle XML (_build/quizzes)
	@$(PY) tools/make_quizzes.py
package: ## wheel and sdist, installed into an empty environment and tried there
	@tools/check_package.sh '$(PYTHON)'

test: environment ## unit and property tests, the site, and every chapter against its stored outputs
	@printf '\n== 1 of 2: the package, the repository and the site (collecting the tests takes a minute or two)\n'
	$(QUIET) $(PY) -m pytest tests -n $(JOBS) --dist loadfile --durations 5
	@printf '\n== 2 of 2: every chapter runs and shows what is stored in it (nbval)\n'
	$(QUIET) $(PY) -m pytest -p tests.nbval_plugin --nbval --nbval-current-env --nbval-cell-timeout 900 --nbval-kernel-startup-timeout 600 \
	  --nbval-sanitize-with tests/nbval_sanitize.cfg -n $(JOBS) --dist loadscope --durations 5 book/*.ipynb

check: lint ## the inner loop: lint, types, and the tests that need no process, browser or notebook
	$(QUIET) $(PY) -m pytest tests -m 'not slow' -q -n $(JOBS) --dist loadfile --durations 5

mutations: environment ## break methods, partitions, the engine and verdicts one line at a time: does a test notice? (half an hour)
	@$(PY) tools/check_mutations.py

fuzz: environment ## hostile inputs, 2,000 of them, each in a process of its own (half an hour; SEED=7 for others)
	$(QUIET) $(PY) -m tests.fuzzing --seed '$(or $(SEED),0)'

kill: environment ## kill sweeps at twelve random moments of each kind (an hour; SEED=7 for others)
	$(QUIET) $(PY) -m tests.killing --seed '$(or $(SEED),0)'

lab: environment ## open JupyterLab on the chapters
	$(VENV)/bin/jupyter lab --notebook-dir book

lint: environment ## ruff, mypy, codespell on what people read, and actionlint on the workflows
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) tools/lint_prose.py
	@tools/lint_workflows.sh

format: environment ## let ruff mend and lay out the code
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

chapters: environment ## run chapters and keep their outputs in book/ (all, or NAMES="pfedmb notation")
	@$(QUIET) $(PY) tools/execute_book.py book $(NAMES) --jobs $(JOBS) --timeout $(TIMEOUT)

reference: environment ## write what is made from the code: reference pages, methods' cards, all methods in one file
	@$(PY) tools/update_reference.py
	@$(PY) tools/one_file.py
	@$(PY) tools/update_pictures.py

map: environment ## the map of the methods as one A3 page (_build/map-of-methods.pdf; needs Chromium)
	@$(PY) tools/cards.py

sheet: environment ## the cheat sheet, every method in one line, as one A4 page (_build/cheat-sheet.pdf; needs Chromium)
	@$(PY) tools/cheat_sheet.py

colab: environment ## let chapters install the package where it is missing, once the repository has a public remote
	@$(PY) tools/add_install_cell.py

environment: $(STAMP) ## make or refresh the environment only

$(STAMP): requirements.lock pyproject.toml tools/make_environment.sh
	@tools/make_environment.sh '$(VENV)' '$(PYTHON)' '$(if $(UPGRADE),newest,locked)'
	@touch $@

lock: ## resolve pyproject.toml again into requirements.lock
	@tools/uv.sh pip compile pyproject.toml --universal --python-version 3.11 --all-extras --upgrade --quiet \
	  --no-annotate --no-header --no-emit-index-url -o requirements.lock

clean: ## remove everything built, keep the environment
	rm -rf _build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean ## remove the environments and downloaded tools as well
	rm -rf .venv .venv-newest .tools
	@echo "uv's cache (~/.cache/uv, about 6 GB on Linux) is still there, for the next environment, and ~/.cache/pfl_lite with drawn data sets; delete them if you need the space"

#!/usr/bin/env bash
# Build wheel and sdist, install the wheel into an empty environment, and type what a new user would.  check_package.sh [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/.."
there=_build/package
rm -rf "$there" && mkdir -p "$there"

tools/uv.sh build --quiet --out-dir "$there/dist" || tools/uv.sh build --quiet --out-dir "$there/dist" --offline
here=$PWD
printf 'built:\n' && ls -sh "$there/dist"
tools/uv.sh venv --quiet --python "${1:->=3.11}" "$there/venv"
tools/uv.sh pip install --quiet --python "$there/venv/bin/python" --constraint requirements.lock "$there"/dist/*.whl

cd "$there" # where the package can only be the installed one
export PATH="$here/$there/venv/bin:$PATH" OMP_NUM_THREADS=1
pfl-lite methods > methods.txt
pfl-lite run fedavg --data digits --model linear --partition dirichlet:0.4 --rounds 2 --out run.json
pfl-lite notebooks chapters
python - <<'PYTHON'
import json, pathlib, pfl_lite
from pfl_lite.methods import METHODS

assert "venv" in pfl_lite.__file__, pfl_lite.__file__
assert len(pathlib.Path("methods.txt").read_text().splitlines()) >= len(METHODS)
assert json.loads(pathlib.Path("run.json").read_text())["complete"]
assert len(list(pathlib.Path("chapters").glob("*.ipynb"))) > 30
assert pathlib.Path("chapters/data/paper_tables.csv").is_file()
PYTHON
tar -tzf dist/*.tar.gz > sdist.txt
grep -q '/pfl_lite/py.typed$\|/pfl_lite/__init__.py$' sdist.txt
echo "the package installs into an empty environment, trains, and brings its chapters"

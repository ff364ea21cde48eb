#!/usr/bin/env bash
# Make or refresh a virtual environment:  make_environment.sh FOLDER PYTHON locked|newest
#   locked  the exact versions of requirements.lock
#   newest  the newest versions that pyproject.toml allows
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 python=$2 versions=$3

started=$SECONDS
echo "Making the environment in $folder ($versions versions; PyTorch is large, the first time takes a few minutes)"
if [ ! -x "$folder/bin/python" ]; then
  tools/uv.sh venv --python-preference system --python "$python" "$folder"
fi
if ! "$folder/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "$("$folder/bin/python" --version) is too old: this needs Python 3.11 or newer ($folder was removed; try again)" >&2
  rm -rf "$folder"  # which the next try would take as it is
  exit 2
fi
echo "Once the packages are installed, uv compiles them: it prints nothing for a minute, or for several on a busy machine"
export VIRTUAL_ENV=$PWD/$folder
# Compiled once, here: every command, worker and kernel starts in half the time, also where Python may not write beside its sources.
if [ "$versions" = locked ]; then
  tools/uv.sh pip sync --compile-bytecode requirements.lock
  tools/uv.sh pip install --no-deps -e .
else
  tools/uv.sh pip install --upgrade --compile-bytecode -e '.[book,course,dev]'
fi
echo "The environment is ready after $((SECONDS - started)) s"

#!/usr/bin/env bash
# Run uv: the one on PATH, else one that is put into .tools/uv the first time.
set -euo pipefail
cd "$(dirname "$0")/.."

if command -v uv >/dev/null 2>&1 && uv --version >/dev/null 2>&1; then
  exec uv "$@"
fi
if [ ! -x .tools/uv/bin/uv ]; then
  echo "uv is not installed: putting a private copy into .tools/uv" >&2
  python3 -m venv .tools/uv
  .tools/uv/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.5'
fi
exec .tools/uv/bin/uv "$@"

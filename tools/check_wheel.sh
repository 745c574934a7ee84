#!/usr/bin/env bash
# Build the wheel, install it in a fresh environment outside of the repository, and run the demo with it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "== building the wheel"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/dist" .
echo "== installing $(basename "$work"/dist/*.whl) in a fresh environment"
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet "$work"/dist/*.whl
cd "$work"
echo "== regard demo"
"$work/venv/bin/regard" --version
"$work/venv/bin/regard" demo --out "$work/demo" --set training.steps=200 --set training.validate_every=200
"$work/venv/bin/regard" translate "$work/demo" "I love apples"
echo "== the wheel works"

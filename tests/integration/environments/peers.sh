#!/usr/bin/env bash
# Other people's clients against our server, readers of our exports, Optuna as a sweeper, our library
# in a Jupyter notebook, and our traces in Chromium where there is one:
# `tests/integration/environments/peers.sh [python of the tests]`.
#
# Makes one environment for each client in .venv-peers, because they pin old versions of MCP's SDK,
# then runs their tests. Two clients are not on package indexes; their tests run where
# a checkout is named:
#   SOUNDINGLINE_BROWSECOMP_PLUS  a clone of github.com/texttron/BrowseComp-Plus
#   SOUNDINGLINE_PI_SERINI        a clone of github.com/justram/pi-serini (needs Node and npm)
set -euo pipefail
cd "$(dirname "$0")/../../.."
tests=${1:-.venv/bin/python}
export SOUNDINGLINE_PEERS=$PWD/.venv-peers

environment() { # name requirement... [--then requirement...]
  local place=$SOUNDINGLINE_PEERS/$1
  shift
  [[ -e $place/.installed ]] && return
  echo "Installing $1 into $place"
  "$tests" -m venv "$place"
  while (($#)); do
    local step=()
    while (($#)) && [[ $1 != --then ]]; do
      step+=("$1")
      shift
    done
    shift || true
    "$place/bin/python" -m pip install --disable-pip-version-check -q "${step[@]}"
  done
  touch "$place/.installed"
}

environment fastmcp fastmcp==2.9.2 mcp==1.9.4 pydantic==2.11.7
# What qwen-agent imports and does not declare stands behind it.
environment qwen qwen-agent==0.0.27 mcp==1.9.4 pydantic==2.11.7 \
  tqdm rich python-dotenv python-dateutil numpy soundfile
environment langchain langchain-mcp-adapters==0.3.2 langchain-core==1.7.2 mcp==1.30.0
# It installs a top-level package `agents`, which must work next to ours, whichever comes first.
environment openai-agents-first openai-agents==0.24.0 --then .
environment openai-agents-last . --then openai-agents==0.24.0
environment inspect inspect_ai==0.3.285
# The sweeper needs Optuna 2, whose studies in a database need an SQLAlchemy before 2.
environment optuna . hydra-optuna-sweeper==1.3.0 'sqlalchemy<2'
environment notebook nbclient==0.11.0 nbformat==5.11.1 ipykernel==7.4.0

if [[ -n ${SOUNDINGLINE_PI_SERINI:-} && ! -e $SOUNDINGLINE_PEERS/pi-serini/.installed ]]; then
  place=$SOUNDINGLINE_PEERS/pi-serini
  mkdir -p "$place"
  cp -r "$SOUNDINGLINE_PI_SERINI/src" "$place/"
  echo '{"private": true, "type": "module"}' >"$place/package.json"
  (cd "$place" && npm install --no-audit --no-fund --silent tsx@4 typebox@1)
  touch "$place/.installed"
fi

SOUNDINGLINE_REAL=peers exec "$tests" -m pytest tests/integration/test_peers.py tests/integration/test_chromium.py tests/integration/test_site.py -rs

#!/bin/sh
# Installs the clients of the Open Inference Protocol, and of OpenAI's and Cohere's APIs, that tests
# call a server with, into $INFERENCE_CLIENTS (default: node_modules/.cache/inference-clients). What is
# there is kept.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
clients=${INFERENCE_CLIENTS:-$here/../../node_modules/.cache/inference-clients}
python=${PYTHON:-python3.11}
mkdir -p "$clients"

# A virtual environment for each, because they need different versions of the same packages.
environment() {
  name=$1
  shift
  "$clients/$name/bin/pip" --version >/dev/null 2>&1 || "$python" -m venv "$clients/$name"
  "$clients/$name/bin/pip" install --quiet --disable-pip-version-check "$@"
}
environment client 'tritonclient[http,grpc]==2.73.0' ml_dtypes==0.5.4 numpy==2.4.6
environment kserve kserve==0.21.0
environment openai openai==3.57.0
# The last wheel with the program perf_analyzer that runs on Debian 12 (x86-64). It needs no GPU, only
# this library of CUDA, and libb64 of Debian: apt-get install libb64-0d
environment perf --no-deps tritonclient==2.51.0 nvidia-cuda-runtime-cu12==12.9.79

# The clients in Node, with the versions of node/package-lock.json.
mkdir -p "$clients/node"
if ! cmp -s "$here/node/package-lock.json" "$clients/node/installed.json"; then
  cp "$here/node/package.json" "$here/node/package-lock.json" "$clients/node"
  npm ci --prefix "$clients/node" --ignore-scripts --no-audit --no-fund --loglevel=error
  cp "$clients/node/package-lock.json" "$clients/node/installed.json"
fi
echo "ready in $clients"

#!/bin/sh
# Installs the model servers that tests call as endpoints, into $INFERENCE_CLIENTS (default:
# node_modules/.cache/inference-clients), beside the clients of test/clients. What is there is kept.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${INFERENCE_CLIENTS:-$here/../../node_modules/.cache/inference-clients}
python=${PYTHON:-python3.11}
mkdir -p "$folder"

# A virtual environment for each, because they need different versions of the same packages.
environment() {
  name=$1
  shift
  "$folder/$name/bin/pip" --version >/dev/null 2>&1 || "$python" -m venv "$folder/$name"
  "$folder/$name/bin/pip" install --quiet --disable-pip-version-check "$@"
}
environment mlserver mlserver==1.7.1
environment kserve kserve==0.21.0
echo "ready in $folder"

#!/bin/sh
# Installs the servers that nestjs-serving is compared with, into $PEERS_DIR (default: the folder
# peers of the temporary folder). What is installed already is kept.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
peers=${PEERS_DIR:-${TMPDIR:-/tmp}/peers}
python=${PYTHON:-python3.11}
mkdir -p "$peers"

if ! command -v wrk > /dev/null; then
  echo 'wrk is missing: apt-get install wrk' >&2
  exit 1
fi

# A virtual environment for each, because they need different versions of the same packages.
environment() {
  name=$1
  shift
  echo "python: $name"
  [ -d "$peers/$name" ] || "$python" -m venv "$peers/$name"
  "$peers/$name/bin/pip" install --quiet --disable-pip-version-check \
    onnxruntime==1.30.0 numpy==2.4.6 "$@"
}
environment ray 'ray[serve]==2.60.0'
environment litserve litserve==0.2.19
environment bentoml bentoml==1.4.39
environment fastapi fastapi==0.165.0 uvicorn==0.54.0 uvloop==0.23.0 httptools==0.9.0

echo 'rust: batched-fn'
cargo build --quiet --release --manifest-path "$here/rust/Cargo.toml" --target-dir "$peers/rust"
# The same onnxruntime as Python has.
library=$(find "$peers/fastapi" -name 'libonnxruntime.so.*' | head -n 1)
ln -sf "$library" "$peers/libonnxruntime.so"
echo "ready in $peers"

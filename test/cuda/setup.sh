#!/bin/sh
# Makes the libraries that the CUDA provider of onnxruntime loads on a machine without a GPU, and gets that provider, into
# $INFERENCE_CLIENTS/cuda (default: node_modules/.cache/inference-clients/cuda). What is there is kept. Linux x64 only.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${INFERENCE_CLIENTS:-$here/../../node_modules/.cache/inference-clients}/cuda
python=${PYTHON:-python3.11}
version=$(sed -n '/"node_modules\/onnxruntime-node"/,/version/s/.*"version": "\(.*\)".*/\1/p' "$here/../../package-lock.json")

"$folder/bin/pip" --version >/dev/null 2>&1 || "$python" -m venv "$folder"
# The wheel holds the provider's library, which onnxruntime-node downloads from elsewhere.
"$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps "onnxruntime-gpu==$version"
mkdir -p "$folder/libraries"
providers=$(dirname "$(find "$folder/lib" -name libonnxruntime_providers_cuda.so)")
cp -u "$providers/libonnxruntime_providers_cuda.so" "$providers/libonnxruntime_providers_shared.so" "$folder/libraries"

# Functions that the provider calls in each library. Those that runtime.cc lacks do nothing, and what they create is never read.
mkdir -p "$folder/source"
for library in libcudart.so.13 libcublas.so.13 libcublasLt.so.13 libcurand.so.10 libcuda.so.1; do
  source=$folder/source/$library.cc
  if [ "$library" = libcudart.so.13 ]; then
    cp "$here/runtime.cc" "$source"
  else
    echo '#include <cstdlib>' >"$source"
  fi
  echo 'extern "C" {' >>"$source"
  # The driver's functions, in libcuda, have no version.
  nm -D --undefined-only "$folder/libraries/libonnxruntime_providers_cuda.so" |
    sed -n "s/^ *U \(\w*\)@$library$/\1/p; s/^ *U \(cu[A-Z]\w*\)$/\1/p" |
    while read -r name; do
      if ! grep -q "\b$name(" "$source"; then
        case $name in
          *Create*) echo "int $name(void **made) { *made = malloc(64); return 0; }" ;;
          *) echo "int $name() { return 0; }" ;;
        esac >>"$source"
      fi
    done
  echo '}' >>"$source"
  echo "$library { global: *; };" >"$source.map"
  c++ -O1 -shared -fPIC -Wl,-soname,"$library" -Wl,--version-script="$source.map" -o "$folder/libraries/$library" "$source"
done
echo "ready in $folder"

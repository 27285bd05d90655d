#!/bin/sh
# Makes a virtual environment of Python for each model server of the tests, in the folder given, by
# default where the tests look for them. Takes about 800 MB; needs Python 3.10 to 3.12.
set -eu
folder="${1:-node_modules/.cache/venvs}"
make_environment() {
  [ -x "$folder/$1/bin/python" ] || python3 -m venv "$folder/$1"
  "$folder/$1/bin/python" -m pip install --quiet "$2"
}
# Two environments: pip finds no versions of their dependencies that suit both.
make_environment mlserver 'mlserver==1.7.1'
make_environment kserve 'kserve==0.21.0'

#!/bin/sh
# Runs the tests of the Python client with Debian's own Python. As root on Debian or Ubuntu it installs what they need. Elsewhere, tests that need
# more than there is are skipped, and pytest says why.
set -eu
cd "$(dirname "$0")"
python=/usr/bin/python3
[ -x "$python" ] || python=python3

missing() { # prints the packages whose module is missing
  for module in websockets pytest xdist mypy pip setuptools wheel; do
    "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$module') is None)" || case $module in
      mypy) printf 'mypy ' ;;
      xdist) printf 'python3-pytest-xdist ' ;;
      *) printf 'python3-%s ' "$module" ;;
    esac
  done
}

packages=$(missing)
if [ -n "$packages" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing: $packages"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq || true
  # shellcheck disable=SC2086 # a list of names
  apt-get install -y -qq --no-install-recommends $packages >/dev/null || true
  packages=$(missing)
fi
case " $packages" in *" python3-pytest "*) echo "clients-python: SKIPPED, there is no pytest"; exit 0 ;; esac
[ -z "$packages" ] || echo "clients-python: not here, so some tests are skipped: $packages"

parallel="-n 4" # the tests mostly wait
case " $packages" in *" python3-pytest-xdist "*) parallel= ;; esac
# shellcheck disable=SC2086 # options
exec "$python" -m pytest -q $parallel "$@"

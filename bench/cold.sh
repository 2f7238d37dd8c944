#!/usr/bin/env bash
# Cold 4 KiB files beside nginx, under a memory limit, as root (about three minutes). See cold.py.
# Needs wrk, nginx, python3 and `cargo build --release -p ringroad`.
exec python3 "$(dirname "$0")/cold.py" "$@"

#!/usr/bin/env bash
# A cache beside nginx's: hits from disk under a memory limit, warm hits, and plain proxying, as root. See cache.py.
# Needs wrk, nginx, python3 and `cargo build --release -p ringroad`.
exec python3 "$(dirname "$0")/cache.py" "$@"

#!/usr/bin/env bash
# 500 clients stuck on a slow disk, and the p99 of another location, beside nginx (about two minutes as root).
# See slow_disk.py. Needs wrk, nginx, python3 and `cargo build --release -p ringroad`.
exec python3 "$(dirname "$0")/slow_disk.py" "$@"

#!/usr/bin/env bash
# CPU per request beside nginx on one machine, in one interleaved run (about two minutes). See side_by_side.py.
# Needs wrk, nginx, python3 and `cargo build --release -p ringroad`; as root, kernel workers are pinned too.
exec python3 "$(dirname "$0")/side_by_side.py" "$@"

#!/usr/bin/env bash
# What a cache does by itself, and what its clients notice: one fetch for a thousand, a start with a million entries, and
# their end. As root, after `bench/cache-life.sh --prepare`. See cache_life.py.
# Needs wrk, nginx, python3 and `cargo build --release -p ringroad`.
exec python3 "$(dirname "$0")/cache_life.py" "$@"

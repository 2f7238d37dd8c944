#!/usr/bin/env bash
# Where a server's processor time goes, by row: perf's counters, its most expensive functions, a flame graph. As root.
# See profile.py. Needs perf (linux-perf), wrk, nginx, python3, and a build whose stacks can be followed:
#   RUSTFLAGS="-C force-frame-pointers=yes" cargo build --release -p ringroad --target-dir target/profile
set -euo pipefail
here=$(dirname "$0")
if [ "$(id -u)" = 0 ] && command -v ip >/dev/null && [ "${1-}" != --help ]; then
    # A network of its own: bbr, where it is the default, paces loopback, and profiles would show its timers. Every machine allows reno.
    exec unshare --net bash -c '
        ip link set lo up
        echo reno >/proc/sys/net/ipv4/tcp_congestion_control || true
        exec python3 "$@"' profile "$here/profile.py" "$@"
fi
exec python3 "$here/profile.py" "$@"

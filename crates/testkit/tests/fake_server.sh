#!/bin/sh
# A server without a network, for the tests of the harness: it writes the pid file and a log line for each listener,
# handles HUP and QUIT, and does nothing else. Called as: fake_server.sh -p DIR/ -c FILE [ARG]

# A shell cannot trap signals that were ignored when it started, such as QUIT in a background job and HUP under nohup.
if [ -z "$FAKE_SERVER" ] && env --default-signal true 2>/dev/null; then
    exec env --default-signal=HUP,QUIT FAKE_SERVER=1 sh "$0" "$@"
fi
dir=$2
log=$dir/logs/error.log
if [ "$5" = refuse ]; then
    echo "fake: [emerg] refused by the test" >&2
    exit 1
fi
trap 'echo "notice: reloaded" >>"$log"' HUP
trap 'rm -f "$dir/logs/nginx.pid"; exit 7' QUIT
echo "2026/01/01 00:00:00 [notice] 1#1: listening on 127.0.0.1:4711" >>"$log"
echo "2026/01/01 00:00:00 [notice] 1#1: listening on [::1]:4712" >>"$log"
echo "2026/01/01 00:00:00 [notice] 1#1: listening on unix:/run/a b.sock" >>"$log"
echo $$ >"$dir/logs/nginx.pid"
# The shell runs a trap only after the current command. So each sleep is brief.
while :; do
    sleep 0.05
done

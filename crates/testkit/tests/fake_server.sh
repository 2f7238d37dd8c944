#!/bin/sh
# A server without a network, for the tests of the harness: it honours the pid file, the log line for each
# listener, HUP and QUIT, and does nothing else. Called as: fake_server.sh -p DIR/ -c FILE [ARG]

# A shell cannot trap what was ignored when it started, as QUIT is in a job in the background and HUP under nohup.
if [ -z "$FAKE_SERVER" ] && env --default-signal true 2>/dev/null; then
    exec env --default-signal=HUP,QUIT FAKE_SERVER=1 sh "$0" "$@"
fi
dir=$2
log=$dir/logs/error.log
if [ "$5" = refuse ]; then
    echo "fake: [emerg] refused as told" >&2
    exit 1
fi
trap 'echo "notice: reloaded" >>"$log"' HUP
trap 'rm -f "$dir/logs/nginx.pid"; exit 7' QUIT
echo "2026/01/01 00:00:00 [notice] 1#1: listening on 127.0.0.1:4711" >>"$log"
echo "2026/01/01 00:00:00 [notice] 1#1: listening on [::1]:4712" >>"$log"
echo "2026/01/01 00:00:00 [notice] 1#1: listening on unix:/run/a b.sock" >>"$log"
echo $$ >"$dir/logs/nginx.pid"
# A signal that comes just before a call that blocks for ever would be noticed when that call ends: never. So the
# call is a short one.
while :; do
    sleep 0.05
done

#!/bin/bash
# callgrind-hit.sh BINARY LABEL [REQUESTS]: user instructions of a hit of 4 KiB that is read from a file, by callgrind (epoll)
set -e
B=$1; L=$2; N=${3:-1000}; SIZE=${SIZE:-4k}
LOAD=${LOAD:-ringroad}
D=$(mktemp -d "${TMPDIR:-/var/tmp}/fill.XXXX"); mkdir $D/logs $D/origin; head -c ${BYTES:-4096} /dev/zero | tr '\0' f > $D/origin/$SIZE
cat > $D/o.conf <<Y
user root; worker_processes 1; pid $D/o.pid; events { worker_connections 8192; ring_recv_buffers 256 4k; } http { access_log off; keepalive_requests 1000000000; sendfile on; server { listen 127.0.0.1:47990 backlog=4096; location / { root $D/origin; } } }
Y
cat > $D/s.conf <<Y
user root; worker_processes 1; master_process off; daemon off; pid $D/s.pid; events { worker_connections 8192; use epoll; } http { access_log off; keepalive_requests 1000000000;
 proxy_cache_path $D/cache levels=2 keys_zone=bench:64m max_size=1000g inactive=4d use_temp_path=off;
 upstream origin { server 127.0.0.1:47990; keepalive 256; }
 server { listen 127.0.0.1:47991 backlog=4096; location / { proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_cache bench; proxy_cache_key \$request_uri; proxy_cache_valid 200 4d; } } }
Y
$LOAD -p $D/ -c $D/o.conf -g "daemon off;" >$D/o.log 2>&1 & O=$!
valgrind --tool=callgrind --callgrind-out-file=$L.out --separate-threads=no --instr-atstart=no $CGOPTS $B -p $D/ -c $D/s.conf -g "error_log stderr;" >$D/s.log 2>&1 & S=$!
for i in $(seq 20); do curl -m 5 -s -o /dev/null http://127.0.0.1:47991/$SIZE?x && break; sleep 0.1; done
run() { $LOAD bench load --cpus 1 --host-network --json -c 64 --timeout 20 --requests $2 "http://127.0.0.1:47991/$SIZE?$1{0..$(($2-1))}" > $D/load.json; }
run m $N; sleep 2; run m 256; sleep 1
timeout 20 callgrind_control -i on $S >/dev/null; run m $N; sleep 1; timeout 20 callgrind_control -i off $S > /dev/null
grep -o '"answers": [0-9]*' $D/load.json | head -1; find $D/cache -type f | wc -l
timeout 30 callgrind_control -d $S >/dev/null; kill -TERM $S; sleep 3; kill -9 $S 2>/dev/null || true; wait $S || true; kill -TERM $O; wait $O || true
tail -3 $D/s.log; rm -rf $D

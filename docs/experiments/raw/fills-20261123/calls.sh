#!/bin/bash
# calls.sh BINARY ring|epoll|nginx: system calls of 1000 fills of 4 KiB, by strace -c -f of all threads
B=$1; E=$2; N=1000; LOAD=${LOAD:-ringroad}
D=$(mktemp -d "${TMPDIR:-/var/tmp}/fill.XXXX"); mkdir $D/logs $D/origin; head -c 4096 /dev/zero > $D/origin/4k
RB="ring_recv_buffers 256 4k; use io_uring;"; [ $E != ring ] && RB="use epoll;"
cat > $D/o.conf <<X
user root; worker_processes 1; pid $D/o.pid; events { worker_connections 8192; ring_recv_buffers 256 4k; } http { access_log off; keepalive_requests 1000000000; sendfile on; server { listen 127.0.0.1:47990 backlog=4096; location / { root $D/origin; } } }
X
cat > $D/s.conf <<X
user root; worker_processes 1; master_process off; pid $D/s.pid; events { worker_connections 8192; $RB } http { access_log off; keepalive_requests 1000000000;
 proxy_cache_path $D/cache levels=2 keys_zone=bench:64m max_size=1000g inactive=4d use_temp_path=off;
 upstream origin { server 127.0.0.1:47990; keepalive 256; }
 server { listen 127.0.0.1:47991 backlog=4096; location / { proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_cache bench; proxy_cache_key \$request_uri; proxy_cache_valid 200 4d; } } }
X
taskset -c 1 $LOAD -p $D/ -c $D/o.conf -g "daemon off;" >$D/o.log 2>&1 & O=$!
taskset -c 0 $B -p $D/ -c $D/s.conf -g "daemon off; error_log stderr;" >$D/s.log 2>&1 & S=$!
sleep 1
run() { timeout 30 $LOAD bench load --cpus 1 --host-network --json -c 64 --timeout 20 --requests $2 "http://127.0.0.1:47991/4k?$1{0..$(($2-1))}" > $D/load.json; }
run w 512; sleep 0.5
timeout 40 strace -c -f -q -p $S -o $D/st.txt & T=$!
sleep 0.5; run m $N; sleep 0.5; kill -INT $T; sleep 0.5
awk -v n=$N '$4+0>=n/50 {printf "%-20s %.2f\n", $NF, $4/n}' $D/st.txt
kill -TERM $S $O; sleep 1; kill -9 $S 2>/dev/null; wait 2>/dev/null

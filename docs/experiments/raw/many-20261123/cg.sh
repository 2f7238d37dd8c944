#!/bin/bash
# cg.sh NAME BINARY CONF CONNS SECONDS : callgrind with the first cache of this machine and a small second one
n=$1; bin=$2; conf=$3; c=$4; s=$5
port=${PORT:-8299}
sed "s/8299/$port/; s/lead.pid/$n.pid/; s/ng.pid/$n.pid/" $conf > cg-$n.conf
taskset -c 0 valgrind --tool=callgrind --instr-atstart=no --cache-sim=yes --dump-instr=no --D1=49152,12,64 --I1=65536,16,64 --LL=524288,16,64 --callgrind-out-file=$n.out $bin -c $PWD/cg-$n.conf 2>$n.err &
p=$!
for i in $(seq 60); do curl -s -o /dev/null http://127.0.0.1:$port/ && break; sleep 0.5; done
taskset -c 1 wrk -t1 -c$c -d2 http://127.0.0.1:$port/ >/dev/null
callgrind_control -z $p >/dev/null 2>&1; callgrind_control -i on $p >/dev/null
taskset -c 1 wrk -t1 -c$c -d$s http://127.0.0.1:$port/ > $n.wrk
callgrind_control -i off $p >/dev/null; callgrind_control -d $p >/dev/null
kill -9 $p; sleep 0.5; grep requests $n.wrk; ls -la $n.out*

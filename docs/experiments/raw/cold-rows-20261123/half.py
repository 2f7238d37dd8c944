#!/usr/bin/env python3
"""half.py ROUNDS LABEL=BINARY|EVENTS...: return 200, 100 connections, half of nginx's full rate, open loop, servers in turns"""
import subprocess,sys,os,time,json,socket,signal,statistics as st
LOAD="ringroad"; rounds=int(sys.argv[1]); subs=[]
ps=[]
def load(port,*more):
    o=subprocess.run([LOAD,"bench","load","--cpus","1","--host-network","--json","-c","100",*more,f"http://127.0.0.1:{port}/"],capture_output=True,text=True)
    return json.loads(o.stdout)
def pct(o,p): return next(x["us"] for x in o["latency_us"]["percentiles"] if x["percentile"]==p)
try:
    for i,a in enumerate(sys.argv[2:]):
        label,rest=a.split("=",1); b,e=(rest.split("|")+[""])[:2]
        s=socket.socket(); s.bind(("127.0.0.1",0)); port=s.getsockname()[1]; s.close()
        d=f"/var/tmp/coldrows/half{i}"; os.makedirs(d+"/logs",exist_ok=True)
        rb="" if "nginx" in b or "epoll" in e else "ring_recv_buffers 256 4k;"
        open(d+"/c.conf","w").write(f"user root; worker_processes 1; pid {d}/pid; events {{ worker_connections 8192; {rb} {e} }} http {{ access_log off; keepalive_requests 1000000000; server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ return 200; }} }} }}")
        log=open(d+"/log","w")
        p=subprocess.Popen(["taskset","-c","0",b,"-p",d+"/","-c",d+"/c.conf","-g","daemon off; error_log stderr;"],stdout=log,stderr=log); ps.append(p); subs.append((label,port,p))
    time.sleep(1)
    def tree(p):
        r=[];todo=[p]
        while todo:
            q=todo.pop(); r.append(q)
            for t in os.listdir(f"/proc/{q}/task"): todo+=map(int,open(f"/proc/{q}/task/{t}/children").read().split())
        return r
    def counts(p):
        c=sum(sum(map(int,open(f"/proc/{q}/stat").read().rsplit(")",1)[1].split()[11:13])) for q in tree(p.pid)); return c
    ng=next(x for x in subs if "ngx" in x[0])
    res={s[0]:[] for s in subs}; rates=[]
    for r in range(rounds):
        full=load(ng[1],"--seconds","0.5","--warm-up","0.3")["answers_per_second"]; rates.append(full/2)
        for label,port,p in (subs if r%2==0 else subs[::-1]):
            a=counts(p)
            o=load(port,"--seconds","1","--warm-up","0.3","--rate",str(int(full/2)))
            b=counts(p)
            res[label].append((pct(o,50.0),pct(o,99.0),pct(o,99.9),(b-a)*1e4/(o["answers_per_second"]*1.3)))
    print("# half of nginx's rate",[int(x) for x in rates])
    for s in subs:
        rs=res[s[0]]; q=res[ng[0]]
        rel=[[a[i]/b[i] for a,b in zip(rs,q)] for i in range(3)]
        print(f"{s[0]:12s} p50 {st.median(x[0] for x in rs)/1e3:.3f} ms x{st.median(rel[0]):.2f} ({min(rel[0]):.2f}-{max(rel[0]):.2f}) p99 {st.median(x[1] for x in rs)/1e3:.3f} x{st.median(rel[1]):.2f} ({min(rel[1]):.2f}-{max(rel[1]):.2f}) p99.9 {st.median(x[2] for x in rs)/1e3:.3f} x{st.median(rel[2]):.2f} cpu us {st.median(x[3] for x in rs):.2f} p50s {[int(x[0]) for x in rs]}")
finally:
    for p in ps: p.send_signal(signal.SIGTERM)
    for p in ps:
        try: p.wait(5)
        except subprocess.TimeoutExpired: p.kill()

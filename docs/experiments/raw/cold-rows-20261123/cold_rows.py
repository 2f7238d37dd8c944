#!/usr/bin/env python3
"""cr.py SIZE CONNECTIONS ROUNDS SUBJECT...; a subject is LABEL=BINARY|EVENTS|LOCATION. Interleaved."""
import subprocess, sys, os, time, json, socket, signal, statistics as st, random
size, conns, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
SECONDS=float(os.environ.get("SECS","1.2")); MEM=int(os.environ.get("MEM","128"))<<20
RR="ringroad"; LOAD=os.environ.get("LOADBIN","ringroad")
ROOT=f"/var/tmp/coldrows/{size}"
nbytes={"4k":4096,"100k":102400,"1m":1<<20}[size]; n=min((512<<20)//nbytes,65536)
if not os.path.isdir(ROOT):
    os.makedirs(ROOT)
    for i in range(n):
        with open(f"{ROOT}/{i}","wb") as f: f.write(i.to_bytes(8,"little")*(nbytes//8))
    os.sync()
G={c:f"/sys/fs/cgroup/{c}/coldrows" for c in("memory","cpuacct","cpuset")}
for c,g in G.items(): os.makedirs(g,exist_ok=True)
def w(p,v):
    with open(p,"w") as f: f.write(str(v))
w(G["cpuset"]+"/cpuset.cpus","0"); w(G["cpuset"]+"/cpuset.mems","0"); w(G["memory"]+"/memory.limit_in_bytes",MEM)
def sectors():
    for l in open("/proc/diskstats"):
        f=l.split()
        if f[2]=="vda": return int(f[5])*512,int(f[3]),int(f[12]),int(f[6]),int(f[13])
def busy(cpu):
    for l in open("/proc/stat"):
        f=l.split()
        if f[0]==f"cpu{cpu}": return sum(map(int,f[1:4]))+int(f[6])+int(f[7]), sum(map(int,f[1:9]))
def one(label,binary,events,location,knobs=""):
    w("/tmp/rr_knobs",knobs)
    s=socket.socket(); s.bind(("127.0.0.1",0)); port=s.getsockname()[1]; s.close()
    d=f"/var/tmp/coldrows/run"; os.makedirs(d+"/logs",exist_ok=True)
    ng="nginx" in binary
    rb="" if ng else "ring_recv_buffers 256 4k;"
    if "use epoll" in events: rb=""
    conf=f"user root; worker_processes 1; pid {d}/pid; events {{ worker_connections 8192; {rb} {events} }} http {{ access_log off; keepalive_requests 1000000000; default_type application/octet-stream; server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ {location} root {ROOT}; }} }} }}"
    w(d+"/c.conf",conf)
    def enter():
        for g in G.values(): w(g+"/cgroup.procs",os.getpid())
    log=open(d+"/log","w")
    p=subprocess.Popen([binary,"-p",d+"/","-c",d+"/c.conf","-g","daemon off; error_log stderr;"],stdout=log,stderr=log,preexec_fn=enter)
    try:
        for _ in range(200):
            try: socket.create_connection(("127.0.0.1",port)).close(); break
            except OSError: time.sleep(0.02)
        open("/proc/sys/vm/drop_caches","w").write("3")
        url=f"http://127.0.0.1:{port}/{{0-{n-1}}}"
        seed=str(random.randrange(1<<30))
        perf=None
        if os.environ.get("PERFREC") and label in os.environ["PERFREC"].split(","):
            perf=subprocess.Popen(["perf","record","-q","-F","1999","-g","-C","0","-o",f"./{label}.data"])
        if os.environ.get("PERFSTAT"):
            perf=subprocess.Popen(["perf","stat","-x,","-C","0","-e",os.environ["PERFSTAT"]],stderr=subprocess.PIPE,text=True)
        if perf: time.sleep(0.25)
        l=subprocess.Popen([LOAD,"bench","load","--cpus","1","--host-network","--json","-c",str(conns),"--seconds",str(SECONDS),"--warm-up","0.4","--seed",seed,"--expect-length",str(nbytes),url],stdout=subprocess.PIPE,stderr=subprocess.PIPE,text=True)
        time.sleep(0.1)
        a=[int(open(G["cpuacct"]+"/cpuacct.usage").read()),sectors(),busy(0),busy(1)]
        out,err=l.communicate()
        b=[int(open(G["cpuacct"]+"/cpuacct.usage").read()),sectors(),busy(0),busy(1)]
        told=None
        if perf:
            perf.send_signal(signal.SIGINT); told=perf.communicate()[1]
        peak=int(open(G["memory"]+"/memory.max_usage_in_bytes").read())>>20
        try: o=json.loads(out)
        except ValueError: print("bad",out[:300],err[:300],open(d+"/log").read()[:1000]); return None
        return dict(o=o,cpu=b[0]-a[0],disk=[y-x for x,y in zip(a[1],b[1])],c0=(b[2][0]-a[2][0])/max(1,b[2][1]-a[2][1]),c1=(b[3][0]-a[3][0])/max(1,b[3][1]-a[3][1]),told=told)
    finally:
        p.send_signal(signal.SIGTERM)
        try: p.wait(5)
        except subprocess.TimeoutExpired: p.kill(); p.wait()
        for _ in range(100):
            if not open(G["memory"]+"/cgroup.procs").read().split(): break
            time.sleep(0.02)
subs=[]
for a in sys.argv[4:]:
    label,rest=a.split("=",1); b,e,l,k=(rest.split("|")+["","",""])[:4]; subs.append((label,b,e,l,k))
res={s[0]:[] for s in subs}
for r in range(rounds):
    order=subs if r%2==0 else subs[::-1]
    for s in order:
        x=one(*s)
        if x is None: continue
        o=x["o"]
        if os.environ.get("RAW"): print(json.dumps(o)[:1500])
        rate=o.get("requests_per_second") or o.get("answers_per_second") or o["rate"]
        # cpu and disk counted from the start of the load, so divide by all time's answers: rate*(SECONDS+0.4)
        tot=rate*(SECONDS+0.4)
        e=dict(rate=rate,cpu=x["cpu"]/1e3/tot,disk=x["disk"][0]/(tot*nbytes),kb=x["disk"][0]/1024/max(1,x["disk"][1]),c0=x["c0"],c1=x["c1"],util=x["disk"][2]/1e3/(SECONDS+0.4), q=x["disk"][4]/1e3/(SECONDS+0.4),err=o.get("errors"),p99=o.get("p99"))
        if x["told"]:
            for t in x["told"].splitlines():
                f=t.split(",")
                if f[0].isdigit(): e[f[2]]=int(f[0])/tot
        res[s[0]].append(e)
        if os.environ.get("EACH"): print(s[0],e)
ref=subs[0][0]
print(f"# {size} {conns} connections, {rounds} rounds, {SECONDS}s, {MEM>>20} MiB; ratios to {ref}, medians of rounds")
for s in subs:
    rs=res[s[0]]
    if not rs: continue
    m=lambda k:st.median(e[k] for e in rs)
    rr=[a["rate"]/b["rate"] for a,b in zip(rs,res[ref])]; cc=[a["cpu"]/b["cpu"] for a,b in zip(rs,res[ref])]
    more=" ".join(f"{k}={m(k):.0f}" for k in rs[0] if k not in("rate","cpu","disk","kb","c0","c1","util","q","err","p99"))
    print(f"{s[0]:26s} {m('rate'):8.0f}/s x{st.median(rr):.2f} ({min(rr):.2f}-{max(rr):.2f}) cpu {m('cpu'):7.1f}us x{st.median(cc):.2f} read {m('disk'):.2f} kb/op {m('kb'):4.0f} cpu0 {m('c0'):.2f} cpu1 {m('c1'):.2f} disk busy {m('util'):.2f} inflight {m('q'):.1f} err {max((e['err'] if isinstance(e['err'],(int,float)) else 0) for e in rs)} {more}")

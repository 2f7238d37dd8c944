#!/usr/bin/env python3
"""run.py SIZE CONNECTIONS ROUNDS SUBJECT...; a subject is LABEL=BINARY|files or cache[|DIRECTIVES]. In turns, ratios to the first.
Options by environment: SECS, MEM (MiB), PERFREC=label,..., PERFSTAT=events."""
import subprocess, sys, os, time, json, socket, signal, statistics as st, random
size, conns, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
SECONDS=float(os.environ.get("SECS","1.2")); MEM=int(os.environ.get("MEM","128"))<<20
LOAD=os.environ.get("LOADBIN","ringroad")
TOP=os.environ.get("TOP","/var/tmp/hits"); ROOT=f"{TOP}/files/{size}"; CACHE=f"{TOP}/cache-{size}"
nbytes={"4k":4096,"100k":102400}[size]; n=(512<<20)//nbytes
ORIGIN=47113
def w(p,v):
    with open(p,"w") as f: f.write(str(v))
if not os.path.isdir(ROOT):
    os.makedirs(ROOT)
    for i in range(n):
        with open(f"{ROOT}/{i}","wb") as f: f.write(i.to_bytes(8,"little")*(nbytes//8))
    os.sync()
def conf(port,source,more="",events="use io_uring;"):
    http,place="",f"root {TOP}/files;"
    if source!="files":
        http=f"proxy_cache_path {CACHE} levels=2 keys_zone=bench:32m max_size=1000g inactive=4d use_temp_path=off;"
        place=f"proxy_pass http://127.0.0.1:{ORIGIN}; proxy_cache bench; proxy_cache_key $uri; proxy_cache_valid 200 4d;"
    direct="" if more=="buffered" else "directio 2k;"
    rb="" if "epoll" in events else "ring_recv_buffers 256 4k;"
    return f"user root; worker_processes 1; pid {TOP}/run/{source}.pid; events {{ worker_connections 8192; {rb} {events} }} http {{ access_log off; keepalive_requests 1000000000; default_type application/octet-stream; {http} server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ aio io_uring; sendfile off; {direct} {place} }} }} }}"
G={c:f"/sys/fs/cgroup/{c}/hits" for c in("memory","cpuacct","cpuset")}
for c,g in G.items(): os.makedirs(g,exist_ok=True)
w(G["cpuset"]+"/cpuset.cpus","0"); w(G["cpuset"]+"/cpuset.mems","0"); w(G["memory"]+"/memory.limit_in_bytes",MEM)
os.makedirs(f"{TOP}/run/logs",exist_ok=True)
def start(binary,port,source,more="",grouped=True,wrap=()):
    f=f"{TOP}/run/{source}-{port}.conf"; w(f,conf(port,source,more,"use io_uring; "+more[1:] if more.startswith("!") else os.environ.get("EVENTS","use io_uring;")))
    def enter():
        if grouped:
            for g in G.values(): w(g+"/cgroup.procs",os.getpid())
    log=open(f"{TOP}/run/{source}.log","w")
    p=subprocess.Popen([*wrap,binary,"-p",TOP+"/run/","-c",f,"-g","daemon off; error_log stderr;"+os.environ.get("GLOBAL","")],stdout=log,stderr=log,preexec_fn=enter)
    for _ in range(400):
        try: socket.create_connection(("127.0.0.1",port)).close(); break
        except OSError: time.sleep(0.02)
    return p
def end(p):
    p.send_signal(signal.SIGTERM)
    try: p.wait(20)
    except subprocess.TimeoutExpired: p.kill(); p.wait()
def free():
    s=socket.socket(); s.bind(("127.0.0.1",0)); port=s.getsockname()[1]; s.close(); return port
def load(url,*args): 
    return subprocess.Popen([LOAD,"bench","load","--cpus","1","--host-network","--json","--expect-length",str(nbytes),*args,url],stdout=subprocess.PIPE,stderr=subprocess.PIPE,text=True)
def fill():
    if os.path.isdir(CACHE): return
    o=start(LOAD,ORIGIN,"files",grouped=False)
    port=free(); p=start(LOAD,port,"cache",grouped=False)
    for _ in range(2):
        l=load(f"http://127.0.0.1:{port}/{size}/{{0..{n-1}}}","-c","64","--requests",str(n)); out,err=l.communicate(); print(out[:300],err[:200])
    end(o); time.sleep(1); end(p)
    os.sync()
def sectors():
    for l in open("/proc/diskstats"):
        f=l.split()
        if f[2]=="vda": return int(f[5])*512,int(f[3]),int(f[12])
def busy(cpu):
    for l in open("/proc/stat"):
        f=l.split()
        if f[0]==f"cpu{cpu}": return sum(map(int,f[1:4]))+int(f[6])+int(f[7]), sum(map(int,f[1:9]))
def split():
    d=dict(l.split() for l in open(G["cpuacct"]+"/cpuacct.stat")); return int(d["user"]),int(d["system"])
def one(label,binary,source,more):
    port=free(); p=start(binary,port,source,more)
    try:
        time.sleep(float(os.environ.get("SETTLE","0.5")))
        if label.endswith("-again"):
            load(f"http://127.0.0.1:{port}/{size}/{{0..{n-1}}}","-c","64","--requests",str(n)).communicate()
        open("/proc/sys/vm/drop_caches","w").write("3")
        perf=None
        if label in os.environ.get("PERFREC","").split(","):
            perf=subprocess.Popen(["perf","record","-q","-F","1999","-e","cpu-clock","-g","-C","0","-o",f"{label}-{size}.data"])
        if os.environ.get("PERFSTAT"):
            perf=subprocess.Popen(["perf","stat","-x,","-C","0","-e",os.environ["PERFSTAT"]],stderr=subprocess.PIPE,text=True)
        if perf: time.sleep(0.25)
        usage=lambda:[int(open(G["cpuacct"]+"/cpuacct.usage").read()),sectors(),busy(0),busy(1),split()]
        a=usage()
        l=load(f"http://127.0.0.1:{port}/{size}/{{0-{n-1}}}","-c",str(conns),"--seconds",str(SECONDS),"--warm-up","0","--seed",str(random.randrange(1<<30)))
        out,err=l.communicate(); b=usage(); told=None
        if perf: perf.send_signal(signal.SIGINT); told=perf.communicate()[1]
        try: o=json.loads(out)
        except ValueError: print("bad",out[:300],err[:300]); return None
        return dict(o=o,cpu=b[0]-a[0],disk=[y-x for x,y in zip(a[1],b[1])],told=told,us=[y-x for x,y in zip(a[4],b[4])],
            c0=(b[2][0]-a[2][0])/max(1,b[2][1]-a[2][1]),c1=(b[3][0]-a[3][0])/max(1,b[3][1]-a[3][1]))
    finally:
        end(p)
        for _ in range(100):
            if not open(G["memory"]+"/cgroup.procs").read().split(): break
            time.sleep(0.02)
def main():
    fill()
    subs=[]
    for a in sys.argv[4:]:
        label,rest=a.split("=",1); b,s,m=(rest.split("|")+[""])[:3]; subs.append((label,b,s,m))
    res={s[0]:[] for s in subs}
    for r in range(rounds):
        for s in (subs if r%2==0 else subs[::-1]):
            x=one(*s)
            if x is None: continue
            o=x["o"]
            if os.environ.get("RAW"): print(json.dumps(o)[:1500])
            tot=o.get("answers") or (o.get("requests_per_second") or o.get("answers_per_second") or o["rate"])*SECONDS
            e=dict(rate=tot/SECONDS,cpu=x["cpu"]/1e3/tot,disk=x["disk"][0]/(tot*nbytes),ios=x["disk"][1]/tot,c0=x["c0"],c1=x["c1"],err=o.get("errors"),us=x["us"])
            if x["told"]:
                for t in x["told"].splitlines():
                    f=t.split(",")
                    if f[0].isdigit(): e[f[2]]=int(f[0])/tot
            res[s[0]].append(e)
    ref=subs[0][0]
    print(f"# {size} {conns} connections, {rounds} rounds, {SECONDS}s, {MEM>>20} MiB; ratios to {ref}, medians of rounds")
    for s in subs:
        rs=res[s[0]]
        if not rs: continue
        m=lambda k:st.median(e[k] for e in rs)
        k=min(len(rs),len(res[ref])); cc=[a["cpu"]/b["cpu"] for a,b in zip(rs,res[ref])]
        more=" ".join(f"{k}={m(k):.3f}" for k in rs[0] if ":" in k)
        us=[e["us"] for e in rs]; user=sum(u for u,_ in us)/max(1,sum(map(sum,us)))
        print(f"{s[0]:22s} {m('rate'):8.0f}/s cpu {m('cpu'):6.1f}us x{st.median(cc):.2f} ({min(cc):.2f}-{max(cc):.2f}) user {user:.2f} read {m('disk'):.2f} ios {m('ios'):.2f} cpu0 {m('c0'):.2f} cpu1 {m('c1'):.2f} err {max((e['err'] if isinstance(e['err'],(int,float)) else 0) for e in rs)} {more}",flush=True)
if __name__=="__main__": main()

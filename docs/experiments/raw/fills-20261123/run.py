#!/usr/bin/env python3
"""run.py SIZE REQUESTS ROUNDS SUBJECT...: fills of a cache from a local origin, in turns, ratios to the first subject.
A subject is LABEL=BINARY[|EXTRA]; a binary whose path has "nginx" gets nginx's words; EXTRA are directives of the main context
("env NAME=VALUE;"), or "epoll". Options by environment: CONNS, MEM (MiB), TOP (a folder on the disk), LOAD (who loads and is the
origin), PERFREC=label,... (cpu-clock samples of the server's processor), PERFSTAT=events (counted on it, for a request)."""
import subprocess, sys, os, time, json, socket, signal, statistics as st, glob
size, requests, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
nbytes = {"4k": 4096, "100k": 102400, "1m": 1 << 20}[size]
CONNS = os.environ.get("CONNS", "64"); MEM = int(os.environ.get("MEM", "128")) << 20
LOAD = os.environ["LOAD"]; TOP = os.environ.get("TOP", "/var/tmp/fill")
RUN = f"{TOP}/run-{os.getpid()}"; os.makedirs(f"{RUN}/logs"); os.makedirs(f"{TOP}/origin", exist_ok=True)
def w(p, v):
    with open(p, "w") as f: f.write(str(v))
if not os.path.exists(f"{TOP}/origin/{size}"): open(f"{TOP}/origin/{size}", "wb").write(b"f" * nbytes)
def free():
    s = socket.socket(); s.bind(("127.0.0.1", 0)); port = s.getsockname()[1]; s.close(); return port
ORIGIN = free()
def conf(binary, extra, port, cache):
    ours = "nginx" not in binary
    engine = "epoll" if not ours or "epoll" in extra else "io_uring"
    extra = extra.replace("epoll", "")
    rb = "ring_recv_buffers 256 4k;" if engine == "io_uring" else ""
    return f"""user root; worker_processes 1; pid {RUN}/{port}.pid; {extra} events {{ worker_connections 8192; use {engine}; {rb} }}
http {{ access_log off; keepalive_requests 1000000000;
 proxy_cache_path {cache} levels=2 keys_zone=bench:64m max_size=1000g inactive=4d use_temp_path=off;
 upstream origin {{ server 127.0.0.1:{ORIGIN}; keepalive 256; }}
 server {{ listen 127.0.0.1:{port} backlog=4096;
  location / {{ proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_cache bench; proxy_cache_key $request_uri; proxy_cache_valid 200 4d; }} }} }}"""
G = {c: f"/sys/fs/cgroup/{c}/fill-helper" for c in ("memory", "cpuacct", "cpuset")}
for g in G.values(): os.makedirs(g, exist_ok=True)
w(G["cpuset"] + "/cpuset.cpus", "0"); w(G["cpuset"] + "/cpuset.mems", "0"); w(G["memory"] + "/memory.limit_in_bytes", MEM)
def start(binary, text, port, grouped):
    f = f"{RUN}/{port}.conf"; w(f, text)
    def enter():
        if grouped:
            for g in G.values(): w(g + "/cgroup.procs", os.getpid())
        else: os.sched_setaffinity(0, {1})
    log = open(f"{RUN}/{port}.log", "w")
    p = subprocess.Popen([binary, "-p", RUN + "/", "-c", f, "-g", "daemon off; error_log stderr;"], stdout=log, stderr=log, preexec_fn=enter)
    for _ in range(400):
        try: socket.create_connection(("127.0.0.1", port)).close(); break
        except OSError: time.sleep(0.02)
    return p
def end(p):
    p.send_signal(signal.SIGTERM)
    try: p.wait(20)
    except subprocess.TimeoutExpired: p.kill(); p.wait()
def load(port, name, n):
    out = subprocess.run([LOAD, "bench", "load", "--cpus", "1", "--host-network", "--json", "--expect-length", str(nbytes), "-c", CONNS,
        "--requests", str(n), f"http://127.0.0.1:{port}/{size}?{name}{{0..{n-1}}}"], capture_output=True, text=True)
    try: return json.loads(out.stdout)
    except ValueError: print(out.stdout[:300], out.stderr[:300]); return None
def usage():
    d = dict(l.split() for l in open(G["cpuacct"] + "/cpuacct.stat"))
    vol = inv = faults = 0
    for pid in open(G["cpuacct"] + "/cgroup.procs").read().split():
        faults += int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[7])
        for t in glob.glob(f"/proc/{pid}/task/*/status"):
            for l in open(t):
                if l.startswith("voluntary"): vol += int(l.split()[1])
                if l.startswith("nonvoluntary"): inv += int(l.split()[1])
    return [int(open(G["cpuacct"] + "/cpuacct.usage").read()) / 1e3, int(d["user"]), int(d["system"]), vol, inv, faults]
def lat(x, i): return x['o']['latency_us']['percentiles'][i]['us'] / 1e3
def entries(cache):
    return sum(len(f) for _, _, f in os.walk(cache))
serial = 0
def one(label, binary, extra):
    global serial; serial += 1
    sched = next((x for x in ("batch", "idle", "other") if x in extra), None); extra = extra.replace("batch", "").replace("idle", "").replace("other", "")
    cache = f"{RUN}/cache-{serial}"; port = free()
    p = start(binary, conf(binary, extra, port, cache), port, True)
    try:
        time.sleep(0.3)
        if sched:
            for pid in open(G["cpuacct"] + "/cgroup.procs").read().split():
                for t in glob.glob(f"/proc/{pid}/task/*"):
                    if open(t + "/comm").read().startswith("makers"): subprocess.run(["chrt", "--" + sched, "-p", "0", t.rsplit("/", 1)[1]])
        load(port, "w", 64); time.sleep(0.2); os.sync()
        perf = None
        if label in os.environ.get("PERFREC", "").split(","):
            perf = subprocess.Popen(["perf", "record", "-q", "-F", "4999", "-e", "cpu-clock", "-g", "-C", "0", "-o", f"{label}-{size}.data"]); time.sleep(0.3)
        if os.environ.get("PERFSTAT"):
            perf = subprocess.Popen(["perf", "stat", "-x,", "-C", "0", "-e", os.environ["PERFSTAT"]], stderr=subprocess.PIPE, text=True); time.sleep(0.3)
        a = usage(); o = load(port, "", requests); b = usage()
        for _ in range(30):
            n = entries(cache)
            if n >= requests: break
            time.sleep(0.1)
        c = usage()
        told = None
        if perf: perf.send_signal(signal.SIGINT); told = perf.communicate()[1]
        if o is None: return None
        counted = {f[2]: int(f[0]) / requests for f in (l.split(",") for l in (told or "").splitlines()) if f[0].isdigit()}
        return dict(o=o, counted=counted, d=[(y - x) / requests for x, y in zip(a, c)], n=n)
    finally:
        end(p)
def main():
    o = start(LOAD, f"user root; worker_processes 1; pid {RUN}/o.pid; events {{ worker_connections 8192; ring_recv_buffers 256 4k; }} http {{ access_log off; keepalive_requests 1000000000; sendfile on; server {{ listen 127.0.0.1:{ORIGIN} backlog=4096; location / {{ root {TOP}/origin; }} }} }}", ORIGIN, False)
    subs = []
    for a in sys.argv[4:]:
        label, rest = a.split("=", 1); binary, _, extra = rest.partition("|"); subs.append((label, binary, extra))
    res = {s[0]: [] for s in subs}
    for r in range(rounds):
        for s in (subs if r % 2 == 0 else subs[::-1]):
            x = one(*s)
            if x: res[s[0]].append(x)
    end(o)
    ref = res[subs[0][0]]
    if os.environ.get("RAW"): print(json.dumps(ref[0]["o"])[:1500])
    print(f"# {size}, {requests} requests, {CONNS} connections, {rounds} rounds, {MEM >> 20} MiB; medians; ratios of rounds to {subs[0][0]}")
    for s in subs:
        rs = res[s[0]]
        if not rs: continue
        m = lambda f: st.median(f(x) for x in rs)
        cpu = lambda x: x["d"][0]
        rate = lambda x: x["o"]["answers_per_second"]
        p99 = lambda x: lat(x, 3)
        def ratio(f):
            v = [f(a) / f(b) for a, b in zip(rs, ref)]; return f"x{st.median(v):.2f} ({min(v):.2f}-{max(v):.2f})"
        tot = sum(x["d"][1] + x["d"][2] for x in rs) or 1
        print(f"{s[0]:18s} rate {m(rate):6.0f} {ratio(rate)} p50 {m(lambda x: lat(x, 0)):.2f} p99 {m(p99):.2f} {ratio(p99)} cpu {m(cpu):.1f} us {ratio(cpu)} user {sum(x['d'][1] for x in rs)/tot:.2f}"
              f" switches {m(lambda x: x['d'][3]):.2f}+{m(lambda x: x['d'][4]):.2f} faults {m(lambda x: x['d'][5]):.2f} stored {m(lambda x: x['n']/requests):.2f}"
              + "".join(f" {k} {m(lambda x: x['counted'][k]):.2f}" for k in rs[0]["counted"]), flush=True)
if __name__ == "__main__": main()

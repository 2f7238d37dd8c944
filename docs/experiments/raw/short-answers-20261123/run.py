#!/usr/bin/env python3
"""run.py PATH CONNECTIONS ROUNDS SUBJECT...: servers in turns, processor time of a request, ratios to the first.
A subject is LABEL=BINARY:ring|epoll|nginx|lighttpd|h2o. wrk on processor 1, the server on 0. OUT names a folder with `files`."""
import os, re, signal, socket, statistics as st, subprocess, sys, time
OUT = os.environ["OUT"]
path, conns, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
SECS = os.environ.get("SECS", "1")
LISTEN = os.environ.get("LISTEN", "")
HZ = os.sysconf("SC_CLK_TCK")

def free():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]

def conf(kind, port):
    files = f"{OUT}/files"
    if kind == "lighttpd":
        return (f'server.document-root = "{files}"\nserver.port = {port}\nserver.bind = "127.0.0.1"\n'
                'server.event-handler = "linux-sysepoll"\nserver.max-keep-alive-requests = 1000000000\nserver.max-fds = 4096\n')
    if kind == "h2o":
        return (f"listen:\n  host: 127.0.0.1\n  port: {port}\nnum-threads: 1\nmax-connections: 4096\nhosts:\n"
                f"  default:\n    paths:\n      /:\n        file.dir: {files}\n")
    use = {"ring": "io_uring", "epoll": "epoll", "nginx": "epoll"}[kind]
    more = "ring_recv_buffers 256 4k;" if kind == "ring" else ""
    cache = "open_file_cache max=100;" if kind == "nginx" else ""
    return (f"user root; worker_processes 1; pid {OUT}/run/{port}.pid; daemon off; error_log stderr;\n"
            f"events {{ worker_connections 8192; use {use}; {more} }}\n"
            "http { access_log off; keepalive_requests 1000000000; sendfile on;\n"
            f"server {{ listen 127.0.0.1:{port} backlog=4096 {LISTEN}; location = /r {{ return 200; }}\n"
            f"location / {{ {cache} root {files}; }} }} }}\n")

def tree(pid):
    kids = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout.split()
    return [pid] + [p for k in kids for p in tree(int(k))]

def cpu(pids):
    total = 0
    for p in pids:
        f = open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()
        total += int(f[11]) + int(f[12])
    return total / HZ

def runtime(pids):
    """Nanoseconds on a processor, of all threads: finer than ticks."""
    total = 0
    for p in pids:
        for t in os.listdir(f"/proc/{p}/task"):
            total += int(open(f"/proc/{p}/task/{t}/schedstat").read().split()[0])
    return total / 1e9

def start(label, what):
    binary, kind = what.rsplit(":", 1)
    port = free()
    c = f"{OUT}/run/{label}.conf"
    open(c, "w").write(conf(kind, port))
    args = {"lighttpd": [binary, "-D", "-f", c], "h2o": [binary, "-c", c]}.get(kind, [binary, "-p", f"{OUT}/run/", "-c", c])
    log = open(f"{OUT}/run/{label}.log", "w")
    p = subprocess.Popen(["taskset", "-c", "0", *args], stdout=log, stderr=log)
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            time.sleep(0.02)
    time.sleep(0.3)
    return p, port

def load(port):
    close = ["-H", "Connection: close"] if os.environ.get("SHORT") else []
    out = subprocess.run(["taskset", "-c", "1", "wrk", "-t1", f"-c{conns}", f"-d{SECS}s", *close, f"http://127.0.0.1:{port}/{path}"],
                         capture_output=True, text=True).stdout
    n = re.search(r"(\d+) requests in", out)
    bad = re.search(r"Non-2xx.*", out) or re.search(r"Socket errors: connect [1-9].*", out)
    return int(n.group(1)), bad and bad.group(0)

os.makedirs(f"{OUT}/run/logs", exist_ok=True)
subs = [s.split("=", 1) for s in sys.argv[4:]]
servers = {l: start(l, w) for l, w in subs}
pids = {l: tree(p.pid) for l, (p, _) in servers.items()}
res = {l: [] for l, _ in subs}
try:
    for l, (p, port) in servers.items():
        load(port)
    for r in range(rounds):
        for l, _ in subs if r % 2 == 0 else subs[::-1]:
            a = runtime(pids[l])
            n, bad = load(servers[l][1])
            b = runtime(pids[l])
            if bad:
                print("bad", l, bad)
            res[l].append(((b - a) * 1e6 / n, n / float(SECS)))
finally:
    for p, _ in servers.values():
        p.send_signal(signal.SIGTERM)
    for p, _ in servers.values():
        try:
            p.wait(10)
        except subprocess.TimeoutExpired:
            p.kill()
ref = subs[0][0]
print(f"# /{path}, {conns} connections{' per request' if os.environ.get('SHORT') else ''}, {rounds} rounds of {SECS} s; us of processor time for a request, of {ref}'s by round")
for l, _ in subs:
    ratios = [x[0] / y[0] for x, y in zip(res[l], res[ref])]
    print(f"{l:12s} {st.median(x[0] for x in res[l]):6.2f} us  {st.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})  {st.median(x[1] for x in res[l]):8.0f}/s", flush=True)

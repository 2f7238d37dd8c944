#!/usr/bin/env python3
"""Private dirty memory of a worker with 8 threads and 20 locations, with metrics, dashboard, API, health and admin socket and without.

Usage: surfaces-memory-20261126.py path/to/ringroad [ROUNDS]

Each round starts three servers in turns and requests every location by 256 connections one after the other, which the kernel spreads over the
threads, with a file for each tenth connection. Each page is read ten times: by one keep-alive connection for each page, as Prometheus and a
browser do, or in another server by ten of the 256 connections, so by most threads. Then comes Private_Dirty of smaps_rollup (proc(5)).
"""

import http.client
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

LOCATIONS = 20
CONNECTIONS = 256
PAGES = ["/metrics", "/status?snapshot", "/api/9/http/location_zones", "/ready"]


def conf(has_surfaces):
    main = "admin_socket admin.sock;" if has_surfaces else ""
    pages = """
        location = /metrics { metrics; }
        location = /status { dashboard; }
        location /api { api; }
        location = /ready { health ready; }
    """ if has_surfaces else ""
    locations = "".join(f"location /{n}/ {{ return 200 ok; }}\n" for n in range(LOCATIONS))
    return f"""{main} daemon off; worker_processes 8; pid ringroad.pid; error_log error.log notice;
    events {{}}
    http {{
        access_log off;
        server {{
            listen 127.0.0.1:0 reuseport;
            root html; aio threads;
            {locations}{pages}
        }}
    }}"""


def wait_for(path, text):
    for _ in range(600):
        if os.path.exists(path):
            for line in open(path):
                if text in line:
                    return line
        time.sleep(0.1)
    raise SystemExit(f"no {text!r} in {path}")


def private_dirty(pid):
    for line in open(f"/proc/{pid}/smaps_rollup"):
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1])


def get_all(client, targets):
    for target in targets:
        client.request("GET", target)
        response = client.getresponse()
        response.read()
        if response.status != 200:
            raise SystemExit(f"{target}: {response.status}")
    client.close()


def measure(binary, reading):
    has_surfaces = reading != "off"
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        os.mkdir(f"{folder}/html")
        for n in range(LOCATIONS):
            open(f"{folder}/html/{n}", "w").write("x" * 20_000)
        open(f"{folder}/nginx.conf", "w").write(conf(has_surfaces))
        server = subprocess.Popen([binary, "-p", folder, "-c", f"{folder}/nginx.conf", "-e", f"{folder}/error.log"])
        try:
            line = wait_for(f"{folder}/error.log", "listening on ")
            host, port = line.split("listening on ")[1].split()[0].rsplit(":", 1)
            for n in range(CONNECTIONS):
                client = http.client.HTTPConnection(host, int(port))
                targets = [f"/{location}/" for location in range(LOCATIONS)]
                targets += [f"/{n % LOCATIONS}"] if n % 10 == 0 else []
                targets += PAGES if reading == "spread" and n % 25 == 0 else []
                get_all(client, targets)
            for page in PAGES if reading == "kept" else []:
                get_all(http.client.HTTPConnection(host, int(port)), [page] * 10)
            children = open(f"/proc/{server.pid}/task/{server.pid}/children").read().split()
            return private_dirty(int(children[0]))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()


def main():
    binary, rounds = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    found = {"off": [], "kept": [], "spread": []}
    for number in range(rounds):
        for reading in found:
            found[reading].append(measure(binary, reading))
    off = statistics.median(found["off"])
    for reading, each in found.items():
        median = statistics.median(each)
        print(f"{reading}\tmedian {median} KiB\t({min(each)}-{max(each)})\t{median - off:+} KiB")


main()

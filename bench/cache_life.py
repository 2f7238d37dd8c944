"""A cache's own work, and what its clients notice of it.

shared: 1000 clients ask at once for one object that is not stored, which the origin sends over five seconds. The last byte
of the last client is compared with that of a client alone.

known: starts with a million entries and a dropped page cache, until all of them are known.

unlink: a million entries pass out of use at once (inactive=), and are unlinked while hits and plain requests are served, at a
set rate. The latency of those is compared with the one before the unlinking. nginx does the same with its own pace (manager_files, manager_sleep and
manager_threshold at their defaults: some 2000 files a second, in a process of its own) and without pauses.

The files of the entries are made beforehand by --prepare, as they take minutes: a name, a size, one block each, and no
content, because neither program opens what it unlinks. A run uses them up.

Root is needed, and two processors: the server on the first, clients on the second.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import lib

SIZE = 1 << 20
OVER_SECONDS = 5.0
HOT = 64

# A server that is its own origin: what is hot is fetched once.
CONF = """worker_processes 1;
WORKERS
events { worker_connections 4096; }
http {
    access_log off;
    keepalive_requests 100000000;
    proxy_cache_path CACHE levels=1:2 keys_zone=entries:KEYS use_temp_path=off inactive=INACTIVEs PACE;
    proxy_temp_path TEMP;
    server {
        listen 127.0.0.1:PORT;
        location /plain { return 200 "a small answer"; }
        location /hot/ { proxy_pass http://127.0.0.1:ORIGIN; proxy_cache entries; proxy_cache_key $uri;
            add_header X-Cache $upstream_cache_status; }
        COUNTERS
    }
    server { listen 127.0.0.1:ORIGIN; location / { add_header Cache-Control max-age=3600; return 200 "BODY"; } }
}
"""

SHARED = """worker_processes 1;
WORKERS
events { worker_connections 4096; }
http {
    access_log off;
    proxy_cache_path CACHE levels=1:2 keys_zone=entries:1m use_temp_path=off;
    proxy_temp_path TEMP;
    server {
        listen 127.0.0.1:PORT backlog=2048;
        location / { proxy_pass http://127.0.0.1:ORIGIN; proxy_cache entries; proxy_cache_key $uri; LOCK }
    }
}
"""

# How nginx is told to remove without pauses; it does so in a process that serves nobody.
UNPACED = "manager_files=1000000 manager_sleep=1ms manager_threshold=60s"
LOADER = "loader_files=1000000 loader_sleep=0 loader_threshold=60s"

# (name, program, its own parameters of the zone, set of entries)
WAYS = [
    ("ringroad", "binary", "", "ringroad"),
    ("nginx", "nginx", LOADER, "nginx"),
    ("nginx unpaced", "nginx", f"{LOADER} {UNPACED}", "nginx"),
]


def fill(text, values):
    for name, value in values.items():
        text = text.replace(name, str(value))
    return text


# ---- the entries


def entries_of(options, name):
    return pathlib.Path(options.entries) / f"ringroad-bench-entries-{name}"


def make_entries(folder, first, last):
    """Files named like entries in `levels=1:2`: a digest, below its last digit and the two before it."""
    content = bytes(600)
    for number in range(first, last):
        name = hashlib.md5(b"%d" % number).hexdigest()
        with contextlib.suppress(FileExistsError):
            file = os.open(f"{folder}/{name[31]}/{name[29:31]}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(file, content)
            os.close(file)


def prepare(options, name):
    folder = entries_of(options, name)
    if (folder.with_suffix(".complete")).exists():
        return
    # What a run has left stays: making is quicker than removing.
    for one in "0123456789abcdef":
        for two in range(256):
            os.makedirs(f"{folder}/{one}/{two:02x}", exist_ok=True)
    half = options.count // 2
    child = os.fork()
    if child == 0:
        make_entries(folder, half, options.count)
        os._exit(0)
    make_entries(folder, 0, half)
    os.waitpid(child, 0)
    os.sync()
    folder.with_suffix(".complete").touch()


def removed(server, folder, is_ours):
    """How many entries went so far. nginx does not count them: there it is the free inodes of the file system, which others
    change too."""
    if not is_ours:
        return os.statvfs(folder).f_ffree
    counters = fetch(server.port, "/counters")
    return sum(int(count) for count in re.findall(rb'ringroad_cache_removed_total\{[^}]*\} (\d+)', counters))


# ---- known, unlink


def fetch(port, path):
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while part := client.recv(1 << 16):
            answer += part
    return answer


def window(session, server, folder, kind, options, is_ours):
    """A load of hits or plain requests, with how many files went meanwhile."""
    before = removed(server, folder, is_ours)
    path = "/plain" if kind == "plain" else f"/hot/{{0-{HOT - 1}}}"
    outcome = open_load(session, server.url(path), options)
    outcome["unlinked"] = removed(server, folder, is_ours) - before
    return outcome


def open_load(session, url, options):
    """Requests that are due at a set rate. A server that has all it can do delays requests by one another, and what removals add
    to that cannot be told from the rest."""
    command = [str(session.binary), "bench", "load", "--json", "--host-network", "--cpus", str(lib.LOAD_CPU), "--warm-up", "0"]
    command += ["-c", str(options.connections), "--rate", str(options.rate), "--seconds", str(options.seconds), url]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    percentiles = {part["percentile"]: part["us"] / 1e3 for part in said["latency_us"]["percentiles"]}
    return {
        "p50_ms": percentiles[50.0], "p99_ms": percentiles[99.0], "p99.9_ms": percentiles[99.9],
        "max_ms": said["latency_us"]["max"] / 1e3, "rps": said["answers_per_second"], "errors": sum(said["errors"].values()),
        "each_second": [second["p99_us"] / 1e3 for second in said["seconds_series"]],
    }


def conf_of(session, folder, inactive, pace, is_ours):
    return fill(CONF, {
        "WORKERS": lib.USER, "CACHE": folder, "KEYS": "160m", "INACTIVE": inactive, "PACE": pace,
        "TEMP": session.dir / "temp", "ORIGIN": lib.free_port(), "BODY": "x" * 1000,
        "COUNTERS": "location = /counters { cache_counters; }" if is_ours else "",
    })


def until_known(server, begun):
    """Seconds until all entries are known, and how many there are."""
    while b'loaded{zone="entries"} 1' not in fetch(server.port, "/counters"):
        time.sleep(0.02)
    took = time.monotonic() - begun
    return took, int(re.search(rb'objects\{zone="entries"\} (\d+)', fetch(server.port, "/counters"))[1])


def known(session, options):
    """Starts with nothing in the page cache: by reading the folders on one processor and on both, and from a snapshot."""
    folder = entries_of(options, "ringroad")
    conf = conf_of(session, folder, 86400, "", True)
    one, both = {lib.SERVER_CPU}, {lib.SERVER_CPU, lib.LOAD_CPU}
    for how, cpus in (("by reading its folders on one processor", one), ("by reading its folders on two", both),
                      ("from a snapshot", both)):
        if how != "from a snapshot":
            for file in folder.glob("ringroad.index*"):
                file.unlink()
        lib.drop_caches()
        begun = time.monotonic()
        server = lib.Server(session, f"known {how}", str(session.binary), conf, cpus=cpus)
        took, count = until_known(server, begun)
        # Without the sizes nothing is saved.
        while b'measured{zone="entries"} 1' not in fetch(server.port, "/counters"):
            time.sleep(0.02)
        measured, said = time.monotonic() - begun, server.log()
        # Not at once but in order: that saves what is known.
        server.process.send_signal(signal.SIGQUIT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(15)
        server.stop()
        session.record["runs"].append({"known": count, "how": how, "seconds": took, "measured": measured, "log": said})
        session.say(f"{count} entries known {took:.2f} s after the start of the program, and their sizes after "
                    f"{measured:.2f} s, {how}, page cache dropped")
    session.say()


def life(session, way, options, groups):
    label, program, pace, name = way
    program = str(session.binary) if program == "binary" else session.nginx
    folder, is_ours = entries_of(options, name), way[1] == "binary"
    if not folder.with_suffix(".complete").exists():
        raise SystemExit(f"{folder.name} is missing: --prepare makes it")
    conf = conf_of(session, folder, options.inactive, pace, is_ours)
    # It says when entries were used last, which may be too long ago: they would go before the time beside nothing.
    for file in folder.glob("ringroad.index*"):
        file.unlink()
    server = lib.Server(session, label, program, conf, groups)
    run = {"way": label}
    if is_ours:
        until_known(server, time.monotonic())
    for number in range(HOT):
        for _ in range(100):
            if b"X-Cache: HIT" in fetch(server.port, f"/hot/{number}"):
                break
            time.sleep(0.01)
    # Each way of asking twice: beside nothing, and beside the unlinking.
    run["idle"] = {kind: window(session, server, folder, kind, options, is_ours) for kind in ("hits", "plain")}
    start, limit = removed(server, folder, is_ours), time.monotonic() + options.inactive + 60
    while removed(server, folder, is_ours) < start + options.count // 10:
        if time.monotonic() > limit:
            raise SystemExit(f"{label}: nothing is unlinked\n{server.log()}")
        time.sleep(0.02)
    begun, first = time.monotonic(), removed(server, folder, is_ours)
    run["busy"] = {kind: window(session, server, folder, kind, options, is_ours) for kind in ("hits", "plain")}
    run["unlinked_per_s"] = (removed(server, folder, is_ours) - first) / (time.monotonic() - begun)
    if is_ours:
        run["counters"] = fetch(server.port, "/counters").decode().split("\r\n\r\n", 1)[1]
    server.stop()
    session.record["runs"].append(run)
    if name == "ringroad" or "unpaced" in label:
        # What is left of them is no million any more; nginx at its own pace takes few of them.
        folder.with_suffix(".complete").unlink()
    return run


def lives(session, options, groups):
    ways = [way for way in WAYS if way[0] in options.ways.split(",")]
    runs = []
    for way in ways:
        runs.append(life(session, way, options, groups))
    session.say()
    rows = []
    for run in runs:
        for kind in ("hits", "plain"):
            idle, busy = run["idle"][kind], run["busy"][kind]
            each = [part[key] for key in ("p50_ms", "p99_ms", "p99.9_ms") for part in (idle, busy)]
            rows.append([f"{run['way']}, {kind}", *each, busy["p99_ms"] / idle["p99_ms"], str(busy["unlinked"]),
                         f"{run['unlinked_per_s']:.0f}", str(idle["errors"] + busy["errors"])])
    lib.table(session, ["", "p50 ms", "unlinking", "p99 ms", "unlinking", "p99.9 ms", "unlinking", "p99 ratio", "unlinked",
                        "a second", "errors"], rows)
    session.say()


# ---- shared


class Origin(threading.Thread):
    """Sends one megabyte over five seconds to each who asks, and counts them. In a process of its own."""

    def __init__(self, port_pipe):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        os.write(port_pipe, b"%d\n" % self.listener.getsockname()[1])
        self.counts = {}

    def serve(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.answer, args=(client,), daemon=True).start()

    def answer(self, client):
        with client:
            head = b""
            while b"\r\n\r\n" not in head:
                part = client.recv(1 << 14)
                if not part:
                    return
                head += part
            target = head.split()[1]
            if target == b"/ready":
                client.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
                return
            if target == b"/counts":
                body = json.dumps({key.decode(): value for key, value in self.counts.items()}).encode()
                client.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                return
            self.counts[target] = self.counts.get(target, 0) + 1
            client.sendall(b"HTTP/1.1 200 OK\r\nCache-Control: max-age=3600\r\nConnection: close\r\n"
                           b"Content-Length: %d\r\n\r\n" % SIZE)
            piece, begun, sent = bytes(SIZE // 100), time.monotonic(), 0
            while sent < SIZE:
                count = min(len(piece), SIZE - sent)
                client.sendall(piece[:count])
                sent += count
                pause = begun + OVER_SECONDS * sent / SIZE - time.monotonic()
                if pause > 0:
                    time.sleep(pause)


def start_origin(session):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, {lib.LOAD_CPU})
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        Origin(write).serve()
    session.stack.callback(lambda: (os.kill(child, signal.SIGKILL), os.waitpid(child, 0)))
    return int(os.read(read, 16))


def clients(port, target, count):
    """Seconds until each of so many clients has its last byte, all of which ask at once."""
    os.sched_setaffinity(0, {lib.LOAD_CPU})
    request = f"GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()
    sockets = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(count)]
    poll, by_fd, got, ends, buffer = select.epoll(), {}, {}, [], bytearray(1 << 18)
    for client in sockets:
        client.setblocking(False)
        by_fd[client.fileno()], got[client.fileno()] = client, 0
        poll.register(client.fileno(), select.EPOLLIN)
    begun = time.monotonic()
    for client in sockets:
        client.sendall(request)
    while by_fd and time.monotonic() < begun + 60:
        for fd, _ in poll.poll(1):
            more = by_fd[fd].recv_into(buffer)
            got[fd] += more
            if more == 0:
                ends.append(time.monotonic() - begun)
                poll.unregister(fd)
                by_fd.pop(fd).close()
    whole = sum(count >= SIZE for count in got.values())
    return {"clients": count, "whole": whole, "last_s": max(ends, default=float("nan")), "first_s": min(ends, default=float("nan"))}


def shared(session, options, groups):
    rows = []
    for label, program, lock in [
        ("ringroad", str(session.binary), ""),
        ("nginx, proxy_cache_lock", session.nginx, "proxy_cache_lock on; proxy_cache_lock_timeout 60s; proxy_cache_lock_age 60s;"),
    ]:
        origin = start_origin(session)
        folder = session.dir / f"{label[:5]}-cache"
        conf = fill(SHARED, {"WORKERS": lib.USER, "CACHE": folder, "TEMP": session.dir / "temp", "ORIGIN": origin, "LOCK": lock})
        server = lib.Server(session, f"shared {label}", program, conf, groups)
        alone = clients(server.port, "/alone", 1)
        together = clients(server.port, "/together", options.clients)
        counts = json.loads(fetch(origin, "/counts").split(b"\r\n\r\n", 1)[1])
        server.stop()
        session.record["runs"].append({"way": label, "alone": alone, "together": together, "origin": counts})
        rows.append([label, alone["last_s"], together["last_s"], together["last_s"] / alone["last_s"],
                     f"{together['whole']} of {together['clients']}", str(counts["/together"])])
    lib.table(session, ["one cold object of 1 MiB", "alone s", "last of all s", "ratio", "whole", "origin requests"], rows)
    session.say()


def main():
    parser = lib.arguments(__doc__, rounds=1, seconds=6, connections=16)
    parser.add_argument("--prepare", action="store_true", help="make the entries, and end")
    parser.add_argument("--rows", default="shared,known,unlink")
    parser.add_argument("--ways", default=",".join(way[0] for way in WAYS))
    parser.add_argument("--count", type=int, default=1_000_000, help="entries")
    parser.add_argument("--rate", type=int, default=5_000, help="requests a second beside the unlinking")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--inactive", type=int, default=35, help="seconds after which entries pass out of use")
    parser.add_argument("--entries", default="/var/tmp", help="where the entries lie")
    options = parser.parse_args()
    lib.need_root("page caches are dropped, and the server's kernel workers pinned")
    if options.prepare:
        for name in {way[3] for way in WAYS if way[0] in options.ways.split(",")}:
            prepare(options, name)
        return
    with lib.Session("cache-life", options) as session:
        groups = lib.cpu_groups(session)
        try:
            if "shared" in options.rows:
                shared(session, options, groups)
            if "known" in options.rows:
                known(session, options)
            if "unlink" in options.rows:
                lives(session, options, groups)
        finally:
            session.save()


main()

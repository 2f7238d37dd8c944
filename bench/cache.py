"""A cache beside nginx's: hits from disk under a memory limit, warm hits, and plain proxying (--quick: three minutes).

Both programs cache the same objects of the same origin, which is nginx, each in a folder of its own that is filled
through it first; then the origin ends, so that what is not a hit is an error. For hits from disk the objects of a size
take four times the memory that a server and its page cache may have, and caches are dropped before each run; wrk asks
at random. Warm hits are of few objects. Plain proxying has no cache. Servers run one after the other, in turns.
Needs root.
"""

import contextlib
import os
import subprocess
import time

import lib

MIB, KIB = 1 << 20, 1 << 10
SIZES = {"4k": 4 * KIB, "100k": 100 * KIB, "1m": MIB}
WARM = {"1k": KIB, "100k": 100 * KIB}
WARM_OBJECTS = 64
# Times that each object is asked for until all are stored.
FILLS_MAX = 6
# Without a disk in it a short run is as steady as a long one.
WARM_SECONDS = 2
SCRIPTS = lib.ROOT / "bench"
BUFFERS = {"4k": "4k", "100k": "100k", "1m": "512k"}
CACHED = "proxy_pass http://origin; proxy_cache bench; proxy_cache_key $uri; proxy_cache_valid 200 1d;"

THREADS, SENDFILE, LIBAIO = "nginx threads", "nginx threads sendfile", "nginx libaio sized"
AIO_EVENTS = "use epoll; worker_aio_requests 2048;"

# label, program, directives in events, directives in the location
DISK_WAYS = [
    (THREADS, "nginx", "use epoll;", "aio threads;"),
    (SENDFILE, "nginx", "use epoll;", "aio threads; sendfile on;"),
    ("nginx sendfile", "nginx", "use epoll;", "sendfile on;"),
    # With its default buffers its direct reads block.
    (LIBAIO, "nginx", AIO_EVENTS, "aio on; sendfile off; directio 2k; output_buffers 2 BUFFER;"),
    ("ringroad defaults", "ringroad", "", ""),
    ("ringroad ring direct", "ringroad", "use io_uring;", "aio io_uring; directio 2k;"),
    ("ringroad libaio direct", "ringroad", AIO_EVENTS, "aio on; sendfile off; directio 2k;"),
    ("ringroad threads", "ringroad", "use epoll;", "aio threads;"),
    ("ringroad threads sendfile", "ringroad", "use epoll;", "aio threads; sendfile on;"),
]
QUICK_DISK = [SENDFILE, "nginx sendfile", LIBAIO, "ringroad defaults", "ringroad ring direct", "ringroad libaio direct"]

# label, program, directives in events, parameters of proxy_cache_path, directives in the location
WARM_WAYS = [
    ("nginx", "nginx", "use epoll;", "", ""),
    ("nginx sendfile", "nginx", "use epoll;", "", "sendfile on;"),
    ("nginx open_file_cache", "nginx", "use epoll;", "", "sendfile on; open_file_cache max=1000;"),
    ("ringroad ring", "ringroad", "use io_uring;", "", ""),
    ("ringroad ring sendfile", "ringroad", "use io_uring;", "", "sendfile on;"),
    ("ringroad ring memory=", "ringroad", "use io_uring;", "memory=64m", ""),
    ("ringroad epoll", "ringroad", "use epoll;", "", ""),
    ("ringroad epoll memory=", "ringroad", "use epoll;", "memory=64m", ""),
]

QUICK_WARM = ["nginx", "nginx sendfile", "ringroad ring", "ringroad ring sendfile", "ringroad ring memory="]

PASS_WAYS = [
    ("nginx", "nginx", "use epoll;"),
    ("ringroad ring", "ringroad", "use io_uring;"),
    ("ringroad epoll", "ringroad", "use epoll;"),
]


def proxy_conf(origin, folder, events, cache="", location="", workers=1):
    """One location for each size, as buffers are of the size of what is read."""
    locations = "".join(
        f"location /{text}/ {{ {CACHED} {location.replace('BUFFER', BUFFERS.get(text, '32k'))} }}\n        "
        for text in {**SIZES, **WARM}
    )
    return f"""{lib.USER}
worker_processes {workers};
events {{ worker_connections 4096; {events} }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    proxy_cache_path {folder} levels=1:2 keys_zone=bench:64m max_size=16g inactive=1d use_temp_path=off {cache};
    upstream origin {{ server 127.0.0.1:{origin}; keepalive 256; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:PORT;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        location /pass/ {{ proxy_pass http://origin; }}
        {locations}
    }}
}}
"""


class Origin(lib.Server):
    """nginx with one file for each size, which answers every path below the size's name. On the generator's processor."""

    def __init__(self, session, name):
        files = session.dir / f"{name}-files"
        files.mkdir()
        for text, size in {**SIZES, **WARM}.items():
            (files / text).write_bytes(bytes(range(256)) * (size // 256))
        places = "".join(
            f"location /{text}/ {{ root {files}; try_files /{text} =404; }}\n" for text in {**SIZES, **WARM}
        )
        conf = f"""{lib.USER}
worker_processes 1;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    sendfile on;
    keepalive_requests 1000000000;
    open_file_cache max=100;
    default_type application/octet-stream;
    server {{
        listen 127.0.0.1:PORT;
        {places}
        location /pass/ {{ root {files}; try_files /1k =404; }}
    }}
}}
"""
        super().__init__(session, name, session.nginx, conf, cpus={lib.LOAD_CPU})


def main():
    options = lib.arguments(__doc__, rounds=0, seconds=0, connections=0)
    options.add_argument("--quick", action="store_true", help="fewer ways, one worker, 200 connections, one round")
    options.add_argument("--set", type=int, default=0, help="MiB of objects of each size (512; quick: 256)")
    options.add_argument("--rows", default="disk,warm,pass", help="which parts of the run")
    options.add_argument("--workers", default="", help="numbers of workers for hits from disk (1,2; quick: 1)")
    options.add_argument("--clients", default="", help="numbers of connections for them (200,1000; quick: 200)")
    options.add_argument("--ways", default="", help="only ways whose name has one of these words in it")
    options.add_argument("--scratch", default="/var/tmp", help="a folder on the disk to be measured")
    options = settle(options.parse_args())
    lib.need_root("memory groups and dropped caches")
    with lib.Session("cache", options) as session:
        run(session, options)
        session.save()


def settle(options):
    """Fills in what was not said."""
    quick = options.quick
    options.rounds = options.rounds or (1 if quick else 2)
    options.seconds = options.seconds or (3 if quick else 4)
    options.connections = options.connections or 100
    options.set = options.set or (256 if quick else 512)
    numbers = lambda text, default: [int(part) for part in (text or default).split(",")]
    options.workers = numbers(options.workers, "1" if quick else "1,2")
    options.clients = numbers(options.clients, "200" if quick else "200,1000")
    options.rows = options.rows.split(",")
    return options


def chosen(options, label):
    return not options.ways or any(word in label for word in options.ways.split(","))


def has_libaio(nginx):
    return "--with-file-aio" in subprocess.run([nginx, "-V"], capture_output=True, text=True).stderr


def run(session, options):
    bench = Bench(session, options)
    if "pass" in options.rows:
        bench.passing()
    if "warm" in options.rows or "disk" in options.rows:
        bench.fill()
    bench.origin.stop()
    if "warm" in options.rows:
        bench.warm()
    if "disk" in options.rows:
        bench.disk()


class Bench:
    """The programs, their folders, and the origin that fills these."""

    def __init__(self, session, options):
        self.session, self.options = session, options
        self.programs = {"nginx": session.nginx, "ringroad": str(session.binary)}
        self.folders = {name: session.dir / f"cache-{name}" for name in self.programs}
        self.counts = {text: options.set * MIB // size for text, size in SIZES.items()}
        self.groups = lib.cpu_groups(session)
        self.origin = Origin(session, "origin")
        self.made = 0

    def conf(self, program, *rest, **more):
        return proxy_conf(self.origin.port, self.folders[program], *rest, **more)

    @contextlib.contextmanager
    def server(self, label, program, conf, groups, cpus=None):
        """A server for some runs. It has found its entries again when the runs begin."""
        self.made += 1
        server = lib.Server(self.session, f"{label} {self.made}", self.programs[program], conf, groups, cpus=cpus)
        try:
            wait_until_idle(server)
            yield server
        finally:
            server.stop()

    def keep(self, runs, row, label, turn, outcome):
        runs.setdefault(row, {}).setdefault(label, []).append(outcome)
        self.session.record["runs"].append({"row": row, "server": label, "turn": turn, **outcome})

    def passing(self):
        """1 KiB through the proxy, kept-alive on both sides, with no cache."""
        runs = {}
        ways = [way for way in PASS_WAYS if chosen(self.options, way[0])]
        for turn in range(max(self.options.rounds, 3)):
            for label, program, events in ways:
                with self.server(label, program, self.conf(program, events), self.groups) as server:
                    lib.wrk(server.url("/pass/x"), 1, self.options.connections)
                    outcome = lib.measure(
                        server, server.url("/pass/x"), min(self.options.seconds, WARM_SECONDS),
                        connections=self.options.connections,
                    )
                self.keep(runs, "plain proxying, 1 KiB", label, turn, outcome)
        report_warm(self.session, runs)

    def fill(self):
        """Every object once through each program, and the few warm ones."""
        wanted = [*self.counts.items(), *((text, WARM_OBJECTS) for text in WARM if text not in SIZES)]
        for program in self.programs:
            began = time.monotonic()
            with self.server(f"fill {program}", program, self.conf(program, ""), self.groups) as server:
                # Again for what came faster than it could be stored, or is counted while it is still on its way.
                for _ in range(FILLS_MAX):
                    for text, count in wanted:
                        fill(server, text, count)
                    time.sleep(1)
                    stored = sum(len(files) for _, _, files in os.walk(self.folders[program]))
                    if stored >= sum(count for _, count in wanted):
                        break
            self.session.say(f"# {program} filled in {time.monotonic() - began:.1f} s, {stored} files")
        os.sync()
        stored = ", ".join(f"{count} of {text}" for text, count in self.counts.items())
        self.session.say(f"# objects: {stored}, {WARM_OBJECTS} of each warm size")

    def warm(self):
        """Hits of few objects, which all are in the page cache or in the server's memory."""
        runs = {}
        ways = [way for way in WARM_WAYS if self.is_wanted(way[0], QUICK_WARM)]
        for turn in range(max(self.options.rounds, 2)):
            for label, program, events, cache, location in ways:
                conf = self.conf(program, events, cache, location)
                with self.server(label, program, conf, self.groups) as server:
                    for text in WARM:
                        # The first run brings everything into memory, and a second look is what admits to memory=.
                        self.hits(server, text, WARM_OBJECTS, self.options.connections, turn, seconds=1)
                        seconds = min(self.options.seconds, WARM_SECONDS)
                        outcome = self.hits(server, text, WARM_OBJECTS, self.options.connections, turn, seconds)
                        self.keep(runs, f"warm hits, {text}", label, turn, outcome)
        report_warm(self.session, runs)

    def hits(self, server, text, count, connections, turn, seconds=None):
        env = {"FILES": str(count), "FOLDER": f"/{text}", "SEED": str(turn + 1)}
        return lib.measure(
            server, server.url(), seconds or self.options.seconds, connections=connections,
            script=SCRIPTS / "random.lua", env=env,
        )

    def disk(self):
        """Hits of more objects than memory holds."""
        memory = self.options.set // 4
        self.session.say(f"# hits from disk: {memory} MiB of memory for each server with its page cache")
        runs = {}
        disk = lib.Disk(self.session.dir)
        for turn in range(self.options.rounds):
            for workers in self.options.workers:
                for number, way in enumerate(self.disk_ways()):
                    group = lib.memory_group(self.session, memory * MIB, f"memory{turn}.{workers}.{number}")
                    self.disk_way(runs, turn, workers, way, group, disk)
                    group.remove()
        report_disk(self.session, runs)

    def disk_ways(self):
        for way in DISK_WAYS:
            if way[0] == LIBAIO and not has_libaio(self.session.nginx):
                continue
            if self.is_wanted(way[0], QUICK_DISK):
                yield way

    def is_wanted(self, label, quick):
        return chosen(self.options, label) and (not self.options.quick or bool(self.options.ways) or label in quick)

    def disk_way(self, runs, turn, workers, way, group, disk):
        label, program, events, location = way
        conf = self.conf(program, events, location=location, workers=workers)
        # One worker has the server's processor to itself; two share the second one with the generator.
        groups, cpus = ([*self.groups, group], None) if workers == 1 else ([group], {lib.SERVER_CPU, lib.LOAD_CPU})
        with self.server(label, program, conf, groups, cpus) as server:
            for text, count in self.counts.items():
                if program == "nginx":
                    # Until its loader comes, after a minute, nginx takes the second of two requests that meet at a file
                    # it has not seen yet for a miss; so it sees each of them once before, in as many tries as that takes.
                    fill(server, text, count, tries=3)
                for connections in self.options.clients:
                    lib.drop_caches(sync=False)
                    before = disk.figures()
                    outcome = self.hits(server, text, count, connections, turn)
                    outcome.update(per_request(outcome, before, disk.figures()))
                    outcome["mb_s"] = outcome["rps"] * SIZES[text] / 1e6
                    self.keep(runs, f"{text}, workers {workers}, connections {connections}", label, turn, outcome)


def per_request(outcome, before, after):
    requests = max(outcome["requests"], 1)
    return {
        "reads": (after["reads"] - before["reads"]) / requests,
        "read_kib": (after["read_bytes"] - before["read_bytes"]) / requests / KIB,
    }


def fill(server, text, count, tries=1):
    env = {"FILES": str(count), "FOLDER": f"/{text}"}
    for _ in range(tries):
        outcome = lib.wrk(server.url(), 120, connections=64, script=SCRIPTS / "fill.lua", env=env, until="filled")
        if not outcome["bad_status"]:
            break
    if outcome["bad_status"] or outcome["socket_errors"] or outcome["requests"] < count:
        raise SystemExit(f"{server.label} was not filled with {text}: {outcome}\n{server.log()[-2000:]}")


def wait_until_idle(server):
    """Until what a server does after its start is done: it uses no processor time for half a second."""
    limit = time.monotonic() + 20
    last, since = server.cpu_seconds(), time.monotonic()
    while time.monotonic() < limit and time.monotonic() - since < 0.5:
        time.sleep(0.1)
        now = server.cpu_seconds()
        if now != last:
            last, since = now, time.monotonic()


def errors_of(runs):
    """Answers that were none, and processes that the memory limit killed."""
    return sum(run["socket_errors"] + run["bad_status"] + run["lost_processes"] for run in runs)


def report_warm(session, runs):
    """Processor time for each request, of nginx's best row without open_file_cache."""
    for row, ways in runs.items():
        cpu = {label: lib.median(of, "cpu_us") for label, of in ways.items()}
        best = min((cpu[label] for label in cpu if "nginx" in label and "open_file" not in label), default=float("nan"))
        session.say()
        session.say(f"{row}, medians of {max(len(of) for of in ways.values())}")
        lines = [
            [label, cpu[label], cpu[label] / best, f"{lib.median(of, 'rps'):.0f}", lib.median(of, "p99_ms"), str(errors_of(of))]
            for label, of in ways.items()
        ]
        lib.table(session, ["server", "CPU us/req", "of nginx", "req/s", "p99 ms", "errors"], lines)


def report_disk(session, runs):
    """Requests a second, of nginx's best row."""
    for row, ways in runs.items():
        rate = {label: lib.median(of, "rps") for label, of in ways.items()}
        best = max((rate[label] for label in rate if "nginx" in label), default=float("nan"))
        session.say()
        session.say(f"hits from disk, {row}, medians of {max(len(of) for of in ways.values())}")
        lines = []
        for label, of in ways.items():
            figures = [lib.median(of, key) for key in ("p50_ms", "p99_ms", "cpu_us", "reads", "read_kib")]
            mb_s = f"{lib.median(of, 'mb_s'):.0f}"
            lines.append([label, f"{rate[label]:.0f}", mb_s, rate[label] / best, *figures, str(errors_of(of))])
        header = ["server", "req/s", "MB/s", "of nginx", "p50 ms", "p99 ms", "CPU us/req", "reads/req", "KiB/req", "errors"]
        lib.table(session, header, lines)


if __name__ == "__main__":
    main()

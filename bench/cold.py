"""Cold 4 KiB files beside nginx: more files than memory, caches dropped before each run.

Each server has one worker on processor 0 and a memory control group of its own, which counts its page cache too.
wrk asks for random files over 200 connections from processor 1. nginx runs as most would set it up for slow disks
(`aio threads`) and in its real best mode, libaio with buffers sized to the files. Needs root.
"""

import subprocess

import lib

MIB = 1 << 20
SIZE = 4096

LIBAIO = "nginx libaio sized"

# label, program, directives in events, directives in the location
WAYS = [
    ("nginx threads", "nginx", "use epoll;", "aio threads;"),
    ("nginx threads sendfile", "nginx", "use epoll;", "aio threads; sendfile on;"),
    (LIBAIO, "nginx", "use epoll; worker_aio_requests 2048;", "aio on; directio 2k; output_buffers 2 4k;"),
    ("ringroad ring direct", "ringroad", "use io_uring;", "aio io_uring; directio 4k;"),
    ("ringroad defaults", "ringroad", "", ""),
    ("ringroad libaio direct", "ringroad", "use epoll; worker_aio_requests 2048;", "aio libaio; directio 4k;"),
]


def conf(events, location, files):
    return f"""{lib.USER}
worker_processes 1;
events {{ worker_connections 2048; {events} }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    server {{
        listen 127.0.0.1:PORT;
        location /files/ {{ alias {files}/; {location} }}
    }}
}}
"""


def has_libaio(nginx):
    return "--with-file-aio" in subprocess.run([nginx, "-V"], capture_output=True, text=True).stderr


def main():
    options = lib.arguments(__doc__, rounds=3, seconds=5, connections=200)
    options.add_argument("--files", type=int, default=131072, help="files of 4 KiB")
    options.add_argument("--memory", type=int, default=128, help="MiB for each server and its page cache")
    options.add_argument("--scratch", default="/var/tmp", help="a folder on the disk to be measured")
    options = options.parse_args()
    lib.need_root("memory groups and dropped caches")
    if options.files * SIZE < 2 * options.memory * MIB:
        raise SystemExit("the files would fit into memory: more --files or less --memory")
    with lib.Session("cold", options) as session:
        run(session, options)
        session.save()


def run(session, options):
    session.say(f"# {options.memory} MiB of memory for each server, {options.connections} connections")
    files = lib.kept_files(session, options.scratch, options.files, SIZE)
    groups = lib.cpu_groups(session)
    programs = {"nginx": session.nginx, "ringroad": str(session.binary)}
    servers = {}
    for number, (label, program, events, location) in enumerate(WAYS):
        if label == LIBAIO and not has_libaio(session.nginx):
            session.say("# this nginx is built without --with-file-aio; --nginx names another one")
            continue
        memory = lib.memory_group(session, options.memory * MIB, f"memory{number}")
        servers[label] = lib.Server(session, label, programs[program], conf(events, location, files), [*groups, memory])
    runs = {label: [] for label in servers}
    for turn in range(options.rounds):
        for label, server in servers.items():
            lib.drop_caches()
            env = {"FILES": str(options.files), "FOLDER": "/files", "SEED": str(turn + 1)}
            outcome = lib.measure(
                server, server.url(), options.seconds, connections=options.connections,
                script=lib.ROOT / "bench/random.lua", env=env,
            )
            runs[label].append(outcome)
            session.record["runs"].append({"server": label, "turn": turn, **outcome})
    report(session, runs)


def report(session, runs):
    rate = {label: lib.median(of, "rps") for label, of in runs.items()}
    threads = max(rate["nginx threads"], rate["nginx threads sendfile"])
    session.say()
    session.say(f"cold 4 KiB files, medians of {len(runs['nginx threads'])}")
    rows = []
    for label, of in runs.items():
        errors = sum(run["socket_errors"] + run["bad_status"] for run in of)
        rows.append([
            label, f"{rate[label]:.0f}", rate[label] / threads, rate[label] / rate[LIBAIO] if LIBAIO in rate else "-",
            lib.median(of, "p99_ms"), lib.median(of, "cpu_us"), str(errors),
        ])
    lib.table(session, ["server", "req/s", "of threads", "of libaio", "p99 ms", "CPU us/req", "errors"], rows)


if __name__ == "__main__":
    main()

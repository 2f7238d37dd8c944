"""CPU per keep-alive request beside nginx: `return 200`, and a warm file of 1 KiB.

All servers run at once, one worker each on processor 0, and are fed in turns by wrk with 100 connections on
processor 1, so that drift of the machine meets all of them alike. The figure is the server's user and system time
divided by its requests; medians of the rounds, and ratios to nginx's best row of the same run. The floor is the same
ring with a fixed answer and nothing between them (crates/io/examples/responder.rs); it is left out where it is not built.
"""

import lib

EVENTS = {"nginx": "use epoll;", "ring": "use io_uring;", "epoll": "use epoll;"}


def conf(kind, files, extra):
    return f"""{lib.USER}
worker_processes 1;
events {{ worker_connections 1024; {EVENTS[kind]} }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    server {{
        listen 127.0.0.1:PORT;
        location = /return {{ return 200; }}
        location /read/ {{ alias {files}/; }}
        location /sendfile/ {{ alias {files}/; sendfile on; }}
        {extra}
    }}
}}
"""


def main():
    options = lib.arguments(__doc__, rounds=5, seconds=2, connections=100).parse_args()
    with lib.Session("side-by-side", options) as session:
        run(session, options)
        session.save()


def run(session, options):
    files = session.dir / "files"
    files.mkdir()
    (files / "1k.bin").write_bytes(bytes(range(256)) * 4)
    groups = lib.cpu_groups(session)
    cached = f"location /cached/ {{ alias {files}/; sendfile on; open_file_cache max=100; }}"
    servers = {
        "nginx": lib.Server(session, "nginx", session.nginx, conf("nginx", files, cached), groups),
        "ring": lib.Server(session, "ringroad ring", str(session.binary), conf("ring", files, ""), groups),
        "epoll": lib.Server(session, "ringroad epoll", str(session.binary), conf("epoll", files, ""), groups),
    }
    responder = session.binary.parent / "examples" / "responder"
    if responder.exists():
        servers["floor"] = lib.Bare(session, "floor of the ring", str(responder), groups)
    rows = [("return 200", name, "/return") for name in servers]
    servers_of_files = [name for name in servers if name != "floor"]
    rows += [("1 KiB warm", name, path) for name in servers_of_files for path in ("/read/1k.bin", "/sendfile/1k.bin")]
    rows.append(("1 KiB warm", "nginx", "/cached/1k.bin"))
    runs = {row: [] for row in rows}
    for _, name, path in rows:
        lib.wrk(servers[name].url(path), 1, options.connections)
    for turn in range(options.rounds):
        for row in rows:
            server = servers[row[1]]
            outcome = lib.measure(server, server.url(row[2]), options.seconds, connections=options.connections)
            runs[row].append(outcome)
            session.record["runs"].append({"what": row[0], "server": server.label, "path": row[2], "turn": turn, **outcome})
    report(session, servers, rows, runs)


def report(session, servers, rows, runs):
    for what in ("return 200", "1 KiB warm"):
        of_what = [row for row in rows if row[0] == what]
        # open_file_cache is nginx's own remedy for what this project does not do yet: shown, not the measure.
        measures = [row for row in of_what if row[1] == "nginx" and "cached" not in row[2]]
        best = min(lib.median(runs[row], "cpu_us") for row in measures)
        session.say()
        session.say(f"{what}, medians of {len(runs[of_what[0]])}")
        lines = []
        for row in of_what:
            cpu = lib.median(runs[row], "cpu_us")
            errors = sum(run["socket_errors"] + run["bad_status"] for run in runs[row])
            label = f"{servers[row[1]].label} {row[2]}"
            lines.append([label, cpu, cpu / best, f"{lib.median(runs[row], 'rps'):.0f}", lib.median(runs[row], "p99_ms"), str(errors)])
        lib.table(session, ["server", "CPU us/req", "of nginx", "req/s", "p99 ms", "errors"], lines)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Where a server's processor time goes: for each row a load of `ringroad bench load` on one processor, the server on another,
under perf.

First its counters (instructions of user and kernel, cycles, cache misses) by request, then samples of its stacks: the most
expensive functions as text, and all of them as a flame graph (SVG, width is time); then the functions with the most
instructions of its own. All is kept in bench/results/profile-DATE-COMMIT/. Nothing is compared here: a profile says why a figure is what it is.
"""

import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zlib

import lib

MEMORY_BYTES = 64 << 20
SET_BYTES = 4 * MEMORY_BYTES
EVENTS = ["instructions:u", "instructions:k", "cycles:u", "cycles:k", "cache-misses", "context-switches"]
FREQUENCY = 1499
FUNCTIONS = 40

RING = f"{lib.USER} worker_processes 1; events {{ worker_connections 8192; use io_uring; }}"
HTTP = "access_log off; keepalive_requests 1000000000;"


def plain(location):
    return f"{RING} http {{ {HTTP} server {{ listen 127.0.0.1:PORT backlog=4096; location / {{ {location} }} }} }}\n"


def cached(location):
    """A cache of an origin that is a server of its own, beside the generator."""
    return (f"{RING} http {{ {HTTP} proxy_cache_path CACHE levels=1:2 keys_zone=entries:64m max_size=16g inactive=1d "
            f"use_temp_path=off; upstream origin {{ server 127.0.0.1:ORIGIN; keepalive 256; }} "
            f"server {{ listen 127.0.0.1:PORT backlog=4096; location = /ready {{ return 204; }} location / {{ "
            f"proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_cache entries; "
            f"proxy_cache_key $request_uri; proxy_cache_valid 200 1d; {location} }} }} }}\n")


# Name: configuration, path, options of the generator, size of the files (0: none are needed), whether they are cold.
DIRECT = "root FILES; aio io_uring; sendfile off; directio 2k;"
ROWS = {
    "return-200": (plain("return 200;"), "/", ["-c", "100"], 0, False),
    "short": (plain("return 200;"), "/", ["-c", "100", "--close"], 0, False),
    "warm-1k": (plain("root FILES; sendfile on;"), "/0", ["-c", "100"], 1 << 10, False),
    "cold-4k": (plain(DIRECT), "/{0-LAST}", ["-c", "200"], 4 << 10, True),
    "cold-1m": (plain(DIRECT), "/{0-LAST}", ["-c", "200"], 1 << 20, True),
    # The files of cold-4k as entries of a cache, which a run through all of them has filled.
    "hit-4k": (cached("aio io_uring; sendfile off; directio 2k;"), "/{0-LAST}", ["-c", "200"], 4 << 10, True),
    # Each request is a miss. So many requests, not so much time: what they write has a bound.
    "fill-4k": (cached(""), "/0?RUN{0..5999}", ["-c", "64", "--requests", "6000"], 4 << 10, False),
    "fill-100k": (cached(""), "/0?RUN{0..3999}", ["-c", "64", "--requests", "4000"], 100 << 10, False),
    "fill-1m": (cached(""), "/0?RUN{0..599}", ["-c", "64", "--requests", "600"], 1 << 20, False),
}


def make_set(session, size, cold):
    """Files named by numbers; answers the folder and the last number."""
    folder = session.dir / f"files-{size}"
    count = SET_BYTES // size if cold else 1
    folder.mkdir(exist_ok=True)
    for number in range(count):
        with open(folder / str(number), "wb", buffering=0) as file:
            file.write(b"%08d" % number * (size // 8))
    return folder, count - 1


def load(options, url, more):
    """A load in the background."""
    command = [str(options.binary), "bench", "load", "--cpus", str(lib.LOAD_CPU), "--host-network", "--json", *more, url]
    if "--requests" not in more:
        command += ["--seconds", str(options.seconds), "--warm-up", "0.2"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def under(command, generator):
    """perf as long as the load takes; answers what the generator said and what perf did."""
    perf = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said, _ = generator.communicate()
    perf.send_signal(2)
    _, told = perf.communicate()
    try:
        return json.loads(said), told
    except ValueError:
        sys.exit(f"the load failed: {said or told}")


def counted(text):
    """`perf stat -x,`: value, unit, event."""
    figures = {}
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) > 2 and fields[0].isdigit():
            figures[fields[2]] = int(fields[0])
    return figures


def answers(outcome):
    """The generator's count, wherever its format has it."""
    return outcome.get("answers") or outcome["tally"]["answers"]


def stacks(data):
    """Folded stacks of `perf script`: outermost first, with their weights."""
    text = subprocess.run(["perf", "script", "-i", data, "-F", "comm,period,ip,sym"], capture_output=True, text=True).stdout
    folded, frames, weight = {}, [], 0
    for line in text.splitlines() + [""]:
        if not line.strip():
            if frames:
                key = tuple(reversed(frames))
                folded[key] = folded.get(key, 0) + weight
            frames, weight = [], 0
        elif line[0] in " \t" and weight:
            name = line.split(None, 1)[1] if len(line.split(None, 1)) > 1 else "[unknown]"
            frames.append(re.sub(r"::h[0-9a-f]{16}$", "", name.strip()))
        else:
            head = line.split()
            weight = next((int(word.rstrip(":")) for word in reversed(head) if word.rstrip(":").isdigit()), 1)
    return folded


def flame(folded, title):
    """A flame graph: each frame is as wide as the time below it; narrow ones are left out."""
    root = {"weight": 0, "below": {}}
    for frames, weight in folded.items():
        node = root
        node["weight"] += weight
        for frame in frames:
            node = node["below"].setdefault(frame, {"weight": 0, "below": {}})
            node["weight"] += weight
    width, height, total, boxes, deepest = 1400, 15, max(root["weight"], 1), [], 0
    waiting = [(root, 0.0, 0)]
    while waiting:
        node, left, depth = waiting.pop()
        for name, below in sorted(node["below"].items()):
            wide = below["weight"] / total * width
            if wide >= 1.5:
                boxes.append((name, left, depth, wide, below["weight"]))
                deepest = max(deepest, depth + 1)
                waiting.append((below, left, depth + 1))
            left += wide
    high = (deepest + 2) * height
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {high}" font-family="monospace" font-size="10">',
           f'<rect width="{width}" height="{high}" fill="#fff"/><text x="4" y="12">{html.escape(title)}</text>']
    for name, left, depth, wide, weight in boxes:
        top = high - (depth + 1) * height
        hue = zlib.crc32(name.encode()) % 55
        label = html.escape(name if len(name) * 6 < wide else name[: max(int(wide / 6) - 1, 0)])
        out.append(f'<g><title>{html.escape(name)} {weight / total:.1%}</title><rect x="{left:.1f}" y="{top}" width="{wide:.1f}" '
                   f'height="{height - 1}" fill="hsl({hue},80%,72%)"/><text x="{left + 2:.1f}" y="{top + 10}">{label}</text></g>')
    return "\n".join(out + ["</svg>", ""])


def functions(data):
    """The most expensive ones of a recording, a line each."""
    command = ["perf", "report", "-i", data, "--stdio", "--no-children", "-g", "none", "--percent-limit", "0.2", "--sort", "symbol"]
    report = subprocess.run(command, capture_output=True, text=True).stdout
    return [line.rstrip(" -") for line in report.splitlines() if re.match(r"\s+[0-9.]+%", line)][:FUNCTIONS]


def origin(session, options, files):
    """Sends what a cache is filled with."""
    conf = f"{lib.USER} worker_processes 1; events {{ worker_connections 8192; }} http {{ {HTTP} sendfile on; server {{ "
    conf += f"listen 127.0.0.1:PORT backlog=4096; location / {{ root {files}; }} }} }}\n"
    return lib.Server(session, f"origin of {files.name}", str(options.binary), conf, cpus={lib.LOAD_CPU})


def profile(session, options, name, folder):
    conf, path, more, size, cold = ROWS[name]
    session.say(f"\n== {name}")
    last = 0
    if size:
        files, last = make_set(session, size, cold)
        conf = conf.replace("FILES", str(files))
    behind = origin(session, options, files) if "ORIGIN" in conf else None
    if behind:
        conf = conf.replace("ORIGIN", str(behind.port)).replace("CACHE", str(session.dir / f"{name}-cache"))
    groups = lib.cpu_groups(session) if not hasattr(session, "cpus") else session.cpus
    session.cpus = groups
    if cold:
        groups = [*groups, lib.memory_group(session, MEMORY_BYTES, name)]
    server = lib.Server(session, name, str(options.binary), conf, groups)
    url = server.url(path).replace("LAST", str(last))
    if behind and cold:
        load(options, url.replace("{0-", "{0.."), ["--requests", str(last + 1)]).communicate()
    runs = iter("abc")
    url_of_run = lambda: url.replace("RUN", next(runs))
    pids = ",".join(str(pid) for pid in sorted(server.pids()))
    if cold:
        lib.drop_caches()
    outcome, told = under(["perf", "stat", "-x,", "-e", ",".join(EVENTS), "-p", pids], load(options, url_of_run(), more))
    requests = answers(outcome)
    lines = [f"row: {name}", f"configuration: {conf.strip()}".replace(str(session.dir), "DIR"), f"load: {' '.join(more)}"]
    how = f"in {options.seconds} s and a warm-up of 0.2 s, which perf counts too"
    lines.append(f"requests: {requests}" if "--requests" in more else f"requests: {requests} {how}")
    for event, count in counted(told).items():
        lines.append(f"{event:18} {count / requests:12.2f} for each request")
    if cold:
        lib.drop_caches()
    data = str(session.dir / f"{name}.data")
    under(["perf", "record", "-q", "-F", str(FREQUENCY), "-g", "-p", pids, "-o", data], load(options, url_of_run(), more))
    lines += ["", f"the {FUNCTIONS} most expensive functions, without what they call:", *functions(data)]
    # Which of our own steps are many, whatever they wait for: what a time profile shows as a thin line.
    own = str(session.dir / f"{name}-own.data")
    under(["perf", "record", "-q", "-e", "instructions:u", "-c", "1000003", "-p", pids, "-o", own], load(options, url_of_run(), more))
    lines += ["", f"the {FUNCTIONS} functions with the most instructions in user space:", *functions(own)]
    for line in lines:
        session.say(line)
    (folder / f"{name}.txt").write_text("\n".join(session.head + lines) + "\n")
    (folder / f"{name}.svg").write_text(flame(stacks(data), f"ringroad, io_uring: {name}"))
    server.stop()
    if behind:
        behind.stop()
    os.unlink(data)
    os.unlink(own)
    if size:
        shutil.rmtree(files)


def main():
    options = lib.arguments(__doc__, rounds=1, seconds=3, connections=100)
    options.add_argument("rows", nargs="*", default=list(ROWS), help=f"of {', '.join(ROWS)}")
    options.add_argument("--scratch", default="/var/tmp", help="where files lie: on the disk that is meant")
    options = options.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        sys.exit(f"unknown rows: {', '.join(sorted(unknown))}")
    if not lib.which("perf"):
        sys.exit("perf is missing (apt-get install linux-perf)")
    lib.need_root("perf of kernel functions, and the limits of memory")
    with lib.Session("profile", options) as session:
        session.head = list(session.lines)
        environment = session.record["environment"]
        stamp = re.sub(r"[-:]", "", environment["date"][:19]).replace("T", "-")
        folder = lib.RESULTS / f"profile-{stamp}-{environment['commit'].split()[0]}"
        folder.mkdir(parents=True)
        for name in options.rows:
            profile(session, options, name, folder)
        print(f"kept in {folder.relative_to(lib.ROOT)}")


main()

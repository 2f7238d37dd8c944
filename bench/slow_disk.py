"""500 clients stuck on a slow disk, and what another location's clients notice.

One server at a time, one worker on processor 0. A location lies on a loop device that its control group may read from
only a few times a second; 500 clients ask for cold files there and are never served in time. Meanwhile wrk measures
another location of the same server from processor 1: a warm file, and random cold ones on the ordinary disk. Each is
measured without the 500 first. nginx is run in the same way in the same session.

Without root there is no throttled device: the fault engine then delays this server's own opens and reads, and there is
no figure of nginx.
"""

import contextlib
import os
import pathlib
import select
import socket
import subprocess
import time

import lib

SIZE = 4096
COLD_FILES = 32768

# label, program, directives in events, directives of both locations
WAYS = [
    ("ringroad ring", "ringroad", "use io_uring;", ""),
    ("ringroad threads", "ringroad", "use epoll;", "aio threads;"),
    ("nginx threads", "nginx", "use epoll;", "aio threads;"),
    ("nginx plain", "nginx", "use epoll;", ""),
]


def conf(events, location, slow, fast):
    return f"""{lib.USER}
worker_processes 1;
events {{ worker_connections 4096; {events} }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    server {{
        listen 127.0.0.1:PORT;
        location = /ready {{ return 204; }}
        location /slow/ {{ alias {slow}/; {location} }}
        location /cold/ {{ alias {fast}/; {location} }}
    }}
}}
"""


def main():
    options = lib.arguments(__doc__, rounds=3, seconds=2, connections=20)
    options.add_argument("--stuck", type=int, default=500, help="clients of the slow disk")
    options.add_argument("--reads", type=int, default=20, help="that the slow disk may do in a second")
    options.add_argument("--scratch", default="/var/tmp", help="a folder on the ordinary disk")
    options = options.parse_args()
    with lib.Session("slow-disk", options) as session:
        run(session, options)
        session.save()


def run(session, options):
    session.say(f"# {options.stuck} clients stuck, {options.connections} connections measured")
    fast = lib.kept_files(session, options.scratch, COLD_FILES, SIZE)
    disk = ThrottledDisk(session, options) if os.geteuid() == 0 else FaultyDisk(session, options)
    session.say(f"# the slow disk: {disk.words}")
    groups = lib.cpu_groups(session)
    runs = {}
    for turn in range(options.rounds):
        for label, program, events, location in WAYS:
            if program == "nginx" and not disk.slows_nginx:
                continue
            binary = session.nginx if program == "nginx" else str(session.binary)
            text = conf(events + disk.events, location, disk.folder, fast)
            with contextlib.ExitStack() as own:
                group = disk.enter(own)
                server = lib.Server(session, f"{label} {turn}", binary, text, [*groups, *group])
                own.callback(server.stop)
                own.callback(disk.heal)
                for figure in figures(server, options, disk, turn):
                    session.record["runs"].append({"server": label, "turn": turn, **figure})
                    runs.setdefault((label, figure["what"]), []).append(figure)
    report(session, runs)


def figures(server, options, disk, turn):
    """Warm and cold alone, then both again while the clients are stuck."""
    # A first look at the machinery, so that no first-time cost counts as the slow disk's.
    lib.wrk(server.url("/cold/00/1"), 1, options.connections)
    yield {"what": "warm alone", **warm(server, options)}
    yield {"what": "cold alone", **cold(server, options, 2 * turn)}
    lib.drop_caches() if os.geteuid() == 0 else None
    with Stuck(server, options.stuck) as stuck:
        disk.hurt()
        stuck.ask()
        yield {"what": "warm beside", **warm(server, options), "answered": stuck.answered()}
        yield {"what": "cold beside", **cold(server, options, 2 * turn + 1), "answered": stuck.answered()}
        disk.heal()


def warm(server, options):
    return lib.wrk(server.url("/cold/00/1"), options.seconds, options.connections)


def cold(server, options, seed):
    if os.geteuid() == 0:
        lib.drop_caches()
    env = {"FILES": str(COLD_FILES), "FOLDER": "/cold", "SEED": str(seed + 1)}
    script = lib.ROOT / "bench/random.lua"
    return lib.wrk(server.url(), options.seconds, options.connections, script=script, env=env)


class Stuck:
    """Clients that each ask for one file of the slow disk and wait."""

    def __init__(self, server, count):
        self.port, self.count = server.port, count

    def __enter__(self):
        self.sockets = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(self.count)]
        return self

    def __exit__(self, *_):
        for each in self.sockets:
            each.close()

    def ask(self):
        for number, each in enumerate(self.sockets):
            each.sendall(b"GET /slow/%d HTTP/1.1\r\nHost: a\r\n\r\n" % number)
        time.sleep(0.3)

    def answered(self):
        poll = select.poll()
        for each in self.sockets:
            poll.register(each, select.POLLIN)
        return len(poll.poll(0))


class ThrottledDisk:
    """A file system on a loop device, from which one control group may read a few times a second."""

    events, slows_nginx = "", True

    def __init__(self, session, options):
        self.session, self.reads = session, options.reads
        self.words = f"ext4 on a loop device with {options.reads} reads a second"
        image, self.folder = session.dir / "image", session.dir / "mount"
        self.folder.mkdir()
        with open(image, "wb") as file:
            file.truncate(256 << 20)
        command("mkfs.ext4", "-q", "-O", "^has_journal", "-N", "8192", image)
        self.device = command("losetup", "-f", "--show", image)
        session.stack.callback(command, "losetup", "-d", self.device)
        command("mount", "-o", "noatime", self.device, self.folder)
        session.stack.callback(command, "umount", self.folder)
        self.folder.chmod(0o755)
        for number in range(options.stuck):
            (self.folder / str(number)).write_bytes(b"slow" * (SIZE // 4))
        os.sync()
        number = os.stat(self.device).st_rdev
        self.number = f"{os.major(number)}:{os.minor(number)}"

    def enter(self, stack):
        self.group = lib.Group(self.session, "blkio", ({}, {}), f"blkio{time.monotonic_ns()}")
        return [self.group]

    def hurt(self):
        self.limit(self.reads)

    def heal(self):
        self.limit(0)

    def limit(self, reads):
        if self.group.v2:
            (self.group.path / "io.max").write_text(f"{self.number} riops={reads or 'max'}")
        else:
            (self.group.path / "blkio.throttle.read_iops_device").write_text(f"{self.number} {reads}")


class FaultyDisk:
    """The fault engine delays what this server does below a folder."""

    slows_nginx, words = False, "the fault engine delays opens and reads by a minute; nginx has nothing like it"

    def __init__(self, session, options):
        self.folder = session.dir / "slow"
        self.folder.mkdir()
        for number in range(options.stuck):
            (self.folder / str(number)).write_bytes(b"slow" * (SIZE // 4))
        self.events = "".join(f" engine_fault {kind} delay=60s path={self.folder};" for kind in ("open", "read"))

    def enter(self, stack):
        return []

    def hurt(self):
        pass

    def heal(self):
        pass


def command(*words):
    done = subprocess.run([lib.which(words[0]), *map(str, words[1:])], capture_output=True, text=True)
    if done.returncode:
        print(f"{words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def report(session, runs):
    session.say()
    session.say("p99 of the other location, medians")
    rows = []
    for label in dict.fromkeys(label for label, _ in runs):
        row = [label]
        for kind in ("warm", "cold"):
            alone, beside = (lib.median(runs[label, f"{kind} {when}"], "p99_ms") for when in ("alone", "beside"))
            row += [alone, beside, beside / alone]
        row.append(f"{lib.median(runs[label, 'cold beside'], 'answered'):.0f}")
        rows.append(row)
    header = ["server", "warm ms", "beside", "ratio", "cold ms", "beside", "ratio", "answered"]
    lib.table(session, header, rows)
    for (label, what), of in runs.items():
        errors = sum(run["socket_errors"] + run["bad_status"] for run in of)
        if errors:
            session.say(f"# {label}, {what}: {errors} errors")
    for label in dict.fromkeys(label for label, _ in runs):
        rates = [f"{what} {lib.median(runs[label, what], 'rps'):.0f}" for name, what in runs if name == label]
        session.say(f"# {label}, requests a second: {', '.join(rates)}")


if __name__ == "__main__":
    main()

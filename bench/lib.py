"""What the bench scripts share: servers started and ended, processor time counted, wrk run, results kept.

A script makes a `Session`, starts `Server`s in it, and lets `wrk` feed them in turns. Everything that was started or
set up is undone when the session ends, also after an error or Ctrl-C: processes by their ids, control groups, mounts.
Standard library only. Nothing here decides whether a figure is good.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
SERVER_CPU, LOAD_CPU = 0, 1
TICK = os.sysconf("SC_CLK_TCK")


class Session:
    """One run of a script: a scratch directory, a record, and the list of what has to be undone."""

    def __init__(self, name, options):
        self.name, self.binary, self.nginx = name, pathlib.Path(options.binary), which(str(options.nginx))
        self.scratch = getattr(options, "scratch", None)
        if not self.binary.exists():
            sys.exit(f"{self.binary} is missing: cargo build --release -p ringroad")
        if not self.nginx or not which("wrk"):
            sys.exit("wrk or nginx is missing (apt-get install wrk nginx-light)")
        if len(os.sched_getaffinity(0)) < 2:
            sys.exit("two processors are needed: one for the server, one for the generator")
        self.stack = contextlib.ExitStack()
        self.lines = []
        self.record = {"bench": name, "environment": environment(self.binary, self.nginx), "runs": []}

    def __enter__(self):
        self.dir = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="ringroad-bench-", dir=self.scratch)))
        self.dir.chmod(0o755)
        # A terminated script undoes what it did, as an interrupted one does.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
        for key, value in self.record["environment"].items():
            self.say(f"# {key}: {value}")
        return self

    def __exit__(self, *_):
        self.stack.close()

    def say(self, line=""):
        print(line, flush=True)
        self.lines.append(line)

    def save(self):
        """Writes the table and the raw figures under bench/results/."""
        RESULTS.mkdir(exist_ok=True)
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d-%H%M%S")
        stem = RESULTS / f"{self.name}-{stamp}-{self.record['environment']['commit'].split()[0]}"
        stem.with_suffix(".txt").write_text("\n".join(self.lines) + "\n")
        stem.with_suffix(".json").write_text(json.dumps(self.record, indent=1) + "\n")
        print(f"kept in {stem.with_suffix('.txt').relative_to(ROOT)} and .json")


class Server:
    """A server process with its children, pinned to the server's processor or to others."""

    def __init__(self, session, label, program, conf, groups=(), cpus=None):
        self.label, self.port, self.cpus = label, free_port(), cpus or {SERVER_CPU}
        self.dir = session.dir / label.replace(" ", "-")
        for folder in ("conf", "logs"):
            (self.dir / folder).mkdir(parents=True)
        head = f"daemon off;\npid {self.dir}/logs/pid;\nerror_log {self.dir}/logs/error.log warn;\n"
        (self.dir / "conf/nginx.conf").write_text(head + conf.replace("PORT", str(self.port)))
        command = [program, "-p", f"{self.dir}/", "-c", "conf/nginx.conf"]
        if program == session.nginx:
            command += ["-e", "logs/error.log"]
        self.start(session, command, groups)

    def start(self, session, command, groups):
        def settle():
            for group in groups:
                group.join()
            os.sched_setaffinity(0, self.cpus)

        output = open(self.dir / "logs/output", "wb")
        self.process = subprocess.Popen(command, preexec_fn=settle, stdout=output, stderr=output, start_new_session=True)
        session.stack.callback(self.stop)
        self.wait_until_ready()

    def wait_until_ready(self):
        limit = time.monotonic() + 15
        while time.monotonic() < limit:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                probe.sendall(b"GET /ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                if probe.recv(12).startswith(b"HTTP/1.1 "):
                    return
            time.sleep(0.05)
        said = (self.dir / "logs/output").read_text(errors="replace") + self.log()
        raise SystemExit(f"{self.label} did not start:\n{said}")

    def log(self):
        path = self.dir / "logs/error.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def pids(self):
        """The process and its descendants."""
        parents = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    stat = pathlib.Path(f"/proc/{entry}/stat").read_text()
                    parents[int(entry)] = int(stat.rsplit(") ", 1)[1].split()[1])
        found = {self.process.pid}
        while True:
            more = {pid for pid, parent in parents.items() if parent in found} - found
            if not more:
                return found
            found |= more

    def cpu_seconds(self):
        """User and system time of all threads so far. Kernel io-wq workers are threads of the process."""
        ticks = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / TICK

    def url(self, path="/"):
        return f"http://127.0.0.1:{self.port}{path}"

    def stop(self):
        pids = self.pids()
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        for pid in pids:
            with contextlib.suppress(OSError):
                # Only what is still ours: a worker that outlived its master keeps the session that was made for it.
                if os.getsid(pid) == self.process.pid:
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()


class Disk:
    """What the disk below a folder has read so far, whoever asked for it: nothing else may use it meanwhile."""

    def __init__(self, folder):
        device = os.stat(folder).st_dev
        self.numbers = [str(os.major(device)), str(os.minor(device))]

    def figures(self):
        for line in pathlib.Path("/proc/diskstats").read_text().splitlines():
            fields = line.split()
            if fields[:2] == self.numbers:
                return {"reads": int(fields[3]), "read_bytes": int(fields[5]) * 512}
        return {"reads": 0, "read_bytes": 0}


class Group:
    """A control group (v1 or v2) that is removed at the end. Needs root."""

    def __init__(self, session, controller, settings, name=None):
        v1 = pathlib.Path("/sys/fs/cgroup") / controller
        v2 = pathlib.Path("/sys/fs/cgroup")
        self.v2 = (v2 / "cgroup.controllers").exists()
        base = v2 if self.v2 else v1
        if not base.exists():
            raise SystemExit(f"no {controller} control group is mounted")
        self.path = base / f"ringroad-bench-{os.getpid()}-{name or controller}"
        if self.v2:
            with contextlib.suppress(OSError):
                (base / "cgroup.subtree_control").write_text(f"+{controller}")
        self.path.mkdir()
        session.stack.callback(self.remove)
        for name, value in settings[1 if self.v2 else 0].items():
            (self.path / name).write_text(value)

    def join(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        if not self.path.exists():
            return
        for _ in range(50):
            with contextlib.suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.1)
        print(f"left behind: {self.path}", file=sys.stderr)


def memory_group(session, size, name):
    """A group whose processes and page cache together may take so many bytes."""
    return Group(session, "memory", ({"memory.limit_in_bytes": str(size)}, {"memory.max": str(size)}), name)


def cpu_groups(session):
    """Holds kernel workers too on the server's processor, which an affinity alone does not; none without root."""
    if os.geteuid() != 0:
        session.say("# not root: io-wq workers are not pinned")
        return []
    cpus = {"cpuset.cpus": str(SERVER_CPU), "cpuset.mems": "0"}
    try:
        return [Group(session, "cpuset", (cpus, cpus))]
    except (OSError, SystemExit) as error:
        session.say(f"# no cpuset: {error}")
        return []


def wrk(url, seconds, connections=100, script=None, env=None, until=None):
    """One run of wrk on the generator's processor; it ends early when its script says the word of `until`."""
    command = [which("wrk"), "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "--timeout", "10s"]
    if script:
        command += ["-s", str(script)]

    def settle():
        os.sched_setaffinity(0, {LOAD_CPU})

    env = {**os.environ, **(env or {})}
    pipe = subprocess.PIPE
    with subprocess.Popen(command + [url], preexec_fn=settle, stdout=pipe, stderr=pipe, text=True, env=env) as process:
        try:
            if until and process.stderr.readline().strip() == until:
                # A thread of wrk that stops leaves its main one asleep, which a signal wakes.
                process.send_signal(signal.SIGINT)
            text, said = process.communicate(timeout=seconds + 30)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise SystemExit(f"wrk failed: {said}")
    return parse_wrk(text)


def parse_wrk(text):
    requests = re.search(r"(\d+) requests in ([\d.]+)(ms|s|m)", text)
    if not requests:
        raise SystemExit(f"wrk said something else:\n{text}")
    percentile = {name: milliseconds(value) for name, value in re.findall(r"^ +(\d+)% +(\S+)", text, re.M)}
    if int(requests[1]) == 0:
        # wrk prints zeros, which would read as the best latency of all.
        percentile = {}
    errors = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    return {
        "requests": int(requests[1]),
        "rps": float(re.search(r"Requests/sec: +([\d.]+)", text)[1]),
        "p50_ms": percentile.get("50"),
        "p99_ms": percentile.get("99"),
        "socket_errors": sum(map(int, errors.groups())) if errors else 0,
        "bad_status": int(refused[1]) if refused else 0,
    }


def milliseconds(text):
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text).groups()
    return float(number) * {"us": 0.001, "ms": 1, "s": 1000, "m": 60000}[unit]


def measure(server, url, seconds, **options):
    """A run of wrk, with the server's processor time for each request."""
    pids, before = server.pids(), server.cpu_seconds()
    outcome = wrk(url, seconds, **options)
    spent = server.cpu_seconds() - before
    # A process that the memory limit killed takes its time with it.
    outcome["lost_processes"] = len(pids - server.pids())
    outcome["cpu_us"] = None if outcome["lost_processes"] else spent * 1e6 / max(outcome["requests"], 1)
    return outcome


def median(runs, key):
    values = [run[key] for run in runs if run.get(key) is not None]
    return statistics.median(values) if values else float("nan")


def drop_caches(sync=True):
    """Without `sync`, which waits for what others write, only pages go that are on the disk already."""
    if sync:
        os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def which(tool):
    return shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def first_line(command):
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return ((done.stdout + done.stderr).strip().splitlines() or ["unknown"])[0]


def environment(binary, nginx):
    """What a figure depends on."""
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal: +(\d+)", pathlib.Path("/proc/meminfo").read_text())
    dirty = subprocess.run(["git", "status", "--porcelain", "-uno"], capture_output=True, text=True, cwd=ROOT).stdout
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": first_line(["git", "rev-parse", "--short", "HEAD"]) + (" with changes" if dirty else ""),
        "ringroad": first_line([str(binary), "-v"]),
        "nginx": first_line([nginx, "-v"]),
        "wrk": first_line([which("wrk"), "-v"]),
        "kernel": os.uname().release,
        "processors": f"{os.cpu_count()} x {cpu[1] if cpu else 'unknown'}",
        "memory_gib": int(memory[1]) >> 20,
        "congestion_control": pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        "load_before": os.getloadavg()[0],
    }


def table(session, header, rows):
    """Prints rows with columns aligned."""
    def shown(cell):
        if isinstance(cell, str):
            return cell
        return "none" if cell != cell else f"{cell:.2f}"

    text = [[shown(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[at]) for row in text) for at in range(len(header))]
    for row in text:
        cells = [cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(zip(row, widths))]
        session.say("  ".join(cells).rstrip())


def arguments(text, **defaults):
    """The options that every script has."""
    options = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--binary", default=ROOT / "target/release/ringroad")
    options.add_argument("--nginx", default="nginx", help="another nginx than the installed one")
    options.add_argument("--rounds", type=int, default=defaults["rounds"])
    options.add_argument("--seconds", type=int, default=defaults["seconds"], help="for each run of wrk")
    options.add_argument("--connections", type=int, default=defaults["connections"])
    return options


def kept_files(session, scratch, count, size):
    """A folder of files for random.lua, which is kept for the next run: it takes a minute to make and remove."""
    folder = pathlib.Path(scratch) / f"ringroad-bench-{count}x{size}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        make_files(folder, count, size)
        (folder / "complete").touch()
    session.say(f"# files: {count} of {size} bytes, kept in a folder {folder.name}")
    return folder


def make_files(folder, count, size):
    """Files with content of their own, written through to the disk."""
    for group in range(256):
        (folder / f"{group:02x}").mkdir(parents=True)
    for index in range(count):
        with open(folder / f"{index % 256:02x}" / str(index // 256), "wb", buffering=0) as file:
            file.write((b"%08d" % index) * (size // 8))
    os.sync()


# The servers' own workers stay root where root runs a script: groups and files then need no further care.
USER = "user root;" if os.geteuid() == 0 else ""


def need_root(why):
    if os.geteuid() != 0:
        sys.exit(f"root is needed: {why}")

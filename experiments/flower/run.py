#!/usr/bin/env python3
"""A round of Flower and an exchange of Hansa, in turns, for a model of the same arrays.

    experiments/flower/run.py --hansa target/release/hansa [--model qwen3-172m] [--turns 3] [--work DIR]

Makes an environment with Flower in the work folder on first use. Prints one JSON line for each
turn and, at the end, the medians. Both sides keep all files in /dev/shm unless --work says otherwise;
the last measurement is Hansa on the disk of --disk, with its fsyncs.
"""

import argparse
import itertools
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

FLOWER = "flwr==1.42.0"
APP = Path(__file__).resolve().parent / "app"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def descendants(root: int) -> list[int]:
    """Process numbers of all processes below one, without it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]


class MemoryWatch(threading.Thread):
    """The largest sum of resident memory of some processes and their descendants."""

    def __init__(self, roots: list[int]) -> None:
        super().__init__(daemon=True)
        self.roots, self.over, self.peak_bytes = roots, threading.Event(), 0

    def run(self) -> None:
        """Looks ten times a second."""
        while not self.over.wait(0.1):
            processes = {
                process for root in self.roots for process in [root, *descendants(root)]
            }
            self.peak_bytes = max(self.peak_bytes, sum(map(resident_bytes, processes)))


def resident_bytes(process: int) -> int:
    """Resident memory of a process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0


@contextmanager
def watched(roots: list[int]) -> Iterator[MemoryWatch]:
    """Watches the memory for as long as it lasts."""
    watch = MemoryWatch(roots)
    watch.start()
    try:
        yield watch
    finally:
        watch.over.set()
        watch.join()


@dataclass
class Turn:
    """What one side did in one turn."""

    who: str
    rounds_s: list[float]
    peak_bytes: int

    def tell(self) -> None:
        """Prints it."""
        print(json.dumps(asdict(self)), flush=True)


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def make_environment(at: Path) -> Path:
    """Installs Flower, unless it is there; gives the folder of its programs."""
    programs = at / "bin"
    if not (programs / "flwr").exists():
        venv.create(at, with_pip=True)
        subprocess.run(
            [programs / "pip", "install", "--quiet", FLOWER, "numpy"], check=True
        )
    return programs


def flower(programs: Path, home: Path, model: str, rounds: int) -> Turn:
    """One run of Flower: SuperLink, two SuperNodes, FedAvg. Seconds of each round but the first."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    link, times = free_port(), home / "times.json"
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{programs}:{os.environ['PATH']}",
        "TMPDIR": str(home),
    }
    commands = [
        [
            "flower-superlink",
            "--insecure",
            "--port",
            str(link),
            "--disable-runtime-dependency-installation",
        ]
    ]
    commands += [
        [
            "flower-supernode",
            "--insecure",
            "--superlink",
            f"127.0.0.1:{link}",
            "--port",
            str(free_port()),
        ]
        for _ in range(2)
    ]
    log = (home / "log").open("wb")
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            started.append(
                subprocess.Popen(
                    [programs / command[0], *command[1:]],
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
            )
            time.sleep(5)
        with watched([process.pid for process in started]) as watch:
            settings = f'model="{model}" rounds={rounds + 1} out="{times}"'
            submit = [
                programs / "flwr",
                "run",
                str(APP),
                "here",
                "--run-config",
                settings,
            ]
            subprocess.run(submit, env=environment, stdout=log, stderr=log, check=True)
            while not times.exists():
                if any(process.poll() is not None for process in started):
                    sys.exit(f"a part of Flower ended; see {home / 'log'}")
                time.sleep(0.5)
            time.sleep(0.5)
        began = json.loads(times.read_text())
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait()
    rounds_s = [after - before for before, after in itertools.pairwise(began[1:])]
    shutil.rmtree(home)
    return Turn("flower", rounds_s, watch.peak_bytes)


def hansa(
    program: Path, where: Path, model: str, dtype: str, rounds: int, plain: bool = False
) -> Turn:
    """As many exchanges of Hansa: coordinator and two replicas, fsync where that means anything.

    Over TLS, or over plain HTTP as Flower does it here.
    """
    where.mkdir(parents=True, exist_ok=True)
    arguments = [
        "bench",
        "exchange",
        "--json",
        "--model",
        model,
        "--codec",
        dtype,
        "--model-dtype",
        dtype,
    ]
    arguments += ["--runs", str(rounds), "--dir", str(where)]
    arguments += ["--plain"] if plain else []
    with subprocess.Popen([program, *arguments], stdout=subprocess.PIPE) as process:
        with watched([process.pid]) as watch:
            output, _ = process.communicate()
        if process.returncode:
            sys.exit("hansa bench exchange failed")
    report = json.loads(output)
    rounds_s = [part["total_s"] for part in report["rounds"]]
    way = ", no TLS" if plain else ""
    return Turn(f"hansa {dtype} in {where}{way}", rounds_s, watch.peak_bytes)


def main() -> None:
    """Takes turns and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--hansa", type=Path, required=True, help="the program to measure"
    )
    parser.add_argument("--model", default="qwen3-172m")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--rounds", type=int, default=2, help="measured rounds in each turn"
    )
    parser.add_argument("--work", type=Path, default=Path("/dev/shm/hansa-flower"))
    parser.add_argument("--disk", type=Path, default=Path("target/hansa-flower"))
    arguments = parser.parse_args()
    model, rounds, program = (
        arguments.model,
        arguments.rounds,
        arguments.hansa.resolve(),
    )
    programs = make_environment(arguments.disk.resolve() / "venv")
    turns: list[Turn] = []

    def take(turn: Turn) -> None:
        turn.tell()
        turns.append(turn)

    for _ in range(arguments.turns):
        take(flower(programs, arguments.work / "flower", model, rounds))
        for dtype, plain in (
            ("f32", False),
            ("f32", True),
            ("bf16", False),
            ("bf16", True),
        ):
            where = arguments.work / "hansa"
            take(hansa(program, where, model, dtype, rounds, plain))
    take(
        hansa(
            program, arguments.disk / "hansa", model, "bf16", rounds * arguments.turns
        )
    )
    print(json.dumps({"model": model, "medians": summary(turns)}, indent=1))


def summary(turns: list[Turn]) -> dict[str, dict[str, float]]:
    """Medians over all rounds, the largest memory, and how many times longer Flower takes."""
    medians = {}
    for who in dict.fromkeys(turn.who for turn in turns):
        mine = [turn for turn in turns if turn.who == who]
        every = [second for turn in mine for second in turn.rounds_s]
        peak_mib = max(turn.peak_bytes for turn in mine) / 2**20
        medians[who] = {"round_s": statistics.median(every), "peak_mib": peak_mib}
    for figures in medians.values():
        figures["flower_over_it"] = medians["flower"]["round_s"] / figures["round_s"]
    return medians


if __name__ == "__main__":
    main()

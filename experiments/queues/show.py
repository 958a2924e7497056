#!/usr/bin/env python3
"""Three real Slurm clusters with filled queues, one run; see README.md beside this file."""

import argparse
import json
import pathlib
import random
import statistics
import sys
import threading
import time

from stage import Stage, real

SITES = {
    # partition, GPUs of a node, replicas, chain, jobs of others that wait
    "lumi": ("small-g", 8, 1, "begin", 5),
    "snellius": ("gpu_a100", 4, 2, "none", 3),
    "frontier": ("batch", 8, 3, "none", 5),
}
WALLTIME = "00:02:00"
# Jobs of others ask for so many minutes, and use a share of them that is usually small.
LIMITS_MIN = (3, 4, 6, 8, 10)
SHARE = (1.2, 3.6)
# Holds a reply of `sbatch --parsable` back while HOLD is there.
SBATCH = """#!/bin/bash
out=$({real} "$@"); code=$?
case " $* " in
*" --parsable "*)
    if [ -e {hold} ]; then touch {hold}.held; while [ -e {hold} ]; do sleep 0.1; done; fi ;;
esac
[ -z "$out" ] || printf '%s\\n' "$out"
exit "$code"
"""


class Others(threading.Thread):
    """Other people's jobs at a site: as one starts another is submitted, so that some always wait."""

    def __init__(self, stage, name, seed):
        super().__init__(daemon=True)
        self.stage, self.name = stage, name
        self.partition, self.waiting = SITES[name][0], SITES[name][4]
        self.random = random.Random(f"{seed} {name}")
        self.over = threading.Event()

    def submit(self):
        limit = self.random.choice(LIMITS_MIN)
        seconds = max(5, round(60 * limit * self.random.betavariate(*SHARE)))
        words = ["sbatch", "--parsable", "--chdir=/", "--output=/dev/null", "--job-name=others", "--exclusive"]
        words += [f"--partition={self.partition}", "--nodes=1", "--mem=0", f"--time={limit}"]
        self.stage.slurm(self.name, *words, f"--wrap=exec sleep {seconds}")

    def count(self, *states):
        said = self.stage.slurm(self.name, "squeue", "-h", "-n", "others", "-t", ",".join(states), "-o", "%i")
        return len(said.splitlines())

    def ended(self):
        return self.count("CD", "TO", "F", "CA")

    def fill(self):
        nodes = self.stage.slurm(self.name, "sinfo", "-h", "-N", "-p", self.partition, "-o", "%N").split()
        for _ in range(len(set(nodes)) + self.waiting):
            self.submit()

    def run(self):
        while not self.over.wait(2):
            for _ in range(self.waiting - self.count("PD")):
                self.submit()


class Show(Stage):
    def __init__(self, args):
        super().__init__(args.hansa, args.clusters, args.port)
        self.args = args
        self.others = [Others(self, name, args.seed) for name in SITES]

    def start_site(self, name, *more):
        env = dict(self.env)
        env["PATH"] = f"{self.root / ('bin-' + name)}:{env['PATH']}"
        self.start(f"site-{name}", "site", "run", f"{name}.toml", "--json", *more, env=env)

    def set_up(self):
        self.make_run(self.args.rounds)
        self.up(SITES)
        for others in self.others:
            others.fill()
            others.start()
        url = self.serve()
        for name, (partition, gpus, wanted, chain, _) in SITES.items():
            self.run("token", "add", name, "--data", "data", "--out", f"{name}.token.toml")
            pace = self.args.pace * gpus / 8
            values = {"url": url, "partition": partition, "gpus": gpus, "walltime": WALLTIME}
            self.profile(name, wanted=wanted, chain=chain, pace=pace, **values)
            programs = self.root / f"bin-{name}"
            programs.mkdir()
            (programs / "sbatch").write_text(SBATCH.format(real=real("sbatch"), hold=self.root / f"hold-{name}"))
            (programs / "sbatch").chmod(0o755)
        # A site has a past: how much of their walltime jobs use.
        self.until("a past", lambda: all(others.ended() >= 3 for others in self.others))
        self.say("three clusters are up, their queues filled")

    def running(self, name):
        rows = self.slurm(name, "squeue", "--me", "-h", "-t", "R", "-o", "%i|%j|%N").splitlines()
        return [row.split("|") for row in rows if row.split("|")[1].startswith("hansa-")]

    def play(self):
        hold = self.root / "hold-snellius"
        hold.touch()
        for name in SITES:
            self.start_site(name)
        self.until("a submission whose reply is held", lambda: pathlib.Path(f"{hold}.held").exists())
        self.kill("site-snellius")
        hold.unlink()
        self.say("snellius: site process killed between a submission and its reply")
        self.start_site("snellius", "--take-over")
        job, _, node = self.until("a job at snellius", lambda: self.running("snellius"))[0]
        self.say(f"snellius: job {job} runs on {node}")
        job, _, _ = self.until("a job at lumi", lambda: self.running("lumi"))[0]
        self.slurm("lumi", "scancel", job)
        self.say(f"lumi: job {job} cancelled by hand")
        self.clusters("pause", "frontier")
        self.say("frontier: controller stopped")
        time.sleep(45)
        self.clusters("resume", "frontier")
        self.say("frontier: controller goes on")
        job, _, node = self.until("a job at snellius again", lambda: self.running("snellius"))[0]
        self.slurm("snellius", "scontrol", "update", f"nodename={node}", "state=down", "reason=show")
        self.say(f"snellius: node {node} of job {job} is down")
        time.sleep(20)
        self.slurm("snellius", "scontrol", "update", f"nodename={node}", "state=resume")
        queue = {}

        def over():
            queue.update(self.queue() or {})
            time.sleep(4)
            return self.children["serve"].poll() is not None

        self.until("the run's end", over, 3600)
        self.say("the run is over")
        return queue

    def judge(self, queue):
        fine, result = self.verdict()
        sites = queue.get("sites", [])
        result["accuracy"] = {site["site"]: site["accuracy"] for site in sites}
        result["history"] = {site["site"]: site["history"] for site in sites}
        result["decisions"] = {site["site"]: site["decisions"] for site in sites}
        result["story"] = self.story
        history = [joined for joined_there in result["history"].values() for joined in joined_there]
        result["accuracy"]["all"] = [accuracy(history, strength) for strength in (0.0, 0.5, 1.0)]
        print("site       strength  jobs  median error  median size  started by then")
        for name, rows in result["accuracy"].items():
            for row in rows:
                print(
                    f"{name:10} {row['strength']:8.1f} {row['jobs']:5} {row['median_error_s']:11.0f} s "
                    f"{row['median_size_s']:10.0f} s {100 * row['coverage']:14.0f} %"
                )
        if self.args.out:
            pathlib.Path(self.args.out).write_text(json.dumps(result, indent=1))
        return fine

    def strike(self):
        for others in self.others:
            others.over.set()
        super().strike()


def accuracy(history, strength):
    """As `hansa queue` says it of one site, for all: real less predicted wait."""
    errors = []
    for joined in history:
        usage = joined["usage_permille"]
        if not joined["deferred"] and (usage is not None or strength == 0):
            discount = strength * (1 - usage / 1000) if strength else 0
            errors.append(joined["real_wait_s"] - joined["predicted_wait_s"] * (1 - discount))
    return {
        "strength": strength,
        "jobs": len(errors),
        "median_error_s": statistics.median(errors) if errors else 0.0,
        "median_size_s": statistics.median(map(abs, errors)) if errors else 0.0,
        "coverage": sum(error <= 0 for error in errors) / max(1, len(errors)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", required=True, help="the script that starts clusters")
    parser.add_argument("--hansa", default="target/debug/hansa")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--pace", type=float, default=16.0, help="windows a second of an eight-GPU node")
    parser.add_argument("--seed", type=int, default=1, help="of the jobs of others")
    parser.add_argument("--port", type=int, default=27000)
    parser.add_argument("--out")
    show = Show(parser.parse_args())
    try:
        show.set_up()
        fine = show.judge(show.play())
    finally:
        show.strike()
    print(f"files: {show.root}", file=sys.stderr)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()

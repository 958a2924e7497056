#!/usr/bin/env python3
"""The planner drives a run over three real Slurm clusters; see README.md beside this file."""

import argparse
import json
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "queues"))
import stage  # noqa: E402

SITES = {
    # partition, GPUs of a node, walltime, windows a second of a node
    "lumi": ("small-g", 8, "00:04:00", 16.0),
    "snellius": ("gpu_a100", 4, "00:04:00", 8.0),
    "frontier": ("batch", 8, "00:04:00", 16.0),
}
SEQ_LEN = 32
PLAN = """[plan]
policy = "auto"
every_s = 60
margin = 0.1
merge_s = 1
horizon_days = 0.125
"""
# What a site's operator wrote down before the run: speed of one GPU, ranks of the embedded trainer.
SHAPE = 'options = ["--exclusive"]\nwindows_per_gpu_s = {rate}\nranks = 1'
COSTS = """[costs]
startup_s = 8
transfer_s = 2
"""


class Show:
    def __init__(self, args):
        self.args = args
        self.stage = stage.Stage(args.hansa, args.clusters, args.port)
        self.course = []
        self.plans = []

    def set_up(self):
        self.stage.make_run(1)
        recipe = stage.RECIPE.format(rounds=1).replace("rounds = 1\n", f"tokens = {self.args.windows * SEQ_LEN}\n")
        (self.stage.root / "run.toml").write_text(recipe + PLAN)
        self.stage.up(SITES)
        # Frontier is full for longer than the run lasts.
        self.stage.clusters("fill", "frontier", "batch", "30", "8")
        self.stage.say("three clusters are up; frontier is full for half an hour")
        url = self.stage.serve()
        for name, (partition, gpus, walltime, pace) in SITES.items():
            self.stage.run("token", "add", name, "--data", "data", "--out", f"{name}.token.toml")
            self.stage.profile(
                name, COSTS, url=url, partition=partition, gpus=gpus, walltime=walltime, chain="begin", wanted=1,
                pace=pace,
            )
            path = self.stage.root / f"{name}.toml"
            shape = SHAPE.format(rate=pace / gpus)
            path.write_text(path.read_text().replace('options = ["--exclusive"]', shape))
        for name in SITES:
            self.stage.start(f"site-{name}", "site", "run", f"{name}.toml", "--json")

    def look(self):
        """One look at the plan; a new one is told and kept, and what is predicted now is kept."""
        words = [self.stage.hansa, "plan", "--data", "data", "--json"]
        done = subprocess.run(words, cwd=self.stage.root, env=self.stage.env, capture_output=True)
        if done.returncode != 0:
            return None
        said = json.loads(done.stdout)
        current = said["current"]
        if current and (not self.plans or self.plans[-1]["no"] != current["no"]):
            self.plans.append(current)
            uses = [f"{site['site']} x{site['jobs']}" for site in current["sites"]]
            ends = current["promise"]["ends"] - self.stage.began
            where = ", ".join(uses) or "no new job"
            self.stage.say(f"plan {current['no']}: {where}; ends at {ends:.0f} s; {current['why']}")
        plan = said["plan"]
        if plan["ended"] == "target":
            now = plan["now_ms"] / 1e3
            self.course.append((now - self.stage.began, now + plan["ends_s"] - self.stage.began))
        return said

    def uses(self, name):
        """Whether the plan in force has jobs at a site; None while there is none."""
        said = self.look()
        if not said or not said["current"]:
            return None
        return any(site["site"] == name for site in said["current"]["sites"])

    def running(self, name):
        queue = self.stage.queue() or {"sites": []}
        site = next((site for site in queue["sites"] if site["site"] == name), {"jobs": []})
        return [job for job in site["jobs"] if job["reported"] == "RUNNING" and not job["outcome"]]

    def over(self):
        words = [self.stage.hansa, "status", "--data", "data", "--json"]
        done = subprocess.run(words, cwd=self.stage.root, env=self.stage.env, capture_output=True)
        return done.returncode == 0 and json.loads(done.stdout)["ended"]

    def play(self):
        until = self.stage.until
        until("a first plan", lambda: self.uses("lumi") is not None)
        until("jobs at lumi and snellius", lambda: self.look() and self.running("lumi") and self.running("snellius"))
        self.stage.say("jobs run at lumi and snellius")
        kept = self.running("lumi")[0]["job"]
        for _ in range(8):
            self.look()
            time.sleep(5)
        # Others come: lumi fills up for half an hour, and frontier's jobs end early.
        self.stage.clusters("fill", "lumi", "small-g", "30", "8", "others")
        self.stage.clusters("drain", "frontier")
        self.stage.say("lumi fills up behind our job; frontier's nodes are free")
        until("the plan at frontier", lambda: self.uses("frontier"))
        alive = [job["job"] for job in self.running("lumi")]
        self.stage.say(f"lumi: job {kept} {'runs on' if kept in alive else 'has ended by itself'}")
        until("a job at frontier", lambda: self.look() and self.running("frontier"))
        self.stage.say("a job runs at frontier")
        words = "starttime=now+60 duration=60 nodes=ALL users=root flags=maint,ignore_jobs reservationname=repair"
        said = self.stage.slurm("snellius", "scontrol", "create", "reservation", *words.split())
        self.stage.slurm("lumi", "scancel", "--name=others")
        self.stage.slurm("snellius", "scontrol", "update", "partitionname=gpu_a100", "state=drain")
        self.stage.say(f"snellius: maintenance in a minute, for an hour ({said}), and no new jobs; lumi has room again")
        until("the plan at lumi and at frontier", lambda: self.uses("lumi") and self.uses("frontier"))
        last = {}

        def ended():
            last["queue"] = self.stage.queue() or last.get("queue")
            self.look()
            return self.over()

        until("the run's end", ended, 1800)
        took = time.time() - self.stage.began
        self.stage.say("the run is over")
        until("everybody to hear of it", lambda: self.stage.children["serve"].poll() is not None)
        return took, last.get("queue")

    def judge(self, ended, queue):
        fine, result = self.stage.verdict()
        touched = []
        for site in (queue or {"sites": []})["sites"]:
            for job in site["jobs"]:
                if job["started_s"] and "cancel" in job["intended"]:
                    touched.append(f"{site['site']} {job['job']}")
        print(f"running jobs that were cancelled: {len(touched)}")
        print("plan  made   ends, promised   off by   why")
        for plan in self.plans:
            made = plan["made"] - self.stage.began
            ends = plan["promise"]["ends"] - self.stage.began
            print(f"{plan['no']:4} {made:5.0f} s {ends:14.0f} s {ended - ends:8.0f} s   {plan['why']}")
        print(f"the run ended at {ended:.0f} s")
        for at, ends in self.course[:: max(1, len(self.course) // 12)]:
            print(f"at {at:4.0f} s the end was expected at {ends:4.0f} s ({ended - ends:+.0f} s)")
        result.update(ended=ended, plans=self.plans, course=self.course, story=self.stage.story, touched=touched)
        if self.args.out:
            pathlib.Path(self.args.out).write_text(json.dumps(result, indent=1))
        return fine and not touched


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", required=True, help="the script that starts clusters")
    parser.add_argument("--hansa", default="target/debug/hansa")
    parser.add_argument("--windows", type=int, default=9000, help="windows of the whole run")
    parser.add_argument("--port", type=int, default=28000)
    parser.add_argument("--out")
    show = Show(parser.parse_args())
    try:
        show.set_up()
        fine = show.judge(*show.play())
    finally:
        show.stage.strike()
    print(f"files: {show.stage.root}", file=sys.stderr)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()

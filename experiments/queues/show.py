#!/usr/bin/env python3
"""Three real Slurm clusters with filled queues, one run; see README.md beside this file."""

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SITES = {
    # partition, GPUs of a node, walltime, minutes for which other jobs fill it, waiting ones, chain
    "lumi": ("small-g", 8, "00:02:00", 2, 2, "begin"),
    "snellius": ("gpu_a100", 4, "00:03:00", 1, 1, "begin"),
    "frontier": ("batch", 8, "00:02:00", 3, 3, "none"),
}
RECIPE = """name = "three-queues"
[model]
vocab_size = 400
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 16
max_position_embeddings = 32
tie_word_embeddings = true
[corpus]
path = "corpus"
seq_len = 32
block_windows = 8
[phase]
steps = 20
batch = 4
[inner]
peak_lr = 2e-3
warmup_steps = 5
[rounds]
grace_s = 10
[lease]
ttl_min_s = 10
ttl_max_s = 40
session_ttl_s = 20
[evaluation]
every = 8
budget_s = 60
[checkpoint]
every_s = 2
[end]
rounds = {rounds}
"""
PROFILE = """name = "{name}"
[coordinator]
url = "{url}"
token_file = "{name}.token.toml"
[slurm]
account = "project_test"
conf = "{conf}"
[jobs]
wanted = 1
shape = "{name}"
chain = "{chain}"
[[shape]]
name = "{name}"
partition = "{partition}"
nodes = 1
gpus_per_node = {gpus}
walltime = "{walltime}"
[script]
corpus = "corpus"
state = "state-{name}"
logs = "logs-{name}"
hansa = "{hansa}"
train_arguments = ["--threads=1", "--pace={pace}"]
signal_before_s = 30
[watch]
probe_every_s = 15
usage_every_s = 30
usage_window_h = 1
follow_every_s = 2
[retry]
backoff_first_s = 5
backoff_longest_s = 60
quick_run_s = 2
"""
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


class Show:
    def __init__(self, args):
        self.args = args
        self.hansa = str(pathlib.Path(args.hansa).resolve())
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="hansa-queues-"))
        self.children = {}
        self.env = dict(os.environ)
        self.env["SLURM_CLUSTERS_DIR"] = str(self.root / "c")
        self.env["SLURM_CLUSTERS_PORT"] = str(args.port)
        for key in list(self.env):
            if key.startswith(("SLURM_CONF", "SBATCH_", "HANSA_")):
                del self.env[key]
        self.began = time.time()
        self.story = []

    def say(self, text):
        line = f"{time.time() - self.began:6.0f} s  {text}"
        self.story.append(line)
        print(line, file=sys.stderr, flush=True)

    def clusters(self, *words):
        subprocess.run([self.args.clusters, *words], env=self.env, check=True, stdout=subprocess.DEVNULL)

    def slurm(self, name, *words):
        env = dict(self.env, SLURM_CONF=self.conf(name))
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        return done.stdout.strip()

    def conf(self, name):
        return str(self.root / "c" / name / "slurm.conf")

    def run(self, *words):
        done = subprocess.run([self.hansa, *words], cwd=self.root, env=self.env, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"hansa {' '.join(words)}: {done.stderr}")
        return done.stdout

    def json(self, *words):
        return json.loads(self.run(*words, "--json"))

    def start(self, name, *words, env=None):
        log = open(self.root / f"{name}.log", "ab")
        child = subprocess.Popen([self.hansa, *words], cwd=self.root, env=env or self.env, stdout=log, stderr=log)
        self.children[name] = child

    def start_site(self, name, *more):
        env = dict(self.env)
        env["PATH"] = f"{self.root / ('bin-' + name)}:{env['PATH']}"
        self.start(f"site-{name}", "site", "run", f"{name}.toml", "--json", *more, env=env)

    def until(self, what, test, seconds=600):
        end = time.time() + seconds
        while time.time() < end:
            found = test()
            if found:
                return found
            time.sleep(1)
        raise SystemExit(f"never came: {what}; files are in {self.root}")

    def set_up(self):
        generator = random.Random(1)
        words = ["".join(generator.choices("abcdefghijklmnopqrst", k=generator.randint(2, 7))) for _ in range(200)]
        with open(self.root / "text.jsonl", "w") as file:
            for _ in range(800):
                text = " ".join(generator.choices(words, k=generator.randint(30, 80)))
                file.write(json.dumps({"text": text}) + "\n")
        self.run("corpus", "tokenizer", "text.jsonl", "--vocab-size", "400", "--out", "tokenizer.json")
        build = "corpus build text.jsonl --tokenizer tokenizer.json --seq-len 32 --held-out 0.05 --out corpus"
        self.run(*build.split())
        (self.root / "run.toml").write_text(RECIPE.format(rounds=self.args.rounds))
        self.clusters("up", *SITES)
        for name, (partition, _, _, minutes, extra, _) in SITES.items():
            self.clusters("fill", name, partition, str(minutes), str(extra))
        self.say("three clusters are up, their queues filled")
        self.start("serve", "serve", "run.toml", "--data", "data", "--listen", "127.0.0.1:0", "--json")
        self.until("the coordinator", lambda: (self.root / "data/listening.json").exists())
        url = json.loads((self.root / "data/listening.json").read_text())["url"]
        real = shutil.which("sbatch")
        for name, (partition, gpus, walltime, _, _, chain) in SITES.items():
            self.run("token", "add", name, "--data", "data", "--out", f"{name}.token.toml")
            text = PROFILE.format(
                name=name, url=url, conf=self.conf(name), partition=partition, gpus=gpus, walltime=walltime,
                chain=chain,
                hansa=self.hansa, pace=self.args.pace * gpus / 8,
            )
            (self.root / f"{name}.toml").write_text(text)
            bin = self.root / f"bin-{name}"
            bin.mkdir()
            (bin / "sbatch").write_text(SBATCH.format(real=real, hold=self.root / f"hold-{name}"))
            (bin / "sbatch").chmod(0o755)

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
            done = subprocess.run(
                [self.hansa, "queue", "--data", "data", "--json"], cwd=self.root, env=self.env, capture_output=True
            )
            if done.returncode == 0:
                queue["last"] = json.loads(done.stdout)
            return self.children["serve"].poll() is not None

        self.until("the run's end", over, 3600)
        self.say("the run is over")
        return queue.get("last")

    def kill(self, name):
        child = self.children.pop(name)
        child.kill()
        child.wait()

    def judge(self, queue):
        report = self.json("ledger", "verify", "data")
        intents, states = {}, {}
        for name in SITES:
            said = self.slurm(
                name, "sacct", "-X", "-n", "-P", "-S", "now-1days", "-E", "now+1days", "--format=JobName,State"
            )
            rows = [row.split("|") for row in said.splitlines() if row.startswith("hansa-")]
            intents[name] = collections.Counter(row[0] for row in rows)
            states[name] = collections.Counter(row[1].split(" ")[0] for row in rows)
        twice = {n: c for names in intents.values() for n, c in names.items() if c != 1}
        result = {
            "seconds": round(time.time() - self.began),
            "ledger": {key: report[key] for key in ("lost", "doubled", "violations", "ended")},
            "jobs": {name: sum(counter.values()) for name, counter in intents.items()},
            "states": {name: dict(counter) for name, counter in states.items()},
            "submitted_twice": twice,
            "accuracy": {site["site"]: site["accuracy"] for site in (queue or {}).get("sites", [])},
            "history": {site["site"]: site["history"] for site in (queue or {}).get("sites", [])},
            "story": self.story,
        }
        print(f"ledger: {result['ledger']}")
        for name in SITES:
            print(f"{name}: {result['jobs'][name]} jobs, {result['states'][name]}")
        print(f"intents submitted twice: {len(twice)}")
        print("site       strength  jobs  median error  median size  started by then")
        for name, rows in result["accuracy"].items():
            for row in rows:
                print(
                    f"{name:10} {row['strength']:8.1f} {row['jobs']:5} {row['median_error_s']:11.0f} s "
                    f"{row['median_size_s']:10.0f} s {100 * row['coverage']:14.0f} %"
                )
        if self.args.out:
            pathlib.Path(self.args.out).write_text(json.dumps(result, indent=1))
        exact = not (report["lost"] or report["doubled"] or report["violations"])
        return exact and report["ended"] and not twice

    def strike(self):
        for child in self.children.values():
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
        for child in self.children.values():
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                child.kill()
        subprocess.run([self.args.clusters, "down", *SITES], env=self.env, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", required=True, help="the script that starts clusters")
    parser.add_argument("--hansa", default="target/debug/hansa")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--pace", type=float, default=16.0, help="windows a second of an eight-GPU node")
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

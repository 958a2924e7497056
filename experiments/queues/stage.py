"""What the experiments beside this file share: a small run's files, processes that end with the script, clusters.

A stage is a temporary folder; what is started on it is ended with it, and its files stay for whoever wants to look.
"""

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

RECIPE = """name = "queues"
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
wanted = {wanted}
max_pending = {wanted}
shape = "{name}"
chain = "{chain}"
[[shape]]
name = "{name}"
partition = "{partition}"
nodes = 1
gpus_per_node = {gpus}
walltime = "{walltime}"
options = ["--exclusive"]
[script]
corpus = "corpus"
state = "state-{name}"
logs = "logs-{name}"
hansa = "{hansa}"
train_arguments = ["--threads=1", "--pace={pace}"]
signal_before_s = 30
[watch]
probe_every_s = 15
usage_every_s = 15
usage_window_h = 1
follow_every_s = 2
[retry]
backoff_first_s = 5
backoff_longest_s = 60
quick_run_s = 2
"""


class Stage:
    def __init__(self, hansa, clusters, port):
        self.hansa = str(pathlib.Path(hansa).resolve())
        self.tool = str(pathlib.Path(clusters).resolve())
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="hansa-queues-"))
        self.children = {}
        self.names = []
        self.env = dict(os.environ)
        self.env["SLURM_CLUSTERS_DIR"] = str(self.root / "c")
        self.env["SLURM_CLUSTERS_PORT"] = str(port)
        for key in list(self.env):
            if key.startswith(("SLURM_CONF", "SBATCH_", "HANSA_")) or key.lower().endswith("_proxy"):
                del self.env[key]
        self.began = time.time()
        self.story = []

    def say(self, text):
        line = f"{time.time() - self.began:6.0f} s  {text}"
        self.story.append(line)
        print(line, file=sys.stderr, flush=True)

    def clusters(self, *words):
        subprocess.run([self.tool, *words], env=self.env, check=True, stdout=subprocess.DEVNULL)

    def up(self, names):
        """Starts clusters, each named NAME or NAME@NETNS."""
        self.names = [name.split("@")[0] for name in names]
        self.clusters("up", *names)

    def slurm(self, name, *words, stdin=None):
        done = subprocess.run(
            [self.tool, "run", name, *words], env=self.env, capture_output=True, text=True, input=stdin
        )
        return done.stdout.strip()

    def conf(self, name):
        return str(self.root / "c" / name / "slurm.conf")

    def run(self, *words, prefix=()):
        done = subprocess.run(
            [*prefix, self.hansa, *words], cwd=self.root, env=self.env, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise SystemExit(f"hansa {' '.join(words)}: {done.stderr}")
        return done.stdout

    def json(self, *words, prefix=()):
        return json.loads(self.run(*words, "--json", prefix=prefix))

    def start(self, name, *words, env=None, prefix=()):
        log = open(self.root / f"{name}.log", "ab")
        self.children[name] = subprocess.Popen(
            [*prefix, self.hansa, *words], cwd=self.root, env=env or self.env, stdout=log, stderr=log
        )

    def kill(self, name):
        child = self.children.pop(name)
        child.kill()
        child.wait()

    def until(self, what, test, seconds=600):
        end = time.time() + seconds
        while time.time() < end:
            found = test()
            if found:
                return found
            time.sleep(1)
        raise SystemExit(f"never came: {what}; files are in {self.root}")

    def make_run(self, rounds):
        """Text, a tokenizer, a corpus and a recipe."""
        generator = random.Random(1)
        words = ["".join(generator.choices("abcdefghijklmnopqrst", k=generator.randint(2, 7))) for _ in range(200)]
        with open(self.root / "text.jsonl", "w") as file:
            for _ in range(800):
                text = " ".join(generator.choices(words, k=generator.randint(30, 80)))
                file.write(json.dumps({"text": text}) + "\n")
        self.run("corpus", "tokenizer", "text.jsonl", "--vocab-size", "400", "--out", "tokenizer.json")
        build = "corpus build text.jsonl --tokenizer tokenizer.json --seq-len 32 --held-out 0.05 --out corpus"
        self.run(*build.split())
        (self.root / "run.toml").write_text(RECIPE.format(rounds=rounds))

    def serve(self, address="127.0.0.1", prefix=()):
        """Starts the coordinator and returns its URL."""
        words = ["serve", "run.toml", "--data", "data", "--listen", f"{address}:0", "--json"]
        self.start("serve", *words, prefix=prefix)
        listening = self.root / "data/listening.json"
        self.until("the coordinator", listening.exists)
        return json.loads(listening.read_text())["url"]

    def profile(self, name, more="", file=None, **values):
        text = PROFILE.format(name=name, conf=self.conf(name), hansa=self.hansa, **values)
        (self.root / (file or f"{name}.toml")).write_text(text + more)

    def queue(self, prefix=()):
        """What `hansa queue` shows; nothing while the coordinator is not there."""
        words = [*prefix, self.hansa, "queue", "--data", "data", "--json"]
        done = subprocess.run(words, cwd=self.root, env=self.env, capture_output=True)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def own_jobs(self, name):
        """Intent and state of each job of the run in the accounting: the judge of what was submitted."""
        window = ["-S", "now-1days", "-E", "now+1days", "--format=State,Comment"]
        rows = self.slurm(name, "sacct", "-X", "-n", "-P", *window).splitlines()
        return [(comment, state) for state, comment in (row.split("|", 1) for row in rows) if " intent=" in comment]

    def verdict(self):
        """The ledger's and the accounting's; prints them."""
        report = self.json("ledger", "verify", "data")
        jobs = {name: self.own_jobs(name) for name in self.names}
        submitted = collections.Counter(f"{name}: {intent}" for name in jobs for intent, _ in jobs[name])
        states = {name: dict(collections.Counter(state.split(" ")[0] for _, state in jobs[name])) for name in jobs}
        result = {
            "seconds": round(time.time() - self.began),
            "ledger": {key: report[key] for key in ("lost", "doubled", "violations", "ended")},
            "jobs": {name: len(rows) for name, rows in jobs.items()},
            "states": states,
            "submitted_twice": {name: count for name, count in submitted.items() if count != 1},
        }
        print(f"ledger: {result['ledger']}")
        for name in self.names:
            print(f"{name}: {result['jobs'][name]} jobs, {states[name]}")
        print(f"intents submitted twice: {len(result['submitted_twice'])}")
        exact = not (report["lost"] or report["doubled"] or report["violations"])
        return exact and report["ended"] and not result["submitted_twice"], result

    def strike(self):
        for child in self.children.values():
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
        for child in self.children.values():
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                child.kill()
        if self.names:
            subprocess.run([self.tool, "down", *self.names], env=self.env, stdout=subprocess.DEVNULL)


def real(program):
    """Where a command of Slurm's really is."""
    path = shutil.which(program)
    if not path:
        raise SystemExit(f"{program} is not installed: this needs Slurm's daemons and commands")
    return path

"""What the integration costs: the same steps on the same windows, by torchtitan under Hansa and alone.

    python compare.py --hansa HANSA --text FILE.jsonl.gz [--ranks 1] [--steps 40] [--work DIR]

Prints the largest difference of a loss (it should be 0), and what passes between two steps beside
torchtitan's own: the socket, the agent, the session.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: torchtitan's own debug model, and one phase.
RECIPE = """name = "titan"
[model]
vocab_size = 2048
hidden_size = 256
intermediate_size = 3072
num_hidden_layers = 8
num_attention_heads = 16
num_key_value_heads = 8
head_dim = 128
max_position_embeddings = 4096
tie_word_embeddings = true
[corpus]
path = "corpus"
seq_len = 256
[phase]
steps = {steps}
batch = 2
[inner]
peak_lr = 8e-4
warmup_steps = 10
[lease]
ttl_min_s = 300
session_ttl_s = 600
[evaluation]
every = 0
[checkpoint]
every_s = 3600
[end]
rounds = 1
"""


def main() -> None:
    """One run, and one without it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hansa", default="target/release/hansa")
    parser.add_argument("--text", required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--work")
    arguments = parser.parse_args()
    work = Path(arguments.work or tempfile.mkdtemp(prefix="hansa-titan-"))
    work.mkdir(parents=True, exist_ok=True)
    hansa = str(Path(arguments.hansa).resolve())
    record = under_hansa(hansa, work, str(Path(arguments.text).resolve()), arguments)
    alone = json.loads(without(work, record, arguments.ranks).read_text())
    print(json.dumps(compared(record, alone), indent=2))


def environment(**more: str) -> dict[str, str]:
    """With this package, and one thread a rank."""
    path = str(HERE.parent.parent / "python")
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HANSA_CPU": "1"} | more


def torchrun(ranks: int, *words: str) -> list[str]:
    """The launcher of this Python."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", str(ranks), *words]


def under_hansa(hansa: str, work: Path, text: str, arguments: argparse.Namespace) -> Path:
    """Trains one phase under an agent; returns the record of what was said."""

    def do(*words: str) -> None:
        subprocess.run([hansa, *words], cwd=work, check=True, stdout=subprocess.DEVNULL)

    do("corpus", "tokenizer", text, "--vocab-size", "2048", "--out", "tokenizer.json")
    build = ("corpus", "build", text, "--tokenizer", "tokenizer.json", "--seq-len", "256")
    do(*build, "--held-out", "0.01", "--out", "corpus")
    (work / "run.toml").write_text(RECIPE.format(steps=arguments.steps))
    serve = [hansa, "serve", "run.toml", "--data", "data", "--listen", "127.0.0.1:0", "--json"]
    server = subprocess.Popen(serve, cwd=work, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    listening = server.stdout.readline()
    address = re.search(r'"url":"([^"]+)"', listening)
    assert address, listening
    do("token", "add", "titan", "--data", "data", "--out", "titan.toml")
    agent = [
        hansa,
        "agent",
        "--coordinator",
        address[1],
        "--token-file",
        "titan.toml",
        "--site",
        "titan",
    ]
    agent += ["--replica", "r0", "--corpus", "corpus", "--state", "state", "--json", "--"]
    agent += [sys.executable, str(HERE / "record.py"), "record.jsonl", "--"]
    agent += torchrun(arguments.ranks, "-m", "hansa.torchtitan", "--metrics.log_freq", "1000")
    subprocess.run(agent, cwd=work, check=True, env=environment(), stdout=subprocess.DEVNULL)
    server.wait()
    return work / "record.jsonl"


def without(work: Path, record: Path, ranks: int) -> Path:
    """The same steps by torchtitan alone."""
    run = environment(HANSA_RUN_FILE=str(work / "state/run.json"))
    out = work / "alone.json"
    command = torchrun(ranks, str(HERE / "plain.py"), str(record), str(out))
    subprocess.run(command, cwd=work, check=True, env=run)
    return out


def compared(record: Path, alone: dict[str, Any]) -> dict[str, Any]:
    """Losses side by side, and the time between an answer and the next question."""
    losses, gaps, steps = [], [], []
    asked = answered = 0.0
    number = None
    for line in record.read_text().splitlines():
        entry = json.loads(line)
        at, said = entry["at"], entry["said"]
        if said.get("do") == "step":
            if answered:
                gaps.append(at - answered)
            asked, number = at, said["id"]
        elif entry["who"] == "trainer" and number is not None and said.get("id") == number:
            answered = at
            steps.append(at - asked)
            losses.append(said["ok"]["loss"])
            number = None
        elif "do" in said:
            answered = 0.0
    apart = max(abs(ours - theirs) for ours, theirs in zip(losses, alone["losses"], strict=True))
    step, gap = statistics.median(steps), statistics.median(gaps)
    own = statistics.median(alone["seconds"])
    return {
        "steps": len(losses),
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "largest_difference": apart,
        "step_under_hansa_ms": 1e3 * step,
        "step_alone_ms": 1e3 * own,
        "between_steps_ms": 1e3 * gap,
        "between_steps_percent": 100 * gap / (step + gap),
    }


if __name__ == "__main__":
    main()

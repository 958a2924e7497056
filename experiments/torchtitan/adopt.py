"""What it costs a torchtitan replica to give its weights away and to take new ones: Qwen3-0.6B's shapes.

    python adopt.py [--ranks 2] [--dir /dev/shm] [--times 3]

This program plays the agent: it starts torchtitan with random weights, has it export them, has it take
the file as its new model, and has it export again; both files must be equal. Prints seconds, bytes, and
how much more memory than before a rank had at most: its own (`anonymous`), and pages of the file
(`mapped`), which the system can take back at any time.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LOOK_EVERY_S = 0.01
SEQ_LEN = 32
MODEL = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
INNER = {
    "peak_lr": 1e-3,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.1,
    "clip_norm": 1.0,
}


def main() -> None:
    """Exports and adopts, some times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument("--times", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir, prefix="hansa-adopt-") as work:
        print(json.dumps(measured(Path(work), arguments.ranks, arguments.times), indent=2))


def measured(work: Path, ranks: int, times: int) -> dict[str, Any]:
    """Figures of all questions."""
    shapes = tensors()
    write_run(work, shapes)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(work / "s"))
    listener.listen()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), "-m", "hansa.torchtitan"]
    environment = os.environ | {
        "PYTHONPATH": str(HERE.parent.parent / "python"),
        "HANSA_AGENT_SOCKET": str(work / "s"),
        "HANSA_RUN_FILE": str(work / "run.json"),
        "HANSA_CPU": "1",
    }
    # Its logs go with the folder.
    trainer = subprocess.Popen(command, cwd=work, env=environment, stdout=subprocess.DEVNULL)
    agent = Agent(listener, work / "run.json")
    first, second = work / "first", work / "second"
    figures: dict[str, list[dict[str, Any]]] = {"export": [], "load": []}
    for _ in range(times):
        with watching(trainer.pid) as seen:
            took = agent.ask("export", to=str(first))
        figures["export"].append({"seconds": took, **seen})
        with watching(trainer.pid) as seen:
            took = agent.ask("load", model=str(first))
        figures["load"].append({"seconds": took, **seen})
        agent.ask("export", to=str(second))
        assert filecmp.cmp(first, second, shallow=False), "what came back is another model"
        second.unlink()
    size = first.stat().st_size
    agent.ask("end", why="measured")
    trainer.wait()
    largest = max(bytes_of(shape) for _, shape in shapes)
    return {
        "ranks": ranks,
        "tensors": len(shapes),
        "bytes": size,
        "largest_tensor_mib": largest >> 20,
        **{name: summary(runs, size) for name, runs in figures.items()},
    }


def summary(runs: list[dict[str, Any]], size: int) -> dict[str, Any]:
    """The median time, and the most memory that any rank took in any run."""
    seconds = statistics.median(run["seconds"] for run in runs)
    return {
        "seconds": round(seconds, 2),
        "mb_per_s": round(size / seconds / 1e6),
        "anonymous_mib": max(run["anonymous_mib"] for run in runs),
        "mapped_mib": max(run["mapped_mib"] for run in runs),
    }


def bytes_of(shape: list[int]) -> int:
    """In fp32."""
    size = 4
    for dimension in shape:
        size *= dimension
    return size


def tensors() -> list[tuple[str, list[int]]]:
    """Hugging Face's names and shapes."""
    wide, inner, head = MODEL["hidden_size"], MODEL["intermediate_size"], MODEL["head_dim"]
    queries, keys = MODEL["num_attention_heads"] * head, MODEL["num_key_value_heads"] * head
    layer = {
        "input_layernorm": [wide],
        "mlp.down_proj": [wide, inner],
        "mlp.gate_proj": [inner, wide],
        "mlp.up_proj": [inner, wide],
        "post_attention_layernorm": [wide],
        "self_attn.k_norm": [head],
        "self_attn.k_proj": [keys, wide],
        "self_attn.o_proj": [wide, queries],
        "self_attn.q_norm": [head],
        "self_attn.q_proj": [queries, wide],
        "self_attn.v_proj": [keys, wide],
    }
    shapes = [("model.embed_tokens.weight", [MODEL["vocab_size"], wide])]
    for number in range(int(MODEL["num_hidden_layers"])):
        shapes += [(f"model.layers.{number}.{name}.weight", shape) for name, shape in layer.items()]
    return [*shapes, ("model.norm.weight", [wide])]


def write_run(work: Path, shapes: list[tuple[str, list[int]]]) -> None:
    """A run with a corpus of one window: nobody trains."""
    (work / "train.bin").write_bytes(bytes(4 * (SEQ_LEN + 1)))
    manifest = {
        "format": "hansa-corpus",
        "version": 1,
        "seq_len": SEQ_LEN,
        "dtype": "u32",
        "tokenizer": {"vocab_size": MODEL["vocab_size"]},
        "train": {"shards": [{"file": "train.bin", "windows": 1}]},
        "held_out": {"shards": []},
    }
    (work / "manifest.json").write_text(json.dumps(manifest))
    run = {
        "protocol": 1,
        "name": "adopt",
        "replica": "here/r0",
        "corpus": str(work),
        "seq_len": SEQ_LEN,
        "recipe": {"model": MODEL, "inner": INNER, "phase": {"batch": 1, "steps": 1}},
        "tensors": [{"name": name, "shape": shape} for name, shape in shapes],
    }
    (work / "run.json").write_text(json.dumps(run))


class Agent:
    """Asks."""

    def __init__(self, listener: socket.socket, run: Path) -> None:
        self._connection, _ = listener.accept()
        self._lines = self._connection.makefile("rb")
        hello = json.loads(self._lines.readline())
        assert "hello" in hello, hello
        self._send({"welcome": {"protocol": 1, "run": json.loads(run.read_text())}})
        self._number = 0

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def ask(self, do: str, **values: Any) -> float:
        """Seconds until it was done."""
        self._number += 1
        began = time.perf_counter()
        self._send({"id": self._number, "do": do, **values})
        answer = json.loads(self._lines.readline())
        assert "ok" in answer, answer
        return time.perf_counter() - began


@contextlib.contextmanager
def watching(launcher: int) -> Iterator[dict[str, int]]:
    """The most memory of any rank beyond what it had, in MiB."""
    ranks = children(launcher)
    before = [memory(rank) for rank in ranks]
    seen = {"anonymous_mib": 0, "mapped_mib": 0}
    over = threading.Event()

    def look() -> None:
        while True:
            for rank, (anonymous, mapped) in zip(ranks, before, strict=True):
                now = memory(rank)
                seen["anonymous_mib"] = max(seen["anonymous_mib"], now[0] - anonymous)
                seen["mapped_mib"] = max(seen["mapped_mib"], now[1] - mapped)
            if over.wait(LOOK_EVERY_S):
                return

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def children(parent: int) -> list[int]:
    """The ranks of a launcher."""
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(child) for child in text.split()]


def memory(process: int) -> tuple[int, int]:
    """Its own memory, and pages of files that it has mapped, in MiB."""
    status = Path(f"/proc/{process}/status").read_text()
    lines = (line.split() for line in status.splitlines())
    kib = {words[0].rstrip(":"): int(words[1]) for words in lines if words[0].startswith("Rss")}
    return kib["RssAnon"] >> 10, (kib["RssFile"] + kib["RssShmem"]) >> 10


if __name__ == "__main__":
    main()

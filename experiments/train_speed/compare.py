"""Speed of the embedded trainer beside PyTorch fp32, on the CPU, in one run.

    cargo build --release -p hansa-train --example speed
    python3 experiments/train_speed/compare.py [--python PYTHON_WITH_TORCH] [--rounds 8] [--steps 5]

Both sides train the same 4.2 M-parameter Qwen3 from the same weights on the same 2,048 tokens a step,
on as many threads (two by default). They take turns, a few steps each, so that whatever else the
machine does meets both; the first step of every turn is not counted. Prints medians and best steps,
their ratios, and the processor time of a step. On a busy machine compare processor times with
`--threads 1`: threads that wait for each other suffer from other load far more than those that do not.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TOKENS_PER_STEP = 8 * 256
ROOT = Path(__file__).resolve().parents[2]


class Side:
    """One trainer in its own process, idle until told to run some steps."""

    def __init__(self, name, command):
        self.name, self.step_ms, self.cpu_ms, self.losses = name, [], [], []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.read() != "ready":
            sys.exit(f"{name} did not start: {command}")

    def read(self):
        return self.process.stdout.readline().strip()

    def cpu_seconds(self):
        """User and system time of the process so far, from /proc (Linux)."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def turn(self, steps):
        before = self.cpu_seconds()
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        answer = json.loads(self.read())
        self.step_ms.append(answer["step_ms"][1:])
        self.cpu_ms.append((self.cpu_seconds() - before) * 1e3 / steps)
        self.losses.append(answer["loss"])

    def report(self):
        times = [ms for turn in self.step_ms for ms in turn]
        median, best = statistics.median(times), min(times)
        rate = lambda ms: TOKENS_PER_STEP / ms * 1e3
        print(f"{self.name:14} median {median:6.1f} ms {rate(median):7.0f} tok/s"
              f"   best {best:6.1f} ms {rate(best):7.0f} tok/s"
              f"   cpu {min(self.cpu_ms[1:] or self.cpu_ms):6.1f} ms   loss {self.losses[-1]:.5f}")
        return median, best

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with torch and safetensors")
    parser.add_argument("--binary", default=ROOT / "target/release/examples/speed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5, help="steps of a turn, the first not counted")
    parser.add_argument("--bf16", action="store_true", help="also run PyTorch under bf16 autocast")
    args = parser.parse_args()
    if args.steps < 2 or args.rounds < 1:
        parser.error("at least 1 round of 2 steps is needed")

    with tempfile.TemporaryDirectory() as directory:
        weights = str(Path(directory) / "init.safetensors")
        threads = str(args.threads)
        twin = [args.python, str(ROOT / "experiments/train_speed/torch_twin.py"), weights, threads]
        sides = [Side("hansa-train", [str(args.binary), weights, threads]), Side("PyTorch fp32", twin)]
        if args.bf16:
            sides.append(Side("PyTorch bf16", twin + ["bf16"]))
        for _ in range(args.rounds):
            for side in sides:
                side.turn(args.steps)
        (median, best), *others = [side.report() for side in sides]
        for side, (other_median, other_best) in zip(sides[1:], others):
            ratios = [statistics.median(b) / statistics.median(a) for a, b in zip(sides[0].step_ms, side.step_ms)]
            cpu = min(side.cpu_ms[1:] or side.cpu_ms) / min(sides[0].cpu_ms[1:] or sides[0].cpu_ms)
            print(f"hansa-train is {other_median / median:.2f} times {side.name} by medians, "
                  f"{other_best / best:.2f} by best steps, {min(ratios):.2f} to {max(ratios):.2f} by turns, {cpu:.2f} by cpu")
        for side in sides:
            side.stop()


if __name__ == "__main__":
    main()

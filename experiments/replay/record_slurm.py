#!/usr/bin/env python3
"""Records a small case on a real Slurm, for `against_slurm` to replay.

    record_slurm.py PARTITION NODES > case.txt

Submits sixteen sleeping jobs of one to NODES nodes over three minutes to an otherwise empty partition
whose nodes are given to one job at a time, asks `sbatch --test-only` every fifteen seconds, and waits
until all are over: about ten minutes. Lines of the result, in seconds from the first submission:

    job SUBMIT WIDTH LIMIT RUN START
    ask AT WIDTH ANSWER
"""
import os
import random
import re
import subprocess
import sys
import time

JOBS, OVER_S, ASK_EVERY_S, SEED = 16, 180, 15, 7


def slurm(*command):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SBATCH_", "SQUEUE_"))}
    environment["SLURM_TIME_FORMAT"] = "%s"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def main():
    partition, nodes = sys.argv[1], int(sys.argv[2])
    chance = random.Random(SEED)
    plan = []
    for i in range(JOBS):
        width = chance.choice([1, 1, 2, 3, nodes // 2, nodes])
        limit_min = chance.choice([1, 2, 3, 4])
        run_s = max(10, int(limit_min * 60 * chance.choice([0.2, 0.5, 0.9])))
        plan.append((i * OVER_S / JOBS, width, limit_min, run_s))
    asks = [(10 + i * ASK_EVERY_S, 1 + i * 2 % nodes) for i in range(OVER_S // ASK_EVERY_S)]
    begin, ids, answers = time.time(), [], []
    events = sorted([(at, 0, what) for at, *what in plan] + [(at, 1, [width]) for at, width in asks])
    for at, kind, what in events:
        time.sleep(max(0, begin + at - time.time()))
        common = ["-p", partition, "--exclusive", "-N", str(what[0])]
        if kind == 0:
            _, limit_min, run_s = what
            script = f"sleep {run_s}"
            out = slurm("sbatch", "--parsable", *common, "-t", str(limit_min), "-o", "/dev/null", "--wrap", script)
            ids.append((re.search(r"^\d+", out, re.M).group(), what[0], limit_min * 60))
        else:
            out = slurm("sbatch", "--test-only", *common, "-t", "2", "--wrap", "true")
            answer = re.search(r"to start at (\d+)", out)
            answers.append((time.time() - begin, what[0], int(answer.group(1)) - begin if answer else -1))
    for number, width, limit_s in ids:
        while True:
            shown = slurm("scontrol", "show", "job", number)
            field = lambda name: re.search(rf"\b{name}=(\S+)", shown).group(1)
            if field("JobState") not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"):
                break
            time.sleep(2)
        submit, start, end = (int(field(name)) for name in ("SubmitTime", "StartTime", "EndTime"))
        print("job", max(0, round(submit - begin)), width, limit_s, end - start, round(start - begin))
    for at, width, answer in answers:
        print("ask", round(at), width, round(answer))


if __name__ == "__main__":
    main()

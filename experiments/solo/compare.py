"""Which outer step suits rounds with a single contribution?

`compare.py HANSA CORPUS RECIPE OUT [SEEDS]` trains the recipe with one replica for each rule and seed, from
the same weights on the same windows in the same order, and prints the held-out loss of each
generation that was evaluated. RECIPE is a Hansa recipe without an [outer] table.
"""

import json
import pathlib
import subprocess
import sys

RULES = {
    "full": 'lr = 0.7\nmomentum = 0.9\nsolo = "full"',
    "adopt": 'lr = 0.7\nmomentum = 0.9\nsolo = "adopt"',
    "same": 'lr = 0.7\nmomentum = 0.9\nsolo = "same"',
}


def run(hansa, corpus, recipe, out):
    out.mkdir(parents=True)
    (out / "run.toml").write_text(recipe)
    serve = [hansa, "serve", out / "run.toml", "--data", out / "data", "--listen", "127.0.0.1:0", "--json"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as coordinator:
        url = json.loads(coordinator.stdout.readline())["url"]
        token = out / "site.token.toml"
        subprocess.run([hansa, "token", "add", "solo", "--data", out / "data", "--out", token], check=True,
                       capture_output=True)
        train = [hansa, "train", "--coordinator", url, "--token-file", token, "--site", "solo", "--replica",
                 "r0", "--corpus", corpus, "--state", out / "state", "--json"]
        subprocess.run(train, check=True, stdout=subprocess.DEVNULL)
    shown = subprocess.run([hansa, "ledger", "show", out / "data", "--json"], check=True, capture_output=True)
    return [(e["generation"], e["loss"]) for e in json.loads(shown.stdout)["evaluations"]]


def main():
    hansa, corpus, recipe, out = (pathlib.Path(argument).resolve() for argument in sys.argv[1:5])
    seeds = int(sys.argv[5]) if len(sys.argv) > 5 else 1
    base = recipe.read_text()
    for seed in range(seeds):
        for rule, outer in RULES.items():
            text = base.replace("[inner]", f"[inner]\ninit_seed = {seed}") + f"\n[outer]\n{outer}\n"
            losses = run(hansa, corpus, text, out / f"{rule}-{seed}")
            print(json.dumps(dict(rule=rule, seed=seed, losses=losses)), flush=True)


if __name__ == "__main__":
    main()

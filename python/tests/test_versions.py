"""What is refused before a trainer is built, and how."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from played import PACKAGE

from hansa import errors
from hansa.errors import Unfit
from hansa.torchtitan import cpu
from hansa.torchtitan.versions import check


@pytest.mark.parametrize(
    "found",
    [
        {"torchtitan": "0.2.2", "torch": "2.13.0"},
        {"torchtitan": "0.3.0", "torch": "2.9.1+rocm6.3"},
        {"torchtitan": "0.4.0", "torch": "2.16.0"},
    ],
)
def test_other_versions_are_refused_by_name(found: dict[str, str]) -> None:
    with pytest.raises(Unfit, match=found["torchtitan"]):
        check(found)


def test_the_right_ones_are_named() -> None:
    words = check({"torchtitan": "0.3.0", "torch": "2.15.0+cu132"})
    assert words == "torchtitan 0.3.0, torch 2.15.0+cu132"


def python(*words: str, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), **variables}
    return subprocess.Popen(
        [sys.executable, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_where_torch_is_missing_one_line_says_what_is_needed() -> None:
    # Without site-packages.
    without = python("-S", "-m", "hansa.torchtitan")
    _, said = without.communicate()
    assert without.returncode == 78
    assert said.splitlines() == [
        "hansa: torchtitan is not installed here; hansa.torchtitan needs torchtitan 0.3.x with torch 2.14 or later"
    ]


def test_a_trainer_that_is_there_first_waits_for_the_agent(tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    asks = "from hansa.link import run_description; print(run_description()['name'])"
    early = python("-c", asks, HANSA_RUN_FILE=str(run))
    assert early.stderr is not None
    assert "waiting for the agent" in early.stderr.readline()
    (tmp_path / "new").write_text(json.dumps({"protocol": 1, "name": "data"}))
    (tmp_path / "new").rename(run)
    assert early.communicate()[0] == "data\n"
    # An agent that has started this trainer is there: what is missing will not come.
    run.unlink()
    late = python("-c", asks, HANSA_RUN_FILE=str(run), HANSA_TRAINER="1")
    assert "on storage that this node sees" in late.communicate()[1]


def test_no_accelerator_is_told_unless_the_cpu_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.delenv("HANSA_CPU", raising=False)
    with pytest.raises(Unfit, match="sees no accelerator.*HANSA_CPU=1"):
        cpu.install()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert cpu.install() is False


def test_options_that_break_the_recipe_are_refused_by_name() -> None:
    pytest.importorskip("torchtitan")
    from torchtitan.config import ParallelismConfig, TrainingConfig

    from hansa.torchtitan import options

    names = ("beta1", "beta2", "eps", "weight_decay", "peak_lr", "clip_norm")
    inner = dict.fromkeys(names, 0.5)
    run = {"seq_len": 64, "recipe": {"inner": inner}}
    training = {"seq_len": 64, "max_norm": 0.5, "local_batch_size": 3}
    optimizer = options.optimizer(inner)

    def given(optimizer: object = optimizer, pipeline: int = 1, **changes: object) -> None:
        both = TrainingConfig(**(training | changes))
        parallelism = ParallelismConfig(pipeline_parallel_degree=pipeline)
        config = SimpleNamespace(training=both, optimizer=optimizer, parallelism=parallelism)
        options.check(config, run)

    given()
    with pytest.raises(Unfit, match="pipeline"):
        given(pipeline=2)
    for name, value in [("dtype", "bfloat16"), ("seq_len", 32), ("max_norm", 1.0)]:
        with pytest.raises(Unfit, match=f"--training.{name} is {value}"):
            given(**{name: value})
    with pytest.raises(Unfit, match="--optimizer"):
        given(options.optimizer(inner | {"beta2": 0.9}))


@pytest.mark.parametrize(
    ("words", "rank", "said"),
    [([], None, "start it with torchrun"), (["--module=qwen3"], "0", "--module would train without Hansa")],
)
def test_what_would_train_without_hansa_or_not_at_all_is_refused(
    words: list[str], rank: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torchtitan")
    monkeypatch.setenv("HANSA_CPU", "1")
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    refused = python("-m", "hansa.torchtitan", *words)
    _, printed = refused.communicate()
    assert refused.returncode == 78
    assert said in printed


def test_other_ranks_leave_it_to_the_first_to_tell_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(errors.time, "sleep", slept.append)
    for rank, pauses in [("0", 0), ("1", 1)]:
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit) as ended, errors.exit_status():
            raise Unfit("of no use")
        assert ended.value.code == 78
        assert len(slept) == pauses

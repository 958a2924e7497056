"""Several ranks, with real collectives, against an agent that is played by the test."""

import json
import math
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from played import Agent
from test_corpus_and_tensors import SEQ_LEN, write_corpus

VOCAB = 16

#: Every rank has the same weights; gradients are summed. Once it talks to the agent, its default group
#: waits for nothing.
PLAIN_LOOP = """
from datetime import timedelta
import torch
import torch.distributed as dist
import hansa

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Embedding(16, 16)
optimizer = torch.optim.AdamW(model.parameters())

def loss_sum(model, inputs, targets):
    if FAILS:
        raise RuntimeError("this rank has a bad day")
    logits = model(inputs).flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, targets.flatten(), reduction="sum")

session = hansa.Session(model, optimizer, loss_sum)
dist.set_timeout(timedelta(milliseconds=1))
own = dist.new_group(backend="gloo")
for step in session:
    optimizer.zero_grad()
    loss = loss_sum(model, step.inputs, step.targets) / step.tokens
    loss.backward()
    dist.all_reduce(model.weight.grad, group=own)
    optimizer.step()
    step.done(loss)
dist.destroy_process_group()
"""


def plain_loop(folder: Path, fails: str) -> str:
    script = folder / "loop.py"
    script.write_text(PLAIN_LOOP.replace("FAILS", fails))
    return str(script)


def corpus(folder: Path, tokens: list[int]) -> None:
    """The same windows are trained and held out."""
    write_corpus(folder, "u16", [tokens])
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["held_out"] = manifest["train"]
    (folder / "manifest.json").write_text(json.dumps(manifest))


def tiny_run(folder: Path) -> dict[str, Any]:
    corpus(folder, list(range(13)))
    tensors = [{"name": "weight", "shape": [VOCAB, VOCAB]}]
    return {"protocol": 1, "corpus": str(folder), "tensors": tensors, "recipe": {}}


def test_ranks_wait_for_a_question_longer_than_their_collectives_may_take(tmp_path: Path) -> None:
    with Agent(tmp_path, tiny_run(tmp_path)) as agent:
        agent.start(2, plain_loop(tmp_path, "False"))
        for windows in ([0, 1, 2], [1]):
            # The pause is what is tested: far longer than the timeout of the others' group.
            time.sleep(0.5)
            answer = agent.ask("step", windows=windows, lr=0.0)["ok"]
            assert answer["tokens"] == SEQ_LEN * len(windows)
            # Summed over ranks, one of which may have no window.
            assert answer["loss"] == pytest.approx(math.log(VOCAB), rel=0.5)
        missing = agent.ask("load", model=str(tmp_path / "none"))["error"]
        assert missing["kind"] == "failed" and "FileNotFoundError" in missing["why"]
        agent.end()


def test_a_rank_that_fails_among_others_ends_them_all(tmp_path: Path) -> None:
    with Agent(tmp_path, tiny_run(tmp_path)) as agent:
        agent.start(2, plain_loop(tmp_path, "dist.get_rank() == 1"))
        assert agent.failed("evaluate", first=0, end=2) != 0
        assert "bad day" in agent.log()


MODEL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
INNER = {
    "peak_lr": 1e-2,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.1,
    "clip_norm": 1.0,
}


def tensors() -> list[dict[str, Any]]:
    wide, inner, head = 32, 64, 16
    layer = {
        "input_layernorm": [wide],
        "mlp.down_proj": [wide, inner],
        "mlp.gate_proj": [inner, wide],
        "mlp.up_proj": [inner, wide],
        "post_attention_layernorm": [wide],
        "self_attn.k_norm": [head],
        "self_attn.k_proj": [head, wide],
        "self_attn.o_proj": [wide, 2 * head],
        "self_attn.q_norm": [head],
        "self_attn.q_proj": [2 * head, wide],
        "self_attn.v_proj": [head, wide],
    }
    shapes: list[tuple[str, list[int]]] = [("model.embed_tokens.weight", [64, wide])]
    for number in range(2):
        shapes += [(f"model.layers.{number}.{name}.weight", shape) for name, shape in layer.items()]
    shapes.append(("model.norm.weight", [wide]))
    return [{"name": name, "shape": shape} for name, shape in shapes]


def titan_run(folder: Path) -> dict[str, Any]:
    corpus(folder, [n * 7 % 64 for n in range(8 * SEQ_LEN + 1)])
    return {
        "protocol": 1,
        "name": "ranks",
        "replica": "here/r0",
        "corpus": str(folder),
        "seq_len": SEQ_LEN,
        "recipe": {"model": MODEL, "inner": INNER, "phase": {"batch": 1, "steps": 4}},
        "tensors": tensors(),
    }


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path | None]:
    """A file system with room for almost nothing, where this is allowed."""
    at = tmp_path / "small"
    at.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(at)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        print("skipped: no right to mount")
        yield None
        return
    yield at
    subprocess.run(["umount", str(at)], check=True)


def test_two_ranks_of_torchtitan_answer_what_they_cannot_do_and_go_on(
    tmp_path: Path, small: Path | None
) -> None:
    pytest.importorskip("torchtitan")
    with Agent(tmp_path, titan_run(tmp_path)) as agent:
        agent.start(2, "-m", "hansa.torchtitan")
        # No folder, a full device, a full file system.
        missing = agent.ask("export", to=str(tmp_path / "no" / "m"))["error"]
        assert missing["kind"] == "failed" and "FileNotFoundError" in missing["why"]
        assert agent.ask("export", to="/dev/full")["error"]["kind"] == "no_space"
        assert Path("/dev/full").is_char_device()
        if small:
            assert agent.ask("export", to=str(small / "m"))["error"]["kind"] == "no_space"
            assert not list(small.iterdir())
            # Room for directories and small files.
            (small / "c").mkdir()
            error = agent.ask("save", folder=str(small / "c"))["error"]
            assert error["kind"] == "no_space", error
        error = agent.ask("save", folder="/proc/none")["error"]
        assert error["kind"] == "failed" and "/proc/none" in error["why"], error

        assert agent.ask("export", to=str(tmp_path / "m"))["ok"] == {}
        folder = tmp_path / "checkpoint"
        folder.mkdir()
        assert agent.ask("save", folder=str(folder))["ok"] == {}
        first = agent.ask("step", windows=[0, 1, 2], lr=1e-2)["ok"]
        assert agent.ask("restore", folder=str(folder))["ok"] == {}
        assert agent.ask("step", windows=[0, 1, 2], lr=1e-2)["ok"] == first

        # Damaged: answered, and the whole one is taken after it.
        damaged = tmp_path / "damaged"
        damaged.mkdir()
        for file in folder.iterdir():
            whole = file.read_bytes()
            (damaged / file.name).write_bytes(whole[: len(whole) // 2])
        for do in ("restore", "moments"):
            assert agent.ask(do, folder=str(damaged))["error"]["kind"] == "failed"
        assert agent.ask("restore", folder=str(folder))["ok"] == {}
        assert agent.ask("step", windows=[0, 1, 2], lr=1e-2)["ok"] == first

        evaluated = agent.ask("evaluate", first=0, end=3)["ok"]
        assert evaluated["tokens"] == 3 * SEQ_LEN
        assert 0 < evaluated["loss_sum_nats"] < 3 * SEQ_LEN * 8
        agent.end()

"""Files on disk: windows and tensors."""

import json
import os
from pathlib import Path

import pytest
import torch

from hansa.corpus import Corpus
from hansa.errors import NonFinite, Unfit
from hansa.tensors import Reader, check_finite, writing

SEQ_LEN = 4


def write_corpus(directory: Path, dtype: str, shards: list[list[int]]) -> None:
    width = {"u16": 2, "u32": 4}[dtype]
    records = []
    for at, tokens in enumerate(shards):
        data = b"".join(token.to_bytes(width, "little") for token in tokens)
        (directory / f"train-{at}.bin").write_bytes(data)
        windows = (len(tokens) - 1) // SEQ_LEN
        records.append({"file": f"train-{at}.bin", "windows": windows})
    manifest = {
        "format": "hansa-corpus",
        "version": 1,
        "seq_len": SEQ_LEN,
        "dtype": dtype,
        "tokenizer": {"vocab_size": 70_000},
        "train": {"shards": records},
        "held_out": {"shards": []},
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(("dtype", "large"), [("u16", 65_535), ("u32", 69_999)])
def test_windows_overlap_by_one_token_and_large_tokens_stay_positive(
    tmp_path: Path, dtype: str, large: int
) -> None:
    write_corpus(tmp_path, dtype, [[0, 1, 2, 3, large, 5, 6, 7, 8], [9, 10, 11, 12, 13]])
    corpus = Corpus(tmp_path)
    got = corpus.windows([2, 0, 1])
    assert got.dtype == torch.int64
    assert got.tolist() == [[9, 10, 11, 12, 13], [0, 1, 2, 3, large], [large, 5, 6, 7, 8]]
    assert corpus.windows([]).shape == (0, SEQ_LEN + 1)
    with pytest.raises(IndexError, match="no window 3"):
        corpus.windows([3])


def test_a_corpus_of_many_shards_keeps_few_of_them_open(tmp_path: Path) -> None:
    write_corpus(tmp_path, "u16", [[5 * n + k for k in range(SEQ_LEN + 1)] for n in range(100)])
    before = len(os.listdir("/proc/self/fd"))
    corpus = Corpus(tmp_path)
    everything = corpus.windows(range(100))
    assert len(os.listdir("/proc/self/fd")) <= before + 16
    assert everything[:, 0].tolist() == list(range(0, 500, 5))
    # One that was closed is opened again.
    assert corpus.windows([0]).equal(everything[:1])
    corpus.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_told_by_name(bad: float) -> None:
    values = torch.zeros(3, 5)
    check_finite("model.norm.weight", values)
    check_finite("model.norm.weight", values.to(torch.bfloat16))
    values[1, 2] = bad
    with pytest.raises(NonFinite, match="weight are not finite"):
        check_finite("model.norm.weight", values)


def test_views_of_a_file_stay_valid_when_its_pages_are_let_go(tmp_path: Path) -> None:
    path = tmp_path / "m"
    values = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    with writing(path, [("a", [2, 3])]) as writer:
        writer.write("a", values)
    reader = Reader(path)
    view = reader.tensor("a")
    reader.release()
    assert view.equal(values)
    assert reader.tensor("a").equal(values)


def test_a_shard_of_another_size_and_a_missing_corpus_are_told(tmp_path: Path) -> None:
    with pytest.raises(Unfit, match="cannot open the corpus"):
        Corpus(tmp_path)
    write_corpus(tmp_path, "u16", [[0, 1, 2, 3, 4]])
    (tmp_path / "train-0.bin").write_bytes(b"xx")
    with pytest.raises(Unfit, match="not what its manifest says"):
        Corpus(tmp_path)


def test_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    a, b = torch.randn(3, 5), torch.randn(7, dtype=torch.bfloat16)
    with writing(path, [("a", [3, 5]), ("b", [7])]) as writer:
        writer.write("a", a)
        writer.write("b", b)
    file = Reader(path)
    assert file.names() == ["a", "b"]
    assert torch.equal(file.tensor("a"), a)
    assert torch.equal(file.tensor("b"), b.float())


def test_the_official_library_reads_what_is_written(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "m.safetensors"
    value = torch.randn(2, 3)
    with writing(path, [("w", [2, 3])]) as writer:
        writer.write("w", value)
    assert torch.equal(safetensors.load_file(path)["w"], value)
    safetensors.save_file({"w": value.bfloat16()}, path)
    assert torch.equal(Reader(path).tensor("w"), value.bfloat16())


def test_half_a_file_does_not_stay(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with (
        pytest.raises(ValueError, match="lacks tensors"),
        writing(path, [("a", [1]), ("b", [1])]) as writer,
    ):
        writer.write("a", torch.zeros(1))
    assert not path.exists()
    with pytest.raises(ValueError, match="not the next"), writing(path, [("a", [1])]) as writer:
        writer.write("b", torch.zeros(1))
    assert not path.exists()

"""torchtitan's configurations of a run: everything that the recipe says is taken from there."""

from __future__ import annotations

from typing import Any

from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import BaseLoss, ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer
from torchtitan.config import TrainingConfig
from torchtitan.distributed.activation_checkpoint import SelectiveAC
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.protocols.model_spec import ModelSpec

from hansa.errors import Unfit
from hansa.link import run_description
from hansa.torchtitan import cpu, options, versions
from hansa.torchtitan.parts import NoTokenizer, WindowLoader
from hansa.torchtitan.trainer import HansaTrainer, StepMetrics

#: Chunks of the loss along the sequence, to bound the memory of the logits.
_LOSS_CHUNKS = 8


def qwen3() -> HansaTrainer.Config:
    """The run's model, whatever its sizes, with the run's inner loop."""
    versions.check()
    run = run_description()
    recipe = run["recipe"]
    spec = _spec(recipe["model"])
    without_accelerator = cpu.install()
    if without_accelerator:
        spec = cpu.without_accelerator(spec)
    inner, phase = recipe["inner"], recipe["phase"]
    training = TrainingConfig(
        local_batch_size=phase["batch"],
        seq_len=run["seq_len"],
        max_norm=inner["clip_norm"],
        # The run says when it is over.
        steps=2**62,
        disable_cuda_graphs=True,
    )
    if without_accelerator:
        training.mixed_precision_param = "float32"
    return HansaTrainer.Config(
        model_spec=spec,
        hf_assets_path="",
        loss=_loss(spec, run["seq_len"]),
        metrics=StepMetrics.Config(log_freq=10),
        tokenizer=NoTokenizer.Config(),
        dataloader=WindowLoader.Config(),
        optimizer=options.optimizer(inner),
        # The session sets each step's rate; a scheduler is there because torchtitan wants one.
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=0),
        training=training,
        # The session says when a checkpoint is written, and where.
        checkpoint=CheckpointManager.Config(enable=False),
        activation_checkpoint=None if without_accelerator else SelectiveAC.Config(),
    )


def _loss(spec: ModelSpec, seq_len: int) -> BaseLoss.Config:
    plain = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec))
    if seq_len % _LOSS_CHUNKS:
        return plain
    return ChunkedLossWrapper.Config(loss_fn=plain, num_chunks=_LOSS_CHUNKS)


def _spec(model: dict[str, Any]) -> ModelSpec:
    """torchtitan's Qwen3 in the recipe's sizes, from the parts that its own flavors are made of."""
    try:
        from torchtitan.models import qwen3 as titan
        from torchtitan.models.common import CosSinRoPE, Embedding, Linear
        from torchtitan.models.qwen3.model import Qwen3Model

        build_layers, norm = titan._build_qwen3_layers, titan._qwen3_norm
    except (ImportError, AttributeError) as error:
        raise Unfit(
            f"this torchtitan has another Qwen3 ({error}); needed: {versions.SUPPORTED}"
        ) from error
    if model["rms_norm_eps"] != titan._EPS:
        raise Unfit(f"torchtitan's Qwen3 has rms_norm_eps = {titan._EPS}, the recipe says another")
    dim, vocab, tied = model["hidden_size"], model["vocab_size"], model["tie_word_embeddings"]
    rope = CosSinRoPE.Config(
        dim=model["head_dim"],
        max_seq_len=model["max_position_embeddings"],
        theta=model["rope_theta"],
    )
    layers = build_layers(
        n_layers=model["num_hidden_layers"],
        dim=dim,
        n_heads=model["num_attention_heads"],
        n_kv_heads=model["num_key_value_heads"],
        head_dim=model["head_dim"],
        hidden_dim=model["intermediate_size"],
        attn_backend="flex",
        rope=rope,
    )
    embedding = titan._EMBEDDING_SKIP_INIT if tied else titan._EMBEDDING_INIT
    config = Qwen3Model.Config(
        vocab_size=vocab,
        dim=dim,
        norm=norm(dim),
        enable_weight_tying=tied,
        tok_embeddings=Embedding.Config(num_embeddings=vocab, embedding_dim=dim, param_init=embedding),
        lm_head=Linear.Config(in_features=dim, out_features=vocab, param_init=titan._LINEAR_INIT),
        layers=layers,
    )
    spec = titan.model_registry("debugmodel")
    spec.flavor = f"{dim}x{model['num_hidden_layers']}"
    spec.model = config
    return spec

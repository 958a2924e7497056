//! The whole model: PyTorch's loss, gradients and three steps; any number of threads; ragged batches.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Steps, assert_close, assert_relative, golden, refs};
use hansa_train::{ModelConfig, TrainError, Trainer, Weights, layout};

/// Each tensor's name and its part of a trainer's gradient.
fn gradients(trainer: &Trainer) -> Vec<(String, Vec<f32>)> {
    let mut flat = trainer.grads();
    let mut take = |len| {
        let (values, rest) = flat.split_at(len);
        flat = rest;
        values.to_vec()
    };
    layout(trainer.config())
        .into_iter()
        .map(|tensor| (tensor.name, take(tensor.shape.iter().product())))
        .collect()
}

#[test]
fn loss_and_every_gradient_equal_pytorch() {
    let steps = Steps::load();
    let mut trainer = steps.trainer(3, 2);
    let (loss, tokens) = trainer.loss_and_gradient(&refs(&steps.windows(0))).unwrap();
    assert_eq!(tokens, 60);
    assert_relative("loss", loss, steps.number("loss"), 1e-6);
    let expected = golden("grads.safetensors");
    for (name, actual) in gradients(&trainer) {
        assert_close(&name, &actual, &expected[&format!("grad.{name}")], 1e-5);
    }
}

#[test]
fn an_untied_head_has_its_own_gradient() {
    let steps = Steps::load();
    let config = ModelConfig {
        tie_word_embeddings: false,
        ..steps.config.clone()
    };
    let expected = golden("grads.safetensors");
    let tied = golden("model.safetensors");
    let values = layout(&config).into_iter().flat_map(|tensor| {
        let head = (tensor.name == "lm_head.weight").then(|| expected["lm_head.weight"].clone());
        head.unwrap_or_else(|| tied[&tensor.name].clone())
    });
    let weights = Weights::from_flat(&config, values.collect()).unwrap();
    let mut trainer = common::trainer(&config, steps.seq_len, 3, 2);
    trainer.set_weights(&weights).unwrap();

    let (loss, _) = trainer.loss_and_gradient(&refs(&steps.windows(0))).unwrap();
    assert_relative("untied loss", loss, steps.number("untied_loss"), 1e-6);
    for (name, actual) in gradients(&trainer) {
        if let Some(expected) = expected.get(&format!("untied.grad.{name}")) {
            assert_close(&name, &actual, expected, 1e-5);
        }
    }
}

#[test]
fn three_adamw_steps_equal_pytorch() {
    let steps = Steps::load();
    let mut trainer = steps.trainer(3, 2);
    let expected = steps
        .numbers("losses")
        .into_iter()
        .zip(steps.numbers("grad_norms"));
    for (step, (loss, grad_norm)) in expected.enumerate() {
        let stats = trainer
            .train_step(&refs(&steps.windows(step)), steps.number("lr"))
            .unwrap();
        assert_relative("loss", stats.loss, loss, 1e-5);
        assert_relative("grad_norm", stats.grad_norm, grad_norm, 1e-4);
    }
}

/// Trains a few steps and returns everything that could differ.
fn train(threads: usize) -> (Vec<u64>, Vec<u32>) {
    let config = common::wide_config();
    let mut trainer = common::trainer(&config, 96, 3, threads);
    trainer
        .set_weights(&Weights::init(&config, 11).unwrap())
        .unwrap();
    let mut numbers = Vec::new();
    for step in 0..3 {
        let windows = common::random_windows(5, 96, config.vocab_size, step + 1);
        let stats = trainer.train_step(&refs(&windows), 1e-2).unwrap();
        let eval = trainer.evaluate(&refs(&windows)).unwrap();
        numbers.extend([stats.loss, stats.grad_norm, eval.loss_sum_nats].map(f64::to_bits));
    }
    (
        numbers,
        trainer
            .weights()
            .as_slice()
            .iter()
            .map(|w| w.to_bits())
            .collect(),
    )
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let alone = train(1);
    for threads in [2, 3, 5] {
        assert_eq!(train(threads), alone, "{threads} threads");
    }
}

#[test]
fn micro_batches_and_ragged_batches_change_only_rounding() {
    let steps = Steps::load();
    let windows = steps.windows(0);
    let mut whole = steps.trainer(3, 2);
    let (loss, _) = whole.loss_and_gradient(&refs(&windows)).unwrap();
    for max_batch in [1, 2, 7] {
        let mut split = steps.trainer(max_batch, 2);
        let (split_loss, _) = split.loss_and_gradient(&refs(&windows)).unwrap();
        assert_relative("loss", split_loss, loss, 1e-6);
        assert_close("gradient", split.grads(), whole.grads(), 1e-5);
    }

    // One window after three: nothing of the larger batch may leak into it.
    let (after, tokens) = whole.loss_and_gradient(&refs(&windows[..1])).unwrap();
    let mut fresh = steps.trainer(3, 2);
    let (alone, _) = fresh.loss_and_gradient(&refs(&windows[..1])).unwrap();
    assert_eq!((after, tokens), (alone, 20));
    assert_eq!(whole.grads(), fresh.grads());
}

#[test]
fn evaluation_is_the_training_loss_and_changes_nothing() {
    let steps = Steps::load();
    let mut trainer = steps.trainer(2, 2);
    let windows = steps.windows(0);
    let eval = trainer.evaluate(&refs(&windows)).unwrap();
    assert_eq!(eval.tokens, 60);
    assert_relative(
        "eval",
        eval.loss_sum_nats / 60.0,
        steps.number("loss"),
        1e-6,
    );
    assert_eq!(trainer.adam_step(), 0);
    assert_eq!(trainer.weights(), steps.trainer(2, 2).weights());
}

#[test]
fn a_repetitive_text_is_learned() {
    let config = Steps::load().config;
    let mut trainer = common::trainer(&config, 16, 4, 2);
    trainer
        .set_weights(&Weights::init(&config, 3).unwrap())
        .unwrap();
    let text: Vec<u32> = "the quick brown fox "
        .bytes()
        .cycle()
        .take(17 * 4)
        .map(|b| u32::from(b) % 61)
        .collect();
    let windows: Vec<&[u32]> = text.chunks(17).collect();
    let first = trainer.train_step(&windows, 3e-3).unwrap().loss;
    let losses: Vec<f64> = (0..120)
        .map(|_| trainer.train_step(&windows, 3e-3).unwrap().loss)
        .collect();
    assert!(
        (first - 61f64.ln()).abs() < 0.2,
        "an untrained model knows nothing: {first}"
    );
    assert!(
        losses[119] < 0.2,
        "after 120 steps the loss is {}",
        losses[119]
    );
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let steps = Steps::load();
    let mut trainer = steps.trainer(2, 1);
    let before = trainer.weights().clone();
    let mut check = |windows: &[&[u32]], expected: &str| {
        let error = trainer.train_step(windows, 1e-3).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!((trainer.weights(), trainer.adam_step()), (&before, 0));
    };
    check(&[], "no windows");
    check(&[&[1; 20]], "window 0 has 20 tokens, but seq_len + 1 = 21");
    let mut window = [1; 21];
    window[4] = 61;
    check(
        &[&[1; 21], &window],
        "window 1 holds token id 61 at offset 4, but vocab_size is 61",
    );
}

#[test]
fn a_poisoned_weight_is_named_and_nothing_is_applied() {
    let steps = Steps::load();
    let mut trainer = steps.trainer(2, 1);
    let mut weights = trainer.weights().clone();
    let last = weights.as_slice().len() - 1;
    weights.as_mut_slice()[last] = f32::NAN;
    trainer.set_weights(&weights).unwrap();
    let error = trainer
        .train_step(&refs(&steps.windows(0)), 1e-3)
        .unwrap_err();
    let named = matches!(&error, TrainError::NonFinite { what: "weight", tensor } if tensor == "model.norm.weight");
    assert!(named, "{error}");
    assert_eq!(trainer.adam_step(), 0);
    assert_eq!(
        trainer.weights().as_slice()[..last],
        weights.as_slice()[..last]
    );
}

#[test]
fn a_gradient_that_overflows_is_not_applied() {
    let steps = Steps::load();
    let mut trainer = steps.trainer(2, 1);
    let mut weights = trainer.weights().clone();
    // A huge row of the tied head: logits and loss stay finite, the gradient's norm does not.
    weights.as_mut_slice()[..24].fill(1e30);
    trainer.set_weights(&weights).unwrap();
    let mut windows = steps.windows(0);
    windows[0][0] = 0;
    let error = trainer.train_step(&refs(&windows), 1e-3).unwrap_err();
    let TrainError::NonFinite { what, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*what, "gradient");
    assert_eq!((trainer.weights(), trainer.adam_step()), (&weights, 0));
}

#[test]
fn settings_that_cannot_work_are_refused_by_name() {
    let good = Steps::load().config;
    let check = |config: ModelConfig, expected: &str| {
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(
        ModelConfig {
            head_dim: 7,
            ..good.clone()
        },
        "head_dim is 7",
    );
    check(
        ModelConfig {
            num_key_value_heads: 3,
            ..good.clone()
        },
        "num_key_value_heads is 3",
    );
    check(
        ModelConfig {
            rope_theta: f64::NAN,
            ..good.clone()
        },
        "rope_theta is NaN",
    );
    check(
        ModelConfig {
            vocab_size: 0,
            ..good
        },
        "vocab_size is 0",
    );
}

#[test]
fn a_published_config_has_the_published_number_of_parameters() {
    // Qwen3-0.6B: 310 tensors, 596,049,920 parameters.
    let config: ModelConfig = serde_json::from_value(serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151_936, "hidden_size": 1024,
        "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1_000_000, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": true, "max_position_embeddings": 40_960, "initializer_range": 0.02
    }))
    .unwrap();
    assert_eq!(
        (layout(&config).len(), config.parameter_count()),
        (310, 596_049_920)
    );
}

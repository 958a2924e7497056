//! What agent and trainer say to each other: one JSON object a line, each at most [`LINE_BYTES_MAX`].
//!
//! The trainer says hello, the agent welcomes it; from then on the agent asks and the trainer answers,
//! one question at a time. `docs/agent-protocol.md` is the reference for people who write a trainer.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version that this agent speaks.
pub const PROTOCOL_VERSION: u32 = 1;
/// The longest line, its end included.
pub(crate) const LINE_BYTES_MAX: u64 = 16 << 20;

/// A tensor's name and shape, as in the run's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Hugging Face's name.
    pub name: String,
    /// Elements along each dimension.
    pub shape: Vec<usize>,
}

/// The trainer's first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The version that it speaks.
    pub protocol: u32,
    /// `W`: accelerators that share a step.
    pub ranks: u32,
    /// What it is, for the log: `torchtitan 0.3.0, torch 2.15.0`.
    pub software: String,
    /// Its tensors, in any order.
    pub tensors: Vec<TensorEntry>,
}

/// The first line.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FirstLine {
    /// It can train.
    Hello(Hello),
    /// It can never train here, and why.
    Unfit(String),
}

/// The agent's answer to it.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Greeting<'a> {
    Welcome { protocol: u32, run: &'a Value },
    Refused { why: &'a str },
}

/// A question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Ask {
    /// Replace the weights by a safetensors file's, in `f32` or `bf16`.
    Load {
        /// The file.
        model: String,
    },
    /// One inner step.
    Step {
        /// Train windows, by number in the corpus; at least one.
        windows: Vec<u64>,
        /// The learning rate.
        lr: f64,
    },
    /// The loss of held-out windows.
    Evaluate {
        /// The first.
        first: u64,
        /// The one after the last.
        end: u64,
    },
    /// Write all weights as a safetensors file in `f32`, in the run's order of tensors.
    Export {
        /// The file.
        to: String,
    },
    /// Write weights and optimiser into a folder that is there and empty.
    Save {
        /// The folder.
        folder: String,
    },
    /// Take weights and optimiser from such a folder.
    Restore {
        /// The folder.
        folder: String,
    },
    /// Take the optimiser, but not the weights; without a folder it starts afresh.
    Moments {
        /// The folder.
        folder: Option<String>,
    },
    /// Nothing more will be asked; end well.
    End {
        /// For the log.
        why: String,
    },
}

impl Ask {
    /// Its name on the wire, for messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Load { .. } => "load",
            Self::Step { .. } => "step",
            Self::Evaluate { .. } => "evaluate",
            Self::Export { .. } => "export",
            Self::Save { .. } => "save",
            Self::Restore { .. } => "restore",
            Self::Moments { .. } => "moments",
            Self::End { .. } => "end",
        }
    }
}

/// A question with its number.
#[derive(Serialize)]
pub(crate) struct Numbered<'a> {
    pub id: u64,
    #[serde(flatten)]
    pub ask: &'a Ask,
}

/// What a trainer says about a question.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Answer {
    pub id: u64,
    #[serde(flatten)]
    pub said: Said,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said {
    /// It is done.
    Ok(Value),
    /// It goes on; any number of these.
    Progress(Value),
    /// It cannot be done, and nothing was changed.
    Error(Complaint),
}

/// Why something cannot be done.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Complaint {
    #[serde(default)]
    pub kind: ComplaintKind,
    pub why: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ComplaintKind {
    /// A NaN or an infinity.
    NonFinite,
    /// The file system that was written to is full.
    NoSpace,
    /// Anything else.
    #[default]
    #[serde(other)]
    Failed,
}

/// The answer to [`Ask::Step`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(crate) struct StepAnswer {
    /// Nats per token.
    pub loss: f64,
    pub grad_norm: f64,
    pub tokens: u64,
}

/// The answer to [`Ask::Evaluate`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(crate) struct EvaluateAnswer {
    pub loss_sum_nats: f64,
    pub tokens: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn questions_look_as_documented() {
        let numbered = |ask: &Ask| serde_json::to_string(&Numbered { id: 7, ask }).unwrap();
        let step = Ask::Step {
            windows: vec![3, 9],
            lr: 1e-3,
        };
        assert_eq!(
            numbered(&step),
            r#"{"id":7,"do":"step","windows":[3,9],"lr":0.001}"#
        );
        let moments = Ask::Moments { folder: None };
        assert_eq!(
            numbered(&moments),
            r#"{"id":7,"do":"moments","folder":null}"#
        );
    }

    #[test]
    fn answers_are_told_apart_and_unknown_complaints_are_failures() {
        let read = |text: &str| serde_json::from_str::<Answer>(text).unwrap();
        assert!(matches!(read(r#"{"id":1,"ok":{}}"#).said, Said::Ok(_)));
        let progress = read(r#"{"id":1,"progress":{"done":1}}"#);
        assert!(matches!(progress.said, Said::Progress(_)));
        let kind = |text: &str| match read(text).said {
            Said::Error(complaint) => complaint.kind,
            other => panic!("{other:?}"),
        };
        let error = r#"{"id":1,"error":{"kind":"non_finite","why":"w"}}"#;
        assert_eq!(kind(error), ComplaintKind::NonFinite);
        let error = r#"{"id":1,"error":{"kind":"from the future","why":"w"}}"#;
        assert_eq!(kind(error), ComplaintKind::Failed);
    }
}

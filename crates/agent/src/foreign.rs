//! The trainer at the other end of the socket, behind the session's interface.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hansa_base::Tokens;
use hansa_outer::{Dtype, Header, Layout, Metadata};
use hansa_session::{EvaluationReport, StepReport, Trainer, TrainerError};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::checkpoint::{self, Envelope};
use crate::error::LinkError;
use crate::exchange::{ExportError, Exported, Places};
use crate::link::Link;
use crate::protocol::{Ask, Complaint, ComplaintKind, EvaluateAnswer, StepAnswer};

/// A trainer that has been welcomed.
pub(crate) struct Foreign {
    link: Link,
    layout: Layout,
    ranks: u32,
    places: Places,
    /// Weights that are being read.
    exported: Option<Exported>,
    /// The checkpoint's folder whose content the trainer has, untouched.
    holds: Option<PathBuf>,
    /// Checkpoints and contributions that any trainer of this agent has made, each beyond the one before.
    lasting: Arc<AtomicU64>,
    /// Whether a step was done since the last of these.
    beyond: bool,
}

/// A complaint in the trainer's words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Complained(String);

impl Foreign {
    pub fn new(
        link: Link,
        layout: Layout,
        ranks: u32,
        places: Places,
        lasting: Arc<AtomicU64>,
    ) -> Self {
        Self {
            link,
            layout,
            ranks,
            places,
            exported: None,
            holds: None,
            lasting,
            beyond: false,
        }
    }

    /// What was trained is kept somewhere.
    fn lasts(&mut self) {
        if std::mem::take(&mut self.beyond) {
            self.lasting.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn ask(&mut self, ask: &Ask) -> Result<Result<Value, Complaint>, TrainerError> {
        self.link.ask(ask).map_err(lost)
    }

    /// Asks for what must succeed.
    fn must(&mut self, ask: &Ask) -> Result<Value, TrainerError> {
        self.ask(ask)?.map_err(refused)
    }

    fn must_answer<T: DeserializeOwned>(&mut self, ask: &Ask) -> Result<T, TrainerError> {
        let answer = self.must(ask)?;
        serde_json::from_value(answer).map_err(|error| {
            let name = ask.name();
            lost(LinkError::Nonsense(format!(
                "its answer to {name}: {error}"
            )))
        })
    }

    /// Has the trainer write its weights where there is room for them.
    fn export(&mut self) -> Result<Exported, TrainerError> {
        let head = Header::build(&self.layout, Dtype::F32, Metadata::new());
        let bytes = head.map_err(TrainerError::failed)?.0.file_bytes();
        let mut last = String::new();
        for place in self.places.for_bytes(bytes) {
            let file = match place.file() {
                Ok(file) => file,
                Err(error) => {
                    last = error.to_string();
                    tracing::warn!(why = last, "the exported weights go elsewhere");
                    continue;
                }
            };
            let to = text_of(file.path())?;
            match self.ask(&Ask::Export { to })? {
                Ok(_) => return Exported::open(file, &self.layout).map_err(unusable),
                Err(complaint) if complaint.kind == ComplaintKind::NonFinite => {
                    return Err(refused(complaint));
                }
                Err(complaint) => {
                    last = complaint.why;
                    match complaint.kind {
                        ComplaintKind::NoSpace => {
                            tracing::warn!(why = last, "no room for the exported weights");
                        }
                        _ => tracing::warn!(why = last, "the exported weights go elsewhere"),
                    }
                }
            }
        }
        Err(TrainerError::failed(Complained(format!(
            "the weights of {bytes} bytes could be exported nowhere ({last}); make room, or give --exchange \
             a folder that has it"
        ))))
    }
}

fn lost(error: LinkError) -> TrainerError {
    TrainerError::Lost(error.to_string())
}

fn refused(complaint: Complaint) -> TrainerError {
    match complaint.kind {
        ComplaintKind::NonFinite => TrainerError::NonFinite(complaint.why),
        _ => TrainerError::failed(Complained(complaint.why)),
    }
}

fn unusable(error: ExportError) -> TrainerError {
    TrainerError::failed(error)
}

/// Paths travel as text.
fn text_of(path: &Path) -> Result<String, TrainerError> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        let shown = path.display();
        TrainerError::failed(Complained(format!(
            "{shown} is not UTF-8, and the trainer is told paths as text: rename it"
        )))
    })
}

fn at_path(path: &Path) -> impl FnOnce(std::io::Error) -> TrainerError {
    let shown = path.display().to_string();
    move |error| TrainerError::failed(Complained(format!("{shown}: {error}")))
}

impl Trainer for Foreign {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn load_weights(&mut self, model: &Path) -> Result<(), TrainerError> {
        self.holds = None;
        let model = text_of(model)?;
        self.must(&Ask::Load { model }).map(drop)
    }

    fn train_step(&mut self, windows: &[u64], lr: f64) -> Result<StepReport, TrainerError> {
        self.holds = None;
        let windows = windows.to_vec();
        let answer: StepAnswer = self.must_answer(&Ask::Step { windows, lr })?;
        if !answer.loss.is_finite() {
            let loss = answer.loss;
            return Err(TrainerError::NonFinite(format!("the loss is {loss}")));
        }
        self.beyond = true;
        Ok(StepReport {
            loss: answer.loss,
            grad_norm: answer.grad_norm,
            tokens: Tokens(answer.tokens),
        })
    }

    fn evaluate(&mut self, held_out: Range<u64>) -> Result<EvaluationReport, TrainerError> {
        let (first, end) = (held_out.start, held_out.end);
        let answer: EvaluateAnswer = self.must_answer(&Ask::Evaluate { first, end })?;
        if !answer.loss_sum_nats.is_finite() {
            let windows = format!("held-out windows {first} to {end}");
            return Err(TrainerError::NonFinite(format!("the loss of {windows}")));
        }
        Ok(EvaluationReport {
            loss_sum_nats: answer.loss_sum_nats,
            tokens: Tokens(answer.tokens),
        })
    }

    fn read_weights(&mut self, first: u64, values: &mut [f32]) -> Result<(), TrainerError> {
        let mut exported = match self.exported.take().filter(|_| first > 0) {
            Some(exported) => exported,
            None => self.export()?,
        };
        exported.read(first, values).map_err(unusable)?;
        if first + (values.len() as u64) < self.layout.elements() {
            self.exported = Some(exported);
        } else {
            self.lasts();
        }
        Ok(())
    }

    fn save_checkpoint(&mut self, path: &Path, meta: &Value) -> Result<(), TrainerError> {
        let made = checkpoint::new_folder(path).map_err(at_path(path))?;
        let folder = text_of(&made)?;
        self.must(&Ask::Save { folder })?;
        checkpoint::name(path, &made, meta).map_err(at_path(path))?;
        self.holds = Some(made);
        self.lasts();
        Ok(())
    }

    fn load_checkpoint(&mut self, path: &Path) -> Result<Value, TrainerError> {
        let (envelope, folder) = Envelope::read(path).map_err(at_path(path))?;
        // A start looks at the checkpoint before the machine decides to go on from it.
        if self.holds.as_ref() != Some(&folder) {
            let text = text_of(&folder)?;
            self.must(&Ask::Restore { folder: text })?;
            self.holds = Some(folder);
        }
        Ok(envelope.meta)
    }

    fn restore_moments(&mut self, checkpoint: Option<&Path>) -> Result<(), TrainerError> {
        self.holds = None;
        let folder = match checkpoint {
            Some(path) => {
                let (_, folder) = Envelope::read(path).map_err(at_path(path))?;
                Some(text_of(&folder)?)
            }
            None => None,
        };
        self.must(&Ask::Moments { folder }).map(drop)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let why = "the session is over".to_owned();
        // It may be gone already.
        let _ = self.link.ask(&Ask::End { why });
    }
}

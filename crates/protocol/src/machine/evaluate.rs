//! Held-out evaluation: the coordinator has no accelerator, so it asks a replica that has the
//! generation loaded, and another one if that is lost.

use super::{Answer, Machine};
use crate::{Evaluated, Event, Refusal, Reply};
use hansa_base::{Generation, MonoMs, ReplicaKey};

impl Machine {
    /// Asks a replica that holds the current generation, if that is due and nobody else was asked.
    pub(super) fn ask_to_evaluate(
        &mut self,
        now: MonoMs,
        key: ReplicaKey,
    ) -> Result<Option<Generation>, Refusal> {
        let Some(due) = self.state.evaluations.due else {
            return Ok(None);
        };
        if due.generation != self.state.current.generation {
            return Ok(None);
        }
        match due.asked {
            Some(asked) if asked == key => Ok(Some(due.generation)),
            Some(_) => Ok(None),
            None => {
                let generation = due.generation;
                self.emit(Event::EvaluationAsked { generation, key })?;
                let budget = self.spec.timing.evaluation_budget;
                self.clocks.evaluation = Some(now.after(budget));
                Ok(Some(generation))
            }
        }
    }

    pub(super) fn evaluated(&mut self, now: MonoMs, evaluated: &Evaluated) -> Answer {
        let key = self.authenticate(now, &evaluated.caller)?;
        let generation = evaluated.generation;
        let due = self
            .state
            .evaluations
            .due
            .filter(|due| due.generation == generation);
        let fit = evaluated.loss_sum_nats.is_finite() && evaluated.tokens.0 > 0;
        // A result that comes twice, or after another was asked and answered, is old news.
        if due.is_some() && fit {
            let (loss_sum_nats, tokens) = (evaluated.loss_sum_nats, evaluated.tokens);
            self.emit(Event::Evaluated {
                generation,
                key,
                loss_sum_nats,
                tokens,
            })?;
            self.clocks.evaluation = None;
            self.end_if_ending()?;
        }
        Ok(Reply::Done)
    }

    pub(super) fn evaluator_left(&mut self, key: ReplicaKey) -> Result<(), Refusal> {
        match self.state.evaluations.due {
            Some(due) if due.asked == Some(key) => self.emit(Event::EvaluationLost {
                generation: due.generation,
            }),
            _ => Ok(()),
        }
    }

    /// Takes an evaluation from whom was asked; at the run's end, gives it up when nobody does it.
    pub(super) fn expire_evaluation(&mut self, now: MonoMs) -> Result<(), Refusal> {
        if self.clocks.evaluation.is_none_or(|end| end > now) {
            return Ok(());
        }
        self.clocks.evaluation = None;
        let asked = self.state.evaluations.due.filter(|due| due.asked.is_some());
        if let Some(due) = asked {
            self.emit(Event::EvaluationLost {
                generation: due.generation,
            })?;
            self.clocks.evaluation = Some(now.after(self.spec.timing.evaluation_budget));
            return Ok(());
        }
        self.end_if_ending()
    }

    fn end_if_ending(&mut self) -> Result<(), Refusal> {
        if self.state.ending.is_some() && !self.state.ended {
            self.emit(Event::Ended)?;
        }
        Ok(())
    }
}

//! What happens to whole epochs: their turn, and windows that are taken out of all of them.

use crate::apply::{Applied, in_order, missing};
use crate::{Attempts, Ledger, Ownership, RunSpec, Span, State};
use hansa_base::{Epoch, Windows};

impl State {
    pub(crate) fn epoch_started(&mut self, spec: &RunSpec, epoch: Epoch) -> Applied {
        in_order(epoch == self.epoch.next(), "an epoch is left out")?;
        let counts = self.ledger.counts();
        let open = counts.free + counts.leased + counts.staged;
        in_order(open == Windows(0), "an epoch ends with open positions")?;
        self.committed_before += counts.committed;
        self.epoch = epoch;
        self.ledger = Ledger::new(spec.digest.windows);
        self.attempts = Attempts::new();
        self.leases.clear();
        self.replicas
            .iter_mut()
            .for_each(|replica| (replica.lease, replica.lost) = (None, None));
        let out: Vec<u64> = self.quarantine.keys().copied().collect();
        self.change_windows(spec, &out, Ownership::Free, Ownership::Quarantined)
    }

    pub(crate) fn quarantined(&mut self, spec: &RunSpec, spans: &[Span]) -> Applied {
        let space = spec.space(self.epoch);
        for span in spans {
            self.ledger
                .change(*span, Ownership::Free, Ownership::Quarantined)?;
            for run in space.runs(*span) {
                let windows = run.first..run.first + run.count;
                self.quarantine
                    .extend(windows.map(|window| (window, self.epoch)));
            }
        }
        crate::attempts::forget(&mut self.attempts, spans);
        Ok(())
    }

    pub(crate) fn let_out(&mut self, spec: &RunSpec, windows: &[u64]) -> Applied {
        for window in windows {
            let out = self.quarantine.remove(window);
            out.ok_or_else(|| missing(format!("quarantined window {window}")))?;
        }
        self.change_windows(spec, windows, Ownership::Quarantined, Ownership::Free)
    }

    fn change_windows(
        &mut self,
        spec: &RunSpec,
        windows: &[u64],
        from: Ownership,
        to: Ownership,
    ) -> Applied {
        if windows.is_empty() {
            return Ok(());
        }
        let space = spec.space(self.epoch);
        for window in windows {
            let position = space.position_of(*window);
            let at = position.ok_or_else(|| missing(format!("window {window}")))?;
            self.ledger.change(Span::new(at.0, at.0 + 1), from, to)?;
        }
        Ok(())
    }
}

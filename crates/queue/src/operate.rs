//! What operators order.

use hansa_base::SiteName;

use crate::command::{QueueOrder, QueueRefusal};
use crate::event::{Event, Why};
use crate::machine::Machine;
use crate::outcome::PauseWhy;
use crate::policy::{self, held_back, intention, shape_of, slot_name};
use crate::view::{Now, RunView};
use crate::{Begin, Budget, IntentId, Line, ShapeName};

/// Slots that are looked at for one that is free.
const SLOTS_MAX: u32 = 1024;

impl Machine {
    pub(crate) fn try_operate(
        &mut self,
        order: QueueOrder,
        run: &RunView,
        now: Now,
    ) -> Result<(), QueueRefusal> {
        match order {
            QueueOrder::Pause { site, why } => {
                self.check_site(&site)?;
                let why = PauseWhy::Operator(why);
                self.put(Event::SitePaused { site, why }, now)
            }
            QueueOrder::Resume { site, why } => {
                self.check_site(&site)?;
                let event = Event::SiteResumed {
                    site: site.clone(),
                    why,
                };
                self.put(event, now)?;
                self.decide(&site, run, now)
            }
            QueueOrder::Submit { site, shape, why } => {
                self.submit_one(&site, shape.as_ref(), why, run, now)
            }
            QueueOrder::Cancel { intent, why } => self.cancel(intent, why, now),
            QueueOrder::Tail { intent } => {
                let known = self.state().intents.get(&intent);
                let job = known.is_some_and(|known| known.job.is_some());
                job.then_some(()).ok_or(QueueRefusal::NotLive(intent))?;
                self.put(Event::TailOrdered { intent }, now)
            }
            QueueOrder::Budget { site, change } => {
                self.check_site(&site)?;
                let known = self
                    .state()
                    .sites
                    .get(&site)
                    .map(|known| &known.budget.said);
                let budget = change.of(known.unwrap_or(&Budget::default()));
                let site_name = site.clone();
                let event = match change.left {
                    Some(_) => Event::BudgetSet {
                        site: site_name,
                        budget,
                    },
                    // What was left when somebody counted is as good as before, and so is what was used since.
                    None => Event::BudgetAmended {
                        site: site_name,
                        reserve_gpu_s: budget.reserve_gpu_s,
                        ends_at: budget.ends_at,
                    },
                };
                self.put(event, now)?;
                self.decide(&site, run, now)
            }
        }
    }

    pub(crate) fn check_site(&self, site: &SiteName) -> Result<(), QueueRefusal> {
        let known = self.state().sites.contains_key(site);
        let unknown = || QueueRefusal::UnknownSite(site.clone());
        known.then_some(()).ok_or_else(unknown)
    }

    fn cancel(&mut self, id: IntentId, why: Line, now: Now) -> Result<(), QueueRefusal> {
        let intent = self.state().intents.get(&id);
        let intent = intent.filter(|intent| intent.is_live());
        let intent = intent.ok_or(QueueRefusal::NotLive(id))?;
        let event = policy::cancel(intent, why);
        event.map_or(Ok(()), |event| self.put(event, now))
    }

    fn submit_one(
        &mut self,
        site: &SiteName,
        shape: Option<&ShapeName>,
        why: Line,
        run: &RunView,
        now: Now,
    ) -> Result<(), QueueRefusal> {
        self.check_site(site)?;
        let look = self.look(site, run, now);
        let unknown = || QueueRefusal::UnknownSite(site.clone());
        let look = look.ok_or_else(unknown)?;
        let profile = look.site.profile.as_ref().ok_or_else(unknown)?;
        let Some(shape) = shape_of(profile, shape) else {
            let known: Vec<_> = profile.shapes.iter().map(|s| s.name.as_str()).collect();
            return Err(QueueRefusal::UnknownShape {
                site: site.clone(),
                shape: shape.cloned().unwrap_or_default(),
                known: Line::new(&known.join(", ")),
            });
        };
        // Not held by a back-off: the operator knows better.
        if let Some(held) = held_back(&look, profile, None, shape, Begin::Now) {
            let site = site.clone();
            return Err(QueueRefusal::Held { site, held });
        }
        let free = (1..SLOTS_MAX).filter_map(slot_name);
        let mut free = free.filter(|name| look.state.live_of(site, name).next().is_none());
        let replica = free.next().ok_or_else(unknown)?;
        let why = Why::Operator(why);
        let event = Event::Intended(intention(&look, &replica, shape, Begin::Now, None, why));
        self.put(event, now)
    }
}

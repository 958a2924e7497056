//! What a site process is to do: what was decided and has no outcome yet.

use hansa_base::SiteName;

use crate::state::{Intent, Release, State, Tail};
use crate::{Begin, Line, Order, Submission};

/// Orders of one reply; the others come with the next.
const ORDERS_MAX: usize = 200;

/// The orders for a site, submissions in the order of their intents.
pub(crate) fn orders(state: &State, site: &SiteName) -> Vec<Order> {
    let of_site = state.intents.values();
    let of_site = of_site.filter(|intent| intent.intention.site == *site);
    let orders = of_site.flat_map(|intent| orders_of(state, intent));
    orders.take(ORDERS_MAX).collect()
}

fn orders_of(state: &State, intent: &Intent) -> Vec<Order> {
    let id = intent.intention.intent;
    let mut orders: Vec<_> = intent
        .unwanted
        .iter()
        .map(|job| Order::Cancel {
            intent: id,
            job: job.clone(),
            why: Line::new("there should be no such job"),
        })
        .collect();
    if let (Tail::Ordered, Some(job)) = (&intent.tail, &intent.job) {
        let job = job.id.clone();
        orders.push(Order::Tail { intent: id, job });
    }
    if !intent.is_live() {
        return orders;
    }
    let Some(job) = &intent.job else {
        orders.push(match &intent.withdraw {
            Some(why) => Order::Withdraw {
                intent: id,
                why: why.clone(),
            },
            None => Order::Submit(submission(state, intent)),
        });
        return orders;
    };
    if let Some(why) = intent.cancel.as_ref().filter(|_| !job.cancelled) {
        orders.push(Order::Cancel {
            intent: id,
            job: job.id.clone(),
            why: why.clone(),
        });
    }
    if let Some(why) = intent.recall.as_ref().filter(|_| !job.cancelled) {
        orders.push(Order::Recall {
            intent: id,
            job: job.id.clone(),
            why: why.clone(),
        });
    }
    if intent.release == Release::Ordered && !intent.is_running() {
        let job = job.id.clone();
        orders.push(Order::Release { intent: id, job });
    }
    orders
}

fn submission(state: &State, intent: &Intent) -> Submission {
    let intention = &intent.intention;
    let before = intention.after.and_then(|id| state.intents.get(&id));
    let begin = match before.is_some_and(Intent::is_live) || intention.after.is_none() {
        true => intention.begin,
        // The link before it has ended since.
        false => Begin::Now,
    };
    Submission {
        intent: intention.intent,
        replica: intention.replica.clone(),
        shape: intention.shape.name.clone(),
        link: intention.link,
        begin,
        exclude: intention.exclude.clone(),
        tried: intent.tried,
    }
}

//! `hansa queue`: what is wanted of each site's batch system, what it says, and why.

mod show;

use crate::credentials::RemoteArguments;
use crate::operate::{Reason, Whom};
use crate::status::{Listening, operator_endpoint, tool};
use crate::ui;
use anyhow::bail;
use clap::{Args, Subcommand};
use hansa_base::SiteName;
use hansa_queue::{BudgetChange, Ends, GpuS, IntentId, Left, Line, QueueOrder};
use hansa_site::convert;
use hansa_transfer::Endpoint;
use hansa_wire::queue::QUEUE;
use hansa_wire::queue::view::QueueView;
use std::path::PathBuf;
use std::time::Duration;

const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// `hansa queue`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    order: Option<Order>,
    #[command(flatten)]
    from: Source,
    /// This site only.
    #[arg(long)]
    site: Option<SiteName>,
    /// Decisions to show of each site.
    #[arg(long, default_value_t = 12)]
    decisions: usize,
}

/// Whom to ask about queues.
#[derive(Args)]
pub struct Source {
    /// The coordinator's data directory, on its own machine; nothing else is needed then.
    #[arg(long)]
    data: Option<PathBuf>,
    #[command(flatten)]
    remote: RemoteArguments,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl Source {
    /// The coordinator, as somebody who may look.
    pub fn endpoint(self) -> anyhow::Result<Endpoint> {
        match self.data {
            Some(data) => operator_endpoint(&Listening::load(&data)?, &data),
            None => self.remote.endpoint(),
        }
    }
}

/// What to do with a queue.
#[derive(Subcommand)]
enum Order {
    /// Submit nothing more at a site; what waits or runs goes on.
    Pause(OfSite),
    /// Let submissions go on, whatever paused them, and forget the site's failures.
    Resume(OfSite),
    /// Cancel a job, or take back a submission that has not been made.
    Cancel(OfIntent),
    /// Ask the site for the last lines of a job; `hansa logs` shows them.
    Tail(OfIntent),
    /// Say what is left of a site's allocation, until its profile or its own command says otherwise; what is
    /// not said stays.
    Budget(OfBudget),
}

#[derive(Args)]
struct OfSite {
    /// The site.
    site: SiteName,
    #[command(flatten)]
    whom: Whom,
    #[command(flatten)]
    reason: Reason,
}

#[derive(Args)]
struct OfIntent {
    /// The intent, as `hansa queue` numbers it.
    intent: u64,
    #[command(flatten)]
    whom: Whom,
    #[command(flatten)]
    reason: Reason,
}

#[derive(Args)]
#[group(id = "said", required = true, multiple = true, args = ["gpu_hours", "uncounted", "reserve_gpu_hours", "ends"])]
struct OfBudget {
    /// The site.
    site: SiteName,
    /// GPU-hours left now.
    #[arg(long, value_parser = hours)]
    gpu_hours: Option<f64>,
    /// They are not counted any more.
    #[arg(long, conflicts_with = "gpu_hours")]
    uncounted: bool,
    /// GPU-hours that no job may touch.
    #[arg(long, value_parser = hours)]
    reserve_gpu_hours: Option<f64>,
    /// The allocation's last day, such as 2027-03-31, or `never`: no job reaches beyond its end (UTC).
    #[arg(long, value_name = "DAY", value_parser = ends)]
    ends: Option<Ends>,
    #[command(flatten)]
    whom: Whom,
}

fn hours(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..1e12).contains(&value) => Ok(value),
        _ => Err("a number of hours is expected, such as 1250".to_owned()),
    }
}

/// The day means here what it means in a profile.
fn ends(text: &str) -> Result<Ends, String> {
    match text {
        "never" => Ok(Ends::Never),
        day => match convert::end_of_day(day) {
            Some(end) => Ok(Ends::At(end)),
            None => Err("a day is expected, such as 2027-03-31, or `never`".to_owned()),
        },
    }
}

/// Prints the queues, or gives an order to one.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments {
        order,
        from,
        site,
        decisions,
    } = arguments;
    if let Some(order) = order {
        return order.give().await;
    }
    let json = from.json;
    let mut view: QueueView = tool(&from.endpoint()?)?
        .get_json(QUEUE, ANSWER_WITHIN)
        .await?;
    if let Some(site) = site {
        let known: Vec<_> = view.sites.iter().map(|known| known.site.clone()).collect();
        view.sites.retain(|known| known.site == site.as_str());
        if view.sites.is_empty() {
            bail!(
                "no site process of {site} has reported; known are: {}",
                known.join(", ")
            );
        }
    }
    if json {
        return ui::print_json(&view);
    }
    show::print(&view, decisions);
    Ok(())
}

impl Order {
    async fn give(self) -> anyhow::Result<()> {
        match self {
            Self::Pause(OfSite { site, whom, reason }) => {
                let done =
                    format!("the queue of {site} is paused; `hansa queue resume {site}` ends that");
                let why = Line::new(&reason.because);
                whom.queue_order(QueueOrder::Pause { site, why }, &done)
                    .await
            }
            Self::Resume(OfSite { site, whom, reason }) => {
                let done = format!("the queue of {site} goes on");
                let why = Line::new(&reason.because);
                whom.queue_order(QueueOrder::Resume { site, why }, &done)
                    .await
            }
            Self::Cancel(OfIntent {
                intent,
                whom,
                reason,
            }) => {
                let done = format!("intent {intent} is cancelled as soon as its site calls");
                let why = Line::new(&reason.because);
                let intent = IntentId(intent);
                whom.queue_order(QueueOrder::Cancel { intent, why }, &done)
                    .await
            }
            Self::Tail(OfIntent { intent, whom, .. }) => {
                let done = "asked for; `hansa logs` shows the lines once the site has sent them";
                let intent = IntentId(intent);
                whom.queue_order(QueueOrder::Tail { intent }, done).await
            }
            Self::Budget(budget) => budget.give().await,
        }
    }
}

impl OfBudget {
    async fn give(self) -> anyhow::Result<()> {
        let seconds = |hours: f64| GpuS((hours * 3600.0).round() as u64);
        let change = BudgetChange {
            left: match self.uncounted {
                true => Some(Left::Uncounted),
                false => self.gpu_hours.map(seconds).map(Left::Counted),
            },
            reserve_gpu_s: self.reserve_gpu_hours.map(seconds),
            ends: self.ends,
        };
        let site = self.site;
        let done = format!("the budget of {site} is set");
        let order = QueueOrder::Budget { site, change };
        self.whom.queue_order(order, &done).await
    }
}

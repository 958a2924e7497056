//! What the commands that give orders to a coordinator share: where it is, and how it is told.

use crate::credentials::Credentials;
use crate::status::{Listening, operator_endpoint, tool};
use crate::ui;
use crate::ui::out;
use anyhow::bail;
use hansa_protocol::Order;
use hansa_queue::{Adopted, QueueOrder};
use hansa_transfer::Endpoint;
use hansa_wire::Wire as _;
use hansa_wire::http::{Done, Operate, path};
use hansa_wire::plan::live::APPLY;
use hansa_wire::queue::AdoptedJson;
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Where the coordinator is, and how to speak.
#[derive(clap::Args)]
pub struct Whom {
    /// The coordinator's data directory, on its own machine; nothing else is needed then.
    #[arg(long)]
    data: Option<PathBuf>,
    /// The coordinator's address, such as `https://vm.example:8443`.
    #[arg(long, env = "HANSA_COORDINATOR")]
    coordinator: Option<String>,
    /// A copy of operator.toml from the coordinator's data directory.
    #[arg(long)]
    operator_file: Option<PathBuf>,
    /// Print what was done as JSON.
    #[arg(long)]
    json: bool,
}

/// An operator's reason.
#[derive(clap::Args)]
pub struct Reason {
    /// The reason, one line: it is kept in the journal and shown to all concerned.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub because: String,
}

impl Whom {
    fn endpoint(&self) -> anyhow::Result<Endpoint> {
        // The environment may name a coordinator for `hansa train`; what was asked for wins.
        if let Some(data) = &self.data {
            return operator_endpoint(&Listening::load(data)?, data);
        }
        let (Some(url), Some(file)) = (&self.coordinator, &self.operator_file) else {
            bail!(
                "which coordinator? Give --data DIR on its own machine, or --coordinator URL with \
                 --operator-file FILE, a copy of operator.toml from its data directory"
            )
        };
        Credentials::read(file)?.endpoint(url, None)
    }

    /// Gives the order; `done` is what there is to say when it is in force.
    pub async fn order(self, order: Order, done: &str) -> anyhow::Result<()> {
        let request = Operate { order };
        let client = tool(&self.endpoint()?)?;
        let body = request.to_json();
        let Done {} = client
            .post_json(path::OPERATE, &body, ANSWER_WITHIN)
            .await?;
        if self.json {
            return ui::print_json(&json!({ "order": request.order.to_json(), "done": done }));
        }
        out!("{done}");
        Ok(())
    }

    /// Has the best plan of now adopted.
    pub async fn apply_plan(self) -> anyhow::Result<()> {
        let client = tool(&self.endpoint()?)?;
        let nothing = json!({});
        let adopted: AdoptedJson = client.post_json(APPLY, &nothing, ANSWER_WITHIN).await?;
        if self.json {
            return ui::print_json(&adopted);
        }
        let adopted = Adopted::from_json(adopted)?;
        let (no, ends) = (adopted.no, ui::wall_time(adopted.promise.ends.0 * 1000));
        out!(
            "plan {no} is in force: {}; it ends at {ends}",
            adopted.summary()
        );
        Ok(())
    }

    /// The same for an order to a queue.
    pub async fn queue_order(self, order: QueueOrder, done: &str) -> anyhow::Result<()> {
        let client = tool(&self.endpoint()?)?;
        let body = order.to_json();
        let Done {} = client
            .post_json(hansa_wire::queue::OPERATE, &body, ANSWER_WITHIN)
            .await?;
        if self.json {
            return ui::print_json(&json!({ "order": body, "done": done }));
        }
        out!("{done}");
        Ok(())
    }
}

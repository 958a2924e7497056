//! The stage: processes, the screen, and the loop that moves the story on.

use super::End;
use super::children::{Process, SitePlan, serve_arguments, train_arguments};
use super::prepare::Places;
use super::screen::Screen;
use super::story::{Order, Story};
use crate::status::{self, Listening};
use crate::token;
use anyhow::{Context as _, bail};
use hansa_coordinator::Scope;
use hansa_wire::Recipe;
use hansa_wire::status::Status;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The demo's sites; `None` is as fast as a core can.
const SITES: [SitePlan; 3] = [
    SitePlan {
        name: "alder",
        pace: None,
    },
    SitePlan {
        name: "birch",
        pace: Some(24.0),
    },
    SitePlan {
        name: "cedar",
        pace: Some(16.0),
    },
];
const LOOK_EVERY: Duration = Duration::from_millis(250);
const START_WITHIN: Duration = Duration::from_secs(60);
const LEAVE_WITHIN: Duration = Duration::from_secs(30);
/// How long the coordinator stays away when it is killed.
const COORDINATOR_AWAY: Duration = Duration::from_secs(3);

/// Everything that runs.
pub struct Stage {
    places: Places,
    story: Story,
    screen: Screen,
    coordinator: Option<Process>,
    listening: Option<Listening>,
    sites: BTreeMap<&'static str, Process>,
}

impl Stage {
    pub fn open(places: Places) -> anyhow::Result<Self> {
        let path = places.recipe();
        let text = std::fs::read_to_string(&path);
        let text = text.with_context(|| format!("read {}", path.display()))?;
        let rounds = Recipe::parse(&text, &path)?.end.rounds.unwrap_or(0);
        let screen = Screen::new(&SITES.map(|site| site.name), rounds);
        let story = Story::load(&places.story())?;
        let (coordinator, listening, sites) = (None, None, BTreeMap::new());
        Ok(Self {
            places,
            story,
            screen,
            coordinator,
            listening,
            sites,
        })
    }

    /// Runs until the run is over or somebody presses Ctrl-C; then every child has ended.
    pub async fn play(&mut self) -> anyhow::Result<End> {
        self.start_coordinator("127.0.0.1:0")?;
        for site in SITES {
            let credentials = self.places.credentials(site.name);
            if !credentials.exists() {
                let scope = Scope::Site(site.name.parse()?);
                token::issue(&self.places.data(), &scope, &credentials)?;
            }
        }
        for site in self.story.cast(&SITES.map(|site| site.name)) {
            self.start_site(site)?;
        }
        let played = tokio::select! {
            played = self.until_complete() => played,
            _ = tokio::signal::ctrl_c() => Ok(End::Interrupted),
        };
        self.end_all(matches!(played, Ok(End::Complete)))?;
        played
    }

    /// Takes the screen away.
    pub fn clear(&self) {
        self.screen.finish();
    }

    async fn until_complete(&mut self) -> anyhow::Result<End> {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.show_events();
            let listening = self
                .listening
                .clone()
                .context("the coordinator is not there")?;
            let seen = status::fetch(&listening, &self.places.data()).await;
            if let Ok(seen) = seen {
                self.screen.status(&seen);
                if seen.ended {
                    return Ok(End::Complete);
                }
                self.follow_story(&seen).await?;
            }
            if self.check_processes()? {
                return Ok(End::Complete);
            }
        }
    }

    async fn follow_story(&mut self, seen: &Status) -> anyhow::Result<()> {
        let orders = self.story.next(seen);
        for order in &orders {
            match order {
                Order::Tell(text) => self.screen.tell(&format!("── {text}")),
                Order::Start(site) => self.start_site(site)?,
                Order::Kill(site) => {
                    if let Some(mut process) = self.sites.remove(site) {
                        process.kill()?;
                    }
                    self.screen.site_is_away(site, "killed");
                }
                Order::RestartCoordinator => self.restart_coordinator().await?,
            }
        }
        if !orders.is_empty() {
            self.story.save(&self.places.story())?;
        }
        Ok(())
    }

    async fn restart_coordinator(&mut self) -> anyhow::Result<()> {
        if let Some(mut process) = self.coordinator.take() {
            process.kill()?;
        }
        let start = Instant::now();
        while start.elapsed() < COORDINATOR_AWAY {
            tokio::time::sleep(LOOK_EVERY).await;
            self.show_events();
        }
        let listen = self
            .listening
            .as_ref()
            .map(Listening::address)
            .unwrap_or_default();
        self.start_coordinator(&listen)
    }

    fn start_coordinator(&mut self, listen: &str) -> anyhow::Result<()> {
        let log = self.places.log("coordinator");
        let mut process = Process::start(&serve_arguments(&self.places, listen), &log)?;
        let start = Instant::now();
        self.listening = loop {
            let event = process.next_event(Duration::from_millis(200));
            if let Some(listening) = event.as_ref().and_then(Listening::from_event) {
                break Some(listening);
            }
            if process.ended()?.is_some() || start.elapsed() > START_WITHIN {
                bail!("the coordinator does not start: {}", last_words(&log));
            }
        };
        self.coordinator = Some(process);
        Ok(())
    }

    fn start_site(&mut self, name: &'static str) -> anyhow::Result<()> {
        let Some(plan) = SITES.into_iter().find(|site| site.name == name) else {
            return Ok(());
        };
        let url = self
            .listening
            .as_ref()
            .map(|at| at.url.clone())
            .unwrap_or_default();
        let arguments = train_arguments(&self.places, plan, &url);
        let process = Process::start(&arguments, &self.places.log(name))?;
        self.sites.insert(name, process);
        self.screen.site_is_away(name, "starting");
        Ok(())
    }

    fn show_events(&self) {
        for (name, process) in &self.sites {
            process
                .events()
                .for_each(|event| self.screen.site_event(name, &event));
        }
    }

    /// Whether the coordinator has ended well, as it does when the run is over. Any other process that
    /// ended unasked is a failure of the demo, with its last words.
    fn check_processes(&mut self) -> anyhow::Result<bool> {
        for (name, process) in &mut self.sites {
            if process.ended()?.is_some_and(|status| !status.success()) {
                bail!("{name} ended: {}", last_words(&self.places.log(name)));
            }
        }
        let Some(process) = &mut self.coordinator else {
            return Ok(false);
        };
        match process.ended()? {
            None => Ok(false),
            Some(status) if status.success() => Ok(true),
            Some(_) => {
                bail!(
                    "the coordinator ended: {}",
                    last_words(&self.places.log("coordinator"))
                )
            }
        }
    }

    /// Sites first, so that what they have trained still reaches the coordinator.
    fn end_all(&mut self, complete: bool) -> anyhow::Result<()> {
        if !complete {
            self.screen.tell(
                "stopping: the sites contribute what they have trained so far (Ctrl-C again ends \
                 them at once)",
            );
            end_at_the_next_interrupt();
            self.sites.values().for_each(Process::terminate);
        }
        for process in self.sites.values_mut() {
            process.wait_or_kill(LEAVE_WITHIN)?;
        }
        self.show_events();
        if let Some(mut process) = self.coordinator.take() {
            if !complete {
                process.terminate();
            }
            let ended_well = process.wait_or_kill(LEAVE_WITHIN)?;
            if complete && !ended_well {
                let log = self.places.log("coordinator");
                bail!(
                    "the run is over, but its model is not exported, as it will be if the demo is \
                     started again: {}",
                    last_words(&log)
                );
            }
        }
        Ok(())
    }
}

/// From now on Ctrl-C ends this process as it does any other; its children end with it.
fn end_at_the_next_interrupt() {
    // SAFETY: SIG_DFL runs no code of ours, and takes no pointers.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
}

/// The last lines of a process's log.
fn last_words(log: &std::path::Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(6).collect();
    let words = lines.into_iter().rev().collect::<Vec<_>>().join("\n  ");
    format!("see {}\n  {words}", log.display())
}

//! How much a whole coordinator bears: durable grants per second, and how long heartbeats take, with
//! many replicas over HTTP on this machine.
//!
//! `cargo run --release -p hansa-coordinator --example load [REPLICAS [DIR]]`
//!
//! The coordinator serves from a process of its own, with a real journal under DIR; this process plays
//! 10,000 replicas, each with a connection of its own that stays open. They register, are granted
//! positions of a corpus of 10 million windows, and beat every 10 s; then leave and come back twice, so
//! that the journal is long, and the coordinator is killed and started again. Once without TLS, once
//! with it. Prints what the disk and both processes do meanwhile: they share the machine's cores.

mod client;
mod machine;
mod server;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use client::{Connection, Connector};
use hansa_base::Hash;
use hansa_protocol::{
    Activity, Caller, Heartbeat, LeaseAnswer, LeaseRequest, Progress, Registered, Standing,
};
use hansa_wire::http::{Done, RegisterRequest, path};
use machine::{Latencies, Usage};
use server::{Server, World};
use tokio::task::JoinSet;

/// Requests under way at once while everybody asks.
const AT_ONCE: usize = 256;
const BEAT: Duration = Duration::from_secs(10);
const BEATS: u32 = 4;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, recipe, data, tls] = &arguments[..]
        && first == "serve"
    {
        return server::serve(recipe, data, tls == "tls").await;
    }
    let replicas = arguments.first().map_or(Ok(10_000), |text| text.parse());
    let replicas: usize = replicas.context("the first argument is the number of replicas")?;
    let parent = arguments
        .get(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    machine::allow_many_files()?;
    let dir = tempfile::tempdir_in(parent)?;
    println!("{}", machine::describe(dir.path())?);
    for tls in [false, true] {
        println!(
            "\n{replicas} replicas, TLS {}",
            if tls { "on" } else { "off" }
        );
        measure(
            World::new(&dir.path().join(tls.to_string()))?,
            replicas,
            tls,
        )
        .await?;
    }
    Ok(())
}

async fn measure(world: World, count: usize, tls: bool) -> anyhow::Result<()> {
    let server = Server::start(&world, tls)?;
    let connector = Arc::new(server.connector(&world)?);
    let idle_mib = server.resident_mib()?;
    let usage = Usage::start(&server)?;
    let start = Instant::now();
    let replicas = each((0..count).collect(), |number| {
        Replica::connect(connector.clone(), world.clone(), number)
    })
    .await?;
    report(
        "connect",
        count,
        start,
        &Latencies::default(),
        &usage,
        &server,
    )?;

    let replicas = phase("register (durable)", &server, replicas, Replica::register).await?;
    let replicas = phase("grant (durable)", &server, replicas, Replica::lease).await?;
    println!(
        "  memory: {idle_mib:.0} MiB when idle, {:.0} MiB with {count} connected replicas",
        server.resident_mib()?
    );
    let mut replicas = beat(&server, replicas).await?;
    for _ in 0..2 {
        replicas = phase("goodbye (durable)", &server, replicas, Replica::leave).await?;
        replicas = phase("register (durable)", &server, replicas, Replica::register).await?;
        replicas = phase("grant (durable)", &server, replicas, Replica::lease).await?;
    }
    println!("  memory: {:.0} MiB at the most", server.peak_mib()?);
    drop(replicas);
    server.kill()?;
    let (records, mib) = world.journal()?;
    let start = Instant::now();
    let server = Server::start(&world, tls)?;
    println!(
        "  restart after SIGKILL: {:.2} s until it serves, from a journal of {records} records \
         ({mib:.0} MiB)",
        start.elapsed().as_secs_f64()
    );
    server.stop()
}

/// Everybody calls once, a few at a time.
async fn phase<F>(
    name: &str,
    server: &Server,
    replicas: Vec<Replica>,
    call: impl Fn(Replica) -> F,
) -> anyhow::Result<Vec<Replica>>
where
    F: Future<Output = anyhow::Result<(Replica, Duration)>> + Send + 'static,
{
    let (count, usage, start) = (replicas.len(), Usage::start(server)?, Instant::now());
    let done = each(replicas, call).await?;
    let mut latencies = Latencies::default();
    let mut replicas = Vec::new();
    for (replica, took) in done {
        latencies.push(took);
        replicas.push(replica);
    }
    report(name, count, start, &latencies, &usage, server)?;
    Ok(replicas)
}

fn report(
    name: &str,
    count: usize,
    start: Instant,
    latencies: &Latencies,
    usage: &Usage,
    server: &Server,
) -> anyhow::Result<()> {
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "  {name:<20} {:>6.0}/s  {latencies}  {}",
        count as f64 / seconds,
        usage.since(server)?
    );
    Ok(())
}

/// Runs a call for each, [`AT_ONCE`] at a time.
async fn each<T, R, F>(items: Vec<T>, call: impl Fn(T) -> F) -> anyhow::Result<Vec<R>>
where
    R: Send + 'static,
    F: Future<Output = anyhow::Result<R>> + Send + 'static,
{
    let mut running = JoinSet::new();
    let mut done = Vec::with_capacity(items.len());
    for item in items {
        if running.len() >= AT_ONCE
            && let Some(one) = running.join_next().await
        {
            done.push(one??);
        }
        running.spawn(call(item));
    }
    while let Some(one) = running.join_next().await {
        done.push(one??);
    }
    Ok(done)
}

/// Everybody beats every 10 s, evenly spread, as replicas do that started at different times.
async fn beat(server: &Server, replicas: Vec<Replica>) -> anyhow::Result<Vec<Replica>> {
    let count = replicas.len();
    let (usage, start) = (Usage::start(server)?, Instant::now());
    let mut running = JoinSet::new();
    for (place, replica) in replicas.into_iter().enumerate() {
        let first = start + BEAT.mul_f64(place as f64 / count as f64);
        running.spawn(replica.beats(first));
    }
    let mut latencies = Latencies::default();
    let mut replicas = Vec::new();
    while let Some(done) = running.join_next().await {
        let (replica, took) = done??;
        took.into_iter().for_each(|took| latencies.push(took));
        replicas.push(replica);
    }
    report(
        "heartbeat",
        count * BEATS as usize,
        start,
        &latencies,
        &usage,
        server,
    )?;
    Ok(replicas)
}

/// A replica that trains nothing.
struct Replica {
    connection: Connection,
    world: World,
    caller: Caller,
    base: Hash,
    lives: u8,
}

impl Replica {
    async fn connect(
        connector: Arc<Connector>,
        world: World,
        number: usize,
    ) -> anyhow::Result<Self> {
        let site = number % server::SITES;
        let replica: hansa_base::ReplicaId = format!("site{site}/r{number}").parse()?;
        let connection = connector
            .connect(&replica.to_string(), &world.tokens[site])
            .await?;
        // What it shows before it is registered is of no use.
        let caller = Caller {
            replica,
            run: world.run,
            timeline: hansa_base::Timeline(0),
            incarnation: hansa_base::Incarnation(0),
            seal: Hash::default(),
        };
        Ok(Self {
            connection,
            world,
            caller,
            base: Hash::default(),
            lives: 0,
        })
    }

    async fn register(mut self) -> anyhow::Result<(Self, Duration)> {
        self.lives += 1;
        let request = RegisterRequest {
            replica: self.caller.replica.clone(),
            digest: self.world.digest.clone(),
            ranks: 1,
            nonce: Hash([self.lives; 32]),
            resume: None,
            held: None,
        };
        let start = Instant::now();
        let registered: Registered = self.connection.post(path::REGISTER, &request).await?;
        let took = start.elapsed();
        self.caller = registered.caller(self.world.run, self.caller.replica);
        self.base = registered.current.manifest;
        Ok((self, took))
    }

    async fn lease(mut self) -> anyhow::Result<(Self, Duration)> {
        let request = LeaseRequest {
            caller: self.caller.clone(),
            base: self.base,
            times: None,
        };
        let start = Instant::now();
        let answer: LeaseAnswer = self.connection.post(path::LEASE, &request).await?;
        let took = start.elapsed();
        ensure!(
            matches!(answer, LeaseAnswer::Train(_)),
            "not granted: {answer:?}"
        );
        Ok((self, took))
    }

    async fn leave(mut self) -> anyhow::Result<(Self, Duration)> {
        let start = Instant::now();
        let caller = self.caller.clone();
        let Done {} = self.connection.post(path::GOODBYE, &caller).await?;
        Ok((self, start.elapsed()))
    }

    async fn beats(mut self, first: Instant) -> anyhow::Result<(Self, Vec<Duration>)> {
        let mut latencies = Vec::new();
        for beat in 0..BEATS {
            tokio::time::sleep_until((first + BEAT * beat).into()).await;
            let heartbeat = Heartbeat {
                caller: self.caller.clone(),
                at: None,
                progress: Progress {
                    activity: Activity::Training,
                    counter: u64::from(beat),
                    step: Some(Duration::from_millis(800)),
                    rtt: Some(Duration::from_millis(1)),
                    loss: Some(3.0),
                    tokens_per_s: Some(1e5),
                },
            };
            let start = Instant::now();
            let standing: Standing = self.connection.post(path::HEARTBEAT, &heartbeat).await?;
            latencies.push(start.elapsed());
            ensure!(standing.lease.is_some(), "a lease is lost");
        }
        Ok((self, latencies))
    }
}

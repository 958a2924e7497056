//! What the machine is, and what it does meanwhile (Linux).

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::server::Server;

const SYNCS: usize = 500;

/// How long calls took.
#[derive(Default)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    pub fn push(&mut self, took: Duration) {
        self.0.push(took);
    }

    fn at(sorted: &[Duration], part: f64) -> f64 {
        let index = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
        sorted
            .get(index)
            .map_or(0.0, |took| took.as_secs_f64() * 1e3)
    }
}

impl std::fmt::Display for Latencies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let [median, p99, max] = [0.5, 0.99, 1.0].map(|part| Self::at(&sorted, part));
        write!(
            f,
            "median {median:>7.2} ms, p99 {p99:>7.2} ms, max {max:>7.2} ms"
        )
    }
}

/// CPU time of both processes from some instant on.
pub struct Usage {
    start: Instant,
    server_s: f64,
    client_s: f64,
}

impl Usage {
    pub fn start(server: &Server) -> anyhow::Result<Self> {
        Ok(Self {
            start: Instant::now(),
            server_s: cpu_s(server.pid())?,
            client_s: cpu_s(std::process::id())?,
        })
    }

    pub fn since(&self, server: &Server) -> anyhow::Result<String> {
        let seconds = self.start.elapsed().as_secs_f64();
        let server_s = cpu_s(server.pid())? - self.server_s;
        let client_s = cpu_s(std::process::id())? - self.client_s;
        Ok(format!(
            "cores used: coordinator {:.2}, client {:.2}",
            server_s / seconds,
            client_s / seconds
        ))
    }
}

/// User and system time of a process, in ticks of 10 ms.
fn cpu_s(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let (_, fields) = stat.rsplit_once(')').context("read the process's times")?;
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: Vec<u64> = ticks.map(str::parse).collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<u64>() as f64 / 100.0)
}

/// CPU, cores, load, and how long the disk needs to make 4 KiB durable.
pub fn describe(dir: &Path) -> anyhow::Result<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown CPU", |line| {
        line.trim_start_matches(['\t', ' ', ':'])
    });
    let cores = std::thread::available_parallelism()?;
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default().to_owned();
    let mut file = std::fs::File::create(dir.join("sync"))?;
    let mut syncs = Latencies::default();
    for _ in 0..SYNCS {
        let start = Instant::now();
        file.write_all(&[1; 4096])?;
        file.sync_data()?;
        syncs.push(start.elapsed());
    }
    Ok(format!(
        "{model}, {cores} cores, load {load}\nfsync of 4 KiB: {syncs}"
    ))
}

/// A connection is a file at each end.
pub fn allow_many_files() -> anyhow::Result<()> {
    let files = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: files.maximum,
        ..files
    };
    Ok(setrlimit(Resource::Nofile, most)?)
}

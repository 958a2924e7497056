//! The processes of a soak: one coordinator and a replica at each site, each the real `hansa`. Who
//! ends without having been asked, or with the wrong exit code, fails the test with its last words.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::plan::{Act, Random, Return, Step, Who};

/// Longer than anything takes on a busy machine: a bound, never a measurement.
const WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(10);
const AIM_WITHIN: Duration = Duration::from_secs(1);
const AIM_EVERY: Duration = Duration::from_micros(500);
/// Below the ports that connections get: a client that looks for a coordinator that is away could
/// get that very port for itself, and keep the coordinator from coming back.
const PORTS: std::ops::Range<u64> = 20_000..32_000;

pub const SITES: [&str; 3] = ["alder", "birch", "cedar"];

pub struct Cast {
    root: PathBuf,
    port: u16,
    /// Windows per second of each replica; `None` is as fast as it can.
    pace: Option<f64>,
    coordinator: Option<Child>,
    replicas: [Option<Child>; SITES.len()],
    /// Predecessors of live replicas, one for each site at the most; and how many there were.
    ghosts: BTreeMap<usize, Child>,
    pub fenced: usize,
    /// Those that were not fenced.
    pub lived_on: usize,
    /// Bytes of each site's events before its process was started.
    said_before: [u64; SITES.len()],
    /// Kills that were aimed at an event, and met it.
    pub hits: usize,
    /// How often a site's state directory was moved on.
    moves: [usize; SITES.len()],
    /// Who was asked to end.
    asked: BTreeSet<Who>,
    /// Processes that needed a second SIGTERM.
    pub asked_twice: usize,
}

impl Cast {
    pub fn new(root: &Path, pace: f64) -> Self {
        std::fs::create_dir(root.join("logs")).unwrap();
        // A build in the middle of a long soak must not change who plays.
        std::fs::copy(env!("CARGO_BIN_EXE_hansa"), root.join("hansa")).unwrap();
        Self {
            root: root.to_owned(),
            port: free_port(),
            pace: Some(pace),
            coordinator: None,
            replicas: Default::default(),
            ghosts: BTreeMap::new(),
            fenced: 0,
            lived_on: 0,
            said_before: [0; SITES.len()],
            hits: 0,
            moves: [0; SITES.len()],
            asked: BTreeSet::new(),
            asked_twice: 0,
        }
    }

    /// Plays one line of the plan. Where it says that somebody is there, somebody is.
    pub fn play(&mut self, step: &Step) {
        if let Some((site, event)) = step.aim {
            self.hits += usize::from(self.await_event(site, event));
        }
        match step.act {
            Act::Start => self.start(step.who),
            Act::Stall => self.signal(step.who, libc::SIGSTOP),
            Act::GoOn => self.signal(step.who, libc::SIGCONT),
            Act::Terminate => self.ask(step.who),
            Act::TakeOver => self.take_over(step.who),
            Act::Haunt => self.haunt(step.who),
            Act::Kill(back) => {
                let mut child = self.child(step.who).take().unwrap();
                child.kill().unwrap();
                child.wait().unwrap();
                if let (Who::Site(site), Return::Empty) = (step.who, back) {
                    // A process that was killed at once has made none yet.
                    let _ = std::fs::remove_dir_all(self.state(site));
                }
            }
        }
    }

    /// Waits a little for the next event of this name.
    fn await_event(&self, site: usize, event: &str) -> bool {
        let mut log = File::open(self.log(Who::Site(site), "json")).unwrap();
        log.seek(SeekFrom::End(0)).unwrap();
        let (mut text, event) = (String::new(), format!("\"event\":\"{event}\""));
        let began = Instant::now();
        while began.elapsed() < AIM_WITHIN {
            log.read_to_string(&mut text).unwrap();
            if text.contains(&event) {
                return true;
            }
            std::thread::sleep(AIM_EVERY);
        }
        false
    }

    /// A job hangs, and the scheduler starts it again elsewhere. One that has not registered yet has
    /// nothing that a successor could take over: it only hangs.
    fn take_over(&mut self, who: Who) {
        let Who::Site(site) = who else { return };
        self.signal(who, libc::SIGSTOP);
        let from = self.state(site);
        if !self.has_registered(site) || is_registering(&from) {
            return;
        }
        self.moves[site] += 1;
        copy_dir(&from, &self.state(site));
        let ghost = self.replicas[site].take().unwrap();
        assert!(self.ghosts.insert(site, ghost).is_none());
        self.start(who);
    }

    /// Whether the process that runs there has.
    fn has_registered(&self, site: usize) -> bool {
        let mut log = File::open(self.log(Who::Site(site), "json")).unwrap();
        log.seek(SeekFrom::Start(self.said_before[site])).unwrap();
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        text.contains("\"event\":\"registered\"")
    }

    /// The job that hung goes on, and must find out that it is not wanted any more.
    fn haunt(&mut self, who: Who) {
        let Who::Site(site) = who else { return };
        match self.ghosts.get(&site) {
            None => self.signal(who, libc::SIGCONT),
            Some(ghost) => signal(ghost, libc::SIGCONT),
        }
    }

    fn watch_ghosts(&mut self) {
        for site in 0..SITES.len() {
            let ghost = self.ghosts.get_mut(&site);
            let Some(status) = ghost.and_then(|ghost| ghost.try_wait().unwrap()) else {
                continue;
            };
            if status.code() != Some(1) {
                self.fail(Who::Site(site), &format!("had a ghost: {status}"));
            }
            self.ghosts.remove(&site);
            self.fenced += 1;
        }
    }

    /// While the coordinator was away, a ghost may have been given up, and then have registered anew
    /// before its successor could: so it lives, and the successor waits for the name. It ends here.
    fn lay_ghosts(&mut self) {
        self.watch_ghosts();
        for (site, mut ghost) in std::mem::take(&mut self.ghosts) {
            signal(&ghost, libc::SIGTERM);
            let began = Instant::now();
            while ghost.try_wait().unwrap().is_none() {
                if began.elapsed() > WITHIN {
                    self.fail(Who::Site(site), "haunts on");
                }
                std::thread::sleep(LOOK_EVERY);
            }
            let code = ghost.wait().unwrap().code();
            assert!(matches!(code, Some(0 | 1)), "a ghost ended with {code:?}");
            self.lived_on += 1;
        }
    }

    /// Starts a process, after the one before it has ended as it was asked to.
    pub fn start(&mut self, who: Who) {
        if self.child(who).is_some() && !self.has_ended_well(who) {
            self.asked_twice += 1;
            self.ask(who);
            self.wait_for(who, WITHIN);
        }
        let mut command = match who {
            Who::Coordinator => self.serve(),
            Who::Site(site) => self.train(site),
        };
        let open = |log: PathBuf| File::options().create(true).append(true).open(log).unwrap();
        let (events, complaints) = (open(self.log(who, "json")), open(self.log(who, "log")));
        if let Who::Site(site) = who {
            self.said_before[site] = events.metadata().unwrap().len();
        }
        command
            .stdin(Stdio::null())
            .stdout(events)
            .stderr(complaints);
        die_with_this_thread(&mut command);
        *self.child(who) = Some(command.spawn().unwrap());
        self.asked.remove(&who);
    }

    fn hansa(&self) -> Command {
        let mut command = Command::new(self.root.join("hansa"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HANSA_") {
                command.env_remove(name);
            }
        }
        command.current_dir(&self.root);
        command
    }

    fn serve(&self) -> Command {
        let mut command = self.hansa();
        let listen = format!("127.0.0.1:{}", self.port);
        command
            .args("serve run.toml --data data --keep-all --json --listen".split(' '))
            .arg(listen);
        command
    }

    fn train(&self, site: usize) -> Command {
        let name = SITES[site];
        let line = format!(
            "train --coordinator https://127.0.0.1:{} --token-file {name}.toml --site {name} \
             --replica r0 --corpus corpus --threads 1 --wait-if-busy --json --state",
            self.port
        );
        let mut command = self.hansa();
        command.args(line.split(' ')).arg(self.state(site));
        if let Some(pace) = self.pace {
            command.args(["--pace", &pace.to_string()]);
        }
        command
    }

    fn state(&self, site: usize) -> PathBuf {
        let (name, moves) = (SITES[site], self.moves[site]);
        self.root.join(format!("state-{name}-{moves}"))
    }

    fn log(&self, who: Who, end: &str) -> PathBuf {
        let name = match who {
            Who::Coordinator => "coordinator",
            Who::Site(site) => SITES[site],
        };
        self.root.join("logs").join(format!("{name}.{end}"))
    }

    fn child(&mut self, who: Who) -> &mut Option<Child> {
        match who {
            Who::Coordinator => &mut self.coordinator,
            Who::Site(site) => &mut self.replicas[site],
        }
    }

    fn signal(&mut self, who: Who, signal: libc::c_int) {
        self::signal(self.child(who).as_ref().unwrap(), signal);
    }

    fn ask(&mut self, who: Who) {
        self.asked.insert(who);
        self.signal(who, libc::SIGTERM);
    }

    /// Asks every replica to leave, and starts it again, with another pace.
    pub fn relieve_replicas(&mut self, pace: Option<f64>) {
        self.pace = pace;
        self.lay_ghosts();
        let sites = (0..SITES.len()).map(Who::Site);
        sites.clone().for_each(|who| self.ask(who));
        for who in sites {
            self.wait_for(who, WITHIN);
            self.start(who);
        }
    }

    /// Whether all processes have ended, as they do with the run, with nothing to complain of.
    pub fn have_all_ended_well(&mut self) -> bool {
        let sites = (0..SITES.len()).map(Who::Site);
        let mut all = sites.chain([Who::Coordinator]);
        all.all(|who| self.child(who).is_none() || self.has_ended_well(who))
    }

    fn wait_for(&mut self, who: Who, within: Duration) {
        let began = Instant::now();
        while !self.has_ended_well(who) {
            if began.elapsed() > within {
                self.fail(who, "does not end");
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn has_ended_well(&mut self, who: Who) -> bool {
        let Some(status) = self.ended(who) else {
            return false;
        };
        self.check(who, status);
        *self.child(who) = None;
        true
    }

    /// Nobody ends who was not asked to.
    pub fn watch(&mut self) {
        self.watch_ghosts();
        let sites = (0..SITES.len()).map(Who::Site);
        for who in sites.chain([Who::Coordinator]) {
            let Some(status) = self.ended(who) else {
                continue;
            };
            self.check(who, status);
            if !self.asked.contains(&who) {
                self.fail(who, "ended before its time");
            }
        }
    }

    fn ended(&mut self, who: Who) -> Option<ExitStatus> {
        let child = self.child(who).as_mut();
        child.and_then(|child| child.try_wait().unwrap())
    }

    fn check(&self, who: Who, status: ExitStatus) {
        // One that was asked before it could listen for signals ends by the signal.
        let early = self.asked.contains(&who) && status.signal() == Some(libc::SIGTERM);
        if !status.success() && !early {
            self.fail(who, &format!("ended with {status}"));
        }
    }

    pub fn fail(&self, who: Who, what: &str) -> ! {
        let tail = |end: &str| {
            let text = std::fs::read_to_string(self.log(who, end)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().rev().take(8).collect();
            lines.into_iter().rev().collect::<Vec<_>>().join("\n")
        };
        panic!(
            "{who:?} {what}; it said:\n{}\n{}",
            tail("json"),
            tail("log")
        );
    }

    /// What somebody wrote to stderr, beside what `expected` knows.
    pub fn complaints(&self, expected: impl Fn(&str) -> bool) -> Vec<String> {
        let logs = std::fs::read_dir(self.root.join("logs")).unwrap();
        let logs = logs.map(|log| log.unwrap().path());
        let logs = logs.filter(|log| log.extension().is_some_and(|end| end == "log"));
        let texts: Vec<String> = logs
            .map(|log| std::fs::read_to_string(log).unwrap())
            .collect();
        let lines = texts.iter().flat_map(|text| text.lines());
        let unexpected = lines.filter(|line| !expected(line));
        unexpected.map(str::to_owned).collect()
    }

    pub fn wait_until_it_listens(&mut self) {
        let began = Instant::now();
        while !self.root.join("data/operator.toml").exists() {
            if began.elapsed() > WITHIN || self.ended(Who::Coordinator).is_some() {
                self.fail(Who::Coordinator, "does not start");
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Cast {
    fn drop(&mut self) {
        let all = self.replicas.iter_mut().chain([&mut self.coordinator]);
        for child in all.flatten().chain(self.ghosts.values_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn signal(child: &Child, signal: libc::c_int) {
    let pid = i32::try_from(child.id()).unwrap();
    // SAFETY: kill() takes no pointers; the child is not yet waited for, so the pid is its.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// A replica that does not know yet which incarnation it is.
fn is_registering(state: &Path) -> bool {
    let Ok(text) = std::fs::read(state.join("identity.json")) else {
        return true;
    };
    let identity: serde_json::Value = serde_json::from_slice(&text).unwrap();
    !identity["registration"]["nonce"].is_null()
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn free_port() -> u16 {
    let mut random = Random(u64::from(std::process::id()));
    let ports = PORTS.end - PORTS.start;
    let mut tried = (0..100).map(|_| (PORTS.start + random.below(ports)) as u16);
    let free = tried.find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.expect("a free port")
}

/// A test that is itself killed must not leave processes behind.
fn die_with_this_thread(command: &mut Command) {
    // SAFETY: prctl(PR_SET_PDEATHSIG) is async-signal-safe and touches only the new process.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

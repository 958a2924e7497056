//! A real Slurm cluster of a test's own, where the folder of test data has the tool that starts one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longer than anything takes on a busy machine: a bound, never a measurement.
const WITHIN: Duration = Duration::from_secs(180);
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Nodes of little, so that two jobs of a GPU each fit and a third waits; and one in a partition aside.
const SHAPE: &str = r"
N_NODES=3
NAMES='gn[1-3]'
NODES='NodeName=gn[1-3] NodeAddr=@A@ Port=@P[0-2]@ Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=65536 Gres=gpu:a100:1'
PARTS='
PartitionName=gpu Nodes=gn[1-2] MaxTime=00:30:00 DefaultTime=00:01:00 Default=YES
PartitionName=side Nodes=gn3 MaxTime=00:30:00 DefaultTime=00:01:00'
GRES='NodeName=gn[1-3] Name=gpu Type=a100 File=@GPU[0-0]@'
EXTRA='MessageTimeout=3'
QOS='debug MaxWall=00:30:00 MaxSubmitJobsPU=2 Flags=DenyOnLimit'
";

/// A cluster with three nodes of one GPU each, of which one is in a partition aside; gone with the value.
pub struct SlurmCluster {
    tool: PathBuf,
    folder: TempDir,
    port: u16,
    name: &'static str,
}

impl SlurmCluster {
    /// Starts one; `None`, with the reason on stderr, where there is no Slurm.
    ///
    /// # Panics
    /// If there is one and no cluster comes up.
    #[must_use]
    pub fn start(name: &'static str) -> Option<Self> {
        let tool = tool()?;
        // Sockets have short names.
        let folder = tempfile::Builder::new().prefix("hs").tempdir();
        let folder = folder.expect("a temporary folder");
        let shapes = folder.path().join("shapes");
        std::fs::create_dir(&shapes).expect("a folder for shapes");
        std::fs::write(shapes.join(format!("{name}.shape")), SHAPE).expect("a shape");
        let mut cluster = Self {
            tool,
            folder,
            port: 0,
            name,
        };
        for _ in 0..5 {
            cluster.port = free_range();
            if cluster.try_tool(&["up", name]) {
                return Some(cluster);
            }
            cluster.try_tool(&["down", name]);
        }
        panic!("no cluster came up in {}", cluster.folder.path().display());
    }

    fn try_tool(&self, arguments: &[&str]) -> bool {
        let dir = self.folder.path();
        let status = Command::new(&self.tool)
            .args(arguments)
            .env("SLURM_CLUSTERS_DIR", dir.join("c"))
            .env("SLURM_CLUSTERS_SHAPES", dir.join("shapes"))
            .env("SLURM_CLUSTERS_PORT", self.port.to_string())
            .env("SLURM_CLUSTERS_QUIET", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status();
        status.is_ok_and(|status| status.success())
    }

    /// Runs the tool with the cluster's name as its second argument, which must succeed.
    ///
    /// # Panics
    /// If it does not.
    pub fn tool(&self, verb: &str, more: &[&str]) {
        let mut arguments = vec![verb, self.name];
        arguments.extend(more);
        assert!(self.try_tool(&arguments), "{arguments:?}");
    }

    /// Where its configuration lies.
    #[must_use]
    pub fn conf(&self) -> PathBuf {
        let clusters = self.folder.path().join("c");
        clusters.join(self.name).join("slurm.conf")
    }

    /// What a command of its prints.
    ///
    /// # Panics
    /// If there is no such program.
    #[must_use]
    pub fn ask(&self, program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program)
            .args(arguments)
            .env("SLURM_CONF", self.conf())
            .stdin(Stdio::null())
            .output();
        let output = output.expect("a program");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Asks until the answer is as wanted.
    ///
    /// # Panics
    /// If it never is.
    pub fn ask_until(
        &self,
        program: &str,
        arguments: &[&str],
        wanted: impl Fn(&str) -> bool,
    ) -> String {
        let began = Instant::now();
        loop {
            let said = self.ask(program, arguments);
            if wanted(&said) {
                return said;
            }
            assert!(began.elapsed() < WITHIN, "never came: {said}");
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// All jobs whose names begin so, as accounting has them: name, state, exit code. Ones that wait for
    /// their time are among them.
    #[must_use]
    pub fn jobs(&self, prefix: &str) -> Vec<[String; 3]> {
        let fields = "--format=JobName,State,ExitCode";
        let window = ["-S", "now-1days", "-E", "now+1days"];
        let mut arguments = vec!["-X", "-n", "-P", fields];
        arguments.extend(window);
        let said = self.ask("sacct", &arguments);
        let row = |line: &str| {
            let mut cells = line.splitn(3, '|').map(str::to_owned);
            [(); 3].map(|()| cells.next().unwrap_or_default())
        };
        let rows = said.lines().map(row);
        rows.filter(|[name, ..]| name.starts_with(prefix)).collect()
    }
}

impl Drop for SlurmCluster {
    fn drop(&mut self) {
        self.try_tool(&["down", self.name]);
    }
}

fn tool() -> Option<PathBuf> {
    let Some(data) = std::env::var_os("HANSA_TEST_DATA") else {
        eprintln!("skipped: HANSA_TEST_DATA is not set");
        return None;
    };
    let tool = Path::new(&data).join("tools/slurm-clusters");
    if !tool.exists() {
        eprintln!("skipped: {} is not there", tool.display());
        return None;
    }
    let look = "PATH=$PATH:/usr/sbin; for c in slurmctld slurmdbd mariadbd munged; do command -v $c || exit 1; done";
    let there = Command::new("sh")
        .args(["-c", look])
        .stdout(Stdio::null())
        .status();
    if !there.is_ok_and(|status| status.success()) {
        eprintln!("skipped: Slurm's daemons are not installed");
        return None;
    }
    Some(tool)
}

/// The first of a hundred ports of which one at least is free now.
fn free_range() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener
        .local_addr()
        .map_or(20_000, |address| address.port());
    (port - port % 100).min(65_400)
}

//! A real `sshd` on loopback for one test: keys, configuration and port of its own.
//!
//! A listener of ours hands each connection to an `sshd -i`, as inetd would, so that no port is guessed and no
//! daemon outlives the test. Nothing of the user's or the system's configuration is read or changed. Never
//! here: a password.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tempfile::TempDir;

/// The name under which `ssh` knows the server.
pub const HOST: &str = "login";
const SSHD: &str = "/usr/sbin/sshd";
/// Where sshd, run by root, locks its unprivileged half up.
const SEPARATION: &str = "/run/sshd";

/// A server that lets its owner in; gone with the value.
pub struct SshServer {
    folder: TempDir,
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

impl SshServer {
    /// Starts one; `None`, with the reason on stderr, where there is no `sshd`.
    ///
    /// # Panics
    /// If there is one and it cannot be set up.
    #[must_use]
    pub fn start() -> Option<Self> {
        if !Path::new(SSHD).exists() {
            eprintln!("skipped: {SSHD} is not there (package openssh-server)");
            return None;
        }
        let root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
        if root && std::fs::create_dir_all(SEPARATION).is_err() {
            eprintln!("skipped: sshd needs {SEPARATION}, which cannot be made");
            return None;
        }
        // Sockets have short names.
        let folder = tempfile::Builder::new().prefix("hs").tempdir();
        let folder = folder.expect("a temporary folder");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        write_files(folder.path(), address);
        let (connections, over) = (Arc::default(), Arc::default());
        let served = serve(
            listener,
            folder.path().to_owned(),
            Arc::clone(&connections),
            Arc::clone(&over),
        );
        Some(Self {
            folder,
            address,
            connections,
            over,
            listener: Some(served),
        })
    }

    /// The client's configuration, for `ssh -F`; it knows [`HOST`], and keeps one connection for all.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("ssh_config")
    }

    /// How many connections there were.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        // The master stays for a while after the last command.
        let _ = Command::new("ssh")
            .arg("-F")
            .arg(self.config())
            .args(["-O", "exit", HOST])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        self.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

fn serve(
    listener: TcpListener,
    folder: PathBuf,
    connections: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            if over.load(Ordering::SeqCst) {
                return;
            }
            let Ok(stream) = stream else { continue };
            connections.fetch_add(1, Ordering::SeqCst);
            hand_over(stream, &folder);
        }
    })
}

/// One connection is one `sshd`, which ends with it.
fn hand_over(stream: TcpStream, folder: &Path) {
    let output = stream.try_clone().map(OwnedFd::from);
    let output = output.expect("a second end of a connection");
    let mut child = Command::new(SSHD)
        .arg("-i")
        .arg("-f")
        .arg(folder.join("sshd_config"))
        .arg("-E")
        .arg(folder.join("sshd.log"))
        .stdin(Stdio::from(OwnedFd::from(stream)))
        .stdout(Stdio::from(output))
        .stderr(Stdio::null())
        .spawn()
        .expect("sshd");
    std::thread::spawn(move || child.wait());
}

fn write_files(folder: &Path, address: SocketAddr) {
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).expect("a file of the test's");
    };
    for name in ["host", "user"] {
        let status = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(folder.join(name))
            .status();
        assert!(status.is_ok_and(|status| status.success()), "ssh-keygen");
    }
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a key");
    let (dir, port) = (folder.display(), address.port());
    write("authorized_keys", &read("user.pub"));
    write(
        "known_hosts",
        &format!("[127.0.0.1]:{port} {}", read("host.pub")),
    );
    write(
        "sshd_config",
        &format!(
            "HostKey {dir}/host\nAuthorizedKeysFile {dir}/authorized_keys\nPidFile none\nUsePAM no\n\
             StrictModes no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
        ),
    );
    write(
        "ssh_config",
        &format!(
            "Host {HOST}\nHostName 127.0.0.1\nPort {port}\nIdentityFile {dir}/user\nIdentitiesOnly yes\n\
             UserKnownHostsFile {dir}/known_hosts\nStrictHostKeyChecking yes\nControlMaster auto\n\
             ControlPath {dir}/%C\nControlPersist 600\n"
        ),
    );
}

//! The static binary in a folder that holds nothing else that could run: no library, no shell, no /proc, no
//! certificates. `cargo xtask static` builds it, and runs this with `HANSA_STATIC_BINARY` naming it.
#![allow(clippy::unwrap_used)]

mod common;

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Place, Process, Server};

const BINARY: &str = "HANSA_STATIC_BINARY";
const NAME: &str = "vm.hansa.example";

/// The binary, where there is one and this user may change the root directory; says what is missing.
fn binary() -> Option<PathBuf> {
    let Some(binary) = std::env::var_os(BINARY) else {
        eprintln!("skipped: {BINARY} is not set; `cargo xtask static` sets it");
        return None;
    };
    // SAFETY: takes nothing, and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root may change the root directory");
        return None;
    }
    Some(binary.into())
}

/// A run whose folder is a bare root directory with the binary in it.
fn bare(binary: &Path) -> Place {
    let place = Place::new();
    std::fs::copy(binary, place.path("hansa")).unwrap();
    for folder in ["tmp", "etc", "dev"] {
        std::fs::create_dir(place.path(folder)).unwrap();
    }
    // As every container has them.
    for (name, minor) in [("dev/null", "3"), ("dev/random", "8"), ("dev/urandom", "9")] {
        let mut mknod = Command::new("mknod");
        mknod
            .args([name, "c", "1", minor])
            .current_dir(place.path(""));
        assert!(mknod.status().unwrap().success());
    }
    place
}

fn inside(place: &Place, line: &str) -> Process {
    let root = place.path("");
    place.start_other("chroot", &format!("{} /hansa {line}", root.display()))
}

/// The coordinator by name.
fn url(server: &Server) -> String {
    server.url.replace("127.0.0.1", NAME)
}

fn train(server: &Server) -> String {
    let url = url(server);
    format!(
        "train --coordinator {url} --token-file alder.toml --site alder --replica r0 --corpus corpus --state \
         state --threads 1 --json"
    )
}

#[test]
fn it_trains_in_a_bare_root_directory_with_the_coordinators_name_from_the_hosts_file() {
    let Some(binary) = binary() else { return };
    let place = bare(&binary);
    let help = inside(&place, "--help").end_well().stdout;
    assert!(help.contains("agent") && help.contains("train"), "{help}");
    place.write(
        "etc/hosts",
        &format!("127.0.0.1 localhost\n127.0.0.1 {NAME}\n"),
    );
    // Everything in there, the coordinator, too.
    let mut process = inside(
        &place,
        "serve run.toml --data data --listen 127.0.0.1:0 --json",
    );
    let listening = process.event("listening");
    let text = |key: &str| listening[key].as_str().unwrap().to_owned();
    let (url, fingerprint) = (text("url"), text("fingerprint"));
    let server = Server {
        process,
        url,
        fingerprint,
    };
    let line = "token add alder --data data --out alder.toml";
    assert_eq!(inside(&place, line).end().code, Some(0));
    inside(&place, &train(&server)).end_well();
    server.process.end_well();
    assert_eq!(place.verified("data")["ended"], true);
}

#[test]
fn it_asks_the_name_server_that_resolv_conf_names() {
    let Some(binary) = binary() else { return };
    let place = bare(&binary);
    let server = place.serve("data");
    place.token("alder", "data");
    let address = name_server();
    place.write(
        "etc/resolv.conf",
        &format!("search hansa.example\nnameserver {address}\n"),
    );
    inside(&place, &train(&server)).end_well();
    server.process.end_well();
    assert_eq!(place.verified("data")["ended"], true);
}

#[test]
fn its_agent_starts_a_trainer_and_an_unknown_name_is_told() {
    let Some(binary) = binary() else { return };
    let place = bare(&binary);
    let server = place.serve("data");
    place.token("alder", "data");
    let agent = train(&server).replace("train ", "agent --losses-max 1 ");
    let agent = agent.replace("--threads 1 ", "") + " -- /hansa --version";
    let end = inside(&place, &agent.replace(NAME, "wm.hansa.example")).end();
    assert_ne!(end.code, Some(0));
    assert!(end.stderr.contains("wm.hansa.example"), "{}", end.stderr);

    place.write("etc/hosts", &format!("127.0.0.1 {NAME}\n"));
    let end = inside(&place, &agent).end();
    assert_eq!(end.code, Some(1), "{}", end.stderr);
    assert!(
        end.stderr.contains("the trainer ended (exit status 0)"),
        "{}",
        end.stderr
    );
    place.finish(server, "data");
}

/// A name server that knows one name. Its port must be 53, so its address is one that nobody else uses:
/// all of 127.0.0.0/8 is this machine.
fn name_server() -> IpAddr {
    let [.., b, c] = std::process::id().to_be_bytes();
    let address = IpAddr::from(Ipv4Addr::new(127, 53, b, c.max(1)));
    let socket = UdpSocket::bind((address, 53)).unwrap();
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut query) {
            let _ = socket.send_to(&answer(&query[..length]), from);
        }
    });
    address
}

/// RFC 1035: the question again, and the address if it is asked for the one name's.
fn answer(query: &[u8]) -> Vec<u8> {
    let question_end = 12 + query[12..].iter().position(|&byte| byte == 0).unwrap() + 5;
    let (name, kind) = (
        &query[12..question_end - 4],
        &query[question_end - 4..question_end - 2],
    );
    let labels = NAME.split('.').flat_map(|label| {
        let length = u8::try_from(label.len()).unwrap();
        std::iter::once(length).chain(label.bytes())
    });
    let known = labels
        .chain([0])
        .eq(name.iter().map(u8::to_ascii_lowercase));
    let answers = u8::from(known && kind == [0, 1]);
    let status = if known { 0 } else { 3 };
    let mut reply = query[..2].to_vec();
    reply.extend([0x81, 0x80 | status, 0, 1, 0, answers, 0, 0, 0, 0]);
    reply.extend(&query[12..question_end]);
    if answers == 1 {
        // The name of the question, type A, class IN, a minute, four bytes.
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
    }
    reply
}

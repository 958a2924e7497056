//! The floor of a transfer: bytes through loopback TCP into files, which are then made durable.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

const PIECE_BYTES: usize = 256 << 10;

/// Copies so many bytes over each of `streams` connections at once, into a file each; the files go
/// afterwards.
///
/// # Errors
/// If a socket or a file fails.
pub fn over_loopback(dir: &Path, streams: usize, bytes: u64) -> anyhow::Result<Duration> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listen on loopback")?;
    let address = listener.local_addr().context("ask for the port")?;
    let start = Instant::now();
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..streams)
            .map(|_| scope.spawn(move || send(TcpStream::connect(address)?, bytes)))
            .collect();
        let mut receivers = Vec::new();
        for number in 0..streams {
            let (socket, _) = listener.accept().context("accept a connection")?;
            let path = dir.join(format!("floor-copy-{number}"));
            receivers.push(scope.spawn(move || {
                let received = receive(socket, &path, bytes);
                let _ = std::fs::remove_file(&path);
                received
            }));
        }
        for copy in senders.into_iter().chain(receivers) {
            let result = copy.join();
            let result = result.map_err(|_| anyhow::anyhow!("a copying thread died"))?;
            result.context("copy over loopback")?;
        }
        anyhow::Ok(())
    })?;
    Ok(start.elapsed())
}

fn send(mut socket: TcpStream, bytes: u64) -> std::io::Result<()> {
    let piece = vec![0x5a; PIECE_BYTES];
    let mut left = bytes;
    while left > 0 {
        let count = left.min(PIECE_BYTES as u64) as usize;
        socket.write_all(&piece[..count])?;
        left -= count as u64;
    }
    Ok(())
}

fn receive(mut socket: TcpStream, path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut left = bytes;
    while left > 0 {
        let count = left.min(PIECE_BYTES as u64) as usize;
        socket.read_exact(&mut piece[..count])?;
        file.write_all(&piece[..count])?;
        left -= count as u64;
    }
    file.sync_all()
}

//! The proxy: accepts, connects onwards, and pumps bytes both ways as its shape says.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use crate::wire::Wire;

/// Read, delayed and written at once.
const PIECE_BYTES: usize = 16 << 10;
const HEAD_BYTES_MAX: usize = 8 << 10;

/// What the network is like. The default is a perfect one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shape {
    /// Each way.
    pub delay: Duration,
    /// Each way, over all connections; `None`: as fast as it goes.
    pub bytes_per_s: Option<u64>,
    /// What a direction of a connection holds before its sender feels it; `None`: 4 MiB.
    pub queue_bytes: Option<usize>,
    /// A connection is cut once it has carried so much, both ways together.
    pub cut_after_bytes: Option<u64>,
    /// A connection is cut once it is so old.
    pub cut_after: Option<Duration>,
}

/// How clients are taken on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Each connection is relayed.
    Relay,
    /// Clients ask with HTTP CONNECT; whatever host they name, they get the target.
    Connect,
    /// Clients that ask with HTTP CONNECT are refused with this status.
    Refuse(u16),
}

/// What passed so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections taken on.
    pub connections: u64,
    /// Connections that the proxy cut.
    pub cuts: u64,
    /// Bytes from clients to the target.
    pub up_bytes: u64,
    /// Bytes from the target to clients.
    pub down_bytes: u64,
}

/// A running proxy; dropped, it ends with all its connections. Cheap handles are not needed: share it.
#[derive(Debug)]
pub struct ShapingProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    // Dropping it ends the listener and its connections.
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    way: Way,
    shape: Shape,
    began: Instant,
    target: Mutex<SocketAddr>,
    asked: Mutex<Vec<String>>,
    silent: watch::Sender<bool>,
    broken: watch::Sender<u64>,
    connections: AtomicU64,
    cuts: AtomicU64,
    up: Direction,
    down: Direction,
}

#[derive(Debug)]
struct Direction {
    wire: Mutex<Wire>,
    bytes: AtomicU64,
    /// The number of a byte that arrives flipped; `u64::MAX`: none.
    flip_at: AtomicU64,
}

impl Direction {
    fn new(shape: Shape) -> Self {
        Self {
            wire: Mutex::new(Wire::new(shape.bytes_per_s, shape.delay)),
            bytes: 0.into(),
            flip_at: u64::MAX.into(),
        }
    }

    /// Counts a piece, and spoils it if it holds the byte to be spoilt.
    fn pass(&self, piece: &mut [u8]) {
        let length = piece.len() as u64;
        let before = self.bytes.fetch_add(length, Ordering::Relaxed);
        let flip_at = self.flip_at.load(Ordering::Relaxed);
        if (before..before + length).contains(&flip_at) {
            piece[(flip_at - before) as usize] ^= 1;
            self.flip_at.store(u64::MAX, Ordering::Relaxed);
        }
    }
}

impl ShapingProxy {
    /// Listens on a free port of this machine.
    ///
    /// # Errors
    /// If there is none.
    pub async fn start(way: Way, target: SocketAddr, shape: Shape) -> io::Result<Self> {
        Self::listen(SocketAddr::from(([127, 0, 0, 1], 0)), way, target, shape).await
    }

    /// Listens on an address of the caller's choice.
    ///
    /// # Errors
    /// If it cannot be listened on.
    pub async fn listen(
        address: SocketAddr,
        way: Way,
        target: SocketAddr,
        shape: Shape,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            way,
            shape,
            began: Instant::now(),
            target: Mutex::new(target),
            asked: Mutex::default(),
            silent: watch::Sender::new(false),
            broken: watch::Sender::new(0),
            connections: 0.into(),
            cuts: 0.into(),
            up: Direction::new(shape),
            down: Direction::new(shape),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, shared.clone()));
        Ok(Self {
            address,
            shared,
            _tasks: tasks,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// New connections go there.
    pub fn set_target(&self, target: SocketAddr) {
        *lock(&self.shared.target) = target;
    }

    /// From now on nothing passes, and nobody is told: as when a cable is cut.
    pub fn silence(&self) {
        self.shared.silent.send_replace(true);
    }

    /// Ends the silence.
    pub fn resume(&self) {
        self.shared.silent.send_replace(false);
    }

    /// Cuts all connections there are.
    pub fn break_all(&self) {
        self.shared.broken.send_modify(|times| *times += 1);
    }

    /// Flips a bit of the byte that passes upwards after so many more.
    pub fn flip_up_after(&self, bytes: u64) {
        flip_after(&self.shared.up, bytes);
    }

    /// Flips a bit of the byte that passes downwards after so many more.
    pub fn flip_down_after(&self, bytes: u64) {
        flip_after(&self.shared.down, bytes);
    }

    /// What passed so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Counts {
            connections: get(&self.shared.connections),
            cuts: get(&self.shared.cuts),
            up_bytes: get(&self.shared.up.bytes),
            down_bytes: get(&self.shared.down.bytes),
        }
    }

    /// What clients asked for with CONNECT, in order.
    #[must_use]
    pub fn asked(&self) -> Vec<String> {
        lock(&self.shared.asked).clone()
    }

    /// Waits until so many bytes have passed, both ways together.
    pub async fn passed(&self, bytes: u64) {
        loop {
            let counts = self.counts();
            if counts.up_bytes + counts.down_bytes >= bytes {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn flip_after(direction: &Direction, bytes: u64) {
    let at = direction.bytes.load(Ordering::Relaxed) + bytes;
    direction.flip_at.store(at, Ordering::Relaxed);
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let shared = shared.clone();
        // Broken connections are what this is about.
        connections.spawn(async move {
            let _ = converse(client, &shared).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn converse(mut client: TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut broken = shared.broken.subscribe();
    broken.mark_unchanged();
    if shared.way != Way::Relay {
        let host = read_connect(&mut client).await?;
        lock(&shared.asked).push(host);
        if let Way::Refuse(status) = shared.way {
            let answer = format!("HTTP/1.1 {status} No\r\ncontent-length: 0\r\n\r\n");
            return client.write_all(answer.as_bytes()).await;
        }
    }
    let target = *lock(&shared.target);
    let server = TcpStream::connect(target).await?;
    server.set_nodelay(true)?;
    if shared.way == Way::Connect {
        let answer = b"HTTP/1.1 200 Connection established\r\n\r\n";
        client.write_all(answer).await?;
    }
    let carried = Arc::new(AtomicU64::new(0));
    let (full, mut is_full) = watch::channel(false);
    let full = Arc::new(full);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let pump = |from, to, up| Pump {
        shared: shared.clone(),
        from,
        to,
        up,
        carried: carried.clone(),
        full: full.clone(),
    };
    let up = pump(from_client, to_server, true).run();
    let down = pump(from_server, to_client, false).run();
    let age = shared.shape.cut_after.unwrap_or(Duration::MAX);
    tokio::select! {
        // A half-closed connection still carries the other half.
        ended = async { tokio::try_join!(up, down) } => ended.map(drop),
        _ = is_full.wait_for(|full| *full) => {
            shared.cuts.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        () = tokio::time::sleep(age) => {
            shared.cuts.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        _ = broken.changed() => {
            shared.cuts.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }
}

/// Reads the head of a CONNECT request; gives the host and port that it names.
async fn read_connect(client: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= HEAD_BYTES_MAX {
            return Err(io::Error::other("the head is too long"));
        }
        head.push(client.read_u8().await?);
    }
    let text = String::from_utf8_lossy(&head);
    let mut words = text.split_whitespace();
    match (words.next(), words.next()) {
        (Some("CONNECT"), Some(host)) => Ok(host.to_owned()),
        _ => Err(io::Error::other("not a CONNECT request")),
    }
}

/// One direction of one connection.
struct Pump {
    shared: Arc<Shared>,
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    up: bool,
    carried: Arc<AtomicU64>,
    full: Arc<watch::Sender<bool>>,
}

impl Pump {
    async fn run(self) -> io::Result<()> {
        let queue_bytes = self.shared.shape.queue_bytes.unwrap_or(4 << 20);
        let room = Arc::new(Semaphore::new(queue_bytes.max(PIECE_BYTES)));
        // Bounded by bytes; the number of pieces follows from that.
        let (sender, mut receiver) = mpsc::unbounded_channel::<(Duration, Vec<u8>)>();
        let Self {
            shared,
            mut from,
            mut to,
            up,
            carried,
            full,
        } = self;
        let reading = async {
            let sender = sender;
            let mut silent = shared.silent.subscribe();
            let direction = if up { &shared.up } else { &shared.down };
            let mut buffer = vec![0; PIECE_BYTES];
            loop {
                let count = from.read(&mut buffer).await?;
                if count == 0 {
                    return Ok(false);
                }
                let _ = silent.wait_for(|silent| !silent).await;
                let mut piece = buffer[..count].to_vec();
                direction.pass(&mut piece);
                let (_, arrives) = lock(&direction.wire).send(shared.began.elapsed(), count);
                if let Ok(permit) = room.acquire_many(count as u32).await {
                    permit.forget();
                }
                let _ = sender.send((arrives, piece));
                let sum = carried.fetch_add(count as u64, Ordering::Relaxed) + count as u64;
                if shared.shape.cut_after_bytes.is_some_and(|most| sum >= most) {
                    return Ok(true);
                }
            }
        };
        let writing = async {
            let mut silent = shared.silent.subscribe();
            while let Some((arrives, piece)) = receiver.recv().await {
                let wait = arrives.saturating_sub(shared.began.elapsed());
                if !wait.is_zero() {
                    tokio::time::sleep(wait).await;
                }
                let _ = silent.wait_for(|silent| !silent).await;
                to.write_all(&piece).await?;
                room.add_permits(piece.len());
            }
            Ok(())
        };
        let (is_full, ()) = tokio::try_join!(reading, writing)?;
        if is_full {
            // What was taken on has been passed on; now comes the cut.
            full.send_replace(true);
            return std::future::pending().await;
        }
        to.shutdown().await
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! The shaping proxy alone, for experiments: `shape --target HOST:PORT --delay-ms 50 --mbit 100`.
//! Prints where it listens, and what passed when Ctrl-C ends it.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use hansa_testkit::{Shape, ShapingProxy, Way};

#[derive(Parser)]
struct Arguments {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where connections go.
    #[arg(long)]
    target: SocketAddr,
    /// Take clients on with HTTP CONNECT.
    #[arg(long)]
    connect: bool,
    /// Each way.
    #[arg(long, default_value_t = 0.0)]
    delay_ms: f64,
    /// Each way, over all connections.
    #[arg(long)]
    mbit: Option<f64>,
    /// Cut a connection that has carried so much.
    #[arg(long)]
    cut_mib: Option<u64>,
    /// Cut a connection that is so old.
    #[arg(long)]
    cut_s: Option<f64>,
    /// What a direction of a connection holds.
    #[arg(long)]
    queue_kib: Option<usize>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let shape = Shape {
        delay: Duration::from_secs_f64(arguments.delay_ms / 1000.0),
        bytes_per_s: arguments.mbit.map(|mbit| (mbit * 125_000.0) as u64),
        queue_bytes: arguments.queue_kib.map(|kib| kib << 10),
        cut_after_bytes: arguments.cut_mib.map(|mib| mib << 20),
        cut_after: arguments.cut_s.map(Duration::from_secs_f64),
    };
    let way = if arguments.connect {
        Way::Connect
    } else {
        Way::Relay
    };
    let proxy = ShapingProxy::listen(arguments.listen, way, arguments.target, shape).await?;
    println!("listening on {}", proxy.address());
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result?,
        _ = terminate.recv() => {}
    }
    println!("{:?}", proxy.counts());
    Ok(())
}

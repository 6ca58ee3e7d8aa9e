//! `hack/bench node`: what `vireo standalone` costs and how fast it answers, measured from outside by kube-rs on the
//! same host: requests, watches, objects at rest, and VMIs from their creation until they run. Many VMIs on simulated nodes are measured inside this process.

mod cost;
mod objects;
mod scale;
mod table;
mod vmis;
mod watches;

#[path = "../common/filler.rs"]
mod filler;
#[path = "../../tests/suite/server.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "it is the tests' server, which also dies")]
mod server;

use clap::Parser;
use vireo_client::Kind;

use self::server::Server;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Measures one `vireo standalone` on this host and prints tables.
#[derive(Parser)]
struct Arguments {
    /// VMIs created at once, a round each; 0 for none.
    #[arg(long, value_delimiter = ',', default_value = "1,20,100")]
    vmis: Vec<usize>,
    /// Objects stored, of 1 KiB each; where there are no VMIs either, 0 for no server.
    #[arg(long, default_value_t = 1000)]
    objects: usize,
    /// Those who watch.
    #[arg(long, default_value_t = 100)]
    watchers: usize,
    /// Clients that ask at the same time.
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// VMIs on simulated nodes; 0 for none.
    #[arg(long, default_value_t = 10_000)]
    scale: usize,
    /// Creates these through VirtualMachines.
    #[arg(long)]
    scale_vms: bool,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<(), Error> {
    let arguments = Arguments::parse();
    // First, as it measures the memory of this process.
    scale::measure(arguments.scale, if arguments.scale_vms { Kind::VM } else { Kind::VMI })?;
    outside(&arguments)
}

/// Measures a server in a process of its own.
#[tokio::main(flavor = "current_thread")]
async fn outside(arguments: &Arguments) -> Result<(), Error> {
    if arguments.objects == 0 && arguments.vmis.iter().all(|count| *count == 0) {
        return Ok(());
    }
    let server = Server::start_with(&["--hypervisor", "qemu"]);
    println!("vireo at its start: {}", cost::memory(&server));
    objects::measure(&server, arguments).await?;
    watches::measure(&server, arguments).await?;
    vmis::measure(&server, &arguments.vmis).await
}

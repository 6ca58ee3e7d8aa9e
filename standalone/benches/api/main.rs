//! `hack/bench api`: one load on `vireo standalone` and on kube-apiserver with etcd, in turns, over TLS connections: durable
//! creates, gets, lists and watches of ConfigMaps, and the memory of the servers.

mod figures;
mod load;
mod subject;

#[path = "../common/filler.rs"]
mod filler;
#[path = "../../tests/suite/server.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "it is the tests' server, which also dies")]
mod server;

use clap::Parser;

use self::figures::Figures;
use self::server::Server;
use self::subject::Subject;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Measures two API servers on this host and prints a table.
#[derive(Parser)]
struct Arguments {
    /// Objects that are created in a round, of 1 KiB each.
    #[arg(long, default_value_t = 2000)]
    objects: usize,
    /// Objects that are read in a round, one by one.
    #[arg(long, default_value_t = 10_000)]
    gets: usize,
    /// Lists of 500 objects in a round.
    #[arg(long, default_value_t = 200)]
    lists: usize,
    /// Changes that are watched in a round.
    #[arg(long, default_value_t = 400)]
    changes: usize,
    /// Watches, each on a connection of its own.
    #[arg(long, default_value_t = 100)]
    watchers: usize,
    /// Connections that send requests at the same time.
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Rounds, of which the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let arguments = Arguments::parse();
    let server = Server::start();
    let subjects = [Subject::vireo(&server).await, Subject::kube_apiserver().await?];
    let mut measured: [Vec<Figures>; 2] = Default::default();
    for round in 0..arguments.rounds {
        for (subject, measured) in subjects.iter().zip(&mut measured) {
            eprintln!("round {} of {}: {}", round + 1, arguments.rounds, subject.name);
            measured.push(load::round(subject, &arguments, round).await?);
        }
    }
    println!(
        "{} connections, {} objects a round, {} watches, medians of {} rounds:",
        arguments.clients, arguments.objects, arguments.watchers, arguments.rounds
    );
    figures::print(&subjects, measured);
    Ok(())
}

//! `hack/bench cluster`: Pods and VMIs of a cluster from their creation until their container and their guest run, in
//! turns, so that the kubelet's part is seen; and what a VMI costs the API server and the components.

mod audit;
mod memory;
mod round;
#[path = "../node/table.rs"]
#[expect(dead_code, reason = "it is the other benchmark's, which prints more")]
mod table;

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use kube::Client;
use vireo_tests::audit::AuditLog;

use self::round::Subject;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Measures the cluster of $KUBECONFIG, in its default namespace, and prints tables.
#[derive(Parser)]
struct Arguments {
    /// How many are created at once.
    #[arg(long, value_delimiter = ',', default_value = "1,10,30")]
    counts: Vec<usize>,
    /// Rounds of each, of which the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The image of launchers; a Pod runs one that waits for a VM.
    #[arg(long)]
    launcher_image: String,
    /// The API server's audit log, with a line for each request.
    #[arg(long)]
    audit_log: PathBuf,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let arguments = Arguments::parse();
    let client = Client::try_default().await?;
    let subjects = [Subject::pod(&client, &arguments.launcher_image), Subject::vmi(&client)];
    for &count in &arguments.counts {
        let mut took: [Vec<Duration>; 2] = Default::default();
        let mut writes = Vec::new();
        for round in 0..arguments.rounds {
            for (subject, took) in subjects.iter().zip(&mut took) {
                eprintln!("round {} of {}: {count} × {}", round + 1, arguments.rounds, subject.name);
                let log = AuditLog::begin(&arguments.audit_log)?;
                took.push(subject.create(count).await?);
                if subject.name == Subject::VMI {
                    writes.push(audit::Writes::of(&log)?);
                    memory::print(count, round::GUEST_MEMORY)?;
                }
                subject.delete().await?;
            }
        }
        report(count, took, &writes);
    }
    Ok(())
}

fn report(count: usize, took: [Vec<Duration>; 2], writes: &[audit::Writes]) {
    let [pods, vmis] = took.map(|mut all| table::percentile(&mut all, 50));
    let ratio = vmis.as_secs_f64() / pods.as_secs_f64();
    println!("{count}: Pods run after {pods:.2?}, VMIs after {vmis:.2?}, ratio {ratio:.2} (medians)");
    if let Some(writes) = writes.last() {
        println!("{count}: writes to the API server for each VMI until it runs:\n{}", writes.each(count));
    }
}

use serde_json::Value;

/// The preferred CPU topologies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Packages.
    pub sockets: u64,
    /// In each socket.
    pub cores: u64,
    /// Of each core.
    pub threads: u64,
}

/// Cores for each socket where a preference sets none.
const RATIO: u64 = 2;
/// Threads of a core that has several.
const THREADS: u64 = 2;

impl Topology {
    /// The CPU topology of an instance type by a preference: sockets by default.
    pub(super) fn of(instancetype: &Value, preference: Option<&Value>) -> Result<Self, String> {
        let guest = instancetype.pointer("/cpu/guest").and_then(Value::as_u64).filter(|guest| *guest > 0);
        let guest = guest.ok_or("cpu.guest: the instance type has no number of vCPUs")?;
        let cpu = preference.and_then(|preference| preference.get("cpu"));
        let text = |at: &str| cpu.and_then(|cpu| cpu.pointer(at)).and_then(Value::as_str);
        let preferred = text("/preferredCPUTopology").unwrap_or("sockets").to_lowercase();
        Ok(match preferred.strip_prefix("prefer").unwrap_or(&preferred) {
            "sockets" | "any" => Self { sockets: guest, cores: 1, threads: 1 },
            "cores" => Self { sockets: 1, cores: guest, threads: 1 },
            "threads" => Self { sockets: 1, cores: 1, threads: guest },
            "spread" => {
                let options = cpu.and_then(|cpu| cpu.pointer("/spreadOptions/ratio"));
                let deprecated =
                    preference.and_then(|preference| preference.get("preferSpreadSocketToCoreRatio"));
                let given = |ratio: Option<&Value>| ratio.and_then(Value::as_u64).filter(|ratio| *ratio > 0);
                let ratio = given(options).or_else(|| given(deprecated)).unwrap_or(RATIO);
                spread(guest, text("/spreadOptions/across").unwrap_or("SocketsCores"), ratio)?
            }
            other => return Err(format!("cpu.preferredCPUTopology: {other:?} is none there is")),
        })
    }
}

fn spread(guest: u64, across: &str, ratio: u64) -> Result<Topology, String> {
    let (cores, threads) = match across {
        "SocketsCores" => (ratio, 1),
        "SocketsCoresThreads" => (ratio, THREADS),
        "CoresThreads" => (guest / THREADS, THREADS),
        other => return Err(format!("cpu.spreadOptions.across: {other:?} is none there is")),
    };
    let all = cores.saturating_mul(threads);
    let sockets = guest.checked_div(all).unwrap_or(0);
    if sockets.saturating_mul(all) != guest || sockets == 0 {
        return Err(format!(
            "cpu.spreadOptions: {guest} vCPUs do not spread over sockets of {cores} cores with {threads} threads"
        ));
    }
    Ok(Topology { sockets, cores, threads })
}

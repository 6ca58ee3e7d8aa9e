use std::error::Error;
use std::fmt;
use std::str::FromStr;

/// The vCPUs of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    topology: CpuTopology,
    model: CpuModel,
    features: Vec<CpuFeature>,
}

impl Cpu {
    /// vCPUs of this topology and model, with each feature switched on or off.
    pub const fn new(topology: CpuTopology, model: CpuModel, features: Vec<CpuFeature>) -> Self {
        Self { topology, model, features }
    }

    /// The topology.
    pub const fn topology(&self) -> CpuTopology {
        self.topology
    }

    /// The number of sockets.
    pub fn sockets(&self) -> u32 {
        self.topology.sockets.into()
    }

    /// The number of cores per socket.
    pub fn cores(&self) -> u32 {
        self.topology.cores.into()
    }

    /// The number of threads per core.
    pub fn threads(&self) -> u32 {
        self.topology.threads.into()
    }

    /// The number of vCPUs.
    pub fn count(&self) -> u32 {
        self.topology.count().into()
    }

    /// The model.
    pub const fn model(&self) -> &CpuModel {
        &self.model
    }

    /// The features that are switched on or off by name.
    pub fn features(&self) -> &[CpuFeature] {
        &self.features
    }
}

/// A topology: sockets × cores × threads, 1 to 254 vCPUs in all (8-bit local APIC ids).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTopology {
    sockets: u8,
    cores: u8,
    threads: u8,
}

/// The error of a topology with no or too many vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTopologyError {
    sockets: u32,
    cores: u32,
    threads: u32,
}

impl fmt::Display for CpuTopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sockets, cores, threads } = self;
        let max = CpuTopology::MAX;
        write!(f, "{sockets} sockets of {cores} cores with {threads} threads are not 1 to {max} vCPUs")
    }
}

impl Error for CpuTopologyError {}

impl CpuTopology {
    /// The most vCPUs of a VM.
    pub const MAX: u32 = 254;

    /// A topology from counts, each at least 1.
    ///
    /// # Errors
    /// A count is zero, or there are more than [`Self::MAX`] vCPUs.
    pub fn new(sockets: u32, cores: u32, threads: u32) -> Result<Self, CpuTopologyError> {
        let error = CpuTopologyError { sockets, cores, threads };
        let all = sockets.checked_mul(cores).and_then(|count| count.checked_mul(threads));
        match (all, u8::try_from(sockets), u8::try_from(cores), u8::try_from(threads)) {
            (Some(1..=Self::MAX), Ok(sockets), Ok(cores), Ok(threads)) => {
                Ok(Self { sockets, cores, threads })
            }
            _ => Err(error),
        }
    }

    /// The number of vCPUs.
    pub const fn count(self) -> u8 {
        // `new` keeps the product within 254.
        self.sockets * self.cores * self.threads
    }

    /// The number of sockets.
    pub const fn sockets(self) -> u8 {
        self.sockets
    }

    /// The number of cores per socket.
    pub const fn cores(self) -> u8 {
        self.cores
    }

    /// The number of threads per core.
    pub const fn threads(self) -> u8 {
        self.threads
    }
}

/// The CPU model that a guest sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CpuModel {
    /// The named model nearest to the host's CPU.
    #[default]
    HostModel,
    /// The host's CPU.
    HostPassthrough,
    /// A model by QEMU's name; see [`is_cpu_name`].
    Named(String),
}

impl CpuModel {
    /// The name in KubeVirt's API.
    pub fn as_str(&self) -> &str {
        match self {
            Self::HostModel => "host-model",
            Self::HostPassthrough => "host-passthrough",
            Self::Named(name) => name,
        }
    }
}

/// The error of a name that is not one of a CPU model or feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidCpuName(String);

impl fmt::Display for InvalidCpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a name of at most 63 letters, digits, '-', '_' and '.'", self.0)
    }
}

impl Error for InvalidCpuName {}

/// The default for an empty text.
impl FromStr for CpuModel {
    type Err = InvalidCpuName;

    fn from_str(text: &str) -> Result<Self, InvalidCpuName> {
        match text {
            "" | "host-model" => Ok(Self::HostModel),
            "host-passthrough" => Ok(Self::HostPassthrough),
            name if is_cpu_name(name) => Ok(Self::Named(name.to_owned())),
            name => Err(InvalidCpuName(name.to_owned())),
        }
    }
}

/// A CPU feature that is switched on or off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuFeature {
    name: String,
    enabled: bool,
}

impl CpuFeature {
    /// A feature by QEMU's name.
    ///
    /// # Errors
    /// The name is not one; see [`is_cpu_name`].
    pub fn new(name: &str, enabled: bool) -> Result<Self, InvalidCpuName> {
        match is_cpu_name(name) {
            true => Ok(Self { name: name.to_owned(), enabled }),
            false => Err(InvalidCpuName(name.to_owned())),
        }
    }

    /// QEMU's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the guest sees it.
    pub const fn is_enabled(&self) -> bool {
        self.enabled
    }
}

/// Whether a text can be the name of a CPU model or feature. QEMU takes them in one comma-separated argument without
/// quoting, and labels of nodes name them: 1 to 63 letters, digits, `-`, `_` and `.`, the first and the last one a letter or
/// digit.
pub fn is_cpu_name(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let is_end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    text.len() <= 63 && text.bytes().all(allowed) && is_end(bytes.first()) && is_end(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_is_limited() {
        assert_eq!(CpuTopology::new(2, 3, 2).map(CpuTopology::count), Ok(12));
        assert_eq!(CpuTopology::new(1, 254, 1).map(CpuTopology::count), Ok(254));
        for (s, c, t) in [(0, 1, 1), (1, 0, 1), (1, 255, 1), (16, 16, 1), (u32::MAX, u32::MAX, u32::MAX)] {
            assert!(CpuTopology::new(s, c, t).is_err());
        }
    }

    #[test]
    fn names_have_no_separators() {
        for (text, model) in [
            ("", CpuModel::HostModel),
            ("host-model", CpuModel::HostModel),
            ("host-passthrough", CpuModel::HostPassthrough),
            ("Skylake-Client_v1.2", CpuModel::Named("Skylake-Client_v1.2".to_owned())),
        ] {
            assert_eq!(text.parse(), Ok(model));
        }
        for text in ["a,b", "a b", "a=b", "ä", "-avx", "_avx", "avx.", &"a".repeat(64)] {
            assert!(text.parse::<CpuModel>().is_err() && CpuFeature::new(text, true).is_err(), "{text}");
        }
        assert!(CpuFeature::new("", true).is_err());
    }
}

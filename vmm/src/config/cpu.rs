/// The guest's processors: sockets × cores × threads, 1 to 254 in all (8-bit local APIC ids).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    sockets: u8,
    cores: u8,
    threads: u8,
}

/// Why a topology is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{sockets} sockets of {cores} cores with {threads} threads are not 1 to 254 processors")]
pub struct CpusError {
    sockets: u32,
    cores: u32,
    threads: u32,
}

impl Cpus {
    /// The most processors a machine has.
    pub const MAX: u32 = 254;

    /// Checks a topology. Every number counts from 1.
    pub fn new(sockets: u32, cores: u32, threads: u32) -> Result<Self, CpusError> {
        let refuse = CpusError { sockets, cores, threads };
        let all = sockets.checked_mul(cores).and_then(|n| n.checked_mul(threads));
        match (all, u8::try_from(sockets), u8::try_from(cores), u8::try_from(threads)) {
            (Some(1..=Self::MAX), Ok(sockets), Ok(cores), Ok(threads)) => {
                Ok(Self { sockets, cores, threads })
            }
            _ => Err(refuse),
        }
    }

    /// How many processors in all.
    pub fn count(self) -> u8 {
        // `new` keeps the product within 254.
        self.sockets * self.cores * self.threads
    }

    /// Sockets.
    pub fn sockets(self) -> u8 {
        self.sockets
    }

    /// Cores in a socket.
    pub fn cores(self) -> u8 {
        self.cores
    }

    /// Threads in a core.
    pub fn threads(self) -> u8 {
        self.threads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_is_what_counts() {
        assert_eq!(Cpus::new(2, 3, 2).map(Cpus::count), Ok(12));
        assert_eq!(Cpus::new(1, 254, 1).map(Cpus::count), Ok(254));
        for (s, c, t) in [(0, 1, 1), (1, 0, 1), (1, 255, 1), (16, 16, 1), (u32::MAX, u32::MAX, u32::MAX)] {
            assert!(Cpus::new(s, c, t).is_err());
        }
    }
}

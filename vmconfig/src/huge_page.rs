use crate::name::names;

/// The size of huge pages that back the memory of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePage {
    /// 1 GiB.
    Gib1,
    /// 2 MiB.
    Mib2,
}

names!(HugePage { Gib1 = "1Gi", Mib2 = "2Mi" });

impl HugePage {
    /// The page of so many bytes, if there is one.
    pub fn of(bytes: u64) -> Option<Self> {
        Self::ALL.iter().copied().find(|page| page.bytes() == bytes)
    }

    /// In bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Gib1 => 1 << 30,
            Self::Mib2 => 2 << 20,
        }
    }
}

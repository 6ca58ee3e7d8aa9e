/// The sizes of a disk's blocks, in bytes, as its driver reads them (section 5.2.4). Only virtio disks have others than the
/// default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    logical: u32,
    physical: u32,
    discard_granularity: u32,
}

/// Why blocks are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlocksError {
    /// No size of a block.
    #[error("a block has {0} bytes: give a power of two, 512 to {max}", max = Blocks::MAX)]
    Size(u32),
    /// Addresses are those of logical blocks.
    #[error("a logical block of {logical} bytes is larger than a physical one of {physical}")]
    Order {
        /// The unit of addresses.
        logical: u32,
        /// The unit that is written without reading.
        physical: u32,
    },
    /// Discards are of whole blocks.
    #[error("a discard granularity of {granularity} bytes is no multiple of the logical block of {logical}")]
    Granularity {
        /// The unit that is discarded.
        granularity: u32,
        /// The unit of addresses.
        logical: u32,
    },
}

impl Blocks {
    /// The largest block, in bytes.
    pub const MAX: u32 = 2 << 20;
    /// Sectors, in pages of the host.
    pub const DEFAULT: Self = Self { logical: 512, physical: 4096, discard_granularity: 4096 };

    /// With these sizes; what is discarded is a physical block where nothing is chosen.
    ///
    /// # Errors
    /// Where the sizes are no powers of two or do not go together.
    pub fn new(logical: u32, physical: u32, discard_granularity: Option<u32>) -> Result<Self, BlocksError> {
        let is_size = |bytes: u32| bytes.is_power_of_two() && (512..=Self::MAX).contains(&bytes);
        if let Some(bad) = [logical, physical].into_iter().find(|bytes| !is_size(*bytes)) {
            return Err(BlocksError::Size(bad));
        }
        if logical > physical {
            return Err(BlocksError::Order { logical, physical });
        }
        let granularity = discard_granularity.unwrap_or(physical);
        if granularity == 0 || !granularity.is_multiple_of(logical) {
            return Err(BlocksError::Granularity { granularity, logical });
        }
        Ok(Self { logical, physical, discard_granularity: granularity })
    }

    /// The unit of addresses and lengths.
    pub fn logical(self) -> u32 {
        self.logical
    }

    /// The unit that is written without reading.
    pub fn physical(self) -> u32 {
        self.physical
    }

    /// The unit that is discarded.
    pub fn discard_granularity(self) -> u32 {
        self.discard_granularity
    }
}

impl Default for Blocks {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_do_not_go_together_are_rejected() {
        let blocks = Blocks::new(4096, 8192, None).unwrap();
        assert_eq!((blocks.logical(), blocks.physical(), blocks.discard_granularity()), (4096, 8192, 8192));
        assert_eq!(Blocks::new(512, 4096, None), Ok(Blocks::default()));
        assert_eq!(Blocks::new(512, 512, Some(1536)).unwrap().discard_granularity(), 1536);
        for (logical, physical, granularity) in [
            (0, 512, None),
            (256, 512, None),
            (512, 1000, None),
            (512, 4 << 20, None),
            (4096, 512, None),
            (4096, 4096, Some(512)),
            (512, 512, Some(0)),
        ] {
            let blocks = Blocks::new(logical, physical, granularity);
            assert!(blocks.is_err(), "{logical} {physical} {granularity:?}");
        }
    }
}

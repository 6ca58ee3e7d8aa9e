//! Whether a qcow2 image's reference counts can be believed.
//!
//! Who writes to an image takes clusters that nothing refers to. Counts that are too low make it take tables in use, such as
//! the table that it is just writing, without end. QEMU finds that at each write; here an image that is written is checked
//! once, as it is opened. The format is that of QEMU's `docs/interop/qcow2.txt`.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::ImageError;

/// What an entry of a table has as an offset, and the other bits that matter.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const COMPRESSED: u64 = 1 << 62;
/// Entries of the tables of all internal snapshots. Those of QEMU's largest table.
const MAX_SNAPSHOT_ENTRIES: u64 = 4 << 20;
/// Bytes of an internal snapshot's entry in their table, before what has no fixed size.
const SNAPSHOT_HEADER: u64 = 40;

const WRONG: ImageError = ImageError::Unsupported(
    "has wrong reference counts or tables in each other's place: `qemu-img check -r all` may mend it",
);
const TOO_MANY: ImageError = ImageError::Unsupported("has more internal snapshots than can be checked");

/// Of what a header says, what the check needs. All of it was found to lie in the file.
pub(super) struct Layout {
    /// Power of two of the bytes of a cluster.
    pub(super) cluster_bits: u32,
    /// Power of two of the bits of a reference count.
    pub(super) refcount_order: u32,
    /// Bytes of the disk.
    pub(super) size: u64,
    /// Where tables begin, and how many entries they have.
    pub(super) l1: (u64, u64),
    pub(super) refcounts: (u64, u64),
    pub(super) snapshots: (u64, u64),
}

/// Fails unless each cluster that is in use is counted as often as it is referred to, and no table is anything else, too.
/// Counts that are too high only waste space.
///
/// It takes the time to read all L2 tables, 2 GiB at most, and memory for a sixteenth of the refcount blocks.
pub(super) fn check(image: &File, layout: &Layout) -> Result<(), ImageError> {
    let mut check = Check {
        image,
        cluster_bits: layout.cluster_bits,
        refcount_order: layout.refcount_order,
        blocks: Vec::new(),
        block: None,
        tables: Clusters::default(),
        data: Clusters::default(),
        again: HashMap::new(),
    };
    check.all(layout)
}

/// A set of clusters.
#[derive(Default)]
struct Clusters(HashMap<u64, Box<[u64; 64]>>);

impl Clusters {
    const BITS: u64 = 64 * 64;

    /// Adds one; whether it is new.
    fn insert(&mut self, cluster: u64) -> bool {
        let words = self.0.entry(cluster / Self::BITS).or_insert_with(|| Box::new([0; 64]));
        let [word, bit] = [cluster % Self::BITS / 64, cluster % 64];
        let mask = 1 << bit;
        let Some(word) = usize::try_from(word).ok().and_then(|word| words.get_mut(word)) else {
            return false;
        };
        let new = *word & mask == 0;
        *word |= mask;
        new
    }

    fn contains(&self, cluster: u64) -> bool {
        let word = usize::try_from(cluster % Self::BITS / 64).unwrap_or_default();
        let words = self.0.get(&(cluster / Self::BITS));
        words.and_then(|words| words.get(word)).is_some_and(|word| word & 1 << (cluster % 64) != 0)
    }
}

struct Check<'f> {
    image: &'f File,
    cluster_bits: u32,
    refcount_order: u32,
    /// Where the refcount blocks are; 0 where there is none.
    blocks: Vec<u64>,
    /// The one that was read last.
    block: Option<(usize, Vec<u8>)>,
    /// Clusters of tables, and those that have data.
    tables: Clusters,
    data: Clusters,
    /// How often those are referred to that are more than once.
    again: HashMap<u64, u64>,
}

impl Check<'_> {
    fn all(&mut self, layout: &Layout) -> Result<(), ImageError> {
        let entry = size_of::<u64>() as u64;
        self.blocks = self.entries(layout.refcounts)?.iter().map(|block| block & OFFSET).collect();
        self.table(0, self.cluster())?;
        self.table(layout.refcounts.0, layout.refcounts.1 * entry)?;
        for block in self.blocks.clone().into_iter().filter(|&block| block != 0) {
            self.table(block, self.cluster())?;
        }
        // An L1 table may have more entries than the disk needs, which lead nowhere.
        let covered = self.cluster() * (self.cluster() / entry);
        let used = layout.size.div_ceil(covered);
        let (l1, entries) = layout.l1;
        self.table(l1, entries * entry)?;
        let mut l2 = Vec::new();
        self.l2_tables((l1, entries.min(used)), &mut l2)?;
        self.snapshots(layout, &mut l2)?;
        for table in l2 {
            for entry in self.entries((table, self.cluster() / entry))? {
                self.mapped(entry)?;
            }
        }
        Ok(())
    }

    const fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Big-endian numbers of a table. Behind the end of the file there are zeros.
    fn entries(&self, (offset, count): (u64, u64)) -> Result<Vec<u64>, ImageError> {
        let bytes = self.bytes(offset, count.saturating_mul(8))?;
        let (numbers, _) = bytes.as_chunks::<8>();
        Ok(numbers.iter().map(|&number| u64::from_be_bytes(number)).collect())
    }

    fn bytes(&self, offset: u64, count: u64) -> Result<Vec<u8>, ImageError> {
        let mut bytes = vec![0; usize::try_from(count).map_err(|_| WRONG)?];
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = offset.checked_add(done as u64).filter(|&at| i64::try_from(at).is_ok()).ok_or(WRONG)?;
            match self.image.read_at(rest, at) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ImageError::Open(error)),
            }
        }
        Ok(bytes)
    }

    /// How often a cluster is counted.
    fn counted(&mut self, cluster: u64) -> Result<u64, ImageError> {
        let per_block = (self.cluster() << 3) >> self.refcount_order;
        let index = usize::try_from(cluster / per_block).map_err(|_| WRONG)?;
        if self.block.as_ref().is_none_or(|(read, _)| *read != index) {
            let block = *self.blocks.get(index).filter(|&&block| block != 0).ok_or(WRONG)?;
            self.block = Some((index, self.bytes(block, self.cluster())?));
        }
        let (_, block) = self.block.as_ref().ok_or(WRONG)?;
        let within = cluster % per_block;
        let bits = 1 << self.refcount_order;
        let at = |byte: u64| usize::try_from(byte).ok().and_then(|at| block.get(at..)).ok_or(WRONG);
        if bits < 8 {
            let byte = *at(within * bits / 8)?.first().ok_or(WRONG)?;
            let shifted = byte >> (within * bits % 8);
            return Ok(u64::from(shifted) & ((1 << bits) - 1));
        }
        let count = at(within * bits / 8)?.iter().take(1 << (self.refcount_order - 3));
        Ok(count.fold(0, |count, &byte| count << 8 | u64::from(byte)))
    }

    /// A table is where nothing else is.
    fn table(&mut self, offset: u64, bytes: u64) -> Result<(), ImageError> {
        if !offset.is_multiple_of(self.cluster()) {
            return Err(WRONG);
        }
        let first = offset >> self.cluster_bits;
        for cluster in first..first.saturating_add(bytes.div_ceil(self.cluster())) {
            if self.counted(cluster)? == 0 || !self.tables.insert(cluster) {
                return Err(WRONG);
            }
        }
        Ok(())
    }

    /// Adds the L2 tables that a table names. Internal snapshots share those that did not change.
    fn l2_tables(&mut self, table: (u64, u64), l2: &mut Vec<u64>) -> Result<(), ImageError> {
        for offset in
            self.entries(table)?.into_iter().map(|entry| entry & OFFSET).filter(|&offset| offset != 0)
        {
            let cluster = offset >> self.cluster_bits;
            // Those are known as tables and as what is referred to.
            if self.data.contains(cluster) {
                self.referred(cluster)?;
            } else {
                self.table(offset, self.cluster())?;
                self.data.insert(cluster);
                l2.push(offset);
            }
        }
        Ok(())
    }

    fn snapshots(&mut self, layout: &Layout, l2: &mut Vec<u64>) -> Result<(), ImageError> {
        let (start, count) = layout.snapshots;
        let (mut at, mut left) = (start, MAX_SNAPSHOT_ENTRIES);
        for _ in 0..count {
            let header = self.bytes(at, SNAPSHOT_HEADER)?;
            let number = |from: usize, bytes: usize| {
                header.iter().skip(from).take(bytes).fold(0, |number, &byte| number << 8 | u64::from(byte))
            };
            let (l1, entries) = (number(0, 8), number(8, 4));
            left = left.checked_sub(entries.max(1)).ok_or(TOO_MANY)?;
            if entries != 0 {
                self.table(l1, entries * 8)?;
                self.l2_tables((l1, entries), l2)?;
            }
            let len = SNAPSHOT_HEADER + number(36, 4) + number(12, 2) + number(14, 2);
            at = at.checked_add(len.next_multiple_of(8)).ok_or(WRONG)?;
        }
        if count == 0 { Ok(()) } else { self.table(start, at - start) }
    }

    /// An entry of an L2 table.
    fn mapped(&mut self, entry: u64) -> Result<(), ImageError> {
        if entry & COMPRESSED == 0 {
            let offset = entry & OFFSET;
            if !offset.is_multiple_of(self.cluster()) {
                return Err(WRONG);
            }
            return if offset == 0 { Ok(()) } else { self.has_data(offset >> self.cluster_bits) };
        }
        // The larger clusters are, the more sectors a compressed one may have, and the fewer bits are left for its offset.
        let bits = 62 - (self.cluster_bits - 8);
        let offset = entry & ((1 << bits) - 1);
        let sectors = (entry & (COMPRESSED - 1)) >> bits;
        let last = (offset & !511).saturating_add(sectors * 512 + 511);
        (offset >> self.cluster_bits..=last >> self.cluster_bits)
            .try_for_each(|cluster| self.has_data(cluster))
    }

    fn has_data(&mut self, cluster: u64) -> Result<(), ImageError> {
        if self.tables.contains(cluster) {
            return Err(WRONG);
        }
        if self.data.insert(cluster) {
            return if self.counted(cluster)? == 0 { Err(WRONG) } else { Ok(()) };
        }
        self.referred(cluster)
    }

    /// Refers once more to what is referred to.
    fn referred(&mut self, cluster: u64) -> Result<(), ImageError> {
        let counted = self.counted(cluster)?;
        let times = self.again.entry(cluster).or_insert(1);
        *times += 1;
        if *times > counted { Err(WRONG) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::super::format::Formatted;
    use super::*;

    fn run(line: &str, directory: &Path) {
        let ended = Command::new("sh").args(["-euc", line]).current_dir(directory).output().unwrap();
        assert!(ended.status.success(), "{line}: {}", String::from_utf8_lossy(&ended.stderr));
    }

    fn opened(path: &Path) -> Result<(), String> {
        let file = File::options().read(true).write(true).open(path).unwrap();
        Formatted::open_qcow2(&file, None, (false, false)).map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn images_of_qemu_are_whole() {
        let directory = tempfile::tempdir().unwrap();
        for made in [
            "qemu-img create -q -f qcow2 disk 16M",
            "qemu-img create -q -f qcow2 -o compat=0.10 disk 16M",
            "qemu-img create -q -f qcow2 -o cluster_size=512,preallocation=metadata disk 2M",
            "qemu-img create -q -f qcow2 -o cluster_size=2M,preallocation=falloc disk 16M",
            "qemu-img create -q -f qcow2 -o refcount_bits=1 disk 16M",
            "qemu-img create -q -f qcow2 -o refcount_bits=2 disk 16M",
            "qemu-img create -q -f qcow2 -o refcount_bits=64 disk 16M",
        ] {
            run(made, directory.path());
            let path = directory.path().join("disk");
            assert_eq!(opened(&path), Ok(()), "{made}");
            // Two clusters, far from each other.
            run(
                "qemu-io -f qcow2 -c 'write -P 1 0 100k' -c 'write -P 2 1M 300k' disk >written",
                directory.path(),
            );
            assert_eq!(opened(&path), Ok(()), "{made}, written to");
        }
    }

    /// Their tables are read otherwise than this check would.
    #[test]
    fn features_that_are_not_known_are_named() {
        let directory = tempfile::tempdir().unwrap();
        run(
            "qemu-img create -q -f qcow2 -o extended_l2=on,preallocation=metadata disk 16M",
            directory.path(),
        );
        let file = File::options().read(true).write(true).open(directory.path().join("disk")).unwrap();
        let refused = Formatted::open_qcow2(&file, None, (false, false)).map(drop).unwrap_err();
        let why = std::error::Error::source(&refused).expect("a cause").to_string();
        assert!(why.contains("extended L2 entries"), "{why}");
    }

    #[test]
    fn compressed_clusters_and_snapshots_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        run("yes vireo | head -c 4M >raw; head -c 1M /dev/urandom >>raw", directory.path());
        run("qemu-img convert -q -c -f raw -O qcow2 raw compressed", directory.path());
        assert_eq!(opened(&directory.path().join("compressed")), Ok(()));
        run("qemu-img convert -q -f raw -O qcow2 raw disk; qemu-img snapshot -c one disk", directory.path());
        run(
            "qemu-io -f qcow2 -c 'write -P 3 2M 64k' disk >written; qemu-img snapshot -c two disk",
            directory.path(),
        );
        assert_eq!(opened(&directory.path().join("disk")), Ok(()));
    }

    /// `qemu-img check` reports each of these, too.
    #[test]
    fn lies_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        run(
            "qemu-img create -q -f qcow2 disk 16M; qemu-io -f qcow2 -c 'write 0 128k' disk >written",
            directory.path(),
        );
        let path = directory.path().join("disk");
        let whole = std::fs::read(&path).unwrap();
        let long = |at: usize| u64::from_be_bytes(whole[at..at + 8].try_into().unwrap());
        let [l1, refcounts] = [40, 48].map(|at| usize::try_from(long(at)).unwrap());
        let block = usize::try_from(long(refcounts)).unwrap();
        let l2 = usize::try_from(long(l1) & OFFSET).unwrap();
        let data = usize::try_from(long(l2) & OFFSET).unwrap();
        // Where a cluster is counted.
        let count = |at: usize| block + (at >> 16) * 2;
        type Change<'a> = Box<dyn Fn(&mut Vec<u8>) + 'a>;
        let lies: [(&str, Change<'_>); 8] = [
            ("a refcount block is not counted", Box::new(|image| image[count(block)..][..2].fill(0))),
            ("an L2 table is not counted", Box::new(|image| image[count(l2)..][..2].fill(0))),
            ("data are not counted", Box::new(|image| image[count(data)..][..2].fill(0))),
            ("nothing is counted", Box::new(|image| image[refcounts..][..8].fill(0))),
            (
                "data are a refcount block",
                Box::new(|image| {
                    image[l2..][..8].copy_from_slice(&(block as u64).to_be_bytes());
                    image[count(block)..][..2].fill(1);
                }),
            ),
            ("data are elsewhere again", Box::new(|image| image.copy_within(l2..l2 + 8, l2 + 8))),
            (
                "an L2 table is the L1 table",
                Box::new(|image| {
                    image[l1..][..8].copy_from_slice(&(l1 as u64).to_be_bytes());
                }),
            ),
            (
                "data are beyond what is counted",
                Box::new(|image| {
                    image[l2..][..8].copy_from_slice(&(1_u64 << 50).to_be_bytes());
                }),
            ),
        ];
        for (lie, change) in lies {
            let mut image = whole.clone();
            change(&mut image);
            std::fs::write(&path, &image).unwrap();
            let refused = opened(&path).expect_err(lie);
            assert!(refused.contains("wrong reference counts"), "{lie}: {refused}");
            let file = File::open(&path).unwrap();
            // Who only reads needs no counts.
            Formatted::open_qcow2(&file, None, (true, false))
                .map(drop)
                .unwrap_or_else(|error| panic!("{lie}: {error}"));
        }
        // What is counted and not in use is lost space.
        let mut image = whole.clone();
        let unused = count(image.len());
        image[unused..][..2].copy_from_slice(&[0, 1]);
        std::fs::write(&path, &image).unwrap();
        assert_eq!(opened(&path), Ok(()));
    }
}

//! The setup header of a bzImage (Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header").

use std::io::{Seek, SeekFrom};
use std::mem::size_of;
use std::ops::Range;

use linux_loader::bootparam::setup_header;
use vm_memory::{ByteValued, Bytes, GuestAddress, GuestMemoryMmap};

use super::decompress::Compression;
use super::error::LoadError;
use super::image::Image;
use super::kaslr::Room;

/// Where the header begins in the file.
const HEADER: usize = 0x1f1;
/// Where the header's end counts from: the byte at 0x201 is what to add.
const HEADER_END_BASE: usize = 0x202;
const SECTOR: u64 = 512;
/// 2.12 (Linux 3.8): `xloadflags` is there, with all that is used here.
const OLDEST_PROTOCOL: u16 = 0x20c;
const LOADED_HIGH: u8 = 1 << 0;
/// `XLF_KERNEL_64`: the 64-bit entry exists at 0x200.
const KERNEL_64: u16 = 1 << 0;
/// Offset of the 64-bit entry of a kernel that decompresses itself.
const ENTRY_64: u64 = 0x200;
/// A 64-bit kernel maps itself with 2 MiB pages.
const LARGEST_PAGE: u64 = 2 << 20;
const PAGE: u64 = 4096;

/// A bzImage with a 64-bit entry, its header checked.
pub(super) struct BzImage {
    header: setup_header,
    /// Offset of the protected-mode part in the file.
    protected: u64,
    /// The compressed kernel in the file; empty if the header names none.
    payload: Range<u64>,
}

impl BzImage {
    pub(super) fn parse(image: &Image<'_>) -> Result<Self, LoadError> {
        let header = read_header(image)?;
        check_protocol(&header)?;
        // A count of zero means four, as before there was a count.
        let setup_sectors = if header.setup_sects == 0 { 4 } else { u64::from(header.setup_sects) };
        let protected = (setup_sectors + 1) * SECTOR;
        let start = protected + u64::from(header.payload_offset);
        let payload = start..start + u64::from(header.payload_length);
        if payload.end > image.len() {
            return Err(LoadError::Truncated { expected: payload.end, actual: image.len() });
        }
        let this = Self { header, protected, payload };
        if !u64::from(header.kernel_alignment).is_power_of_two() {
            return Err(LoadError::Damaged("its alignment is not a power of two"));
        }
        if this.header.init_size == 0 || !this.preferred().is_multiple_of(this.alignment()) {
            return Err(LoadError::Damaged("it has neither a load address nor a size"));
        }
        Ok(this)
    }

    /// The header as it is in the file.
    pub(super) fn header(&self) -> setup_header {
        self.header
    }

    /// How long a command line may be, without its NUL.
    pub(super) fn command_line_max(&self) -> usize {
        usize::try_from(self.header.cmdline_size).unwrap_or(usize::MAX)
    }

    /// The last address that the initrd may take.
    pub(super) fn initrd_max(&self) -> u64 {
        u64::from(self.header.initrd_addr_max)
    }

    /// Where the kernel is linked to run (`LOAD_PHYSICAL_ADDR`).
    pub(super) fn preferred(&self) -> u64 {
        self.header.pref_address
    }

    /// What the kernel needs from its start on before it looks at the memory map.
    pub(super) fn init_size(&self) -> u64 {
        u64::from(self.header.init_size).next_multiple_of(PAGE)
    }

    /// What its address must be a multiple of. A kernel that runs at one address only needs no pages for others.
    pub(super) fn alignment(&self) -> u64 {
        let least = if self.relocatable() { LARGEST_PAGE } else { 1 };
        u64::from(self.header.kernel_alignment).max(least)
    }

    pub(super) fn relocatable(&self) -> bool {
        self.header.relocatable_kernel != 0
    }

    /// Whether there is a compressed kernel in it: other programs in this format, such as memtest86+, have none.
    pub(super) fn has_payload(&self) -> bool {
        !self.payload.is_empty()
    }

    /// How the payload is compressed; `None` if there is no payload or its kind is unknown.
    pub(super) fn compression(&self, image: &Image<'_>) -> Result<Option<Compression>, LoadError> {
        let mut magic = [0; Compression::MAGIC_LEN];
        if self.payload.end - self.payload.start < magic.len() as u64 {
            return Ok(None);
        }
        image.read_exact(&mut magic, self.payload.start)?;
        Ok(Compression::detect(&magic))
    }

    /// The payload without the size that the build appends, and that size. (Gzip has the same size at the same
    /// place as part of its own trailer.)
    pub(super) fn payload(
        &self,
        image: &Image<'_>,
        compression: Compression,
    ) -> Result<(Range<u64>, u64), LoadError> {
        let mut size = [0; 4];
        let trailer = self.payload.end - size.len() as u64;
        image.read_exact(&mut size, trailer)?;
        let end = if compression == Compression::Gzip { self.payload.end } else { trailer };
        Ok((self.payload.start..end, u64::from(u32::from_le_bytes(size))))
    }
}

fn read_header(image: &Image<'_>) -> Result<setup_header, LoadError> {
    let mut end = [0];
    image.read_exact(&mut end, HEADER_END_BASE as u64 - 1)?;
    let length = (HEADER_END_BASE + usize::from(end[0]) - HEADER).min(size_of::<setup_header>());
    let mut header = setup_header::default();
    let (head, _) = header.as_mut_slice().split_at_mut(length);
    image.read_exact(head, HEADER as u64)?;
    Ok(header)
}

fn check_protocol(header: &setup_header) -> Result<(), LoadError> {
    let version = header.version;
    if header.code32_start == 0 {
        return Err(LoadError::NotAKernel(
            "a program that starts in real mode and calls a BIOS: start it from a disk with a BIOS as firmware"
                .to_owned(),
        ));
    }
    if version < OLDEST_PROTOCOL {
        return Err(LoadError::NotAKernel(format!(
            "a bzImage of boot protocol {}.{}; 2.12 (Linux 3.8) or newer is needed",
            version >> 8,
            version & 0xff
        )));
    }
    if header.loadflags & LOADED_HIGH == 0 {
        return Err(LoadError::NotAKernel("a zImage: build it as a bzImage".to_owned()));
    }
    if header.xloadflags & KERNEL_64 == 0 {
        return Err(LoadError::NotAKernel("a 32-bit kernel: use a 64-bit one".to_owned()));
    }
    Ok(())
}

/// Loads the image as it is; it will decompress itself. Returns its 64-bit entry.
pub(super) fn load_classic(
    memory: &GuestMemoryMmap,
    image: &Image<'_>,
    bz: &BzImage,
    room: &Room,
) -> Result<GuestAddress, LoadError> {
    let size = image.len() - bz.protected.min(image.len());
    if size > room.size {
        return Err(LoadError::Damaged("it is larger than the memory it reserves"));
    }
    let address = room.fixed()?;
    let mut file = image.file().try_clone().map_err(LoadError::ReadKernel)?;
    file.seek(SeekFrom::Start(bz.protected)).map_err(LoadError::ReadKernel)?;
    let count = usize::try_from(size).map_err(|_| LoadError::Damaged("it is larger than memory"))?;
    memory.read_exact_volatile_from(GuestAddress(address), &mut file, count).map_err(LoadError::Memory)?;
    Ok(GuestAddress(address + ENTRY_64))
}

//! The memory of a paused VM as an ELF core file, as QEMU's `dump-guest-memory` writes it and `crash` reads it: a segment of
//! notes with the registers of the vCPUs, and a segment for each range of RAM at its guest-physical address.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use kvm_bindings::{kvm_dtable, kvm_regs, kvm_segment, kvm_sregs};
use vm_memory::{Bytes, GuestMemoryBackend, GuestMemoryRegion, MemoryRegionAddress};

use crate::memory::GuestMemory;

/// Of the file: what is read and written at a time, and where segments of RAM begin.
const CHUNK: usize = 1 << 20;
const PAGE: u64 = 4096;
const FILE_HEADER: u16 = 64;
const PROGRAM_HEADER: u16 = 56;
const ET_CORE: u16 = 4;
const EM_X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const NT_PRSTATUS: u32 = 1;
/// The size of `struct elf_prstatus` before the registers, and of them and what follows.
const PRSTATUS_BEFORE: usize = 112;
const PRSTATUS_AFTER: usize = 8;
/// Of QEMU's note of a vCPU's state.
const QEMU_VERSION: u32 = 1;
const QEMU_SIZE: u32 = 440;

/// The registers of a vCPU.
#[derive(Clone, Copy)]
pub(crate) struct Registers {
    /// General registers.
    pub(crate) regs: kvm_regs,
    /// Segments and control registers.
    pub(crate) sregs: kvm_sregs,
    /// What SWAPGS exchanges the base of GS with.
    pub(crate) kernel_gs_base: u64,
}

/// Writes the file, unless `is_over` says that the VM has ended meanwhile.
pub(super) fn write(
    memory: &GuestMemory,
    vcpus: &[Registers],
    file: &File,
    is_over: &dyn Fn() -> bool,
) -> io::Result<()> {
    let ranges: Vec<(u64, u64)> = memory.iter().map(|region| (region.start_addr().0, region.len())).collect();
    let headers = headers(&ranges, vcpus)?;
    file.write_all_at(&headers.bytes, 0)?;
    let mut buffer = vec![0; CHUNK];
    for (region, start) in memory.iter().zip(&headers.segments) {
        let mut at = 0;
        while at < region.len() {
            if is_over() {
                return Err(io::Error::other("the VM has ended"));
            }
            let count = usize::try_from(region.len() - at).unwrap_or(CHUNK).min(CHUNK);
            let chunk = buffer.get_mut(..count).unwrap_or_default();
            region.read_slice(chunk, MemoryRegionAddress(at)).map_err(io::Error::other)?;
            super::ram::write_pages(file, chunk, start + at)?;
            at += u64::try_from(count).map_err(io::Error::other)?;
        }
    }
    // Pages of zeros at the end are holes.
    file.set_len(headers.len)?;
    file.sync_all()
}

/// What comes before the RAM.
struct Headers {
    bytes: Vec<u8>,
    /// Where the segments of RAM begin in the file.
    segments: Vec<u64>,
    /// The length of the file.
    len: u64,
}

/// The headers of a file with these ranges of RAM: address and length.
fn headers(ranges: &[(u64, u64)], vcpus: &[Registers]) -> io::Result<Headers> {
    let notes: Vec<u8> = (1_u32..).zip(vcpus).flat_map(|(number, vcpu)| notes(number, vcpu)).collect();
    let count = u16::try_from(ranges.len() + 1).map_err(io::Error::other)?;
    let notes_at = u64::from(FILE_HEADER) + u64::from(PROGRAM_HEADER) * u64::from(count);
    let notes_len = u64::try_from(notes.len()).map_err(io::Error::other)?;
    let mut bytes = file_header(count);
    bytes.extend(program_header(PT_NOTE, notes_at, 0, (notes_len, 1)));
    let mut at = (notes_at + notes_len).next_multiple_of(PAGE);
    let mut segments = Vec::new();
    for &(address, len) in ranges {
        bytes.extend(program_header(PT_LOAD, at, address, (len, PAGE)));
        segments.push(at);
        at += len;
    }
    bytes.extend(notes);
    Ok(Headers { bytes, segments, len: at })
}

fn file_header(segments: u16) -> Vec<u8> {
    // 64 bits, little-endian, version 1, System V.
    let mut header = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for half in [ET_CORE, EM_X86_64] {
        header.extend(half.to_le_bytes());
    }
    header.extend(1_u32.to_le_bytes());
    // No entry, the program headers that follow, no section headers.
    for word in [0, u64::from(FILE_HEADER), 0] {
        header.extend(word.to_le_bytes());
    }
    header.extend(0_u32.to_le_bytes());
    let sizes = [FILE_HEADER, PROGRAM_HEADER, segments, 0, 0, 0];
    header.extend(sizes.iter().flat_map(|half| half.to_le_bytes()));
    header
}

fn program_header(kind: u32, at: u64, address: u64, (len, alignment): (u64, u64)) -> Vec<u8> {
    let mut header = kind.to_le_bytes().to_vec();
    header.extend(0_u32.to_le_bytes());
    // Which virtual addresses it has is not known.
    for word in [at, 0, address, len, len, alignment] {
        header.extend(word.to_le_bytes());
    }
    header
}

/// The notes of a vCPU: its number counts from 1, as a process id does.
fn notes(number: u32, vcpu: &Registers) -> Vec<u8> {
    let mut notes = note(b"CORE", NT_PRSTATUS, &prstatus(number, vcpu));
    notes.extend(note(b"QEMU", 0, &qemu_state(vcpu)));
    notes
}

fn note(name: &[u8; 4], kind: u32, content: &[u8]) -> Vec<u8> {
    // The name with its NUL, padded to words of 4 bytes.
    let mut note = 5_u32.to_le_bytes().to_vec();
    note.extend(u32::try_from(content.len()).unwrap_or_default().to_le_bytes());
    note.extend(kind.to_le_bytes());
    note.extend(name);
    note.extend([0; 4]);
    note.extend(content);
    note.resize(note.len().next_multiple_of(4), 0);
    note
}

/// `struct elf_prstatus` of Linux, in which only the process id and the registers say something.
fn prstatus(number: u32, Registers { regs, sregs, .. }: &Registers) -> Vec<u8> {
    let mut status = vec![0; 32];
    status.extend(number.to_le_bytes());
    status.resize(PRSTATUS_BEFORE, 0);
    let selector = |segment: &kvm_segment| u64::from(segment.selector);
    // The order of `struct user_regs_struct`; orig_rax after rdi.
    for register in [
        regs.r15,
        regs.r14,
        regs.r13,
        regs.r12,
        regs.rbp,
        regs.rbx,
        regs.r11,
        regs.r10,
        regs.r9,
        regs.r8,
        regs.rax,
        regs.rcx,
        regs.rdx,
        regs.rsi,
        regs.rdi,
        u64::MAX,
        regs.rip,
        selector(&sregs.cs),
        regs.rflags,
        regs.rsp,
        selector(&sregs.ss),
        sregs.fs.base,
        sregs.gs.base,
        selector(&sregs.ds),
        selector(&sregs.es),
        selector(&sregs.fs),
        selector(&sregs.gs),
    ] {
        status.extend(register.to_le_bytes());
    }
    status.resize(status.len() + PRSTATUS_AFTER, 0);
    status
}

/// QEMU's note, by which tools find page tables.
fn qemu_state(Registers { regs, sregs, kernel_gs_base }: &Registers) -> Vec<u8> {
    let mut state = Vec::new();
    state.extend(QEMU_VERSION.to_le_bytes());
    state.extend(QEMU_SIZE.to_le_bytes());
    for register in [
        regs.rax,
        regs.rbx,
        regs.rcx,
        regs.rdx,
        regs.rsi,
        regs.rdi,
        regs.rsp,
        regs.rbp,
        regs.r8,
        regs.r9,
        regs.r10,
        regs.r11,
        regs.r12,
        regs.r13,
        regs.r14,
        regs.r15,
        regs.rip,
        regs.rflags,
    ] {
        state.extend(register.to_le_bytes());
    }
    for segment in [&sregs.cs, &sregs.ds, &sregs.es, &sregs.fs, &sregs.gs, &sregs.ss, &sregs.ldt, &sregs.tr] {
        state.extend(qemu_segment(segment));
    }
    for table in [&sregs.gdt, &sregs.idt] {
        state.extend(qemu_table(table));
    }
    // CR1 does not exist.
    for register in [sregs.cr0, 0, sregs.cr2, sregs.cr3, sregs.cr4, *kernel_gs_base] {
        state.extend(register.to_le_bytes());
    }
    state
}

fn qemu_segment(segment: &kvm_segment) -> Vec<u8> {
    let flags = u32::from(segment.type_) << 8
        | u32::from(segment.s) << 12
        | u32::from(segment.dpl) << 13
        | u32::from(segment.present) << 15
        | u32::from(segment.avl) << 20
        | u32::from(segment.l) << 21
        | u32::from(segment.db) << 22
        | u32::from(segment.g) << 23;
    let words = [u32::from(segment.selector), segment.limit, flags, 0];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(segment.base.to_le_bytes());
    bytes
}

fn qemu_table(table: &kvm_dtable) -> Vec<u8> {
    let words = [0, u32::from(table.limit), 0, 0];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    bytes.extend(table.base.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use vm_memory::GuestAddress;

    use super::*;
    use crate::config::MemorySize;
    use crate::memory;

    fn vcpu(rip: u64) -> Registers {
        let regs = kvm_regs { rip, rsp: 0x1234, ..kvm_regs::default() };
        let sregs = kvm_sregs { cr3: 0x5000, ..kvm_sregs::default() };
        Registers { regs, sregs, kernel_gs_base: 0x6000 }
    }

    #[test]
    fn sizes_are_those_of_linux_and_qemu() {
        assert_eq!(prstatus(1, &vcpu(0)).len(), 336);
        assert_eq!(qemu_state(&vcpu(0)).len(), usize::try_from(QEMU_SIZE).unwrap());
        assert_eq!(qemu_state(&vcpu(0))[432..], 0x6000_u64.to_le_bytes());
        let status = prstatus(7, &vcpu(0xffff_8000));
        assert_eq!(status[32..36], 7_u32.to_le_bytes());
        assert_eq!(status[PRSTATUS_BEFORE + 16 * 8..][..8], 0xffff_8000_u64.to_le_bytes());
        assert_eq!(notes(1, &vcpu(0)).len(), 20 + 336 + 20 + 440);
    }

    #[test]
    fn ram_is_at_its_addresses() {
        let memory = memory::create(MemorySize::from_bytes(16 << 20).unwrap(), None).unwrap();
        memory.write_slice(b"in the middle", GuestAddress(0x20_0000)).unwrap();
        memory.write_slice(b"at the end", GuestAddress((16 << 20) - 10)).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let vcpus = [vcpu(0xfff0), vcpu(0x10)];
        write(&memory, &vcpus, file.as_file(), &|| false).unwrap();
        let written = std::fs::read(file.path()).unwrap();
        let headers = headers(&[(0, 16 << 20)], &vcpus).unwrap();
        assert_eq!(u64::try_from(written.len()).unwrap(), headers.len);
        let [start] = headers.segments[..] else { panic!("one range") };
        let ram = &written[usize::try_from(start).unwrap()..];
        assert_eq!((ram.len(), &ram[0x20_0000..0x20_000d]), (16 << 20, &b"in the middle"[..]));
        assert!(ram.ends_with(b"at the end"));
        let ended = write(&memory, &vcpus, file.as_file(), &|| true).unwrap_err();
        assert_eq!(ended.to_string(), "the VM has ended");
    }

    /// By the tool that people use, where it is installed.
    #[test]
    fn readelf_reads_it() {
        let memory = memory::create(MemorySize::from_bytes(16 << 20).unwrap(), None).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        write(&memory, &[vcpu(0xfff0)], file.as_file(), &|| false).unwrap();
        let read = Command::new("readelf").args(["--wide", "-h", "-l", "-n"]).arg(file.path()).output();
        let Ok(read) = read else { return eprintln!("skipped: readelf is not installed") };
        let text = String::from_utf8_lossy(&read.stdout).into_owned();
        let warnings = String::from_utf8_lossy(&read.stderr).into_owned();
        assert_eq!(warnings, "", "{text}");
        for part in ["CORE (Core file)", "NOTE", "LOAD", "NT_PRSTATUS", "0x1000000 0x1000000"] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }
}

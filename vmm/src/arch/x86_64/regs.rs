//! The registers of the first vCPU, as the kernel's entry point wants them. The others wait for its signal.

use kvm_bindings::{kvm_fpu, kvm_lapic_state, kvm_regs, kvm_segment, kvm_sregs};
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};

use crate::memory::GuestMemory;

/// The descriptor table that the segments below are loaded from.
const GDT: u64 = 0x500;
/// Page tables: one PML4, one PDPT, and a page directory for each GiB.
const PML4: u64 = 0x9000;
const PDPT: u64 = 0xa000;
const DIRECTORIES: u64 = 0xb000;
/// What is identity-mapped, with pages of 2 MiB.
const MAPPED_GIB: u64 = 4;

const PRESENT_WRITABLE: u64 = 0b11;
const LARGE_PAGE: u64 = 1 << 7;

const CR0_PE: u64 = 1 << 0;
const CR0_ET: u64 = 1 << 4;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
/// The bit that is always one; interrupts are off.
const RFLAGS: u64 = 1 << 1;

/// Flat segments, accessed, at ring 0.
const CODE_64: u64 = 0x00af_9b00_0000_ffff;
const CODE_32: u64 = 0x00cf_9b00_0000_ffff;
const DATA: u64 = 0x00cf_9300_0000_ffff;
/// A busy task state segment at address 0, which nothing looks at.
const TSS: u64 = 0x0000_8b00_0000_0067;

/// x87 control word and MXCSR after reset, with exceptions masked.
const FPU_CONTROL: u16 = 0x37f;
const MXCSR: u32 = 0x1f80;

/// Register offsets of the local APIC.
const LVT_LINT0: usize = 0x350;
const LVT_LINT1: usize = 0x360;
/// Delivery modes in bits 8 to 10.
const DELIVER_EXTINT: u32 = 0b111 << 8;
const DELIVER_NMI: u32 = 0b100 << 8;
const DELIVER_MASK: u32 = 0b111 << 8;

/// How the first vCPU enters the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Long mode with the low 4 GiB identity-mapped; `argument` in RSI.
    Long,
    /// 32-bit protected mode without paging; `argument` in EBX.
    Protected,
}

/// General registers.
pub(crate) fn general(mode: Mode, rip: GuestAddress, argument: GuestAddress) -> kvm_regs {
    let base = kvm_regs { rip: rip.0, rflags: RFLAGS, ..Default::default() };
    match mode {
        Mode::Long => kvm_regs { rsi: argument.0, ..base },
        Mode::Protected => kvm_regs { rbx: argument.0, ..base },
    }
}

/// Segments, control registers and what they refer to in guest memory. `reset` is what the vCPU has.
pub(crate) fn special(
    mode: Mode,
    reset: kvm_sregs,
    memory: &GuestMemory,
) -> Result<kvm_sregs, GuestMemoryError> {
    let gdt = match mode {
        // Linux wants its code segment in the third entry.
        Mode::Long => [0, 0, CODE_64, DATA, TSS],
        Mode::Protected => [0, 0, CODE_32, DATA, TSS],
    };
    for (at, entry) in (GDT..).step_by(8).zip(gdt) {
        memory.write_obj(entry, GuestAddress(at))?;
    }
    let mut sregs = reset;
    sregs.gdt.base = GDT;
    sregs.gdt.limit = 5 * 8 - 1;
    sregs.idt.base = 0;
    sregs.idt.limit = 0;
    let [_, _, code, data, tss] = gdt;
    sregs.cs = segment(2, code);
    let data = segment(3, data);
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.tr = segment(4, tss);
    sregs.cr0 = CR0_PE | CR0_ET;
    if mode == Mode::Long {
        identity_map(memory)?;
        sregs.cr3 = PML4;
        sregs.cr4 = CR4_PAE;
        sregs.cr0 |= CR0_PG;
        sregs.efer = EFER_LME | EFER_LMA;
    }
    Ok(sregs)
}

fn identity_map(memory: &GuestMemory) -> Result<(), GuestMemoryError> {
    memory.write_obj(PDPT | PRESENT_WRITABLE, GuestAddress(PML4))?;
    for gib in 0..MAPPED_GIB {
        let directory = DIRECTORIES + gib * 0x1000;
        memory.write_obj(directory | PRESENT_WRITABLE, GuestAddress(PDPT + gib * 8))?;
        let mut page = [0; 0x1000];
        for (entry, number) in page.chunks_exact_mut(8).zip(0_u64..) {
            let address = gib << 30 | number << 21;
            entry.copy_from_slice(&(address | PRESENT_WRITABLE | LARGE_PAGE).to_le_bytes());
        }
        memory.write_slice(&page, GuestAddress(directory))?;
    }
    Ok(())
}

/// A segment register loaded from `descriptor`, which is entry `index` of the table.
fn segment(index: u16, descriptor: u64) -> kvm_segment {
    let [limit0, limit1, base0, base1, base2, access, flags, base3] = descriptor.to_le_bytes();
    let pages = flags & 0x80 != 0;
    let limit = u32::from_le_bytes([limit0, limit1, flags & 0xf, 0]);
    kvm_segment {
        base: u32::from_le_bytes([base0, base1, base2, base3]).into(),
        limit: if pages { limit << 12 | 0xfff } else { limit },
        selector: index * 8,
        type_: access & 0xf,
        s: access >> 4 & 1,
        dpl: access >> 5 & 0b11,
        present: access >> 7,
        avl: flags >> 4 & 1,
        l: flags >> 5 & 1,
        db: flags >> 6 & 1,
        g: flags >> 7,
        ..Default::default()
    }
}

/// The floating-point unit after reset.
pub(crate) fn fpu() -> kvm_fpu {
    kvm_fpu { fcw: FPU_CONTROL, mxcsr: MXCSR, ..Default::default() }
}

/// LINT0 takes the PIC's interrupts and LINT1 is the NMI, as firmware leaves them.
pub(crate) fn wire_local_interrupts(lapic: &mut kvm_lapic_state) {
    for (register, delivery) in [(LVT_LINT0, DELIVER_EXTINT), (LVT_LINT1, DELIVER_NMI)] {
        let Some(bytes) = lapic.regs.get_mut(register..register + 4) else { continue };
        let mut value = [0; 4];
        value.iter_mut().zip(bytes.iter()).for_each(|(to, from)| *to = from.to_le_bytes()[0]);
        let value = u32::from_le_bytes(value) & !DELIVER_MASK | delivery;
        bytes.iter_mut().zip(value.to_le_bytes()).for_each(|(to, from)| *to = i8::from_le_bytes([from]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MemorySize;
    use crate::memory;

    fn ram() -> GuestMemory {
        memory::create(MemorySize::from_bytes(16 << 20).unwrap(), None).unwrap()
    }

    #[test]
    fn long_mode_finds_its_tables() {
        let memory = ram();
        let sregs = special(Mode::Long, kvm_sregs::default(), &memory).unwrap();
        assert_eq!((sregs.cs.selector, sregs.cs.l, sregs.cs.db, sregs.cs.type_), (0x10, 1, 0, 0xb));
        assert_eq!((sregs.ds.selector, sregs.ds.base, sregs.ds.limit), (0x18, 0, 0xffff_ffff));
        assert_eq!(sregs.efer, EFER_LME | EFER_LMA);
        let read = |at| memory.read_obj::<u64>(GuestAddress(at)).unwrap();
        // Walks to the page that maps 3 GiB + 5 * 2 MiB.
        let pdpt = read(sregs.cr3) & !0xfff;
        let directory = read(pdpt + 3 * 8) & !0xfff;
        assert_eq!(read(directory + 5 * 8), 0xc0a0_0083);
        assert_eq!(read(sregs.gdt.base + u64::from(sregs.cs.selector)), CODE_64);
    }

    #[test]
    fn protected_mode_has_no_paging() {
        let sregs = special(Mode::Protected, kvm_sregs::default(), &ram()).unwrap();
        assert_eq!((sregs.cr0 & CR0_PG, sregs.cr4, sregs.efer), (0, 0, 0));
        assert_eq!((sregs.cs.l, sregs.cs.db, sregs.cs.limit), (0, 1, 0xffff_ffff));
        let regs = general(Mode::Protected, GuestAddress(0x100_0000), GuestAddress(0x6000));
        assert_eq!((regs.rip, regs.rbx, regs.rflags), (0x100_0000, 0x6000, 2));
    }

    #[test]
    fn local_interrupts_keep_their_other_bits() {
        let mut lapic = kvm_lapic_state::default();
        lapic.regs[LVT_LINT0 + 2] = 1;
        wire_local_interrupts(&mut lapic);
        assert_eq!(lapic.regs[LVT_LINT0..LVT_LINT0 + 4], [0, 7, 1, 0]);
        assert_eq!(lapic.regs[LVT_LINT1..LVT_LINT1 + 4], [0, 4, 0, 0]);
    }
}

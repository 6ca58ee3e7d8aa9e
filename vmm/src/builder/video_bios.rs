//! A video BIOS finds its adapter by vendor and device (PCI Firmware 3.0, section 5.1.2).

/// Where the PCI data structure's address is, and the vendor and the device in it.
const POINTER: usize = 0x18;
const IDS: usize = 4;
/// The byte that balances the checksum: the first unused one of the header.
const SPARE: usize = 6;
const UNIT: usize = 512;

/// Makes a video BIOS claim the adapter `(vendor, device)`, which has the same registers as its own. Other data stays
/// as it is.
pub(super) fn adopt(rom: &mut [u8], (vendor, device): (u16, u16)) {
    let Some(&[0x55, 0xaa, units, ..]) = rom.first_chunk::<8>() else { return };
    let Some(data) = rom.get(POINTER..POINTER + 2).and_then(|at| at.try_into().ok()).map(u16::from_le_bytes)
    else {
        return;
    };
    let data = usize::from(data);
    if rom.get(data..data + 4) != Some(b"PCIR") {
        return;
    }
    let Some(ids) = rom.get_mut(data + IDS..data + IDS + 4) else { return };
    let new = [vendor.to_le_bytes(), device.to_le_bytes()].concat();
    ids.copy_from_slice(&new);
    let size = usize::from(units) * UNIT;
    let Some(image) = rom.get_mut(..size) else { return };
    let sum = image.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    if let Some(spare) = image.get_mut(SPARE) {
        *spare = spare.wrapping_sub(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rom() -> Vec<u8> {
        let mut rom = vec![0; 1024];
        rom[..3].copy_from_slice(&[0x55, 0xaa, 2]);
        rom[POINTER..POINTER + 2].copy_from_slice(&0x40_u16.to_le_bytes());
        rom[0x40..0x48].copy_from_slice(b"PCIR\x34\x12\x11\x11");
        rom
    }

    #[test]
    fn it_speaks_for_another_and_adds_up() {
        let mut rom = rom();
        adopt(&mut rom, (0x1af4, 0x1050));
        assert_eq!(rom[0x40..0x48], *b"PCIR\xf4\x1a\x50\x10");
        assert_eq!(rom.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)), 0);
    }

    #[test]
    fn what_is_no_bios_stays() {
        for (at, value) in [(0, 0), (POINTER + 1, 0xff), (0x40, b'X')] {
            let mut rom = rom();
            rom[at] = value;
            let before = rom.clone();
            adopt(&mut rom, (1, 2));
            assert_eq!(rom, before);
        }
        adopt(&mut [], (1, 2));
        adopt(&mut [0x55, 0xaa, 1], (1, 2));
    }
}

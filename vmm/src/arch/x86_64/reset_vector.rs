//! What a jump to a PC's reset vector finds where there is no firmware: kernels with `reboot=bios`, and boot loaders
//! that know no other way to give up.

/// F000:FFF0, behind the SMBIOS tables.
pub(crate) const ADDRESS: u64 = 0xf_fff0;

/// Resets the VM by the reset control register, and by the keyboard controller if that is not enough.
pub(crate) const CODE: [u8; 13] = [
    0xba, 0xf9, 0x0c, // mov dx, 0xcf9
    0xb0, 0x06, // mov al, 6
    0xee, // out dx, al
    0xb0, 0xfe, // mov al, 0xfe
    0xe6, 0x64, // out 0x64, al
    0xf4, // hlt
    0xeb, 0xfd, // jmp to the hlt
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_writes_the_reset_ports_and_never_leaves() {
        let (mut at, mut dx, mut al, mut written) = (0, 0, 0, Vec::new());
        for _ in 0..100 {
            match CODE[at..] {
                [0xba, low, high, ..] => (dx, at) = (u16::from_le_bytes([low, high]), at + 3),
                [0xb0, value, ..] => (al, at) = (value, at + 2),
                [0xee, ..] => {
                    written.push((dx, al));
                    at += 1;
                }
                [0xe6, port, ..] => {
                    written.push((port.into(), al));
                    at += 2;
                }
                [0xf4, ..] => at += 1,
                [0xeb, by, ..] => at = (at + 2).checked_add_signed(by.cast_signed().into()).unwrap(),
                _ => panic!("no instruction at {at}"),
            }
        }
        assert_eq!(written, [(0xcf9, 6), (0x64, 0xfe)]);
        assert!(ADDRESS + CODE.len() as u64 <= 1 << 20);
    }
}

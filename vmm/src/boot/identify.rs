use super::error::LoadError;
use super::image::Image;

/// The two kinds of image that can be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    BzImage,
    Elf,
}

/// Enough of the file for every magic number looked for.
const HEAD: usize = 0x206;
const ELF_CLASS_64: u8 = 2;
const ELF_LITTLE_ENDIAN: u8 = 1;
const ELF_MACHINE_X86_64: u16 = 62;

/// Identifies the kind of kernel, or what else the file looks like.
pub(super) fn identify(image: &Image<'_>) -> Result<Kind, LoadError> {
    let mut head = [0; HEAD];
    let got = image.read_up_to(&mut head, 0)?;
    classify(head.get(..got).unwrap_or_default()).map_err(LoadError::NotAKernel)
}

fn classify(head: &[u8]) -> Result<Kind, String> {
    if has(head, 0x202, b"HdrS") {
        return Ok(Kind::BzImage);
    }
    if has(head, 0, b"\x7fELF") {
        return classify_elf(head);
    }
    Err(foreign(head).to_owned())
}

fn classify_elf(head: &[u8]) -> Result<Kind, String> {
    let (Some(&class), Some(&order), Some(&low), Some(&high)) =
        (head.get(4), head.get(5), head.get(18), head.get(19))
    else {
        return Err("a truncated ELF file".to_owned());
    };
    if order != ELF_LITTLE_ENDIAN {
        return Err("an ELF file for a big-endian CPU".to_owned());
    }
    let machine = u16::from_le_bytes([low, high]);
    let name = match machine {
        ELF_MACHINE_X86_64 if class == ELF_CLASS_64 => return Ok(Kind::Elf),
        3 | ELF_MACHINE_X86_64 => "32-bit x86; use a 64-bit kernel",
        21 => "64-bit PowerPC",
        22 => "s390x",
        40 => "32-bit Arm",
        183 => "64-bit Arm",
        243 => "RISC-V",
        258 => "LoongArch",
        _ => return Err(format!("an ELF file for another architecture (number {machine})")),
    };
    Err(format!("an ELF file for {name}"))
}

fn foreign(head: &[u8]) -> &'static str {
    const MAGICS: &[(usize, &[u8], &str)] = &[
        (56, b"ARM\x64", "a kernel for 64-bit Arm"),
        (56, b"RSC\x05", "a kernel for RISC-V"),
        (4, b"zimg", "an EFI zboot image: extract the kernel from it first"),
        (0, b"\x27\x05\x19\x56", "a U-Boot image (uImage)"),
        (0, b"\x1f\x8b", "a gzip-compressed file: decompress it first (gunzip)"),
        (0, b"\xfd7zXZ\0", "an xz-compressed file: decompress it first (unxz)"),
        (0, b"\x28\xb5\x2f\xfd", "a zstd-compressed file: decompress it first (unzstd)"),
        (0, b"BZh", "a bzip2-compressed file: decompress it first (bunzip2)"),
        (0, b"\x02\x21\x4c\x18", "an lz4-compressed file: decompress it first (unlz4)"),
        (0, b"QFI\xfb", "a qcow2 disk image: give it as a disk"),
        (0, b"070701", "a cpio archive: give it as the initrd"),
        (0x101, b"ustar", "a tar archive"),
        (0, b"!<arch>", "an ar archive or Debian package"),
        (0, b"#!", "a script"),
        (0, b"MZ", "an EFI or DOS program without a Linux setup header"),
        (0x1fe, b"\x55\xaa", "a disk image (it has a boot sector): give it as a disk"),
    ];
    if head.is_empty() {
        return "an empty file";
    }
    MAGICS
        .iter()
        .find(|(offset, magic, _)| has(head, *offset, magic))
        .map_or("neither a bzImage nor an ELF file", |(_, _, name)| name)
}

fn has(head: &[u8], offset: usize, magic: &[u8]) -> bool {
    head.get(offset..).is_some_and(|rest| rest.starts_with(magic))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: usize, bytes: &[u8]) -> Vec<u8> {
        let mut head = vec![0; HEAD];
        head[offset..offset + bytes.len()].copy_from_slice(bytes);
        head
    }

    fn elf(class: u8, order: u8, machine: u16) -> Vec<u8> {
        let mut head = at(0, b"\x7fELF");
        head[4] = class;
        head[5] = order;
        head[18..20].copy_from_slice(&machine.to_le_bytes());
        head
    }

    #[test]
    fn files_are_called_by_their_name() {
        let table: &[(Vec<u8>, Result<Kind, &str>)] = &[
            (at(0x202, b"HdrS"), Ok(Kind::BzImage)),
            (elf(2, 1, 62), Ok(Kind::Elf)),
            (elf(1, 1, 3), Err("32-bit x86")),
            (elf(1, 1, 62), Err("32-bit x86")),
            (elf(2, 1, 183), Err("64-bit Arm")),
            (elf(2, 2, 22), Err("big-endian")),
            (elf(2, 1, 9999), Err("number 9999")),
            (b"\x7fELF".to_vec(), Err("truncated ELF")),
            (vec![], Err("empty")),
            (vec![0; 100], Err("neither")),
            (at(56, b"ARM\x64"), Err("64-bit Arm")),
            (at(0, b"MZ\0\0zimg"), Err("EFI zboot")),
            (at(0, b"\x1f\x8b\x08"), Err("gunzip")),
            (at(0, b"QFI\xfb"), Err("as a disk")),
            (at(0, b"MZ"), Err("EFI or DOS")),
            (at(0x1fe, b"\x55\xaa"), Err("boot sector")),
        ];
        for (head, expected) in table {
            match (classify(head), expected) {
                (Ok(kind), Ok(wanted)) => assert_eq!(kind, *wanted),
                (Err(text), Err(part)) => assert!(text.contains(part), "{text:?} should mention {part:?}"),
                (found, _) => panic!("{found:?} should be {expected:?}"),
            }
        }
    }
}

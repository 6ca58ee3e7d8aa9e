use uuid::Uuid;

use super::report::Findings;
use super::syntax::{ABSOLUTE_PATH, is_normal_absolute_path, is_one_line, without_trailing_slash};
use super::{Field, ImageRef, Pull, VmiUid};
use crate::v1;

/// The longest command line a kernel for x86 takes, its end not counted.
const COMMAND_LINE: usize = 2047;
/// The longest serial number; a string in a firmware table.
const SERIAL: usize = 256;

/// The boot source of a VM and the identity in its SMBIOS tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firmware {
    boot: BootSource,
    uuid: Uuid,
    serial: String,
    acpi_tables: Vec<AcpiTableRef>,
}

/// An ACPI table in the Secret of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcpiTableRef {
    volume: String,
    kind: AcpiTableKind,
    field: Field,
}

/// The kinds of ACPI tables that a manifest may give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcpiTableKind {
    /// Software licensing description.
    Slic,
    /// Microsoft data management.
    Msdm,
}

impl AcpiTableKind {
    /// The signature of such a table.
    pub fn signature(self) -> [u8; 4] {
        match self {
            Self::Slic => *b"SLIC",
            Self::Msdm => *b"MSDM",
        }
    }

    /// The entry of the Secret that has the table; KubeVirt's.
    pub fn entry(self) -> &'static str {
        match self {
            Self::Slic => "slic.bin",
            Self::Msdm => "msdm.bin",
        }
    }
}

impl AcpiTableRef {
    /// The volume with the Secret.
    pub fn volume(&self) -> &str {
        &self.volume
    }

    /// The kind of table.
    pub fn kind(&self) -> AcpiTableKind {
        self.kind
    }

    /// The field that names the volume: `spec.domain.firmware.acpi.slicNameRef`.
    pub fn field(&self) -> &Field {
        &self.field
    }
}

/// What a VM boots from. Whether the variables of EFI are persistent is known; where they are is not.
pub type BootSource = vireo_vmconfig::BootSource<KernelBoot, bool>;

/// A kernel taken from an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelBoot {
    image: ImageRef,
    pull: Pull,
    kernel_path: String,
    initrd_path: Option<String>,
    command_line: String,
    field: Field,
}

impl KernelBoot {
    /// The image it is in.
    pub fn image(&self) -> &ImageRef {
        &self.image
    }

    /// How that image is pulled.
    pub fn pull(&self) -> &Pull {
        &self.pull
    }

    /// Absolute in that image.
    pub fn kernel_path(&self) -> &str {
        &self.kernel_path
    }

    /// Absolute in that image.
    pub fn initrd_path(&self) -> Option<&str> {
        self.initrd_path.as_deref()
    }

    /// One line.
    pub fn command_line(&self) -> &str {
        &self.command_line
    }

    /// `spec.domain.firmware.kernelBoot.container`.
    pub fn field(&self) -> &Field {
        &self.field
    }
}

impl Firmware {
    /// What the VM boots from.
    pub fn boot(&self) -> &BootSource {
        &self.boot
    }

    /// SMBIOS system UUID; derived from the VM's uid where the manifest gives none, so that it stays.
    pub fn uuid(&self) -> &Uuid {
        &self.uuid
    }

    /// SMBIOS system serial; may be empty.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// ACPI tables beside those of every VM.
    pub fn acpi_tables(&self) -> &[AcpiTableRef] {
        &self.acpi_tables
    }
}

pub(super) fn read(
    spec: &v1::VirtualMachineInstanceSpec,
    uid: Option<&VmiUid>,
    found: &mut Findings,
) -> Option<Firmware> {
    let domain = &spec.domain;
    let at = Field::new("spec.domain.firmware");
    let empty = v1::Firmware::default();
    let firmware = domain.firmware.as_deref().unwrap_or(&empty);
    let uuid = if firmware.uuid.is_empty() {
        uid.map(|uid| uid.derive("firmware"))
    } else {
        let parsed = firmware.uuid.parse().ok();
        if parsed.is_none() {
            found.invalid_value(
                &at.at("uuid"),
                &firmware.uuid,
                "must be a UUID such as 5d307ca9-b3ef-428c-8861-06e72d69f223",
            );
        }
        parsed
    };
    if !is_one_line(&firmware.serial, SERIAL) {
        found.invalid(&at.at("serial"), format!("Invalid value: must be one line of at most {SERIAL} bytes"));
    }
    let acpi_tables = match &firmware.acpi {
        Some(acpi) => self::acpi_tables(acpi, spec, &at.at("acpi"), found),
        None => Vec::new(),
    };
    let boot = boot(firmware, domain.features.as_deref(), &at, found);
    Some(Firmware { boot: boot?, uuid: uuid?, serial: firmware.serial.clone(), acpi_tables })
}

fn acpi_tables(
    acpi: &v1::Acpi,
    spec: &v1::VirtualMachineInstanceSpec,
    at: &Field,
    found: &mut Findings,
) -> Vec<AcpiTableRef> {
    if acpi.slic_name_ref.is_empty() && acpi.msdm_name_ref.is_empty() {
        found.required_value(at, "name a table, or remove this field");
    }
    let features = spec.domain.features.as_deref().and_then(|features| features.acpi.as_ref());
    if features.is_some_and(|acpi| acpi.enabled == Some(false)) {
        found
            .invalid(at, "there are no ACPI tables without ACPI: spec.domain.features.acpi.enabled is false");
    }
    let named = [
        ("slicNameRef", AcpiTableKind::Slic, &acpi.slic_name_ref),
        ("msdmNameRef", AcpiTableKind::Msdm, &acpi.msdm_name_ref),
    ];
    let mut tables = Vec::new();
    for (name, kind, volume) in named.into_iter().filter(|(_, _, volume)| !volume.is_empty()) {
        let field = at.at(name);
        match spec.volumes.iter().find(|known| known.name == *volume) {
            None => found.invalid(&field, format!("{field} does not have a matching Volume.")),
            Some(known) if known.secret.is_none() => {
                found.invalid(&field, format!("{field} refers to Volume of unsupported type."));
            }
            Some(_) => tables.push(AcpiTableRef { volume: volume.clone(), kind, field }),
        }
    }
    tables
}

fn boot(
    firmware: &v1::Firmware,
    features: Option<&v1::Features>,
    at: &Field,
    found: &mut Findings,
) -> Option<BootSource> {
    let bootloader = firmware.bootloader.as_ref();
    let bios = bootloader.and_then(|loader| loader.bios.as_ref());
    let efi = bootloader.and_then(|loader| loader.efi.as_ref());
    let loader = at.at("bootloader");
    if bios.is_some() && efi.is_some() {
        found.invalid(&loader, "has both bios and efi: keep one");
        return None;
    }
    if let Some(efi) = efi {
        let at = loader.at("efi");
        let secure_boot = efi.secure_boot != Some(false);
        let smm = features.and_then(|features| features.smm.as_ref());
        if secure_boot && smm.is_none_or(|smm| smm.enabled == Some(false)) {
            found.invalid(
                &at.at("secureBoot"),
                "secure boot needs system management mode: set spec.domain.features.smm.enabled to true, or this to false",
            );
        }
        if firmware.kernel_boot.is_some() {
            found.not_supported(
                &at,
                "a kernel of kernelBoot is started without firmware: remove this field or kernelBoot",
            );
        }
        return Some(BootSource::Efi { secure_boot, persistent: efi.persistent == Some(true) });
    }
    match &firmware.kernel_boot {
        Some(kernel) => self::kernel(kernel, &at.at("kernelBoot"), found).map(BootSource::Kernel),
        None => Some(BootSource::Bios { use_serial: bios.is_some_and(|bios| bios.use_serial == Some(true)) }),
    }
}

fn kernel(kernel: &v1::KernelBoot, at: &Field, found: &mut Findings) -> Option<KernelBoot> {
    let field = at.at("container");
    let before = found.problems.len();
    if !is_one_line(&kernel.kernel_args, COMMAND_LINE) {
        found.invalid(
            &at.at("kernelArgs"),
            format!("Invalid value: must be one line of at most {COMMAND_LINE} bytes"),
        );
    }
    let Some(container) = &kernel.container else {
        found.required_value(&field, "name the image the kernel is in and its path there");
        return None;
    };
    let image = image(&container.image, &field.at("image"), found);
    if container.kernel_path.is_empty() {
        found.required_value(&field.at("kernelPath"), "name the kernel's absolute path in the image");
    }
    let (kernel_path, initrd_path) =
        (without_trailing_slash(&container.kernel_path), without_trailing_slash(&container.initrd_path));
    for (name, given, path) in [
        ("kernelPath", &container.kernel_path, kernel_path),
        ("initrdPath", &container.initrd_path, initrd_path),
    ] {
        if !given.is_empty() && !is_normal_absolute_path(path) {
            found.invalid_value(&field.at(name), given, ABSOLUTE_PATH);
        }
    }
    let how = (&*container.image_pull_policy, &*container.image_pull_secret);
    let pull = Pull::read(&container.image, how, &field, found);
    if found.problems.len() > before {
        return None;
    }
    Some(KernelBoot {
        image: image?,
        pull: pull?,
        kernel_path: kernel_path.to_owned(),
        initrd_path: Some(initrd_path.to_owned()).filter(|path| !path.is_empty()),
        command_line: kernel.kernel_args.clone(),
        field,
    })
}

pub(super) fn image(text: &str, at: &Field, found: &mut Findings) -> Option<ImageRef> {
    match text.parse() {
        Ok(image) => return Some(image),
        Err(error @ super::ImageRefError::Reference(_)) => found.not_supported(at, error.to_string()),
        Err(error @ super::ImageRefError::Empty) => found.required_value(at, error.to_string()),
        Err(error) => found.invalid(at, error.to_string()),
    }
    None
}

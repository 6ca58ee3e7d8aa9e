use vireo_vmconfig::Chassis;

use super::Field;
use super::report::Findings;
use super::syntax::is_one_line;
use crate::v1;

/// The longest text that is taken, in bytes.
const LONGEST: usize = 256;

/// Whether guests may read a text by SMBIOS.
pub fn is_smbios_text(text: &str) -> bool {
    is_one_line(text, LONGEST)
}

pub(super) fn read(domain: &v1::DomainSpec, found: &mut Findings) -> Chassis {
    let at = Field::new("spec.domain.chassis");
    let empty = v1::Chassis::default();
    let given = domain.chassis.as_deref().unwrap_or(&empty);
    let mut text = |name: &str, text: &str| {
        if !is_smbios_text(text) {
            found
                .invalid(&at.at(name), format!("Invalid value: must be one line of at most {LONGEST} bytes"));
        }
        text.to_owned()
    };
    Chassis {
        manufacturer: text("manufacturer", &given.manufacturer),
        version: text("version", &given.version),
        serial: text("serial", &given.serial),
        asset: text("asset", &given.asset),
        sku: text("sku", &given.sku),
    }
}

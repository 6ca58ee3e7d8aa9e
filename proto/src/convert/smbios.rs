use uuid::Uuid;
use vireo_vmconfig::{Chassis, Smbios};

use super::Problems;
use crate::launcher as wire;

impl From<&Smbios> for wire::Smbios {
    fn from(smbios: &Smbios) -> Self {
        Self {
            uuid: smbios.uuid.map(|uuid| Uuid::from_bytes(uuid).to_string()).unwrap_or_default(),
            serial: smbios.serial.clone(),
            manufacturer: smbios.manufacturer.clone(),
            product: smbios.product.clone(),
            version: smbios.version.clone(),
            sku: smbios.sku.clone(),
            family: smbios.family.clone(),
            chassis: Some((&smbios.chassis).into()),
        }
    }
}

impl From<&Chassis> for wire::Chassis {
    fn from(chassis: &Chassis) -> Self {
        Self {
            manufacturer: chassis.manufacturer.clone(),
            version: chassis.version.clone(),
            serial: chassis.serial.clone(),
            asset: chassis.asset.clone(),
            sku: chassis.sku.clone(),
        }
    }
}

/// The SMBIOS strings from their message.
pub fn smbios(problems: &mut Problems, smbios: wire::Smbios) -> Smbios {
    let chassis = smbios.chassis.unwrap_or_default();
    let uuid: Option<Uuid> =
        (!smbios.uuid.is_empty()).then(|| problems.parse("smbios.uuid", &smbios.uuid)).flatten();
    Smbios {
        uuid: uuid.map(Uuid::into_bytes),
        serial: smbios.serial,
        manufacturer: smbios.manufacturer,
        product: smbios.product,
        version: smbios.version,
        sku: smbios.sku,
        family: smbios.family,
        chassis: Chassis {
            manufacturer: chassis.manufacturer,
            version: chassis.version,
            serial: chassis.serial,
            asset: chassis.asset,
            sku: chassis.sku,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_string_survives_the_message() {
        let text = |text: &str| text.to_owned();
        let chassis = Chassis {
            manufacturer: text("a"),
            version: text("b"),
            serial: text("c"),
            asset: text("d"),
            sku: text("e"),
        };
        let expected = Smbios {
            uuid: Some([7; 16]),
            serial: text("f"),
            manufacturer: text("g"),
            product: text("h"),
            version: text("i"),
            sku: text("j"),
            family: text("k"),
            chassis,
        };
        for expected in [expected, Smbios::default()] {
            let mut problems = Problems::default();
            assert_eq!(smbios(&mut problems, (&expected).into()), expected);
            assert!(problems.is_empty());
        }
    }
}

use vireo_vmconfig::{NicModel, RebootPolicy, Video};

use super::enums;
use crate::launcher as wire;

enums!(wire::Video, Video, {
    Vga = Vga, Bochs = Bochs, Virtio = Virtio, Cirrus = Cirrus, Ramfb = Ramfb,
});
enums!(wire::RebootPolicy, RebootPolicy, { Reboot = Reboot, Terminate = Terminate });
enums!(wire::interface::Model, NicModel, {
    Virtio = Virtio,
    E1000 = E1000,
    E1000e = E1000e,
    Igb = Igb,
    Ne2kPci = Ne2kPci,
    Pcnet = Pcnet,
    Rtl8139 = Rtl8139,
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_survives_the_message() {
        for &model in NicModel::ALL {
            assert_eq!(Option::<NicModel>::from(wire::interface::Model::from(model)), Some(model));
        }
        for &video in Video::ALL {
            assert_eq!(Option::<Video>::from(wire::Video::from(video)), Some(video));
        }
        for &policy in RebootPolicy::ALL {
            assert_eq!(Option::<RebootPolicy>::from(wire::RebootPolicy::from(policy)), Some(policy));
        }
    }
}

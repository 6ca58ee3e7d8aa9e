//! The display of a guest and its pointer.

use vireo_vmconfig::{ExtraDevice, Video};

use super::Field;
use super::report::Findings;
use crate::v1;

/// The display settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Display {
    pub(super) video: Option<Video>,
    /// Virtio tablets; others are extra devices.
    pub(super) tablets: u32,
}

/// `efi`: the VM starts through EFI, for which KubeVirt has another default.
pub(super) fn read(devices: &v1::Devices, efi: bool, found: &mut Findings) -> Display {
    let at = Field::new("spec.domain.devices");
    let default = if efi { Video::Bochs } else { Video::Vga };
    let asked = devices.video.as_ref().and_then(|video| kind(video, &at.at("video").at("type"), found));
    let graphics = devices.autoattach_graphics_device != Some(false);
    if devices.video.is_some() && !graphics {
        let advice = "there is no display with autoattachGraphicsDevice false: remove one of them";
        found.invalid(&at.at("video").at("type"), advice);
    }
    let tablets = tablets(devices, graphics, &at, found);
    Display { video: graphics.then(|| asked.unwrap_or(default)), tablets }
}

fn kind(video: &v1::VideoDevice, at: &Field, found: &mut Findings) -> Option<Video> {
    match video.r#type.as_str() {
        "" => None,
        name => {
            let video = name.parse();
            if video.is_err() {
                found.invalid_value(at, name, "must be vga, bochs, virtio, cirrus or ramfb");
            }
            video.ok()
        }
    }
}

/// A display has a virtio tablet unless the manifest has another pointer: beside it there is only a mouse, whose
/// pointer strays from the viewer's.
fn tablets(devices: &v1::Devices, graphics: bool, at: &Field, found: &mut Findings) -> u32 {
    if devices.inputs.is_empty() {
        if devices.autoattach_input_device == Some(true) {
            found.extra_device(&at.at("autoattachInputDevice"), ExtraDevice::UsbTablet);
            return 0;
        }
        return u32::from(graphics && devices.autoattach_input_device != Some(false));
    }
    let mut virtio = 0;
    for (index, input) in devices.inputs.iter().enumerate() {
        let at = at.at("inputs").index(index);
        if input.r#type != "tablet" {
            found.unsupported_value(&at.at("type"), &input.r#type, &["tablet"]);
        }
        match input.bus.as_str() {
            "" | "usb" => found.extra_device(&at, ExtraDevice::UsbTablet),
            "virtio" => virtio += 1,
            other => {
                found.unsupported_value(&at.at("bus"), other, &["usb", "virtio"]);
            }
        }
    }
    virtio
}

use crate::name::names;

/// The model of a display adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Video {
    /// A linear framebuffer without VGA.
    Bochs,
    /// Cirrus Logic GD5446.
    Cirrus,
    /// A framebuffer in the memory of the guest.
    Ramfb,
    /// Standard VGA.
    #[default]
    Vga,
    /// virtio-gpu.
    Virtio,
}

names!(Video { Bochs = "bochs", Cirrus = "cirrus", Ramfb = "ramfb", Vga = "vga", Virtio = "virtio" });

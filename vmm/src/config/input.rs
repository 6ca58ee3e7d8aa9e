/// An input device, beside the PS/2 keyboard and mouse that a display brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A virtio tablet: the guest's pointer is where the viewer's is.
    Tablet,
    /// A virtio keyboard.
    Keyboard,
}

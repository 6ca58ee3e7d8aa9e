/// What viewers draw where their pointer is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Columns; none if it is hidden.
    pub width: u16,
    /// Lines.
    pub height: u16,
    /// The hotspot.
    pub hot: (u16, u16),
    /// `0xAARRGGBB`, line by line.
    pub pixels: Vec<u32>,
}

use crate::name::names;

/// What happens to the VM when the guest reboots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RebootPolicy {
    /// It starts again.
    #[default]
    Reboot,
    /// It ends.
    Terminate,
}

names!(RebootPolicy { Reboot = "Reboot", Terminate = "Terminate" });

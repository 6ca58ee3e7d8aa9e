//! Reasons of events.

macro_rules! reasons {
    (Normal { $($(#[$normal_doc:meta])* $normal:ident = $normal_name:literal,)* }
     Warning { $($(#[$warning_doc:meta])* $warning:ident = $warning_name:literal,)* }) => {
        /// Why there is an event.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($(#[$normal_doc])* $normal,)*
            $($(#[$warning_doc])* $warning,)*
        }

        impl Reason {
            const WARNINGS: &[Self] = &[$(Self::$warning),*];

            /// As KubeVirt and Kubernetes spell it.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$normal => $normal_name,)*
                    $(Self::$warning => $warning_name,)*
                }
            }

            /// Whether the type of the event is `Warning`, and not `Normal`.
            pub fn is_warning(self) -> bool {
                match self {
                    $(Self::$normal => false,)*
                    $(Self::$warning => true,)*
                }
            }
        }
    };
}

reasons! {
    Normal {
        /// An object was created for another.
        SuccessfulCreate = "SuccessfulCreate",
        /// The DataVolume of a template was created.
        SuccessfulDataVolumeCreate = "SuccessfulDataVolumeCreate",
        /// It was changed.
        SuccessfulUpdate = "SuccessfulUpdate",
        /// It was deleted.
        SuccessfulDelete = "SuccessfulDelete",
        /// The launcher Pod of an instance is evicted.
        SuccessfulEvict = "SuccessfulEvict",
        /// A controller's object was paused.
        SuccessfulPaused = "SuccessfulPaused",
        /// A replica set was resumed.
        SuccessfulResumed = "SuccessfulResumed",
        /// A pool was resumed.
        SuccessfulResume = "SuccessfulResume",
        /// A claim got its disk.
        ProvisioningSucceeded = "ProvisioningSucceeded",
        /// A disk was enlarged.
        VolumeResizeSuccessful = "VolumeResizeSuccessful",
        /// The hypervisor of an instance was chosen.
        HypervisorChosen = "HypervisorChosen",
        /// A guest is shut down because its livenessProbe failed.
        Killing = "Killing",
        /// A guest was paused.
        Paused = "Paused",
        /// A guest goes on.
        Unpaused = "Unpaused",
        /// A guest was reset.
        Reset = "Reset",
        /// A guest was asked to reboot.
        SoftRebooted = "SoftRebooted",
        /// The guest agent has set keys and passwords.
        AccessCredentialsSyncSuccess = "AccessCredentialsSyncSuccess",
        /// A volume was plugged into a guest.
        VolumeReady = "VolumeReady",
        /// A volume was unplugged from a guest.
        VolumeUnplugged = "VolumeUnplugged",
        /// A guest is asked to shut down.
        ShuttingDown = "ShuttingDown",
        /// The launcher of an instance runs.
        Created = "Created",
        /// A guest runs.
        Started = "Started",
        /// A guest ended well.
        Stopped = "Stopped",
        /// The hypervisor of a guest is removed.
        Deleted = "Deleted",
    }
    Warning {
        /// It could not be created.
        FailedCreate = "FailedCreate",
        /// It could not be deleted.
        FailedDelete = "FailedDelete",
        /// The DataVolume of a template could not be created.
        FailedDataVolumeCreate = "FailedDataVolumeCreate",
        /// The service account of a VM may not clone what a template clones.
        UnauthorizedDataVolumeCreate = "UnauthorizedDataVolumeCreate",
        /// It could not be changed.
        FailedUpdate = "FailedUpdate",
        /// The launcher Pod of an instance cannot be evicted.
        FailedEvict = "FailedEvict",
        /// No node has room for an instance.
        FailedScheduling = "FailedScheduling",
        /// The node of an instance is not heard of.
        NodeUnresponsive = "NodeUnresponsive",
        /// A claim gets no disk.
        ProvisioningFailed = "ProvisioningFailed",
        /// A disk cannot be enlarged.
        VolumeResizeFailed = "VolumeResizeFailed",
        /// A disk cannot be removed.
        VolumeFailedDelete = "VolumeFailedDelete",
        /// The disk of a claim is gone.
        ClaimLost = "ClaimLost",
        /// A guest ended badly; spelled as `Stopped`.
        Crashed = "Stopped",
        /// The firmware found nothing to start.
        NoBootableDevice = "NoBootableDevice",
        /// A probe failed.
        Unhealthy = "Unhealthy",
        /// A disk of a guest failed.
        IoError = "IOerror",
        /// The file systems of a guest cannot be frozen.
        FreezeError = "FreezeError",
        /// The guest agent cannot set keys or passwords.
        AccessCredentialsSyncFailed = "AccessCredentialsSyncFailed",
        /// A volume cannot be plugged in or unplugged.
        HotplugFailed = "HotplugFailed",
        /// A NIC cannot be plugged in or unplugged.
        NicHotplug = "NicHotplug",
        /// An instance differs from its specification for another reason.
        SyncFailed = "SyncFailed",
        /// A status cannot be stored on the node.
        FailedStatusWrite = "FailedStatusWrite",
        /// Disks cannot be prepared.
        FailedStorage = "FailedStorage",
        /// A specification cannot be read.
        FailedSpec = "FailedSpec",
        /// A launcher cannot be started.
        FailedLauncher = "FailedLauncher",
        /// A network cannot be made or removed.
        FailedNetwork = "FailedNetwork",
        /// The launch request cannot be sent to the launcher.
        FailedLaunch = "FailedLaunch",
        /// A guest cannot be asked to shut down.
        FailedShutdown = "FailedShutdown",
        /// A launcher cannot be killed.
        FailedKill = "FailedKill",
        /// A launcher cannot be dismissed.
        FailedDismiss = "FailedDismiss",
        /// What is left of an instance cannot be removed.
        FailedRemove = "FailedRemove",
        /// A launcher runs another instance.
        ForeignLauncher = "ForeignLauncher",
        /// Files for a volume are missing; Kubernetes'.
        FailedMount = "FailedMount",
        /// There is no such claim.
        FailedPvcNotFound = "FailedPvcNotFound",
        /// A claim is not bound.
        PvcNotBound = "PvcNotBound",
        /// A claim has no image yet.
        PvcNotPopulated = "PvcNotPopulated",
        /// An image cannot be pulled.
        ErrImagePull = "ErrImagePull",
        /// An image cannot be pulled again.
        ImagePullBackOff = "ImagePullBackOff",
        /// A guest was killed.
        Killed = "Killed",
        /// A guest did not shut down in time.
        GracePeriodExpired = "GracePeriodExpired",
        /// A guest crashed.
        GuestCrashed = "GuestCrashed",
        /// A hypervisor failed.
        HypervisorFailed = "HypervisorFailed",
        /// It is not known how a guest ended.
        UnknownOutcome = "UnknownOutcome",
        /// A hypervisor does not support the specification.
        Unsupported = "Unsupported",
        /// KVM cannot be used.
        NoUsableKvm = "NoUsableKvm",
        /// There is no QEMU.
        NoQemu = "NoQemu",
        /// The node lacks a resource.
        HostResourceUnavailable = "HostResourceUnavailable",
        /// What is to be booted is invalid.
        BootSourceInvalid = "BootSourceInvalid",
        /// A guest cannot be started.
        LaunchFailed = "LaunchFailed",
        /// A guest was ended because its livenessProbe failed.
        LivenessProbeFailed = "LivenessProbeFailed",
        /// A guest was shut down with its node.
        NodeShutdown = "NodeShutdown",
        /// A guest was not started in time.
        LaunchTimedOut = "LaunchTimedOut",
        /// A launcher ended without a report.
        LauncherLost = "LauncherLost",
    }
}

impl Reason {
    /// Why an instance is not as its specification says, by the reason of its condition `Synchronized`.
    pub fn of_failure(reason: &str) -> Self {
        match reason {
            "FailedHotplugSync" => return Self::HotplugFailed,
            "FailedNICSync" => return Self::NicHotplug,
            _ => {}
        }
        Self::WARNINGS.iter().copied().find(|one| one.as_str() == reason).unwrap_or(Self::SyncFailed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_found_by_the_reason_of_a_condition() {
        for (reason, failure) in [
            ("FailedNetwork", Reason::FailedNetwork),
            ("FailedHotplugSync", Reason::HotplugFailed),
            ("FailedNICSync", Reason::NicHotplug),
            ("SomethingElse", Reason::SyncFailed),
        ] {
            assert_eq!(Reason::of_failure(reason), failure);
            assert!(failure.is_warning());
        }
        assert_eq!((Reason::Stopped.as_str(), Reason::Stopped.is_warning()), ("Stopped", false));
        assert_eq!((Reason::Crashed.as_str(), Reason::Crashed.is_warning()), ("Stopped", true));
    }
}

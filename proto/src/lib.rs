//! The typed protocol between `virt-handler` and `virt-launcher`.
//!
//! Generated from `launcher.proto`, which is the reference; this module adds what both sides must agree on beyond
//! the messages: the protocol version and the names of a VM's files. Beside it, the kubelet's [`device_plugin`] API.

pub mod convert;
pub mod files;
pub mod vhostmd;

/// Messages, client and server of the launcher's service.
#[expect(clippy::allow_attributes, clippy::allow_attributes_without_reason, reason = "generated code")]
pub mod launcher {
    tonic::include_proto!("vireo.launcher.v1");
}

impl std::fmt::Debug for launcher::UserPassword {
    /// Without the password.
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("UserPassword").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The kubelet's API of device plugins, `v1beta1`.
#[expect(clippy::allow_attributes, clippy::allow_attributes_without_reason, reason = "generated code")]
pub mod device_plugin {
    tonic::include_proto!("v1beta1");
}

/// The version both sides send in `Hello`. A different `major` is rejected; a different `minor` only adds fields.
pub const VERSION: launcher::Version = launcher::Version { major: 1, minor: 4 };

/// The launcher's gRPC socket, below a VM's directory.
pub const LAUNCHER_SOCKET: &str = "launcher.sock";
/// `LaunchRequest.runtime_dir`, below a VM's directory.
pub const RUN_DIRECTORY: &str = "run";
/// The guest's display, below a VM's directory: RFB.
pub const VNC_SOCKET: &str = "vnc.sock";
/// The slots for USB devices of clients, below a VM's directory: usbredir's protocol. KubeVirt has as many.
pub const USB_REDIRECTION_SOCKETS: [&str; 4] = ["usb0.sock", "usb1.sock", "usb2.sock", "usb3.sock"];
/// The guest's serial console, below a VM's directory: raw bytes from now on.
pub const CONSOLE_SOCKET: &str = "console.sock";
/// The same beside it with history first: the length of that (four bytes, the most significant first), the history as
/// plain text, and raw bytes from there on.
pub const CONSOLE_HISTORY_SOCKET: &str = "console-history.sock";

//! The validated specification of a VM.
//!
//! [`Vm`] comes only from `TryFrom<&v1::VirtualMachineInstance>`. Its parts have private fields; what was optional
//! has its default, what was text is a closed choice, a disk and its volume are one value, a NIC and its network
//! are one value. Whatever a manifest asks for ends in exactly one of four results: in a part of [`Vm`]; in
//! [`Vm::extra_devices`], when only some hypervisors have it; in [`Vm::notices`], when its absence changes nothing the
//! guest can rely on; or in the [`Report`] of everything wrong. Nothing is silently dropped.

mod capacity;
mod chassis;
mod clock;
mod cloud_init;
mod cpu;
mod credentials;
mod device;
mod disk;
mod display;
mod dns;
mod field;
mod filesystem;
mod firmware;
mod host_device;
mod hyperv;
mod identity;
mod image;
mod interface;
mod labels;
mod lifecycle;
mod memory;
mod native;
mod network;
mod notice;
mod overhead;
mod permitted;
mod platform;
mod port;
mod probe;
mod projected;
mod report;
mod scheduling;
mod single_host;
mod support;
mod syntax;
mod units;
mod vm;
mod volume;

pub use chassis::is_smbios_text;
pub use clock::Clock;
pub use cloud_init::{CloudInit, CloudInitData};
pub use credentials::{AccessCredential, CredentialMethod};
pub use disk::Disk;
pub use dns::{Dns, DnsPolicy};
pub use field::{Field, field_paths};
pub use filesystem::{Filesystem, FilesystemSource};
pub use firmware::{AcpiTableKind, AcpiTableRef, BootSource, Firmware, KernelBoot};
pub use host_device::{DeviceSource, HostDevice, VFIO_OVERHEAD, VirtualFunction};
pub use identity::{HYPERVISOR_ANNOTATION, HYPERVISOR_CONDITION, HypervisorChoice, Identity, NATIVE};
pub use image::{ImageRef, ImageRefError, Pull, PullPolicy};
pub use interface::{Dhcp, Interface};
pub use labels::label_selector_problems;
pub use lifecycle::{EvictionStrategy, Lifecycle};
pub use memory::{Memory, Resources, memory_hotplug_problems};
pub use network::{Binding, GuestNetworks, Ipv4Net, Ipv6Net, NetworkAttachment, NetworkSource};
pub use notice::Notice;
pub use overhead::{LauncherOverhead, Runner};
pub use permitted::{DeviceId, DeviceSelector, PermittedHostDevices, PermittedResource};
pub use platform::is_machine_type;
pub use port::{Forwards, Port, PortRange, Protocol};
pub use probe::{Probe, ProbeHost, ProbeQuestion};
pub use projected::{DownwardContent, DownwardFile, ObjectKind, ObjectSource, Projected, ProjectedSource};
pub use report::{Cause, Origin, Problem, Report};
pub use single_host::single_host_notices;
pub use support::{FieldSupport, SUPPORT_TABLE, Support, SupportSection, support_markdown};
pub use syntax::is_dns_subdomain;
pub use units::{Bytes, MilliCpus, QuantityError, VmiUid};
pub use vireo_vmconfig::HugePage;
pub use vm::Vm;
pub use volume::{HostDiskCreate, MemoryDump, VolumeSource, memory_dump_size};

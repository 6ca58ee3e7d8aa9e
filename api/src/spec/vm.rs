use vireo_vmconfig::{
    Chassis, Cpu, CpuPlacement, DeviceRequest, ExtraDevice, IoThreads, MAX_QUEUE_PAIRS, NicModel, Video,
};

use super::display::Display;
use super::report::Findings;
use super::{
    AccessCredential, Binding, BootSource, Clock, Disk, Dns, Field, Filesystem, Firmware, HostDevice,
    HypervisorChoice, Identity, ImageRef, Interface, Lifecycle, Memory, MemoryDump, Notice, Origin, Probe,
    Problem, Report, Resources, VolumeSource,
};
use crate::v1::{self, Shape};

/// A VM that holds together. Made by `TryFrom<&v1::VirtualMachineInstance>` only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    identity: Identity,
    hypervisor: HypervisorChoice,
    hostname: String,
    dns: Dns,
    cpu: Cpu,
    cpu_placement: Option<CpuPlacement>,
    memory: Memory,
    resources: Resources,
    firmware: Firmware,
    chassis: Chassis,
    clock: Clock,
    io_threads: Option<IoThreads>,
    disks: Vec<Disk>,
    filesystems: Vec<Filesystem>,
    memory_dump: Option<MemoryDump>,
    hotplug: bool,
    interfaces: Vec<Interface>,
    network_multiqueue: bool,
    serial_console: bool,
    rng: bool,
    persistent_tpm: bool,
    display: Display,
    balloon: bool,
    keeps_free_pages: bool,
    lifecycle: Lifecycle,
    liveness: Option<Probe>,
    readiness: Option<Probe>,
    extra_devices: Vec<DeviceRequest>,
    host_devices: Vec<HostDevice>,
    access_credentials: Vec<AccessCredential>,
    notices: Vec<Notice>,
}

impl Vm {
    /// Its identity.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The value of the annotation [`super::HYPERVISOR_ANNOTATION`].
    pub fn hypervisor(&self) -> HypervisorChoice {
        self.hypervisor
    }

    /// The guest's host name: a DNS label.
    pub fn hostname(&self) -> &str {
        &self.hostname
    }

    /// How the guest resolves names.
    pub fn dns(&self) -> &Dns {
        &self.dns
    }

    /// vCPUs.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// The CPUs of its host that it has for itself: how many, and not which.
    pub fn cpu_placement(&self) -> Option<&CpuPlacement> {
        self.cpu_placement.as_ref()
    }

    /// How many CPUs of its host it has for itself.
    pub fn dedicated_cpus(&self) -> usize {
        let Some(placement) = &self.cpu_placement else { return 0 };
        let vcpus = usize::try_from(self.cpu.count()).unwrap_or(usize::MAX);
        vcpus.saturating_add(usize::from(placement.isolate_emulator_thread))
    }

    /// Memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// What its container or cgroup is given.
    pub fn resources(&self) -> &Resources {
        &self.resources
    }

    /// What starts first, and what the guest reads about the board.
    pub fn firmware(&self) -> &Firmware {
        &self.firmware
    }

    /// The SMBIOS strings of the chassis.
    pub fn chassis(&self) -> &Chassis {
        &self.chassis
    }

    /// What its real-time clock shows.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The threads of virtio disks without a dedicated one, where the manifest decides.
    pub fn io_threads(&self) -> Option<IoThreads> {
        self.io_threads
    }

    /// Disks, in the manifest's order; those added for volumes without a disk come last.
    pub fn disks(&self) -> &[Disk] {
        &self.disks
    }

    /// File systems that the guest shares, in the manifest's order.
    pub fn filesystems(&self) -> &[Filesystem] {
        &self.filesystems
    }

    /// Whether its guest reads metrics of the host at a port.
    pub fn has_metrics_port(&self) -> bool {
        self.extra_devices.iter().any(|request| request.device == ExtraDevice::DownwardMetrics)
    }

    /// The claim that its memory is dumped to, if it is to be.
    pub fn memory_dump(&self) -> Option<&MemoryDump> {
        self.memory_dump.as_ref()
    }

    /// Those of [`Self::disks`] that are there from the start, CD-ROM drives without a hotpluggable medium.
    pub fn fixed_disks(&self) -> impl Iterator<Item = &Disk> {
        self.disks.iter().filter(|disk| !disk.is_hotpluggable())
    }

    /// Those of [`Self::disks`] whose volumes are attached once it runs, as disks or as media of CD-ROM drives.
    pub fn disks_with_hotpluggable_volumes(&self) -> impl Iterator<Item = &Disk> {
        self.disks.iter().filter(|disk| disk.source().is_hotpluggable())
    }

    /// Whether a single host pulls an image of it from a registry.
    pub fn has_registry_images(&self) -> bool {
        let of_kernel = match self.firmware().boot() {
            BootSource::Kernel(boot) => pulled_name(boot.image()).is_some(),
            BootSource::Bios { .. } | BootSource::Efi { .. } => false,
        };
        of_kernel || self.disks_of_registries().next().is_some()
    }

    /// The disks with images that a single host pulls from registries, with the names of these.
    pub fn disks_of_registries(&self) -> impl Iterator<Item = (&Disk, &str)> {
        self.disks().iter().filter_map(|disk| match disk.source() {
            VolumeSource::ContainerDisk { image, .. } => Some((disk, pulled_name(image)?)),
            _ => None,
        })
    }

    /// The Secrets with credentials for images, with the fields that name them.
    pub fn pull_secrets(&self) -> Vec<(Field, &str)> {
        let disks = self.disks().iter().filter_map(|disk| match disk.source() {
            VolumeSource::ContainerDisk { pull, .. } => Some((disk.source_field(), pull)),
            _ => None,
        });
        let kernel = match self.firmware().boot() {
            BootSource::Kernel(boot) => Some((boot.field(), boot.pull())),
            BootSource::Bios { .. } | BootSource::Efi { .. } => None,
        };
        disks
            .chain(kernel)
            .filter_map(|(field, pull)| Some((field.at("imagePullSecret"), pull.secret()?)))
            .collect()
    }

    /// Whether volumes may be attached. KubeVirt's default is yes.
    pub fn hotplug(&self) -> bool {
        self.hotplug
    }

    /// NICs, in the manifest's order.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// How many queue pairs one of its NICs has: one for each vCPU where that is requested, [`MAX_QUEUE_PAIRS`] at most. Passt
    /// has one.
    pub fn queue_pairs(&self, nic: &Interface) -> u32 {
        let most = u32::try_from(MAX_QUEUE_PAIRS).unwrap_or(1);
        let several = self.network_multiqueue
            && nic.model() == NicModel::Virtio
            && !matches!(nic.binding(), Binding::Passt { .. });
        if several { self.cpu.count().min(most) } else { 1 }
    }

    /// There is a first serial port.
    pub fn serial_console(&self) -> bool {
        self.serial_console
    }

    /// There is an entropy device.
    pub fn rng(&self) -> bool {
        self.rng
    }

    /// There is a TPM whose state is kept.
    pub fn has_persistent_tpm(&self) -> bool {
        self.persistent_tpm
    }

    /// The display adapter, if there is a display, which is the default of KubeVirt.
    pub fn video(&self) -> Option<Video> {
        self.display.video
    }

    /// How many virtio tablets there are.
    pub fn tablets(&self) -> u32 {
        self.display.tablets
    }

    /// Whether there is a memory balloon.
    pub fn has_balloon(&self) -> bool {
        self.balloon
    }

    /// Whether its balloon leaves the guest its free pages, in place of giving them to the host: by the annotation, and where
    /// memory is in huge pages or CPUs are dedicated, as in KubeVirt. Of huge pages, the host might have none when the guest
    /// needs its own again, which would end it.
    pub fn keeps_free_pages(&self) -> bool {
        self.keeps_free_pages || self.memory.huge_page().is_some() || self.cpu_placement.is_some()
    }

    /// How it starts and ends.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// A failure ends the VM.
    pub fn liveness_probe(&self) -> Option<&Probe> {
        self.liveness.as_ref()
    }

    /// Decides whether it is ready.
    pub fn readiness_probe(&self) -> Option<&Probe> {
        self.readiness.as_ref()
    }

    /// What only some hypervisors have.
    pub fn extra_devices(&self) -> &[DeviceRequest] {
        &self.extra_devices
    }

    /// Devices of its host that it gets.
    pub fn host_devices(&self) -> &[HostDevice] {
        &self.host_devices
    }

    /// Keys and passwords of Secrets that the guest gets.
    pub fn access_credentials(&self) -> &[AccessCredential] {
        &self.access_credentials
    }

    /// What is accepted without effect.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// Reads a manifest some of whose values had the wrong type and were left out: `mistyped` names them, and what
    /// only follows from them is not reported again. With an empty `mistyped` and [`Origin::Store`] this is `try_from`.
    pub fn read(
        vmi: &v1::VirtualMachineInstance,
        mistyped: &[Problem],
        origin: Origin,
    ) -> Result<Self, Report> {
        let mut found = Findings::default();
        let vm = assemble(vmi, &mut found);
        let Findings { mut problems, admission_problems, extra_devices, host_devices, notices } = found;
        let vm = vm.map(|vm| Self { extra_devices, host_devices, notices, ..vm });
        if origin == Origin::Request {
            problems.extend(admission_problems);
            let of_native = vm.as_ref().map(|vm| super::native::problems(vm, &problems));
            problems.extend(of_native.unwrap_or_default());
        }
        match vm {
            Some(vm) if problems.is_empty() && mistyped.is_empty() => Ok(vm),
            _ => Err(Report::new(mistyped.to_vec(), problems)),
        }
    }

    /// Validates the request of a client for a VMI.
    ///
    /// # Errors
    /// Every problem, those for which only a request is refused among them.
    pub fn from_request(vmi: &v1::VirtualMachineInstance) -> Result<Self, Report> {
        Self::read(vmi, &[], Origin::Request)
    }
}

/// Reads a VMI that is stored.
impl TryFrom<&v1::VirtualMachineInstance> for Vm {
    type Error = Report;

    fn try_from(vmi: &v1::VirtualMachineInstance) -> Result<Self, Report> {
        Self::read(vmi, &[], Origin::Store)
    }
}

/// Reads every part, so that every problem is found; absent parts have left a problem behind.
fn assemble(vmi: &v1::VirtualMachineInstance, found: &mut Findings) -> Option<Vm> {
    let spec = &vmi.spec;
    let domain = &spec.domain;
    let devices = &domain.devices;
    super::identity::kind(vmi, found);
    let identity = super::identity::read(&vmi.metadata, found);
    let uid = identity.as_ref().map(Identity::uid);
    let hypervisor = super::identity::hypervisor(&vmi.metadata, found);
    let hostname = super::identity::hostname(spec, &vmi.metadata.name, found);
    unknown_fields(spec, found);
    super::scheduling::validate(spec, found);
    let dns = super::dns::read(spec, found);
    let resources = super::memory::resources(&domain.resources, found);
    let cpu = super::cpu::read(domain.cpu.as_deref(), super::hyperv::has_evmcs(domain), &resources, found);
    let vcpus = cpu.as_ref().map(Cpu::count);
    let cpu_placement = super::cpu::placement(domain, vcpus, &resources, found);
    let memory = super::memory::read(domain.memory.as_deref(), &domain.resources, &resources, found);
    let firmware = super::firmware::read(spec, uid, found);
    let chassis = super::chassis::read(domain, found);
    super::platform::read(spec, found);
    let clock = super::clock::read(domain, found);
    let io_threads = super::platform::io_threads(domain, vcpus.unwrap_or(1), found);
    let mut boot_orders = super::disk::BootOrders::new();
    let volumes = super::volume::read(&spec.volumes, found);
    super::projected::check_accounts(spec, found);
    let disks = super::disk::read(devices, &volumes, &mut boot_orders, found);
    let filesystems = super::filesystem::read(devices, &volumes, found);
    let memory_dump = super::volume::memory_dump_of(&volumes);
    let interfaces = super::interface::read(spec, uid, &mut boot_orders, found);
    let access_credentials = super::credentials::read(spec, found);
    super::device::read(devices, found);
    super::host_device::read(devices, found);
    let efi = firmware.as_ref().is_some_and(|firmware| matches!(firmware.boot(), BootSource::Efi { .. }));
    let display = super::display::read(devices, efi, found);
    let lifecycle = super::lifecycle::read(spec, found);
    let at = Field::new("spec");
    let liveness = spec.liveness_probe.as_deref();
    let liveness = super::probe::read_liveness(liveness, &at.at("livenessProbe"), &interfaces, found);
    let readiness = spec.readiness_probe.as_deref();
    let readiness = super::probe::read(readiness, &at.at("readinessProbe"), &interfaces, found);
    elsewhere(spec, found);
    super::capacity::lists(spec, &disks, found);
    let balloon = devices.autoattach_mem_balloon != Some(false);
    let hotplug = devices.disable_hotplug != Some(true);
    let attached = super::capacity::Attached {
        hotplug,
        interfaces: interfaces.len(),
        filesystems: filesystems.len(),
        rng: devices.rng.is_some(),
        balloon,
        video: display.video,
        tablets: usize::try_from(display.tablets).unwrap_or(usize::MAX),
        has_fixed_slots: super::capacity::slots(&disks, &interfaces, found),
    };
    super::capacity::validate(&disks, &attached, hypervisor, found);
    Some(Vm {
        identity: identity?,
        hypervisor,
        hostname,
        dns,
        cpu: cpu?,
        cpu_placement,
        memory: memory?,
        resources,
        firmware: firmware?,
        chassis,
        clock,
        io_threads,
        disks,
        filesystems,
        memory_dump,
        hotplug,
        interfaces,
        network_multiqueue: devices.network_interface_multiqueue == Some(true),
        serial_console: devices.autoattach_serial_console != Some(false),
        rng: devices.rng.is_some(),
        persistent_tpm: devices.tpm.as_ref().is_some_and(v1::TpmDevice::is_persistent),
        display,
        balloon,
        keeps_free_pages: super::identity::keeps_free_pages(&vmi.metadata),
        lifecycle,
        liveness,
        readiness,
        extra_devices: Vec::new(),
        host_devices: Vec::new(),
        access_credentials,
        notices: Vec::new(),
    })
}

/// Features that need a cluster.
fn elsewhere(spec: &v1::VirtualMachineInstanceSpec, found: &mut Findings) {
    let at = Field::new("spec");
    found.refuse_if(!spec.utility_volumes.is_empty(), &at.at("utilityVolumes"), "a volume for operations");
    found.refuse_if(!spec.resource_claims.is_empty(), &at.at("resourceClaims"), "a claimed device");
}

/// Unknown fields are kept by [`v1`], and rejected here: one of them may be the one that mattered.
fn unknown_fields(spec: &v1::VirtualMachineInstanceSpec, found: &mut Findings) {
    let mut unknown_fields = Vec::new();
    spec.unknown_fields("spec", &mut unknown_fields);
    for unknown_field in unknown_fields {
        let advice = match &unknown_field.similar {
            Some(similar) => format!("did you mean {similar}?"),
            None => "remove it".to_owned(),
        };
        found.not_supported(
            &Field::new(&unknown_field.field),
            format!("no field of this version of the API is called {:?} here: {advice}", unknown_field.name),
        );
    }
}

/// The name of an image that a single host pulls from a registry.
fn pulled_name(image: &ImageRef) -> Option<&str> {
    match image {
        ImageRef::Registry(name) if !image.is_local_name() => Some(name),
        _ => None,
    }
}

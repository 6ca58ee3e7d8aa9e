//! The whole launcher: started, sent a launch request over gRPC, watched over its console socket.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tonic::transport::{Channel, Endpoint};
use vireo_handler::launcher::cgroup::Cgroups;
use vireo_proto::files::{self, FILES_SOCKET};
use vireo_proto::launcher::launcher_client::LauncherClient;
use vireo_proto::launcher::{
    Bios, Cpu, Disk, DiskSource, DismissRequest, Efi, Firmware, HelloRequest, HypervisorChoice, Identity,
    KernelBoot, LaunchRequest, Smbios, WatchRequest, disk, disk_source, firmware, hypervisor_choice, state,
};
use vireo_proto::{CONSOLE_HISTORY_SOCKET, CONSOLE_SOCKET, LAUNCHER_SOCKET, VERSION};

use crate::Error;
use crate::contender::Contender;
use crate::inside::{Plan, end, finish, wait_for_mark};
use crate::isolation::{self, Isolated};
use crate::report::Sample;
use crate::start::{DISK, Start, VARIABLES};
use vireo_tests::installed::Firmware as Kind;
use vireo_tests::memory::{self, Ram};

/// A process's start, up to its socket.
const READY: Duration = Duration::from_secs(10);

pub(crate) fn measure(contender: Contender, plan: &Plan) -> Result<Sample, Error> {
    let directory = tempfile::tempdir()?;
    let directory = directory.path();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let program = plan.programs.join("virt-launcher");
    // The node agent finds them once.
    let cgroups = (contender == Contender::Isolated).then(Cgroups::find).transpose()?;
    let start = Instant::now();
    let run = |sockets: &Path, pid| {
        let vm = Vm { contender, directory, sockets, pid };
        runtime.block_on(session(plan, &vm, start))
    };
    if let Some(cgroups) = cgroups {
        let isolated = Isolated::spawn(&program, directory, cgroups)?;
        let result = run(&isolation::sockets(directory), isolated.pid());
        return finish(plan, result, |kill| isolated.end(kill));
    }
    let options: &[&str] = if contender == Contender::Bare { &["--seccomp", "off"] } else { &[] };
    let mut child = spawn_with(&program, directory, options)?;
    let result = run(directory, child.id());
    finish(plan, result, |kill| end(&mut child, kill))
}

/// A launcher that was started.
struct Vm<'a> {
    contender: Contender,
    /// Where it sees its sockets.
    directory: &'a Path,
    /// Where they are.
    sockets: &'a Path,
    pid: u32,
}

/// Starts a launcher with its sockets in `directory`.
pub(crate) fn spawn(directory: &Path) -> std::io::Result<Child> {
    spawn_with(Path::new("/in/virt-launcher"), directory, &[])
}

fn spawn_with(program: &Path, directory: &Path, options: &[&str]) -> std::io::Result<Child> {
    Command::new(program)
        .args(options)
        .arg("--socket")
        .arg(directory.join(LAUNCHER_SOCKET))
        .args(["--bios", "/in/bios", "--efi-code", "/in/efi-code", "--efi-variables", "/in/efi-variables"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
}

/// Sends a launcher its request, as soon as it listens; the guest's console.
pub(crate) async fn launch(
    directory: &Path,
    start: Instant,
    request: LaunchRequest,
) -> Result<(LauncherClient<Channel>, UnixStream), Error> {
    launch_with(directory, start, request, &[]).await
}

/// The same, after it was passed open files.
async fn launch_with(
    directory: &Path,
    start: Instant,
    request: LaunchRequest,
    files: &[(String, OwnedFd)],
) -> Result<(LauncherClient<Channel>, UnixStream), Error> {
    let mut client = prepare(directory, start, files).await?;
    let response = client.launch(request).await?.into_inner();
    if let Some(fault) = response.fault {
        return Err(format!("refused: {} {}", fault.field, fault.detail).into());
    }
    let mut console = UnixStream::connect(directory.join(CONSOLE_HISTORY_SOCKET))?;
    // The length of the history; the text follows.
    console.read_exact(&mut [0; 4])?;
    Ok((client, console))
}

/// Connects to a launcher as soon as it listens, and passes it files.
async fn prepare(
    directory: &Path,
    start: Instant,
    files: &[(String, OwnedFd)],
) -> Result<LauncherClient<Channel>, Error> {
    let mut client = connect(&directory.join(LAUNCHER_SOCKET), start).await?;
    client.hello(HelloRequest { version: Some(VERSION) }).await?;
    files::pass(&directory.join(FILES_SOCKET), files)?;
    Ok(client)
}

async fn session(plan: &Plan, vm: &Vm<'_>, start: Instant) -> Result<Sample, Error> {
    let has_kernel = matches!(plan.start, Start::Kernel { .. });
    let files = if vm.contender == Contender::Isolated { isolation::files(has_kernel)? } else { Vec::new() };
    if plan.start == Start::Answer {
        prepare(vm.sockets, start, &files).await?;
        let millis = start.elapsed().as_secs_f64() * 1e3;
        return Ok(Sample { contender: vm.contender, millis, kib: memory::beside(vm.pid, Ram::None)? });
    }
    let (mut client, console) = launch_with(vm.sockets, start, request(plan, vm.directory), &files).await?;
    let reader = console.try_clone()?;
    let mark = plan.start.mark();
    let waiting = tokio::task::spawn_blocking(move || {
        wait_for_mark(reader, start, mark).map_err(|error| error.to_string())
    });
    let elapsed = waiting.await??;
    let kib = memory::beside(vm.pid, Ram::Ours)?;
    let sample = Sample { contender: vm.contender, millis: elapsed.as_secs_f64() * 1e3, kib };
    if !plan.start.shuts_down() {
        return Ok(sample);
    }
    (&console).write_all(b"\n")?;
    let mut states = client.watch(WatchRequest {}).await?.into_inner();
    while let Some(state) = states.message().await? {
        if state.phase() == state::Phase::Exited {
            break;
        }
    }
    client.dismiss(DismissRequest {}).await?;
    Ok(sample)
}

/// Connects as soon as the launcher listens.
async fn connect(socket: &Path, start: Instant) -> Result<LauncherClient<Channel>, Error> {
    let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()))?;
    loop {
        match endpoint.connect().await {
            Ok(channel) => return Ok(LauncherClient::new(channel)),
            Err(error) if start.elapsed() > READY => return Err(error.into()),
            // Its socket is the only sign the launcher gives; a handler watches the directory for it.
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

fn request(plan: &Plan, directory: &Path) -> LaunchRequest {
    let boot = match plan.start {
        Start::Kernel { .. } | Start::Answer => kernel(&plan.command_line),
        Start::Disk(Kind::Bios) => firmware::Boot::Bios(Bios::default()),
        Start::Disk(Kind::Efi) => {
            firmware::Boot::Efi(Efi { variables_path: VARIABLES.into(), ..Efi::default() })
        }
    };
    let source = disk_source::Source::Raw(disk_source::Raw { path: DISK.into() });
    let disks = if plan.start.shuts_down() { Vec::new() } else { vec![disk(source)] };
    request_for(boot, plan.memory_mib, disks, directory)
}

/// The kernel and the RAM disk that were given to the host.
pub(crate) fn kernel(command_line: &str) -> firmware::Boot {
    firmware::Boot::Kernel(KernelBoot {
        kernel_path: "/in/vmlinuz".into(),
        initrd_path: "/in/initrd".into(),
        command_line: command_line.to_owned(),
    })
}

/// A disk on virtio-blk.
pub(crate) fn disk(source: disk_source::Source) -> Disk {
    Disk {
        name: "system".into(),
        bus: disk::Bus::Virtio.into(),
        source: Some(DiskSource { source: Some(source) }),
        ..Disk::default()
    }
}

/// A VM with one vCPU on the native hypervisor.
pub(crate) fn request_for(
    boot: firmware::Boot,
    memory_mib: u32,
    disks: Vec<Disk>,
    directory: &Path,
) -> LaunchRequest {
    let path = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let uid = "00000000-0000-4000-8000-000000000001";
    LaunchRequest {
        vmi: Some(Identity { namespace: "default".into(), name: "bench".into(), uid: uid.into() }),
        hypervisor: Some(HypervisorChoice {
            kind: hypervisor_choice::Kind::Native.into(),
            forced_by: "bench".into(),
        }),
        cpu: Some(Cpu { sockets: 1, cores: 1, threads: 1, model: "host-model".into(), features: Vec::new() }),
        memory_bytes: u64::from(memory_mib) << 20,
        firmware: Some(Firmware { boot: Some(boot) }),
        disks,
        serial_console: true,
        rng: true,
        console_socket: path(CONSOLE_SOCKET),
        runtime_dir: directory.to_string_lossy().into_owned(),
        smbios: Some(Smbios { uuid: uid.into(), ..Smbios::default() }),
        ..LaunchRequest::default()
    }
}

//! A real `virt-launcher`, and everything one may ask it.
#![expect(clippy::unwrap_used, reason = "a test ends where its scenery fails")]

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};
use vireo_proto::CONSOLE_HISTORY_SOCKET;
use vireo_proto::launcher::launcher_client::LauncherClient;
use vireo_proto::launcher::*;

/// Far more than anything here takes, even on a busy VM under emulation.
const PATIENCE: Duration = Duration::from_secs(60);

/// A launcher in a directory of its own.
pub(crate) struct LaunchedVm {
    pub(crate) client: LauncherClient<Channel>,
    pub(crate) directory: TempDir,
    child: Child,
    states: Option<Streaming<State>>,
}

/// Waits for `what`, and says its name when it does not come.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited in vain: {what}"),
    }
}

impl LaunchedVm {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    pub(crate) async fn start_with(args: &[&str]) -> Self {
        Self::start_logging_to(Stdio::inherit(), args).await
    }

    pub(crate) async fn start_logging_to(log: Stdio, args: &[&str]) -> Self {
        let directory = tempfile::Builder::new().prefix("vireo-launcher-").tempdir().unwrap();
        let socket = directory.path().join("launcher.sock");
        std::fs::create_dir(directory.path().join("run")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_virt-launcher"))
            .arg("--socket")
            .arg(&socket)
            .args(args)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
        let client = soon("the launcher's socket", async {
            loop {
                match endpoint.connect().await {
                    Ok(channel) => return LauncherClient::new(channel),
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        });
        let client = client.await;
        Self { client, directory, child, states: None }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// A VM with a console that boots this disk from virtio.
    pub(crate) fn request(&self, disk: &Path) -> LaunchRequest {
        LaunchRequest { disks: vec![self.disk("root", disk, disk::Bus::Virtio)], ..self.empty() }
    }

    /// A VM with a console and nothing to boot.
    pub(crate) fn empty(&self) -> LaunchRequest {
        LaunchRequest {
            vmi: Some(Identity { namespace: "ns".into(), name: "web".into(), uid: "u-1".into() }),
            memory_bytes: 64 << 20,
            fields: Some(FieldPaths { kernel_boot: "kernelBoot".into(), ..FieldPaths::default() }),
            firmware: Some(Firmware { boot: Some(firmware::Boot::Bios(Bios { use_serial: false })) }),
            serial_console: true,
            console_socket: self.path("console.sock").to_string_lossy().into_owned(),
            runtime_dir: self.path("run").to_string_lossy().into_owned(),
            ..Default::default()
        }
    }

    pub(crate) fn disk(&self, name: &str, path: &Path, bus: disk::Bus) -> Disk {
        let raw = disk_source::Raw { path: path.to_string_lossy().into_owned() };
        Disk {
            name: name.into(),
            field: format!("spec.domain.devices.disks[{name}].disk.bus"),
            bus: bus.into(),
            source: Some(DiskSource { source: Some(disk_source::Source::Raw(raw)) }),
            ..Default::default()
        }
    }

    pub(crate) async fn launch(&mut self, request: LaunchRequest) -> LaunchResponse {
        soon("an answer to Launch", self.client.launch(request)).await.unwrap().into_inner()
    }

    /// Launches what must come up.
    pub(crate) async fn up(&mut self, request: LaunchRequest) {
        let response = self.launch(request).await;
        assert_eq!(response.fault, None);
        assert_eq!(response.state.unwrap().phase(), state::Phase::Running);
    }

    /// The first state from now on that is as wanted.
    pub(crate) async fn until(&mut self, what: &str, wanted: impl Fn(&State) -> bool) -> State {
        if self.states.is_none() {
            self.states = Some(self.client.watch(WatchRequest {}).await.unwrap().into_inner());
        }
        let states = self.states.as_mut().unwrap();
        soon(what, async {
            loop {
                let state = states.message().await.unwrap().expect("the launcher is there");
                if wanted(&state) {
                    return state;
                }
            }
        })
        .await
    }

    pub(crate) async fn outcome(&mut self) -> Outcome {
        let exited = self.until("the end of the VM", |s| s.phase() == state::Phase::Exited).await;
        exited.outcome.unwrap()
    }

    pub(crate) async fn shut_down(&mut self, grace_seconds: u64) {
        let response = self.client.shutdown(ShutdownRequest { grace_seconds }).await.unwrap();
        assert_eq!(response.into_inner().fault, None);
    }

    pub(crate) async fn lifecycle(&mut self, command: LifecycleCommand) -> Option<Fault> {
        let request = LifecycleRequest { command: command.into() };
        soon("an answer to Steer", self.client.steer(request)).await.unwrap().into_inner().fault
    }

    /// The console from the beginning.
    pub(crate) async fn console(&self) -> UnixStream {
        let mut console = UnixStream::connect(self.path(CONSOLE_HISTORY_SOCKET)).await.unwrap();
        // How much of it is history does not matter to tests.
        console.read_u32().await.unwrap();
        console
    }

    pub(crate) async fn dismiss(mut self) {
        let response = self.client.dismiss(DismissRequest {}).await.unwrap();
        assert_eq!(response.into_inner().fault, None);
        assert!(self.exit().await.success());
    }

    pub(crate) async fn exit(&mut self) -> ExitStatus {
        soon("the launcher's exit", self.child.wait()).await.unwrap()
    }

    /// The only child of the launcher.
    pub(crate) fn qemu(&self) -> i32 {
        let pid = self.pid();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.trim().parse().unwrap_or_else(|_| panic!("not one child: {children:?}"))
    }
}

/// Reads until `text` has come; returns everything up to and with it.
pub(crate) async fn read_until(console: &mut UnixStream, text: &[u8]) -> Vec<u8> {
    let mut seen = Vec::new();
    let what = format!("{:?} on the console", String::from_utf8_lossy(text));
    soon(&what, async {
        while !seen.ends_with(text) {
            seen.push(console.read_u8().await.expect("more console output"));
        }
    })
    .await;
    seen
}

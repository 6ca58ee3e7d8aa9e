//! Users with less than all rights, through Debian's `kubectl` and our `virtctl`.

use std::time::Duration;

use vireo_tests::eventually::eventually;
use vireo_tests::{Host, HostError, Status};

use crate::scenarios::standalone::{Standalone, host_with_vireo};

const BOOT: Duration = Duration::from_secs(120);
/// It has nothing to start, which is enough to run.
const VM: &str = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: vm}\nspec:\n  runStrategy: Halted\n  template:\n    spec:\n      terminationGracePeriodSeconds: 0\n      domain: {memory: {guest: 64Mi}, devices: {autoattachGraphicsDevice: false, autoattachPodInterface: false}}\n";

/// A ServiceAccount with a kubeconfig of its own.
struct Robot<'h> {
    standalone: &'h Standalone<'h>,
    config: String,
}

impl<'h> Robot<'h> {
    fn new(host: &Host, standalone: &'h Standalone<'h>) -> Result<Self, HostError> {
        standalone.kubectl("create serviceaccount robot", None)?.ok();
        let token = standalone.kubectl("create token robot --duration=1h", None)?.ok();
        Self::with_token(host, standalone, ("robot", &token))
    }

    fn with_token(
        host: &Host,
        standalone: &'h Standalone<'h>,
        (file, token): (&str, &str),
    ) -> Result<Self, HostError> {
        let config = host.work(&format!("state/{file}"));
        host.shell(&format!("cp {} {config}", host.work("state/api/kubeconfig"))).run()?.ok();
        let robot = Self { standalone, config };
        robot.kubectl(&format!("config set-credentials robot --token={}", token.trim()))?;
        robot.kubectl("config set-context --current --user=robot")?;
        Ok(robot)
    }

    /// What it says, whether it succeeds or not.
    fn kubectl(&self, line: &str) -> Result<String, HostError> {
        self.kubectl_with(line, None)
    }

    fn apply(&self, manifest: &str) -> Result<String, HostError> {
        self.kubectl_with("apply -f -", Some(manifest))
    }

    fn kubectl_with(&self, line: &str, input: Option<&str>) -> Result<String, HostError> {
        let reported = self.standalone.kubectl(&format!("--kubeconfig {} {line}", self.config), input)?;
        Ok(reported.stdout + &reported.stderr)
    }

    fn virtctl(&self, line: &str) -> Result<String, HostError> {
        let reported = self.standalone.virtctl(&format!("--kubeconfig {} {line}", self.config))?;
        Ok(reported.stdout + &reported.stderr)
    }

    /// Lets it do what a role says.
    fn gets(&self, role: &str, name: &str) -> Result<(), HostError> {
        let line = format!("create rolebinding {name} --clusterrole={role} --serviceaccount=default:robot");
        self.standalone.kubectl(&line, None)?.ok();
        Ok(())
    }
}

fn has(reported: &str, wanted: &str) {
    assert!(reported.contains(wanted), "{wanted:?} is missing in:\n{reported}");
}

/// A token without an end, in a Secret.
fn keeps_a_token<'h>(host: &Host, standalone: &'h Standalone<'h>) -> Result<Robot<'h>, HostError> {
    let secret = |annotations: &str| {
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: robot{annotations}}}\ntype: kubernetes.io/service-account-token\n"
        )
    };
    let reported = standalone.kubectl("apply -f -", Some(&secret("")))?;
    has(&reported.stderr, "metadata.annotations[kubernetes.io/service-account.name]: Required value");
    let secret = secret(", annotations: {kubernetes.io/service-account.name: robot}");
    standalone.kubectl("apply -f -", Some(&secret))?.ok();
    let field = |field: &str| {
        let line = format!("get secret robot -o 'jsonpath={{.data.{field}}}' | base64 -d");
        standalone.kubectl(&line, None).map(|reported| reported.stdout)
    };
    eventually("it is filled", BOOT, || Ok(!field("token")?.is_empty()))?;
    assert_eq!(field("namespace")?, "default");
    assert_eq!(field("ca\\.crt")?, standalone.shell(&format!("cat {}", standalone.file("api/ca.crt")))?);
    let robot = Robot::with_token(host, standalone, ("robot-in-secret", &field("token")?))?;
    has(&robot.kubectl("auth whoami")?, "system:serviceaccount:default:robot");
    has(&robot.kubectl("get vm")?, "No resources found");
    Ok(robot)
}

/// Users who may create VMs may not use every file of the host as a disk.
fn has_files_where_it_may(host: &Host, robot: &Robot<'_>) -> Result<(), HostError> {
    let disk = |path: &str| {
        let volumes = format!(
            "      volumes:\n      - name: file\n        hostDisk: {{path: {path}, type: DiskOrCreate, capacity: 1Mi}}\n"
        );
        let devices = "devices: {disks: [{name: file, disk: {bus: virtio}}], ";
        let vm = VM.replace("name: vm", "name: file").replace("Halted", "Always");
        vm.replace("devices: {", devices) + &volumes
    };
    let (data, secret) = (host.work("data"), host.work("state/api/token.json"));
    let apply = |path: &str| robot.apply(&disk(path));
    let reported = apply(&secret)?;
    has(&reported, "spec.template.spec.volumes[0].hostDisk.path");
    has(&reported, &format!("{secret} is not below a directory of --host-disks: {data}"));
    host.shell(&format!("mkdir {data}; ln -s {} {data}/link", host.work("state/api"))).run()?.ok();
    has(&apply(&format!("{data}/link/token.json"))?, "created");
    eventually("it is refused, and not said where the link leads", BOOT, || {
        let reported = robot.kubectl("get events")?;
        assert!(!reported.contains(&secret), "{reported}");
        Ok(reported.contains(&format!("{data}/link/token.json does not lead to a file below")))
    })?;
    has(&robot.kubectl("delete vm file --timeout=60s")?, "deleted");
    has(&apply(&format!("{data}/new/disk.img"))?, "created");
    eventually("it runs with its file", BOOT, || {
        let reported = robot.kubectl("get vmi file -o jsonpath={.status.phase}")?;
        Ok(reported == "Running")
    })?;
    assert_eq!(host.shell(&format!("stat -c %s {data}/new/disk.img")).run()?.ok(), "1048576\n");
    has(&robot.kubectl("delete vm file --timeout=60s")?, "deleted");
    Ok(())
}

/// Who one is and where the server is, without a kubeconfig.
fn is_selected_by_flags(standalone: &Standalone<'_>, token: &str) -> Result<(), HostError> {
    let server = format!("--kubeconfig /dev/null --server https://127.0.0.1:6443 --token {token}");
    let authority = format!("--certificate-authority {}", standalone.file("api/ca.crt"));
    for trust in [authority.as_str(), "--insecure-skip-tls-verify"] {
        let reported = standalone.virtctl(&format!("{server} {trust} version"))?;
        has(&reported.stdout, "Server Version: v1.");
    }
    let unauthenticated = standalone.virtctl(&format!("{server} version"))?;
    assert_eq!(unauthenticated.status, Status::Code(1), "{unauthenticated:?}");
    let misnamed = standalone.virtctl(&format!("{server} {authority} --tls-server-name other version"))?;
    has(&misnamed.stderr, "cannot connect to https://127.0.0.1:6443");
    let as_other = standalone.virtctl("--as system:serviceaccount:default:other start vm")?;
    has(&as_other.stderr, "User \"system:serviceaccount:default:other\" cannot update resource");
    Ok(())
}

/// As an editor, what `virtctl image-upload pvc` does, and what upstream's asks for on the way.
fn fills_a_claim(host: &Host, robot: &Robot<'_>) -> Result<(), HostError> {
    let standalone = robot.standalone;
    standalone.kubectl("create serviceaccount editor", None)?.ok();
    let token = standalone.kubectl("create token editor --duration=1h", None)?.ok();
    let editor = Robot::with_token(host, standalone, ("editor", &token))?;
    let line = "create rolebinding edits --clusterrole=edit --serviceaccount=default:editor";
    standalone.kubectl(line, None)?.ok();
    has(&editor.virtctl("version")?, "Server Version: v1.");
    is_selected_by_flags(standalone, token.trim())?;
    let image = host.work("zeros");
    host.shell(&format!("head -c 1M /dev/zero >{image}")).run()?.ok();
    let volume = "get --raw /apis/cdi.kubevirt.io/v1beta1/namespaces/default/datavolumes/filled";
    has(&editor.kubectl(volume)?, "NotFound");
    let upload = format!("image-upload pvc filled --size 1Mi --image-path {image}");
    let reported = editor.virtctl(&format!("{upload} --uploadproxy-url http://127.0.0.1"))?;
    has(&reported, "is not of the form https://host:port");
    has(&editor.kubectl("get pvc filled")?, "NotFound");
    let reported = editor.virtctl(&format!("{upload} --uploadproxy-url https://127.0.0.1:1"))?;
    has(&reported, "PVC default/filled was created and still waits for its image");
    has(&editor.virtctl(&format!("{upload} --no-create"))?, "Processing completed successfully");
    let reported = editor.virtctl(&upload.replace("filled", "huge").replace("1Mi", "1Ei"))?;
    has(&reported, "PVC huge gets no disk: ");
    has(&editor.kubectl("delete pvc filled huge --timeout=30s")?, "deleted");
    Ok(())
}

#[test]
fn roles_of_an_account_hold_for_kubectl() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let standalone = Standalone::start(&host)?;
    standalone.kubectl("apply -f -", Some(VM))?.ok();
    let robot = Robot::new(&host, &standalone)?;
    let me = robot.kubectl("auth whoami")?;
    for reported in ["system:serviceaccount:default:robot", "system:serviceaccounts:default", "JTI="] {
        has(&me, reported);
    }
    has(
        &robot.kubectl("get vmi")?,
        "virtualmachineinstances.kubevirt.io is forbidden: User \"system:serviceaccount:default:robot\" cannot list resource \"virtualmachineinstances\" in API group \"kubevirt.io\" in the namespace \"default\"",
    );

    robot.gets("view", "looks")?;
    has(&robot.kubectl("get vm")?, "Stopped");
    has(&robot.kubectl("delete vm vm")?, "cannot delete resource \"virtualmachines\"");
    has(&robot.virtctl("start vm")?, "cannot update resource \"virtualmachines/start\"");
    has(&robot.kubectl("get secrets")?, "(Forbidden)");
    has(&robot.kubectl("get vm -n kube-system")?, "(Forbidden)");
    for (asked, answer) in [
        ("list vmi", "yes"),
        ("delete vm", "no"),
        ("get /version", "yes"),
        ("get /metrics", "no"),
        ("list vmi -A", "no"),
    ] {
        has(&robot.kubectl(&format!("auth can-i {asked}"))?, answer);
        let by_admin = format!("auth can-i {asked} --as=system:serviceaccount:default:robot");
        has(&standalone.kubectl(&by_admin, None)?.stdout, answer);
    }
    let list = robot.kubectl("auth can-i --list")?;
    let line = list.lines().find(|line| line.starts_with("virtualmachines.kubevirt.io")).unwrap_or_default();
    has(line, "[get list watch]");
    has(&list, "virtualmachines.subresources.kubevirt.io/expand-spec");
    assert!(!list.contains("virtualmachines.subresources.kubevirt.io/start"), "{list}");
    has(&robot.kubectl("get vm --as=admin --as-group=system:masters")?, "cannot impersonate");

    robot.gets("kubevirt.io:edit", "works")?;
    has(&robot.virtctl("start vm")?, "was scheduled to start");
    eventually("it runs", BOOT, || Ok(robot.kubectl("get vmi")?.contains("Running")))?;
    has_files_where_it_may(&host, &robot)?;
    let more = "create rolebinding more --clusterrole=cluster-admin --user=eve";
    has(&robot.kubectl(more)?, "cannot create resource \"rolebindings\"");
    robot.gets("admin", "leads")?;
    has(&robot.kubectl(more)?, "is attempting to grant RBAC permissions not currently held");
    has(&robot.kubectl("create rolebinding less --clusterrole=view --user=eve")?, "created");
    has(&robot.kubectl("delete vm vm --timeout=60s")?, "deleted");
    fills_a_claim(&host, &robot)?;
    has(&standalone.kubectl("get rolebinding", None)?.ok(), "ClusterRole/kubevirt.io:edit");

    let kept = keeps_a_token(&host, &standalone)?;
    standalone.kubectl("delete rolebinding looks works leads", None)?.ok();
    has(&robot.kubectl("get vm")?, "(Forbidden)");
    standalone.kubectl("delete serviceaccount robot", None)?.ok();
    has(&robot.kubectl("get vm")?, "Unauthorized");
    has(&kept.kubectl("get vm")?, "Unauthorized");
    eventually("its Secret goes with it", BOOT, || {
        Ok(standalone.kubectl("get secret robot", None)?.stderr.contains("NotFound"))
    })
}

//! One guest from its start to its end.

use vireo_tests::HostError;
use vireo_tests::Status;
use vireo_tests::eventually::eventually;
use vireo_tests::installed::Login;

use super::{STEP, Vireo, upgrade};
use crate::scenarios::probes::condition;

const MANIFEST: &str = include_str!("../../../examples/demo.yaml");
/// Of the guest's web server.
pub(super) const PORT: u16 = 8080;
const HANDLER: &str = "pods -n kubevirt -l kubevirt.io=virt-handler";
/// What tells one boot of a guest from another.
pub(super) const BOOT_ID: &str = "cat /proc/sys/kernel/random/boot_id";
/// The Secret with the key that its user is let in with.
const KEYS: &str = "demo-keys";
/// A finalizer of a test.
const FINALIZER: &str = "example.com/looks";
/// Leaves a file by which [`is_the_same`] knows the guest.
pub(super) const KEEP: &str = "echo kept >/tmp/kept";

/// A guest is started, used, paused, kept from those without rights and from the loss of its node agent, and shut down
/// from inside.
pub(super) fn runs(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("a guest starts");
    let ports = "        ports:\n";
    let manifest = logged().replace("autoattachGraphicsDevice: false", "autoattachGraphicsDevice: true");
    let manifest = manifest.replace(ports, &format!("{ports}        - port: {PORT}\n"));
    assert!(manifest.contains(&format!("port: {PORT}")), "{manifest}");
    let manifest = limited(&has_key(vireo, &manifest)?);
    vireo.feed("apply -f -", &manifest);
    vireo.phase("demo", "Running")?;
    vireo.step("it runs");
    is_in_its_pod(vireo)?;
    let again = vireo.feed("apply -f -", &manifest);
    assert!(again.trim().ends_with("unchanged"), "{again}");
    let mut guest = console(vireo)?;
    let shown = guest.log_in()?;
    assert!(shown.contains("user-data: hello from demo"), "{shown}");
    vireo.step("it has a login on its console");
    assert_eq!(guest.run("echo $((6 * 7))")?.trim(), "42");
    is_logged(vireo)?;
    has_ipv6(vireo, &mut guest)?;
    is_seen(vireo)?;
    serves_a_page(vireo, "demo", &mut guest)?;
    guest.run(KEEP)?;
    let boot = guest.run(BOOT_ID)?;
    lets_its_user_in(vireo, &boot)?;
    is_measured(vireo)?;
    is_paused(vireo)?;
    assert_eq!(guest.run(BOOT_ID)?, boot, "paused and not restarted");
    needs_permissions(vireo)?;
    outlives_its_agent(vireo, guest, &boot)?;
    upgrade::leaves_guests_alone(vireo, console(vireo)?, &boot)?;
    is_shut_down(vireo)
}

/// The same in a cluster of which nothing is known but its API.
pub(super) fn is_used(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("a guest starts");
    vireo.feed("apply -f -", &logged());
    vireo.phase("demo", "Running")?;
    let mut guest = console(vireo)?;
    let shown = guest.log_in()?;
    assert!(shown.contains("user-data: hello from demo"), "{shown}");
    is_logged(vireo)?;
    guest.run(KEEP)?;
    let boot = guest.run(BOOT_ID)?;
    is_paused(vireo)?;
    needs_permissions(vireo)?;
    let pod = vireo.pod("demo")?["metadata"]["uid"].clone();
    is_replaced(vireo)?;
    drop(guest);
    is_the_same(vireo, &pod, &boot)?;
    is_shut_down(vireo)
}

/// The node agents are replaced.
pub(super) fn is_replaced(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("its node agent is replaced");
    vireo.ok("-n kubevirt rollout restart daemonset/virt-handler");
    vireo.ok("-n kubevirt rollout status daemonset/virt-handler --timeout=120s");
    Ok(())
}

/// A guest whose console is a container's log.
pub(super) fn logged() -> String {
    let devices = "    devices:\n";
    assert!(MANIFEST.contains(devices));
    MANIFEST.replace(devices, &format!("{devices}      logSerialConsole: true\n"))
}

/// A guest with the key of a Secret.
fn has_key(vireo: &Vireo<'_>, manifest: &str) -> Result<String, HostError> {
    let key = vireo.host.work("key");
    vireo.shell(&format!("ssh-keygen -q -t ed25519 -N '' -C vireo -f {key}"))?;
    vireo.ok(&format!("create secret generic {KEYS} --from-file=vireo={key}.pub"));
    let networks = "  networks:\n";
    assert!(manifest.contains(networks), "{manifest}");
    let credentials = format!(
        "  accessCredentials: [{{sshPublicKey: {{source: {{secret: {{secretName: {KEYS}}}}}, propagationMethod: {{noCloud: {{}}}}}}}}]\n"
    );
    Ok(manifest.replace(networks, &(credentials + networks)))
}

/// A guest whose launcher has a limit of its memory.
fn limited(manifest: &str) -> String {
    let memory = "    memory:\n      guest: 256Mi\n";
    assert!(manifest.contains(memory), "{manifest}");
    manifest.replace(memory, &format!("{memory}    resources: {{limits: {{memory: 256Mi}}}}\n"))
}

/// `virtctl ssh`, through the API server.
fn lets_its_user_in(vireo: &Vireo<'_>, boot: &str) -> Result<(), HostError> {
    vireo.step("it lets its user in");
    let (virtctl, key) = (vireo.host.input("virtctl"), vireo.host.work("key"));
    let known = vireo.host.work("known-hosts");
    let options = "-t='-o StrictHostKeyChecking=accept-new' -t='-o BatchMode=yes'";
    let line = format!(
        "{virtctl} ssh -i {key} --known-hosts {known} {options} vireo@vmi/demo -c '{BOOT_ID}; exit 3'"
    );
    let reported = vireo.run_on_node(&line)?;
    assert_eq!(
        (reported.status, reported.stdout.trim()),
        (Status::Code(3), boot.trim()),
        "{}",
        reported.stderr
    );
    Ok(())
}

pub(super) fn is_logged(vireo: &Vireo<'_>) -> Result<(), HostError> {
    eventually("the console is in the log", STEP, || {
        let log = vireo.ok("logs -l vm.kubevirt.io/name=demo -c guest-console-log --tail=-1");
        Ok(log.contains("Booting `Vireo guest'") && log.contains("user-data: hello from demo"))
    })
}

/// The guest's console from its beginning.
pub(super) fn console<'h>(vireo: &Vireo<'h>) -> Result<Login<'h>, HostError> {
    Ok(Login::over(vireo.console_process("demo")?))
}

fn is_in_its_pod(vireo: &Vireo<'_>) -> Result<(), HostError> {
    let vmi = vireo.becomes("vmi demo", "is ready", |vmi| condition(vmi, "Ready")["status"] == "True")?;
    let finalizers = &vmi["metadata"]["finalizers"];
    assert!(
        finalizers
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one == "kubevirt.io/foregroundDeleteVirtualMachine")),
        "{finalizers}"
    );
    let pod = vireo.pod("demo")?;
    assert_eq!(condition(&pod, "Ready")["status"], "True", "{pod:#}");
    // By the cluster's cpuAllocationRatio, and what admission writes into every VMI.
    assert_eq!(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"], "50m", "{:#}", pod["spec"]);
    let limit = &pod["spec"]["containers"][0]["resources"]["limits"]["memory"];
    assert!(limit.is_string(), "its own and what is beside it: {:#}", pod["spec"]);
    assert_eq!(vmi["spec"]["domain"]["machine"]["type"], "q35", "{:#}", vmi["spec"]);
    let owner = &pod["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&"VirtualMachineInstance".into(), &vmi["metadata"]["uid"]));
    assert_eq!(vmi["status"]["interfaces"][0]["ipAddress"], pod["status"]["podIP"], "{:#}", vmi["status"]);
    assert_eq!(vmi["status"]["nodeName"], "node-1");
    let table = vireo.ok("get pods -l vm.kubevirt.io/name=demo");
    let row: Vec<&str> = table.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    assert_eq!(row.get(1..3), Some(&["2/2", "Running"][..]), "{table}");
    let table = vireo.ok("get vmi demo");
    assert!(table.contains("Running") && table.contains("node-1"), "{table}");
    Ok(())
}

/// Its Pod has an IPv6 address, of which Kubernetes need not know, and so has the guest.
fn has_ipv6(vireo: &Vireo<'_>, guest: &mut Login<'_>) -> Result<(), HostError> {
    vireo.step("it has IPv6");
    let interface = &vireo.json("get vmi demo")?["status"]["interfaces"][0];
    let address = interface["ipAddresses"][1].as_str().unwrap_or_default();
    assert!(address.starts_with("fd00:10:244:"), "{interface:#}");
    gets_ipv6(guest)?;
    // Its gateway, and the node at the other end of its Pod's wire.
    guest.run("ping -6 -c 1 -W 10 fd10:0:2::1 && ping -6 -c 1 -W 10 fd00:10:244::1")?;
    vireo.on_node(&format!("ping -6 -c 1 -W 10 {address}"))?;
    Ok(())
}

/// Waits until it has its address.
pub(super) fn gets_ipv6(guest: &mut Login<'_>) -> Result<(), HostError> {
    // No longer tentative: it is used for what the guest sends.
    let has_address = "ip -6 address show dev eth0 | grep 'inet6 fd10:0:2::2/' | grep -qv tentative";
    let shown = "{ cat /run/dhcp6c.eth0.log; ip -6 address; ip -6 route; }";
    let wait =
        format!("for i in $(seq 60); do {has_address} && break; sleep 1; done; {has_address} || {shown}");
    guest.run(&format!("{wait}; {has_address}")).map(drop)
}

/// Its display, through the API server.
fn is_seen(vireo: &Vireo<'_>) -> Result<(), HostError> {
    let picture = vireo.host.work("demo.png");
    vireo.virtctl(&format!("vnc screenshot demo -f {picture}"))?.ok();
    let begins = vireo.shell(&format!("head -c 4 {picture} | od -An -c"))?;
    assert!(begins.contains("P   N   G"), "{begins}");
    Ok(())
}

/// A port, through the API server. The request ends before the answer comes.
pub(super) fn serves_a_page(vireo: &Vireo<'_>, name: &str, guest: &mut Login<'_>) -> Result<(), HostError> {
    guest.run(&format!(
        "mkdir -p /run/www && echo {name} >/run/www/index.html && httpd -h /run/www -p {PORT}"
    ))?;
    has_a_page(vireo, name)
}

/// It is served at the port.
pub(super) fn has_a_page(vireo: &Vireo<'_>, name: &str) -> Result<(), HostError> {
    let virtctl = vireo.host.input("virtctl");
    let request = format!(
        "printf 'GET /index.html HTTP/1.0\\r\\n\\r\\n' | {virtctl} port-forward --stdio vmi/{name} {PORT}"
    );
    let page = vireo.on_node(&request)?;
    assert!(page.contains("200 OK") && page.ends_with(&format!("{name}\n")), "{page}");
    Ok(())
}

/// Prometheus finds metrics of the guest and of all components where KubeVirt's are, and nothing else.
fn is_measured(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("it has metrics");
    let endpoints = vireo.json("get endpoints kubevirt-prometheus-metrics -n kubevirt")?;
    let subsets = endpoints["subsets"].as_array().into_iter().flatten();
    let addresses = subsets.flat_map(|subset| subset["addresses"].as_array().into_iter().flatten());
    let pods: Vec<&str> = addresses.filter_map(|address| address["targetRef"]["name"].as_str()).collect();
    let get = |pod: &str, path: &str| {
        let path = format!("/api/v1/namespaces/kubevirt/pods/https:{pod}:8443/proxy/{path}");
        vireo.kubectl(&format!("get --raw {path}"), None)
    };
    let of = |component: &'static str| pods.iter().filter(move |pod| pod.starts_with(component));
    for (component, line, count) in [
        ("virt-api-", "kubevirt_virt_api_ready_status 1", 2),
        ("virt-controller-", "kubevirt_virt_controller_leading_status 1", 1),
        ("virt-operator-", "kubevirt_virt_operator_leading_status 1", 1),
    ] {
        let texts: Vec<String> =
            of(component).map(|pod| Ok(get(pod, "metrics")?.ok())).collect::<Result<_, HostError>>()?;
        let found = texts.iter().filter(|text| text.lines().any(|one| one == line)).count();
        assert_eq!((texts.len(), found), (2, count), "{component}: {endpoints:#} {texts:#?}");
        let has_counted = |text: &String| text.contains("\nkubevirt_rest_client_requests_total{");
        assert!(texts.iter().all(has_counted), "{texts:#?}");
    }
    let agent = of("virt-handler-").next().unwrap_or_else(|| panic!("no node agent: {endpoints:#}"));
    let metrics = get(agent, "metrics")?.ok();
    let of_demo = |line: &str| line.starts_with("kubevirt_vmi_info{") && line.contains("name=\"demo\"");
    assert!(metrics.lines().any(of_demo), "{metrics}");
    let refused = get(agent, "apis/kubevirt.io/v1/virtualmachineinstances")?;
    assert_ne!(refused.status, Status::Code(0), "without a certificate: {}", refused.stdout);
    Ok(())
}

pub(super) fn is_paused(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("it is paused");
    vireo.virtctl("pause vmi demo")?.ok();
    let paused =
        |status: &'static str| move |vmi: &serde_json::Value| condition(vmi, "Paused")["status"] == status;
    vireo.becomes("vmi demo", "is paused", paused("True"))?;
    vireo.virtctl("unpause vmi demo")?.ok();
    vireo.becomes("vmi demo", "goes on", |vmi| condition(vmi, "Paused")["status"] != "True")?;
    Ok(())
}

/// Who may look at instances may neither use nor pause them.
fn needs_permissions(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("a user without rights is refused");
    vireo.ok("create serviceaccount looker");
    let looker = format!("--as system:serviceaccount:{}:looker", vireo.namespace);
    let denied = vireo.fails(&format!("{looker} get vmi"), "")?;
    assert!(denied.contains("cannot list resource \"virtualmachineinstances\""), "{denied}");
    vireo.ok(&format!(
        "create rolebinding looks --clusterrole=kubevirt.io:view --serviceaccount={}:looker",
        vireo.namespace
    ));
    vireo.ok(&format!("{looker} get vmi demo"));
    for (line, subresource) in [("console demo", "console"), ("pause vmi demo", "pause")] {
        let reported = vireo.virtctl(&format!("{looker} {line}"))?;
        assert_ne!(reported.status, Status::Code(0), "{line}: {}", reported.stdout);
        let expected = format!("virtualmachineinstances/{subresource}\"");
        assert!(
            reported.stderr.contains("cannot") && reported.stderr.contains(&expected),
            "{line}: {}",
            reported.stderr
        );
    }
    let denied = vireo.fails(&format!("{looker} delete vmi demo"), "")?;
    assert!(denied.contains("cannot delete resource"), "{denied}");
    Ok(())
}

/// The node agent is killed, then replaced: the guest goes on, and so does its console.
fn outlives_its_agent(vireo: &Vireo<'_>, mut open: Login<'_>, boot: &str) -> Result<(), HostError> {
    vireo.step("its node agent is killed");
    let pod = vireo.pod("demo")?["metadata"]["uid"].clone();
    let handler = vireo.processes("virt-handler")?;
    vireo.shell(&format!("kill -9 {handler}"))?;
    eventually("another one runs", STEP, || {
        let pods = vireo.items(HANDLER)?;
        let status =
            pods.first().map(|pod| pod["status"]["containerStatuses"][0].clone()).unwrap_or_default();
        Ok(status["restartCount"] == 1 && status["ready"] == true)
    })?;
    is_connected_again(&mut open, 1, boot)?;
    is_the_same(vireo, &pod, boot)?;
    is_replaced(vireo)?;
    is_connected_again(&mut open, 2, boot)?;
    drop(open);
    is_the_same(vireo, &pod, boot)
}

/// The console that was open when the node agent ended is that of the guest again.
fn is_connected_again(open: &mut Login<'_>, times: usize, boot: &str) -> Result<(), HostError> {
    let process = open.monitor();
    eventually("the console is connected again", STEP, || {
        if let Some(status) = process.ended()? {
            panic!("virtctl ended with {status:?}: {}", process.stderr());
        }
        Ok(process.stderr().matches("Connected again").count() == times)
    })?;
    assert_eq!(open.run(BOOT_ID)?, boot);
    Ok(())
}

pub(super) fn is_the_same(vireo: &Vireo<'_>, pod: &serde_json::Value, boot: &str) -> Result<(), HostError> {
    // Its console is there when the node agent is.
    let mut guest = None;
    eventually("there is a console", STEP, || {
        guest = vireo.try_console("demo")?.map(Login::over).ok();
        Ok(guest.is_some())
    })?;
    let mut guest = guest.expect("a console");
    guest.send("")?;
    assert_eq!(guest.run("cat /tmp/kept")?.trim(), "kept");
    assert_eq!(guest.run(BOOT_ID)?, boot);
    assert_eq!(&vireo.pod("demo")?["metadata"]["uid"], pod);
    let vmi = vireo.json("get vmi demo")?;
    assert_eq!(vmi["status"]["phase"], "Running", "{:#}", vmi["status"]);
    vireo.becomes("vmi demo", "is ready", |vmi| condition(vmi, "Ready")["status"] == "True")?;
    Ok(())
}

/// A guest whose instance is deleted shuts down, as it does when its power button is pressed, and has succeeded.
pub(super) fn is_shut_down_by_its_deletion(
    vireo: &Vireo<'_>,
    name: &str,
    mut console: Login<'_>,
) -> Result<(), HostError> {
    vireo.step("it is deleted, which shuts it down");
    // So that it can be looked at when it has ended.
    let add = format!(r#"[{{"op": "add", "path": "/metadata/finalizers/-", "value": "{FINALIZER}"}}]"#);
    vireo.ok(&format!("patch vmi {name} --type json -p '{add}'"));
    vireo.ok(&format!("delete vmi {name} --wait=false"));
    // One that is killed says no such thing.
    console.monitor().wait_for("reboot: Power down", STEP)?;
    vireo.phase(name, "Succeeded")?;
    vireo.becomes(&format!("vmi {name}"), "is released", |vmi| {
        vmi["metadata"]["finalizers"] == serde_json::json!([FINALIZER])
    })?;
    vireo.ok(&format!(r#"patch vmi {name} --type merge -p '{{"metadata": {{"finalizers": null}}}}'"#));
    vireo.gone(name)
}

fn is_shut_down(vireo: &Vireo<'_>) -> Result<(), HostError> {
    vireo.step("it shuts down from inside");
    let mut guest = console(vireo)?;
    guest.send("")?;
    guest.send("poweroff")?;
    vireo.phase("demo", "Succeeded")?;
    let name = vireo.pod("demo")?["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let pod =
        vireo.becomes(&format!("pod {name}"), "is completed", |pod| pod["status"]["phase"] == "Succeeded")?;
    assert_eq!(
        pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"], "Completed",
        "{pod:#}"
    );
    vireo.ok("delete vmi demo --timeout=120s");
    vireo.ok(&format!("delete secret {KEYS} --ignore-not-found"));
    vireo.gone("demo")
}

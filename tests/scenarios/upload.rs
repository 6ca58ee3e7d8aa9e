//! Images for claims, by `virtctl image-upload` and as any other client of CDI's upload proxy sends them.

use std::time::Duration;

use vireo_tests::eventually::eventually;
use vireo_tests::installed::{self, Login};
use vireo_tests::{HostError, Image, Output, Status, programs};

use crate::SOON;
use crate::scenarios::node::host_with_programs;
use crate::scenarios::standalone::Standalone;

const SIGKILL: i32 = 9;
/// A guest starts from the disk, on an emulated CPU.
const BOOT: Duration = Duration::from_secs(240);

const VM: &str = r#"apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: uploaded}
spec:
  terminationGracePeriodSeconds: 0
  domain:
    memory: {guest: 256Mi}
    firmware: {bootloader: {bios: {}}}
    devices:
      autoattachGraphicsDevice: false
      disks: [{name: root, disk: {bus: virtio}}]
  volumes: [{name: root, persistentVolumeClaim: {claimName: root}}]
"#;

/// A guest image in qcow2, taken out of the container disk.
fn take_image(standalone: &Standalone<'_>) -> Result<String, HostError> {
    let images = installed::images("disk").map_err(HostError::Start)?;
    let (layout, work) = (images.join("disk-oci"), standalone.host.work("images"));
    let line = format!(
        "mkdir -p {work}; for blob in {}/blobs/sha256/*; do tar -xzf $blob -C {work} --strip-components=1 disk/vireo-guest.qcow2 2>/dev/null && break; done; test -s {work}/vireo-guest.qcow2",
        layout.display()
    );
    standalone.host.shell(&line).run()?.ok();
    Ok(format!("{work}/vireo-guest.qcow2"))
}

#[test]
fn an_image_is_uploaded_and_a_guest_starts_from_it() -> Result<(), HostError> {
    let vireo = programs::directory(env!("CARGO_BIN_EXE_nested")).join("vireo");
    let host = host_with_programs().file(vireo).file(Image::get()?.busybox()).deadline(2 * BOOT).here()?;
    let mut standalone = Standalone::start(&host)?;
    let image = take_image(&standalone)?;
    is_broken_off(&mut standalone)?;
    is_not_taken(&standalone, &image)?;
    by_others(&standalone)?;

    let claim = claim("root", "1Gi");
    standalone.kubectl("apply -f -", Some(&claim))?.ok();
    standalone.kubectl("apply -f -", Some(VM))?.ok();
    let reason = "jsonpath='{.status.conditions[?(@.type==\"Synchronized\")].reason}'=PvcNotPopulated";
    standalone.kubectl(&format!("wait vmi uploaded --for={reason} --timeout=60s"), None)?.ok();
    let described = standalone.kubectl("describe vmi uploaded", None)?.ok();
    assert!(described.contains("PVC default/root waits for its image"), "{described}");

    let upload = format!("image-upload pvc root --image-path {image}");
    let reported = standalone.virtctl(&format!("{upload} --no-create"))?;
    assert_eq!(reported.status, Status::Code(0), "{reported:?}");
    assert!(reported.stdout.contains("Uploading data completed successfully"), "{}", reported.stdout);
    assert!(reported.stderr.contains("100% ("), "lines, as this is no terminal: {}", reported.stderr);
    let phase =
        "get pvc root -o jsonpath='{.metadata.annotations.cdi\\.kubevirt\\.io/storage\\.pod\\.phase}'";
    assert_eq!(standalone.kubectl(phase, None)?.ok(), "Succeeded");
    eventually("nothing lies beside it", SOON, || Ok(files(&standalone, "root")? == "disk.img\n"))?;
    fails(&standalone, &format!("{upload} --no-create"), "has its image already")?;

    let mut guest = Login::over(standalone.console_process("uploaded")?);
    guest.log_in()?;
    let size = guest.run("cat /sys/block/vda/size")?;
    assert_eq!(size.trim(), "2097152", "as large as the claim");
    has_ipv6(&standalone, &mut guest)?;
    // What is in use stays as it is, also if it says that it waits for an image.
    standalone.kubectl("annotate pvc root cdi.kubevirt.io/storage.pod.phase=Running --overwrite", None)?.ok();
    standalone.kubectl("annotate pvc root cdi.kubevirt.io/storage.pod.ready=true --overwrite", None)?.ok();
    fails(&standalone, &format!("{upload} --no-create"), "is used by a virtual machine instance")?;
    standalone.kubectl("delete vmi uploaded --timeout=60s", None)?.ok();
    standalone.kubectl("delete pvc --all --timeout=60s", None)?.ok();
    Ok(())
}

/// Its guest learns of IPv6 by a router advertisement, has an address by DHCPv6, and reaches the host and is reached by it.
fn has_ipv6(standalone: &Standalone<'_>, guest: &mut Login<'_>) -> Result<(), HostError> {
    let vmi = standalone.json("get vmi uploaded")?;
    let interface = &vmi["status"]["interfaces"][0];
    let (first, addresses) = (interface["ipAddress"].as_str(), &interface["ipAddresses"]);
    assert!(first.is_some() && first == addresses[0].as_str(), "{interface:#}");
    let address = addresses[1].as_str().unwrap_or_default();
    let host = address.strip_suffix('2').map(|net| format!("{net}1")).unwrap_or_default();
    assert!(address.starts_with("fd00:10:201:"), "{interface:#}");

    // No longer tentative: it is used for what the guest sends.
    let has_address = "ip -6 address show dev eth0 | grep 'inet6 fd10:0:2::2/' | grep -qv tentative";
    let shown = "{ cat /run/dhcp6c.eth0.log; ip -6 address; ip -6 route; }";
    let wait =
        format!("for i in $(seq 60); do {has_address} && break; sleep 1; done; {has_address} || {shown}");
    guest.run(&format!("{wait}; {has_address}"))?;
    let routes = guest.run("ip -6 route")?;
    assert!(routes.contains("default via fe80::1 dev eth0"), "{routes}");
    assert!(routes.contains("fd10:0:2::/120 dev eth0"), "{routes}");
    guest.run("ping -6 -c 1 -W 10 fd10:0:2::1 && ping -6 -c 1 -W 10 fe80::1%eth0")?;

    // A server of the host, and one of the guest.
    let (busybox, served) = (standalone.host.input("busybox"), standalone.host.work("served"));
    standalone.host.shell(&format!("mkdir -p {served}; echo from the host >{served}/file")).run()?.ok();
    let serve = ["httpd", "-f", "-p", &format!("[{host}]:8075"), "-h", &served];
    let server = standalone.host.command(&busybox).args(serve).spawn()?;
    // Debian's wget of busybox crashes on the address.
    let get = r"printf 'GET /file HTTP/1.0\r\n\r\n'";
    let fetch = format!("{get} | nc -w 10 {host} 8075 | grep from");
    let fetched = guest.run(&format!("for i in $(seq 10); do {fetch} && break; sleep 1; done"))?;
    assert_eq!(fetched.trim(), "from the host", "{:?}", server.ended()?);
    server.signal(SIGKILL)?;
    // A server on all addresses of the host, at a port that is not opened. The host itself reaches it.
    let serve = ["httpd", "-f", "-p", "8076", "-h", &served];
    let server = standalone.host.command(&busybox).args(serve).spawn()?;
    let itself =
        format!("for i in $(seq 50); do {get} | {busybox} nc -w 2 {host} 8076 && break; sleep 0.1; done");
    assert!(standalone.host.shell(&itself).run()?.ok().contains("from the host"));
    let gateway = first.and_then(|first| first.strip_suffix('2')).map(|net| format!("{net}1"));
    for address in [host, gateway.expect("an address of IPv4")] {
        let fetch = format!("! {{ {get} | nc -w 3 {address} 8076 | grep from; }}");
        guest.run(&fetch)?;
    }
    server.signal(SIGKILL)?;
    let serve = "mkdir /tmp/served && echo from the guest >/tmp/served/file && httpd -p 8075 -h /tmp/served";
    guest.run(serve)?;
    let fetch = format!("{get} | {busybox} nc -w 10 {address} 8075 | grep from");
    assert_eq!(standalone.host.shell(&fetch).run()?.ok().trim(), "from the guest");
    Ok(())
}

/// A claim that waits for an image.
fn claim(name: &str, size: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, annotations: {{cdi.kubevirt.io/storage.upload.target: ''}}}}\nspec:\n  accessModes: [ReadWriteOnce]\n  resources: {{requests: {{storage: {size}}}}}\n"
    )
}

/// The files of a claim.
fn files(standalone: &Standalone<'_>, claim: &str) -> Result<String, HostError> {
    let directory = format!("{}/claims/default/{claim}", standalone.host.work("state"));
    Ok(standalone.host.shell(&format!("ls {directory}")).run()?.ok())
}

fn fails(standalone: &Standalone<'_>, line: &str, said: &str) -> Result<Output, HostError> {
    let reported = standalone.virtctl(line)?;
    assert!(reported.status == Status::Code(1) && reported.stderr.contains(said), "{line}: {reported:?}");
    Ok(reported)
}

/// A client, and then the server, that dies in the middle.
fn is_broken_off(standalone: &mut Standalone<'_>) -> Result<(), HostError> {
    let host = standalone.host;
    let large = format!("{}/large.raw", host.work("images"));
    host.shell(&format!("head -c 600M /dev/urandom >{large}")).run()?.ok();
    let virtctl = host.command(&host.input("virtctl"));
    let line = format!("image-upload pvc large --size 1Gi --image-path {large}");
    let mut virtctl = virtctl.args(line.split(' ')).env("KUBECONFIG", &standalone.kubeconfig()).spawn()?;
    let received = |standalone: &Standalone<'_>| Ok(files(standalone, "large")?.contains("upload.received"));
    eventually("something is sent", SOON, || {
        Ok(virtctl.ended()?.is_none() && virtctl.stderr().contains("0% (0 of 600 MiB)"))
    })?;
    eventually("something has come", SOON, || received(standalone))?;
    virtctl.signal(SIGKILL)?;
    virtctl.wait(SOON)?;
    eventually("nothing is left of it", SOON, || Ok(!received(standalone)?))?;

    let virtctl = host.command(&host.input("virtctl"));
    let line = format!("image-upload pvc large --no-create --image-path {large}");
    let mut virtctl = virtctl.args(line.split(' ')).env("KUBECONFIG", &standalone.kubeconfig()).spawn()?;
    eventually("something has come again", SOON, || received(standalone))?;
    standalone.lose()?;
    assert_eq!(virtctl.wait(SOON)?.status, Status::Code(1));
    eventually("nothing is left of that", SOON, || Ok(!received(standalone)?))?;
    host.shell(&format!("rm {large}")).run()?.ok();
    Ok(())
}

/// Images that are none, and claims that are not for them.
fn is_not_taken(standalone: &Standalone<'_>, image: &str) -> Result<(), HostError> {
    let work = standalone.host.work("images");
    let make =
        format!("cd {work}; printf 'KDMVxxxxxxxxx' >vmdk; head -c 30M /dev/zero >zeros; gzip -k zeros");
    standalone.host.shell(&make).run()?.ok();
    let bad = "image-upload pvc bad --image-path";
    fails(standalone, &format!("{bad} {work}/vmdk --size 10Mi"), "a VMDK image")?;
    fails(standalone, &format!("{bad} {work}/vmdk --size 10Mi"), "already exists")?;
    for (file, said) in [
        (image.to_owned(), "make a larger one"),
        (format!("{work}/zeros.gz"), "make a larger one"),
        (format!("{work}/none"), "No such file"),
    ] {
        fails(standalone, &format!("{bad} {file} --no-create"), said)?;
        assert_eq!(files(standalone, "bad")?, "disk.img\nimage.awaited\n", "{file}");
    }
    standalone.provide("plain", "1Mi")?;
    let file = format!("--image-path {image}");
    fails(standalone, &format!("image-upload pvc plain --no-create {file}"), "storage.upload.target")?;
    fails(standalone, &format!("image-upload pvc none --no-create {file}"), "\"none\" not found")?;
    fails(standalone, &format!("image-upload dv x --size 1Gi {file}"), "DataVolumes are not supported")?;
    fails(standalone, "image-upload pvc x --size 1Gi --archive-path x", "--archive-path is not available")?;
    let elsewhere = "--no-create --uploadproxy-url https://127.0.0.1:1 --insecure";
    fails(standalone, &format!("image-upload pvc bad {file} {elsewhere}"), "cannot connect")?;
    Ok(())
}

/// As clients send images that are not ours: where the server says, with the token that it gives.
fn by_others(standalone: &Standalone<'_>) -> Result<(), HostError> {
    let work = standalone.host.work("images");
    for name in ["one", "two"] {
        standalone.kubectl("apply -f -", Some(&claim(name, "40Mi")))?.ok();
        let ready = "jsonpath='{.metadata.annotations.cdi\\.kubevirt\\.io/storage\\.pod\\.ready}'=true";
        standalone.kubectl(&format!("wait pvc {name} --for={ready} --timeout=30s"), None)?.ok();
    }
    let path = "/apis/upload.cdi.kubevirt.io/v1beta1/namespaces/default/uploadtokenrequests";
    let request = r#"{"apiVersion":"upload.cdi.kubevirt.io/v1beta1","kind":"UploadTokenRequest","metadata":{"name":"t"},"spec":{"pvcName":"one"}}"#;
    let token = standalone.kubectl(&format!("create --raw {path} -f -"), Some(request))?.ok();
    let token: serde_json::Value = serde_json::from_str(&token).unwrap_or_default();
    let token = token["status"]["token"].as_str().unwrap_or_default();
    let config = standalone.kubectl("get --raw /apis/cdi.kubevirt.io/v1beta1/cdiconfigs/config", None)?.ok();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap_or_default();
    let url = config["status"]["uploadProxyURL"].as_str().unwrap_or_default();
    let post = |token: &str, file: &str, more: &str| {
        let line = format!(
            "curl -sk -o {work}/answer -w '%{{http_code}}' -H 'Authorization: Bearer {token}' {more} -T {file} -X POST {url}/v1beta1/upload; echo; cat {work}/answer"
        );
        standalone.host.shell(&line).run()
    };
    assert!(post(&format!("{token}x"), &format!("{work}/zeros"), "")?.stdout.starts_with("401"));
    assert!(post("", &format!("{work}/zeros"), "")?.stdout.starts_with("401"));
    let administrators =
        standalone.host.shell(&format!("tr -d '\"' <{}", standalone.host.work("state/api/token.json")));
    let administrators = administrators.run()?.ok();
    assert!(
        post(administrators.trim(), &format!("{work}/zeros"), "")?.stdout.starts_with("401"),
        "it is for no claim"
    );
    let refused = post(token, &format!("{work}/vmdk"), "")?.stdout;
    assert!(refused.starts_with("400") && refused.contains("VMDK"), "{refused}");
    let refused = post(token, &format!("{work}/zeros"), "-H 'Content-Length: 900000000'")?.stdout;
    assert!(refused.starts_with("413"), "{refused}");
    assert!(
        post(token, &format!("{work}/zeros"), "-H 'Transfer-Encoding: chunked'")?.stdout.starts_with("200")
    );
    let refused = post(token, &format!("{work}/zeros"), "")?.stdout;
    assert!(refused.starts_with("409") && refused.contains("has its image already"), "{refused}");
    // The token is not for the other one, and not for the next of its name.
    let phase = "get pvc two -o jsonpath='{.metadata.annotations.cdi\\.kubevirt\\.io/storage\\.pod\\.phase}'";
    assert_eq!(standalone.kubectl(phase, None)?.ok(), "Running");
    standalone.kubectl("delete pvc one --timeout=30s", None)?.ok();
    standalone.kubectl("apply -f -", Some(&claim("one", "40Mi")))?.ok();
    let refused = post(token, &format!("{work}/zeros"), "")?.stdout;
    assert!(refused.starts_with("404"), "{refused}");
    Ok(())
}

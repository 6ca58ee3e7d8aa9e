//! Probes of a guest with a web server: when it is ready, and what becomes of it when the server dies.

use std::time::Duration;

use serde_json::Value;
use vireo_tests::eventually::eventually;
use vireo_tests::guest::Guest;
use vireo_tests::{Host, HostError};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::standalone::{Standalone, host_with_vireo, vm_of};

const BOOT: Duration = Duration::from_secs(120);
const SERVE: &str = "mkdir -p /tmp/www; echo well >/tmp/www/health; httpd -p 80 -h /tmp/www";

/// An instance with a probe, below its spec.
fn probed(host: &Host, name: &str, probe: &str) -> String {
    manifest(host, name).replacen("spec:\n", &format!("spec:\n  {probe}\n"), 1)
}

/// A condition of an object; null if it has none of this type.
pub(crate) fn condition(object: &Value, kind: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|one| one["type"] == kind).unwrap_or_default()
}

/// The events `Unhealthy` of an instance, each with its message.
fn unhealthy(standalone: &Standalone<'_>, uid: &str) -> Result<Vec<String>, HostError> {
    let of_it = |event: &Value| event["involvedObject"]["uid"] == uid && event["reason"] == "Unhealthy";
    let events = standalone.items("events")?;
    let warnings =
        events.iter().filter(|event| of_it(event)).inspect(|event| assert_eq!(event["type"], "Warning"));
    Ok(warnings.filter_map(|event| event["message"].as_str().map(str::to_owned)).collect())
}

fn has_address(guest: &mut Guest<'_>) -> Result<(), HostError> {
    guest.run("udhcpc -i eth0 -n -q -f >/tmp/udhcpc 2>&1 || { cat /tmp/udhcpc; false; }", SOON).map(drop)
}

/// The guest's system is up, and it has its address.
fn boots<'h>(standalone: &Standalone<'h>, name: &str) -> Result<Guest<'h>, HostError> {
    standalone
        .kubectl(&format!("wait --for=jsonpath={{.status.phase}}=Running --timeout=90s vmi/{name}"), None)?
        .ok();
    let mut guest = standalone.console(name)?;
    guest.ready()?;
    has_address(&mut guest)?;
    Ok(guest)
}

#[test]
fn a_guest_is_ready_while_its_server_answers() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let mut standalone = Standalone::start(&host)?;
    let probe = "readinessProbe: {httpGet: {path: /health, port: 80}, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 2}";
    standalone.kubectl("apply -f -", Some(&probed(&host, "one", probe)))?.ok();
    let mut guest = boots(&standalone, "one")?;
    let uid = standalone.uid("one")?;
    let ready = |standalone: &Standalone<'_>| -> Result<Value, HostError> {
        Ok(condition(&standalone.json("get vmi one")?, "Ready"))
    };
    let first = ready(&standalone)?;
    assert_eq!(
        (&first["status"], &first["reason"]),
        (&"False".into(), &"ContainersNotReady".into()),
        "{first}"
    );
    eventually("the refused connection is reported", SOON, || {
        let events = unhealthy(&standalone, &uid)?;
        Ok(events
            .iter()
            .any(|message| message.starts_with("Readiness probe failed: cannot connect to port 80")))
    })?;
    guest.run("mkdir -p /tmp/empty; httpd -p 80 -h /tmp/empty", SOON)?;
    let not_found = "Readiness probe failed: HTTP probe failed with statuscode: 404";
    eventually("a server that has not got it is not enough", BOOT, || {
        Ok(ready(&standalone)?["message"] == not_found)
    })?;
    guest.run(&format!("killall httpd; {SERVE}"), SOON)?;
    standalone.becomes_ready("vmi/one")?;

    // Another vireo asks anew, and what is known holds meanwhile.
    let known = ready(&standalone)?;
    standalone.lose()?;
    assert_eq!(ready(&standalone)?, known);
    drop(guest);
    let mut guest = standalone.console("one")?;
    guest.ready()?;
    assert_eq!(ready(&standalone)?, known);

    // A paused guest is not probed, and is ready at once when it resumes.
    standalone.virtctl("pause vmi one")?.ok();
    assert_eq!(ready(&standalone)?["reason"], "ReadinessGatesNotReady");
    standalone.virtctl("unpause vmi one")?.ok();
    eventually("it is ready again", SOON, || Ok(ready(&standalone)?["status"] == "True"))?;

    guest.run("killall httpd", SOON)?;
    standalone.kubectl("wait --for=condition=Ready=false --timeout=60s vmi/one", None)?.ok();
    let last = ready(&standalone)?;
    assert_eq!(last["reason"], "ContainersNotReady", "{last}");
    let message = last["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.starts_with("Readiness probe failed: cannot connect to port 80"), "{last}");
    let events = unhealthy(&standalone, &uid)?;
    assert!(events.contains(&message) && events.contains(&not_found.to_owned()), "{events:?}");
    assert_eq!(standalone.json("get vmi one")?["status"]["phase"], "Running", "nothing ends it");
    standalone.kubectl("delete vmi one --timeout=90s", None)?.ok();
    is_ready_by_tls(&host, &standalone)
}

/// A guest that serves HTTPS: its program passes connections on to a server of the host, with a self-signed certificate.
fn is_ready_by_tls(host: &Host, standalone: &Standalone<'_>) -> Result<(), HostError> {
    const PORT: u16 = 8075;
    let probe =
        "readinessProbe: {httpGet: {path: /, port: 443, scheme: HTTPS}, periodSeconds: 1, timeoutSeconds: 5}";
    standalone.kubectl("apply -f -", Some(&probed(host, "tls", probe)))?.ok();
    let (key, certificate) = (host.work("tls.key"), host.work("tls.crt"));
    let make = format!(
        "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=nobody -keyout {key} -out {certificate} 2>&1"
    );
    host.shell(&make).run()?.ok();
    let server = host.command("openssl").args(["s_server", "-www", "-accept", &PORT.to_string()]);
    let _server = server.args(["-key", &key, "-cert", &certificate]).spawn()?;
    let mut guest = boots(standalone, "tls")?;
    let vmi = standalone.json("get vmi tls")?;
    let address = vmi["status"]["interfaces"][0]["ipAddress"].as_str().unwrap_or_default();
    let gateway = address.rsplit_once('.').map(|(net, _)| format!("{net}.1")).unwrap_or_default();
    // Without TLS, it is not enough.
    guest.run(SERVE.replace("-p 80", "-p 443").as_str(), SOON)?;
    let failed = "Readiness probe failed: cannot agree on TLS";
    eventually("a server without TLS is not enough", BOOT, || {
        let why = condition(&standalone.json("get vmi tls")?, "Ready")["message"].clone();
        Ok(why.as_str().is_some_and(|why| why.starts_with(failed)))
    })?;
    guest.run(&format!("killall httpd; nc -ll -p 443 -e nc {gateway} {PORT} >/dev/null 2>&1 &"), SOON)?;
    standalone.becomes_ready("vmi/tls")?;
    guest.run("killall nc", SOON)?;
    standalone.kubectl("wait --for=condition=Ready=false --timeout=60s vmi/tls", None)?.ok();
    standalone.kubectl("delete vmi tls --timeout=90s", None)?.ok();
    Ok(())
}

#[test]
fn a_guest_whose_server_dies_is_started_anew() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.here()?;
    let standalone = Standalone::start(&host)?;
    let probe = "livenessProbe: {tcpSocket: {port: 80}, initialDelaySeconds: 75, periodSeconds: 1, timeoutSeconds: 5}";
    let vm = vm_of(&probed(&host, "web", probe), "web", "Always");
    standalone.kubectl("apply -f -", Some(&vm))?.ok();
    standalone.kubectl("wait --for=create --timeout=60s vmi/web", None)?.ok();
    let mut guest = boots(&standalone, "web")?;
    guest.run(SERVE, SOON)?;
    let first = standalone.uid("web")?;
    assert_eq!(
        condition(&standalone.json("get vmi web")?, "Ready")["status"],
        "True",
        "no probe of that kind"
    );
    let reported = standalone.virtctl("pause vm web")?;
    assert!(reported.stderr.contains("Pausing VMIs with LivenessProbe"), "{}", reported.stderr);
    guest.run("killall httpd", SOON)?;
    standalone.another_runs("web", &first)?;
    let events = unhealthy(&standalone, &first)?;
    let [cause] = events.as_slice() else { panic!("once: {events:?}") };
    assert!(cause.starts_with("Liveness probe failed: cannot connect to port 80"), "{cause}");
    let all = standalone.items("events")?;
    let reasons: Vec<_> = all
        .iter()
        .filter(|event| event["involvedObject"]["uid"] == first.as_str())
        .filter_map(|event| event["reason"].as_str())
        .collect();
    for reason in ["Killing", "LivenessProbeFailed", "Stopped"] {
        assert!(reasons.contains(&reason), "{reason} is not among {reasons:?}");
    }
    standalone.virtctl("stop web --grace-period 0 --force")?.ok();
    standalone.printable("web", "Stopped")
}

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::*;

const RULES: Rules = Rules { period: Duration::from_secs(10), success_threshold: 1, failure_threshold: 1 };

#[tokio::test(start_paused = true)]
async fn a_guest_that_sleeps_is_not_asked_and_what_it_did_not_answer_does_not_count() {
    let (active, is_active) = watch::channel(true);
    let asked = AtomicU32::new(0);
    let reported = Mutex::new(Vec::new());
    let ask = || {
        let number = asked.fetch_add(1, Ordering::Relaxed);
        async move {
            if number == 1 {
                // Its answer is a failure, and comes while it sleeps.
                sleep(Duration::from_secs(5)).await;
                return Outcome::Failure("late".to_owned());
            }
            Outcome::Success
        }
    };
    let state = ProbeState::new(Instant::now() + Duration::from_secs(3));
    let run =
        probe_loop(state, RULES, ask, is_active, |status| reported.lock().unwrap().push(status.healthy));
    let script = async {
        let count = || asked.load(Ordering::Relaxed);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(count(), 0, "before its delay is over");
        sleep(Duration::from_secs(2)).await;
        assert_eq!(count(), 1);
        sleep(Duration::from_secs(10)).await;
        assert_eq!(count(), 2, "the second is being answered");
        active.send_replace(false);
        sleep(Duration::from_secs(100)).await;
        assert_eq!(count(), 2);
        active.send_replace(true);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(count(), 3, "what is overdue is asked at once");
        drop(active);
    };
    tokio::join!(run, script);
    assert_eq!(*reported.lock().unwrap(), [Some(true), Some(true)]);
}

#[test]
fn a_delay_is_counted_from_when_the_guest_began_to_run() {
    let mut vmi = vireo_api::v1::VirtualMachineInstance::default();
    assert_eq!(running_since(&vmi.status), None);
    super::super::status::enter(&mut vmi.status, Phase::Running, "2026-01-01T00:00:00Z");
    assert_eq!(running_since(&vmi.status), Some("2026-01-01T00:00:00Z".parse().unwrap()));
}

/// A VMI with a readiness probe of this host.
fn probed(host: &str) -> Vm {
    let text = format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\n\
         metadata: {{name: web, uid: 5d307ca9-b3ef-428c-8861-06e72d69f223}}\n\
         spec: {{domain: {{memory: {{guest: 64Mi}}}}, dnsConfig: {{nameservers: [192.0.2.1, '2001:db8::1'], searches: [shop.example]}}, \
         readinessProbe: {{tcpSocket: {{port: 80, host: '{host}'}}}}}}\n"
    );
    vireo_api::decode::manifest(&text).unwrap().remove(0).check().unwrap()
}

#[test]
fn a_probe_of_a_name_brings_the_name_servers_of_its_vmi() {
    let host = || dns::parse("nameserver 192.0.2.53\nsearch example.org\n");
    for (of, address, servers) in [
        ("", "10.0.2.2", None),
        ("192.0.2.7", "192.0.2.7", None),
        ("db", "db", Some(["192.0.2.1", "192.0.2.53"])),
    ] {
        let vm = probed(of);
        let request = request(vm.readiness_probe().unwrap(), &vm, false, host);
        let Some(Question::TcpSocket(to)) = request.question else { panic!("{request:?}") };
        assert_eq!((to.address.as_str(), to.port), (address, 80));
        let reported = request.resolver.map(|resolver| (resolver.servers, resolver.search_domains));
        let search = vec!["shop.example".to_owned(), "example.org".to_owned()];
        assert_eq!(reported, servers.map(|servers| (servers.map(str::to_owned).to_vec(), search)), "{of:?}");
    }
}

//! Whose a network is.

use super::*;

fn plan(uid: &str) -> Plan {
    let wire = Wire { net: "10.213.0.4/30".parse().unwrap() };
    Plan::new(uid.parse().unwrap(), wire, None, 1500)
}

fn foreign(done: Result<(), NetworkError>, what: &str) {
    let error = done.unwrap_err();
    assert!(matches!(&error, NetworkError::Foreign { what: found, .. } if found.contains(what)), "{error:?}");
}

#[test]
fn vms_whose_uids_begin_alike_share_nothing() {
    if !on_own_host() {
        return;
    }
    let uid = Uuid::new_v4();
    let plans = [uid, Uuid::from_u128(uid.as_u128() ^ 1)].map(|uid| plan(&uid.to_string()));
    ensure(&plans[0], Some(&inside(&[]))).unwrap();
    run(&format!("ip -n {} link add own type bridge", plans[0].namespace));
    ensure(&plans[1], Some(&inside(&[]))).unwrap();
    let links = run(&format!("ip -n {} -o link", plans[1].namespace));
    assert!(links.contains("tap0") && !links.contains("own"), "{links}");
    assert_eq!(run("ip -o link").matches(": vv").count(), 2);
    remove(&plans[1]).unwrap();
    assert!(netns::path(&plans[0].namespace).exists());
    remove(&plans[0]).unwrap();
    assert_eq!(run("ip -o link").matches(": vv").count(), 0);
}

#[test]
fn a_network_of_another_program_is_neither_joined_nor_removed() {
    if !on_own_host() {
        return;
    }
    let plan = plan(&Uuid::new_v4().to_string());
    run(&format!("ip netns add {}", plan.namespace));
    foreign(ensure(&plan, Some(&inside(&[]))), &plan.namespace);
    assert_eq!(run(&format!("ip -n {} -o link", plan.namespace)).lines().count(), 1, "lo alone");
    remove(&plan).unwrap();
    run(&format!("ip netns del {}", plan.namespace));

    run(&format!("ip link add {} type bridge", plan.host_link));
    foreign(ensure(&plan, Some(&inside(&[]))), &plan.host_link);
    assert!(!run(&format!("ip -o link show {}", plan.host_link)).contains(",UP"));
    remove(&plan).unwrap();
    assert!(!netns::path(&plan.namespace).exists(), "this was its own");
    run(&format!("ip link del {}", plan.host_link));

    // A handler that was killed between the steps: what it made is found again.
    ensure(&plan, Some(&inside(&[]))).unwrap();
    run(&format!("ip link set {} netns {}", plan.host_link, plan.namespace));
    ensure(&plan, Some(&inside(&[]))).unwrap();
    remove(&plan).unwrap();
}

#[test]
fn a_network_of_an_earlier_release_stays_its_vms() {
    if !on_own_host() {
        return;
    }
    let short: String = Uuid::new_v4().simple().to_string().chars().take(8).collect();
    let stored = format!(
        r#"{{"namespace": "vireo-{short}", "host_link": "vv{short}", "wire": "10.213.0.4/30", "mtu": 1500}}"#
    );
    let plan: Plan = serde_json::from_str(&stored).unwrap();
    run(&format!("ip netns add vireo-{short}"));
    run(&format!("ip link add vv{short} type veth peer name eth0 netns vireo-{short}"));
    ensure(&plan, Some(&inside(&[]))).unwrap();
    let link = run(&format!("ip -o -4 addr show vv{short}"));
    assert!(link.contains("10.213.0.5/30"), "{link}");
    remove(&plan).unwrap();
    assert!(!netns::path(&plan.namespace).exists() && !run("ip -o link").contains(&plan.host_link));
}

//! The rules for keys and passwords of Secrets.

use serde_json::{Value, json};
use vireo_api::spec::Cause::{Invalid, NotSupported, Required};
use vireo_api::spec::CredentialMethod;

use super::manifest::with_spec;
use super::rules::each_is_refused;

fn one(credential: Value) -> Value {
    json!({"accessCredentials": [credential]})
}

fn keys(method: Value) -> Value {
    one(json!({"sshPublicKey": {"source": {"secret": {"secretName": "s"}}, "propagationMethod": method}}))
}

fn passwords(method: Value) -> Value {
    one(json!({"userPassword": {"source": {"secret": {"secretName": "s"}}, "propagationMethod": method}}))
}

#[test]
fn credentials_have_a_source_and_a_method() {
    let agent = || json!({"qemuGuestAgent": {"users": ["ada"]}});
    let source =
        |source: Value| one(json!({"sshPublicKey": {"source": source, "propagationMethod": agent()}}));
    let both =
        json!({"source": {"secret": {"secretName": "s"}}, "propagationMethod": {"qemuGuestAgent": {}}});
    let drive = |mut spec: Value| {
        spec["volumes"] = json!(["+", {"name": "drive", "cloudInitConfigDrive": {"userData": "x"}}]);
        spec
    };
    each_is_refused(
        with_spec,
        "spec.accessCredentials[0]",
        vec![
            (one(json!({})), "", Invalid),
            (one(json!({"sshPublicKey": both, "userPassword": both})), "", Invalid),
            (source(json!({})), ".sshPublicKey.source", Invalid),
            (source(json!({"secret": {}})), ".sshPublicKey.source.secret.secretName", Required),
            (
                source(json!({"secret": {"secretName": "A"}})),
                ".sshPublicKey.source.secret.secretName",
                Invalid,
            ),
            (keys(json!({})), ".sshPublicKey.propagationMethod", Invalid),
            (
                drive(keys(json!({"configDrive": {}, "qemuGuestAgent": {"users": ["ada"]}}))),
                ".sshPublicKey.propagationMethod",
                Invalid,
            ),
            (keys(json!({"configDrive": {}})), ".sshPublicKey.propagationMethod", Invalid),
            (
                keys(json!({"qemuGuestAgent": {}})),
                ".sshPublicKey.propagationMethod.qemuGuestAgent.users",
                Invalid,
            ),
            (
                keys(json!({"qemuGuestAgent": {"users": ["ada", ""]}})),
                ".sshPublicKey.propagationMethod.qemuGuestAgent.users[1]",
                Invalid,
            ),
            (passwords(json!({})), ".userPassword.propagationMethod", Invalid),
            (
                passwords(json!({"qemuGuestAgent": {}, "configDrive": {}})),
                ".userPassword.propagationMethod.configDrive",
                NotSupported,
            ),
            (
                passwords(json!({"qemuGuestAgent": {"users": ["ada"]}})),
                ".userPassword.propagationMethod.qemuGuestAgent.users",
                Invalid,
            ),
        ],
    );
}

#[test]
fn a_credential_in_metadata_needs_its_volume() {
    let without = with_spec(keys(json!({"configDrive": {}}))).unwrap_err();
    assert_eq!(
        without.problems()[0].message(),
        "spec.accessCredentials[0] requires a configDrive volume to exist when the configDrive propagationMethod is in use."
    );
    let mut spec = keys(json!({"configDrive": {}}));
    spec["volumes"] = json!(["+", {"name": "drive", "cloudInitConfigDrive": {"userData": "x"}}]);
    let vm = with_spec(spec).unwrap();
    let [credential] = vm.access_credentials() else { panic!("{vm:?}") };
    assert_eq!((credential.secret(), credential.is_by_agent()), ("s", false));
    assert_eq!(credential.field().as_str(), "spec.accessCredentials[0].sshPublicKey.source.secret");
    let has: Vec<_> = vm.disks().iter().filter(|disk| credential.method().is_in(disk.source())).collect();
    assert_eq!(has.iter().map(|disk| disk.name()).collect::<Vec<_>>(), ["drive"]);
    let vm = with_spec(keys(json!({"qemuGuestAgent": {"users": ["ada", "bob"]}}))).unwrap();
    let users = vec!["ada".to_owned(), "bob".to_owned()];
    assert_eq!(vm.access_credentials()[0].method(), &CredentialMethod::AgentKeys { users });
}

//! What any Kubernetes API server does for `kubectl`: ours, or the one of `VIREO_TEST_KUBECONFIG`.

mod kubevirt;

use std::path::PathBuf;

use serde_json::Value;
use vireo_tests::eventually::eventually;
use vireo_tests::{Host, HostBuilder, HostError, Output, Process, Status, programs};

use crate::SOON;

/// Does to every file what one does.
const EDITOR: &str = "sed -i s/five/six/";
/// The definition that is made, and must not be there before.
const DEFINITION: &str = include_str!("../../examples/standalone/crd.yaml");

/// The server of a user's `kubectl`, in a namespace of its own.
struct Api<'h> {
    host: &'h Host,
    kubeconfig: String,
    namespace: String,
    _vireo: Option<Process<'h>>,
}

impl<'h> Api<'h> {
    /// On a server of its own.
    fn start(host: &'h Host) -> Result<Self, HostError> {
        let kubeconfig = host.work("state/api/kubeconfig");
        let mut vireo = host
            .command(&host.input("vireo"))
            .args(["standalone", "--state-dir", &host.work("state"), "--listen", "127.0.0.1:0"])
            .args(["--node-name", "here", "--launcher", &host.input("vireo")])
            // Of the examples.
            .args(["--host-disks", "/var/lib/vireo-data", "--images", "/var/lib/images"])
            .spawn()?;
        let reported = vireo.wait_for(&kubeconfig, SOON);
        assert!(reported.is_ok(), "vireo does not print its kubeconfig:\n{}", vireo.stderr());
        Ok(Self { host, kubeconfig, namespace: "default".to_owned(), _vireo: Some(vireo) })
    }

    /// In a namespace of its own on an existing server, which is removed afterwards.
    fn on(host: &'h Host, kubeconfig: String) -> Result<Self, HostError> {
        eprintln!("on the server of {kubeconfig}");
        let namespace = format!("vireo-test-{}", std::process::id());
        let api = Self { host, kubeconfig, namespace, _vireo: None };
        let there = api.feed("get crd crates.example.com", "")?;
        assert!(
            there.stderr.contains("NotFound"),
            "the server has crates already:\n{}{}",
            there.stdout,
            there.stderr
        );
        api.ok(&format!("create ns {}", api.namespace))?;
        Ok(api)
    }

    fn start_kubectl(&self, line: &str) -> Result<Process<'h>, HostError> {
        let command = self.host.shell(&format!("exec kubectl -n {} {line}", self.namespace));
        let command = command.env("KUBE_EDITOR", EDITOR);
        command.env("KUBECONFIG", &self.kubeconfig).env("HOME", &self.host.work("home")).spawn()
    }

    /// Runs `kubectl`, with something to read.
    fn feed(&self, line: &str, input: &str) -> Result<Output, HostError> {
        let mut kubectl = self.start_kubectl(line)?;
        kubectl.write(input.as_bytes())?;
        kubectl.close_stdin()?;
        kubectl.wait(SOON)
    }

    /// What `kubectl` prints when it succeeds.
    fn ok(&self, line: &str) -> Result<String, HostError> {
        Ok(self.feed(line, "")?.ok())
    }

    /// The error output of `kubectl`.
    fn fails(&self, line: &str, input: &str) -> Result<String, HostError> {
        let reported = self.feed(line, input)?;
        assert_ne!(reported.status, Status::Code(0), "kubectl {line} succeeds:\n{}", reported.stdout);
        Ok(reported.stderr)
    }

    fn json(&self, line: &str) -> Result<Value, HostError> {
        let reported = self.ok(&format!("{line} -o json"))?;
        Ok(serde_json::from_str(&reported).unwrap_or_else(|error| panic!("{error} in:\n{reported}")))
    }
}

impl Drop for Api<'_> {
    fn drop(&mut self) {
        if self._vireo.is_none() {
            // No test looks at what comes of it; who is interested sees the namespace.
            let _ = self.feed(&format!("delete --wait=false ns {}", self.namespace), "");
            let _ = self.feed("delete --ignore-not-found crd crates.example.com", "");
        }
    }
}

fn builder() -> HostBuilder {
    let nested = env!("CARGO_BIN_EXE_nested");
    let programs = programs::directory(nested);
    HostBuilder::new(nested).file(programs.join("vireo")).file(programs.join("virtctl"))
}

#[test]
fn any_server_does_what_kubectl_asks() -> Result<(), HostError> {
    let Some(theirs) = std::env::var_os("VIREO_TEST_KUBECONFIG").map(PathBuf::from) else {
        let host = builder().here()?;
        return kubectl_is_served(&Api::start(&host)?);
    };
    let host = builder().on_this_network().here()?;
    kubectl_is_served(&Api::on(&host, theirs.to_string_lossy().into_owned())?)
}

fn kubectl_is_served(api: &Api<'_>) -> Result<(), HostError> {
    applies_in_the_server(api)?;
    prints_in_all_forms(api)?;
    edits_and_watches(api)?;
    deletes_with_each_policy(api)?;
    explains_itself(api)?;
    knows_who_asks(api)?;
    takes_other_kinds(api)
}

fn map(name: &str, data: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, labels: {{tier: web}}}}\ndata: {{{data}}}\n"
    )
}

/// Server-side apply, its conflicts, and the way there from the client's apply.
fn applies_in_the_server(api: &Api<'_>) -> Result<(), HostError> {
    let apply = "apply --server-side -f -";
    assert!(api.feed(apply, &map("a", "k: one"))?.ok().contains("serverside-applied"));
    let rival = format!("{apply} --field-manager rival");
    let reported = api.fails(&rival, &map("a", "k: two"))?;
    for word in ["Apply failed with 1 conflict: conflict with \"kubectl\": .data.k", "--force-conflicts"] {
        assert!(reported.contains(word), "{word} is missing in:\n{reported}");
    }
    api.feed(&format!("{rival} --force-conflicts"), &map("a", "k: two"))?.ok();
    assert_eq!(api.ok("get cm a -o jsonpath={.data.k}")?, "two");
    assert!(!api.ok("get cm a -o yaml")?.contains("managedFields"));
    let shown = api.ok("get cm a -o yaml --show-managed-fields")?;
    for word in ["manager: rival", "operation: Apply", "f:data:", "f:k: {}"] {
        assert!(shown.contains(word), "{word} is missing in:\n{shown}");
    }
    // What was applied in the client goes over to the server, and fields that are no longer named go.
    api.feed("apply -f -", &map("moved", "k: one, l: one"))?.ok();
    api.feed(apply, &map("moved", "k: two"))?.ok();
    let moved = api.json("get cm moved --show-managed-fields")?;
    assert_eq!(moved["data"].to_string(), "{\"k\":\"two\"}");
    let entries = moved["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let managers: Vec<_> =
        entries.iter().map(|entry| entry["manager"].as_str().unwrap_or_default()).collect();
    // The second is kubectl's too: it keeps what it noted in the client.
    assert_eq!(managers, ["kubectl", "kubectl-last-applied"]);
    assert!(api.feed("diff --server-side -f -", &map("moved", "k: two"))?.ok().is_empty());
    // And back.
    api.feed("apply -f -", &map("moved", "l: three"))?.ok();
    assert_eq!(api.json("get cm moved")?["data"].to_string(), "{\"l\":\"three\"}");
    Ok(())
}

fn prints_in_all_forms(api: &Api<'_>) -> Result<(), HostError> {
    for (form, word) in [
        ("name", "configmap/a"),
        ("yaml", "  k: two"),
        ("json", "\"k\": \"two\""),
        ("jsonpath={.items[*].data.k}", "two"),
        ("custom-columns=WORD:.data.k", "WORD"),
        ("go-template={{range .items}}{{.data.k}}{{end}}", "two"),
        ("wide", "DATA"),
    ] {
        let reported = api.ok(&format!("get cm -l tier=web -o '{form}'"))?;
        assert!(reported.contains(word), "{word} is missing in -o {form}:\n{reported}");
    }
    assert!(api.ok("get cm,ns -A --chunk-size=1")?.contains("namespace/kube-system"));
    assert!(api.ok("get cm --show-labels --sort-by=.metadata.name --no-headers")?.contains("tier=web"));
    assert!(api.ok("describe cm a")?.contains("k:\n----\ntwo"));
    Ok(())
}

fn edits_and_watches(api: &Api<'_>) -> Result<(), HostError> {
    let mut watch = api.start_kubectl("get cm -w --output-watch-events -o jsonpath='{.type} {.object.metadata.name} {.object.data.k}{\"\\n\"}'")?;
    watch.wait_for("ADDED a two", SOON)?;
    for (kind, patch, word) in [
        ("strategic", "{\"data\":{\"k\":\"three\"}}", "three"),
        ("merge", "{\"data\":{\"k\":\"four\"}}", "four"),
        ("json", "[{\"op\":\"replace\",\"path\":\"/data/k\",\"value\":\"five\"}]", "five"),
    ] {
        api.ok(&format!("patch cm a --type {kind} -p '{patch}'"))?;
        watch.wait_for(&format!("MODIFIED a {word}"), SOON)?;
    }
    let mut wait = api.start_kubectl("wait cm/a --for=jsonpath={.data.k}=seven --timeout=25s")?;
    api.ok("edit cm a")?;
    watch.wait_for("MODIFIED a six", SOON)?;
    api.ok("label cm a stage=last")?;
    api.ok("annotate cm a why=because")?;
    api.ok("patch cm a --type merge -p '{\"data\":{\"k\":\"seven\"}}'")?;
    assert_eq!(wait.wait(SOON)?.status, Status::Code(0), "{}", wait.stderr());
    watch.wait_for("MODIFIED a seven", SOON)?;
    api.ok("delete cm a moved")?;
    watch.wait_for("DELETED a seven", SOON)?;
    Ok(())
}

fn deletes_with_each_policy(api: &Api<'_>) -> Result<(), HostError> {
    for (policy, stays) in [("background", false), ("foreground", false), ("orphan", true)] {
        api.feed("apply -f -", &map("owner", "k: v"))?.ok();
        let uid = api.ok("get cm owner -o jsonpath={.metadata.uid}")?;
        let owner = format!("{{apiVersion: v1, kind: ConfigMap, name: owner, uid: {uid}}}");
        let dependent =
            map("dependent", "k: v").replace("labels:", &format!("ownerReferences: [{owner}], labels:"));
        api.feed("create -f -", &dependent)?.ok();
        api.ok(&format!("delete cm owner --cascade={policy} --timeout=25s"))?;
        if stays {
            let owners = api.json("get cm dependent")?["metadata"]["ownerReferences"].clone();
            assert!(owners.as_array().is_none_or(Vec::is_empty), "{owners}");
            api.ok("delete cm dependent")?;
        } else {
            eventually("the dependent goes", SOON, || {
                Ok(api.feed("get cm dependent", "")?.stderr.contains("NotFound"))
            })?;
        }
    }
    let room = format!("{}-room", api.namespace);
    api.ok(&format!("create ns {room}"))?;
    api.feed(&format!("-n {room} create -f -"), &map("inside", "k: v"))?.ok();
    api.ok(&format!("delete ns {room} --timeout=25s"))?;
    assert!(api.fails(&format!("-n {room} get cm inside"), "")?.contains("NotFound"));
    Ok(())
}

fn explains_itself(api: &Api<'_>) -> Result<(), HostError> {
    let explained = api.ok("explain configmap.metadata.labels")?;
    assert!(explained.contains("labels") && explained.contains("<map[string]string>"), "{explained}");
    let resources = api.ok("api-resources")?;
    for word in ["customresourcedefinitions", "rbac.authorization.k8s.io/v1", "configmaps"] {
        assert!(resources.contains(word), "{word} is missing in:\n{resources}");
    }
    assert!(api.ok("api-versions")?.contains("apiextensions.k8s.io/v1"));
    assert!(api.ok("version")?.contains("Server Version"));
    Ok(())
}

fn knows_who_asks(api: &Api<'_>) -> Result<(), HostError> {
    assert_eq!(api.ok("auth can-i delete cm")?.trim(), "yes");
    assert!(api.ok("auth can-i --list")?.contains("*.*"));
    let url = api.ok("config view --minify -o jsonpath={.clusters[0].cluster.server}")?;
    let unauthenticated = "--kubeconfig /dev/null --token invalid --insecure-skip-tls-verify --server";
    assert!(api.fails(&format!("{unauthenticated} {url} get cm"), "")?.contains("Unauthorized"));
    eventually("a namespace has its account", SOON, || {
        Ok(api.feed("get sa default -o name", "")?.stdout.contains("serviceaccount/default"))
    })?;
    api.ok("create sa robot")?;
    let robot = format!("--as system:serviceaccount:{}:robot", api.namespace);
    assert_eq!(api.feed(&format!("auth can-i delete cm {robot}"), "")?.stdout.trim(), "no");
    api.ok(&format!(
        "create rolebinding robots --clusterrole=edit --serviceaccount={}:robot",
        api.namespace
    ))?;
    eventually("the robot may edit", SOON, || {
        Ok(api.feed(&format!("auth can-i delete cm {robot}"), "")?.stdout.trim() == "yes")
    })?;
    let refused = api.fails(&format!("get ns {robot}"), "")?;
    assert!(
        refused.contains("cannot list resource \"namespaces\" in API group \"\" at the cluster scope"),
        "{refused}"
    );
    let accounts = api.ok("get sa")?;
    assert!(accounts.contains("SECRETS") && accounts.contains("robot"), "{accounts}");
    Ok(())
}

/// The example's definition, without its rules where the server is from before there were any (Kubernetes 1.25).
fn definition(api: &Api<'_>) -> Result<(String, bool), HostError> {
    let reported = api.feed("create --dry-run=server -f -", DEFINITION)?;
    if !reported.stderr.contains("unknown field \"x-kubernetes-validations\"") {
        return Ok((DEFINITION.to_owned(), true));
    }
    eprintln!("skipped: rules in definitions, which this server does not know");
    let (before, rules) =
        DEFINITION.split_once("            x-kubernetes-validations:\n").expect("it has rules");
    let (_, after) = rules.split_once("            properties:\n").expect("and what they are about");
    Ok((format!("{before}            properties:\n{after}"), false))
}

/// A CustomResourceDefinition, from its establishment to the end of its objects.
fn takes_other_kinds(api: &Api<'_>) -> Result<(), HostError> {
    let (definition, has_rules) = definition(api)?;
    api.feed("apply -f -", &definition)?.ok();
    api.ok("wait --for=condition=Established crd/crates.example.com --timeout=30s")?;
    eventually("its fields are explained", SOON, || {
        Ok(api.feed("explain crate.spec.content", "")?.stdout.contains("The thing."))
    })?;
    let one = |content: &str| {
        format!(
            "apiVersion: example.com/v1\nkind: Crate\nmetadata: {{name: one}}\nspec: {{content: {content}}}\n"
        )
    };
    let refused = api.fails("create -f -", &one("Tea"))?;
    assert!(refused.contains("spec.content") && refused.contains("should match '^[a-z]+$'"), "{refused}");
    let odd = api.fails("apply -f -", &one("tea, contents: x"))?;
    // Either the server says so, or an old one's schema, read by `kubectl`.
    assert!(odd.contains("unknown field") && odd.contains("contents"), "{odd}");
    api.feed("apply -f -", &one("tea"))?.ok();
    api.feed("apply -f -", &one("coffee"))?.ok();
    api.ok("scale crate/one --replicas=3")?;
    api.fails("scale crate/one --replicas=11", "")?;
    if has_rules {
        keeps_rules(api)?;
    }
    let table = api.ok("get cr")?;
    assert!(table.contains("CONTENT") && table.contains("coffee    3"), "{table}");
    api.ok("delete crd crates.example.com --timeout=30s")?;
    let gone = api.fails("get crates", "")?;
    // It remembers for a while what there was, so it asks.
    assert!(gone.contains("the server could not find the requested resource"), "{gone}");
    // Who has them again finds nothing of the old ones.
    api.feed("apply -f -", &definition)?.ok();
    api.ok("wait --for=condition=Established crd/crates.example.com --timeout=30s")?;
    assert!(api.feed("get crates", "")?.stderr.contains("No resources found"));
    api.ok("delete crd crates.example.com --timeout=30s")?;
    Ok(())
}

/// What a definition's rules have against objects, and what is had against rules.
fn keeps_rules(api: &Api<'_>) -> Result<(), HostError> {
    let fewer = r#"patch crate one --type=merge -p '{"spec":{"replicas":2}}'"#;
    let refused = api.fails(fewer, "")?;
    let said = "spec.replicas: Invalid value: \"object\": crates do not go again";
    assert!(refused.contains(said), "{refused}");
    for (rule, said) in [("self.weight > 1", "undefined field 'weight'"), ("self.replicas >", "Syntax error")]
    {
        refuses_rule(api, rule, said)?;
    }
    Ok(())
}

/// The example's definition with another rule is refused, for a reason.
fn refuses_rule(api: &Api<'_>, rule: &str, reason: &str) -> Result<(), HostError> {
    let refused = api.fails("apply -f -", &DEFINITION.replace("self.replicas >= oldSelf.replicas", rule))?;
    let field = "properties[spec].x-kubernetes-validations[0].rule";
    assert!(refused.contains(field) && refused.contains(reason), "{refused}");
    Ok(())
}

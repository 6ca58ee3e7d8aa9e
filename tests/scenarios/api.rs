//! The API server with Debian's `kubectl`, without any guest.

use serde_json::Value;
use vireo_tests::eventually::eventually;
use vireo_tests::{Host, HostBuilder, HostError, Output, Process, Status, programs};

use crate::SOON;

/// Does to every file what one does.
const EDITOR: &str = "sed -i s/five/six/";

/// What a user's `kubectl` talks to.
struct Api<'h> {
    host: &'h Host,
    kubeconfig: String,
    _vireo: Process<'h>,
}

impl<'h> Api<'h> {
    fn start(host: &'h Host) -> Result<Self, HostError> {
        let kubeconfig = host.work("state/api/kubeconfig");
        let mut vireo = host
            .command(&host.input("vireo"))
            .args(["standalone", "--state-dir", &host.work("state"), "--listen", "127.0.0.1:0"])
            .args(["--node-name", "here", "--launcher", &host.input("vireo")])
            .spawn()?;
        let told = vireo.wait_for(&kubeconfig, SOON);
        assert!(told.is_ok(), "vireo does not say where its kubeconfig is:\n{}", vireo.stderr());
        Ok(Self { host, kubeconfig, _vireo: vireo })
    }

    fn start_kubectl(&self, line: &str) -> Result<Process<'h>, HostError> {
        let command = self.host.shell(&format!("exec kubectl {line}"));
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

    /// What `kubectl` complains of when it fails.
    fn fails(&self, line: &str, input: &str) -> Result<String, HostError> {
        let told = self.feed(line, input)?;
        assert_ne!(told.status, Status::Code(0), "kubectl {line} succeeds:\n{}", told.stdout);
        Ok(told.stderr)
    }

    fn json(&self, line: &str) -> Result<Value, HostError> {
        let told = self.ok(&format!("{line} -o json"))?;
        Ok(serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error} in:\n{told}")))
    }
}

#[test]
fn kubectl_finds_a_kubernetes_api() -> Result<(), HostError> {
    let nested = env!("CARGO_BIN_EXE_nested");
    let programs = programs::directory(nested);
    let host = HostBuilder::new(nested).file(programs.join("vireo")).file(programs.join("virtctl")).here()?;
    let api = Api::start(&host)?;
    applies_in_the_server(&api)?;
    prints_in_all_forms(&api)?;
    edits_and_watches(&api)?;
    deletes_with_each_policy(&api)?;
    explains_itself(&api)?;
    knows_who_asks(&api)?;
    takes_other_kinds(&api)?;
    takes_the_examples(&api)?;
    takes_what_virtctl_makes(&api)
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
    let told = api.fails(&rival, &map("a", "k: two"))?;
    for word in ["Apply failed with 1 conflict: conflict with \"kubectl\": .data.k", "--force-conflicts"] {
        assert!(told.contains(word), "{word} is missing in:\n{told}");
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
        let told = api.ok(&format!("get cm -l tier=web -o '{form}'"))?;
        assert!(told.contains(word), "{word} is missing in -o {form}:\n{told}");
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
    api.ok("create ns room")?;
    api.feed("-n room create -f -", &map("inside", "k: v"))?.ok();
    api.ok("delete ns room --timeout=25s")?;
    assert!(api.fails("-n room get cm inside", "")?.contains("NotFound"));
    Ok(())
}

fn explains_itself(api: &Api<'_>) -> Result<(), HostError> {
    let explained = api.ok("explain vmi.spec.domain.cpu.cores")?;
    assert!(explained.contains("Cores in a socket"), "{explained}");
    let resources = api.ok("api-resources")?;
    for word in ["virtualmachineinstances", "kubevirt.io/v1", "configmaps"] {
        assert!(resources.contains(word), "{word} is missing in:\n{resources}");
    }
    assert!(api.ok("api-versions")?.contains("kubevirt.io/v1"));
    assert!(api.ok("version")?.contains("Server Version"));
    Ok(())
}

fn knows_who_asks(api: &Api<'_>) -> Result<(), HostError> {
    assert_eq!(api.ok("auth can-i delete vmi")?.trim(), "yes");
    assert!(api.ok("auth can-i --list")?.contains("*.*"));
    let me = api.ok("auth whoami")?;
    assert!(me.contains("admin") && me.contains("system:masters"), "{me}");
    let nobody = "--kubeconfig /dev/null --token nobodys --insecure-skip-tls-verify --server";
    let url = api.ok("config view --minify -o jsonpath={.clusters[0].cluster.server}")?;
    assert!(api.fails(&format!("{nobody} {url} auth whoami"), "")?.contains("Unauthorized"));
    eventually("a namespace has its account", SOON, || {
        Ok(api.feed("get sa default -n kube-system -o name", "")?.stdout.contains("serviceaccount/default"))
    })?;
    api.ok("create sa robot")?;
    let accounts = api.ok("get sa")?;
    assert!(accounts.contains("SECRETS") && accounts.contains("robot"), "{accounts}");
    Ok(())
}

/// A CustomResourceDefinition, from its establishment to the end of its objects.
fn takes_other_kinds(api: &Api<'_>) -> Result<(), HostError> {
    let definition = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/standalone/crd.yaml");
    api.ok(&format!("apply -f {definition}"))?;
    api.ok("wait --for=condition=Established crd/crates.example.com --timeout=30s")?;
    let explained = api.ok("explain crate.spec.content")?;
    assert!(explained.contains("The thing."), "{explained}");
    let one = |content: &str| {
        format!(
            "apiVersion: example.com/v1\nkind: Crate\nmetadata: {{name: one}}\nspec: {{content: {content}}}\n"
        )
    };
    let refused = api.fails("create -f -", &one("Tea"))?;
    assert!(refused.contains("spec.content") && refused.contains("should match '^[a-z]+$'"), "{refused}");
    let odd = api.fails("apply -f -", &one("tea, contents: x"))?;
    assert!(odd.contains("unknown field \"spec.contents\""), "{odd}");
    api.feed("apply -f -", &one("tea"))?.ok();
    api.feed("apply -f -", &one("coffee"))?.ok();
    api.ok("scale crate/one --replicas=3")?;
    api.fails("scale crate/one --replicas=11", "")?;
    keeps_rules(api)?;
    let table = api.ok("get cr")?;
    assert!(table.contains("CONTENT") && table.contains("coffee    3"), "{table}");
    api.ok("delete crd crates.example.com --timeout=30s")?;
    let gone = api.fails("get crates", "")?;
    // It remembers for a while what there was, so it asks.
    assert!(gone.contains("the server could not find the requested resource"), "{gone}");
    // Who has them again finds nothing of the old ones.
    api.ok(&format!("apply -f {definition}"))?;
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
    let text = include_str!("../../examples/standalone/crd.yaml");
    for (rule, said) in [
        ("self.weight > 1", "undefined field 'weight'"),
        ("self.replicas >", "Syntax error"),
        ("self.content.replace('a', 'b') == ''", "undeclared reference to 'replace'"),
    ] {
        let refused = api.fails("apply -f -", &text.replace("self.replicas >= oldSelf.replicas", rule))?;
        let field = "properties[spec].x-kubernetes-validations[0].rule";
        assert!(refused.contains(field) && refused.contains(said), "{refused}");
    }
    Ok(())
}

/// Every manifest that users are shown. Guests do not come up here: there is neither a launcher nor an image.
fn takes_the_examples(api: &Api<'_>) -> Result<(), HostError> {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
    let told = api.ok(&format!("apply --dry-run=server -f {examples}"))?;
    assert!(
        told.lines().count() >= 6 && told.lines().all(|line| line.ends_with("created (server dry run)")),
        "{told}"
    );
    // What refers to others is only taken where they are.
    let told = api.ok(&format!("apply -f {examples}/standalone"))?;
    let made = told.lines().count();
    assert!(made >= 4, "{told}");
    let told = api.ok(&format!("delete --timeout=60s -f {examples}/standalone"))?;
    assert_eq!(told.lines().count(), made, "{told}");
    eventually("nothing is left of them", SOON, || {
        Ok(api.feed("get vm,vmi,vmirs,vmpool,pvc -A", "")?.stderr.contains("No resources found"))
    })
}

/// The manifests of `virtctl create`, each of which may refer to those before it.
fn takes_what_virtctl_makes(api: &Api<'_>) -> Result<(), HostError> {
    for (line, made) in [
        ("instancetype --name=two --cpu=2 --memory=256Mi", "virtualmachineclusterinstancetype"),
        ("preference --name=flat --cpu-topology=cores -n default", "virtualmachinepreference"),
        (
            "vm --name=chosen --instancetype=two --preference=virtualmachinepreference/flat --run-strategy=Halted",
            "virtualmachine.kubevirt.io/chosen",
        ),
        (
            "vm --name=plain --run-strategy=Manual --volume-containerdisk=src:oci:/nowhere,bootorder:1 --user=ada",
            "virtualmachine.kubevirt.io/plain",
        ),
    ] {
        let virtctl = api.host.command(&api.host.input("virtctl"));
        let manifest = virtctl.arg("create").args(line.split(' ')).run()?.ok();
        let told = api.feed("apply --dry-run=server --validate=strict -f -", &manifest)?.ok();
        assert!(told.starts_with(made) && told.contains("created (server dry run)"), "{told}{manifest}");
        api.feed("create -f -", &manifest)?.ok();
    }
    let expanded =
        api.host.command(&api.host.input("virtctl")).args(["expand", "--vm", "chosen", "-o", "json"]);
    let expanded = expanded.env("KUBECONFIG", &api.kubeconfig).run()?.ok();
    let expanded: Value = serde_json::from_str(&expanded).unwrap_or_default();
    assert_eq!(expanded["spec"]["template"]["spec"]["domain"]["cpu"]["cores"], 2, "{expanded:#}");
    Ok(())
}

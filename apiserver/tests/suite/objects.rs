//! Reading and writing objects.

use futures_util::future::try_join_all;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use vireo_apiserver::auth::User;

use crate::test_server::{TestServer, map, maps, refused};

#[tokio::test]
async fn objects_are_created_changed_and_deleted() {
    let server = TestServer::start();
    let maps = maps(&server.admin());
    let made = maps.create(&PostParams::default(), &map("a")).await.unwrap();
    assert_eq!(made.namespace().as_deref(), Some("default"));
    assert_eq!(maps.get("a").await.unwrap(), made);
    let merge = Patch::Merge(json!({"data": {"more": "b"}}));
    let patched = maps.patch("a", &PatchParams::default(), &merge).await.unwrap();
    assert_eq!(patched.data.as_ref().unwrap().len(), 2);
    assert_ne!(patched.resource_version(), made.resource_version());
    let strategic = Patch::Strategic(json!({"data": {"more": null}}));
    let patched = maps.patch("a", &PatchParams::default(), &strategic).await.unwrap();
    assert_eq!(patched.data, made.data);

    let stale = refused(maps.replace("a", &PostParams::default(), &made).await);
    assert_eq!((stale.code, stale.reason.as_str()), (409, "Conflict"));
    let taken = refused(maps.create(&PostParams::default(), &map("a")).await);
    assert_eq!((taken.code, taken.reason.as_str()), (409, "AlreadyExists"));
    let replaced = maps.replace("a", &PostParams::default(), &patched).await.unwrap();
    assert_eq!(replaced.data, patched.data);

    assert_eq!(maps.list(&ListParams::default()).await.unwrap().items.len(), 1);
    assert!(maps.delete("a", &DeleteParams::default()).await.unwrap().is_right());
    let gone = refused(maps.get("a").await);
    let message = "configmaps \"a\" not found";
    assert_eq!((gone.code, gone.reason.as_str(), gone.message.as_str()), (404, "NotFound", message));
    assert_eq!(maps.get_opt("a").await.unwrap(), None);
}

#[tokio::test]
async fn server_side_apply_has_managers_and_conflicts() {
    let server = TestServer::start();
    let maps = maps(&server.admin());
    let manifest = |value: &str| {
        Patch::Apply(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": value}}),
        )
    };
    let one = PatchParams::apply("one");
    maps.patch("a", &one, &manifest("1")).await.unwrap();
    let other = PatchParams::apply("other");
    let conflict = refused(maps.patch("a", &other, &manifest("2")).await);
    assert_eq!((conflict.code, conflict.reason.as_str()), (409, "Conflict"));
    let forced = maps.patch("a", &other.force(), &manifest("2")).await.unwrap();
    assert_eq!(forced.data.as_ref().unwrap()["k"], "2");
    let managers: Vec<_> =
        forced.managed_fields().iter().filter_map(|fields| fields.manager.as_deref()).collect();
    assert_eq!(managers, ["other"]);
}

#[tokio::test]
async fn the_user_agent_is_the_field_manager() {
    let server = TestServer::start();
    let service = server.in_process(User::administrator());
    let service = service.with_user_agent("virt-controller/v1".parse().unwrap());
    assert_eq!(service.user(), &User::administrator());
    let client = kube::Client::new(service, "default");
    let made = maps(&client).create(&PostParams::default(), &map("a")).await.unwrap();
    assert_eq!(made.managed_fields()[0].manager.as_deref(), Some("virt-controller"));
}

#[tokio::test]
async fn a_long_list_is_read_in_pages_of_one_moment() {
    const ALL: usize = 500;
    let server = TestServer::start();
    let maps = maps(&server.admin());
    let large = |index: usize| {
        let mut map = map(&format!("map-{index:04}"));
        map.data.as_mut().unwrap().insert("large".to_owned(), "x".repeat(4096));
        map
    };
    let objects: Vec<_> = (0..ALL).map(large).collect();
    let params = PostParams::default();
    try_join_all(objects.iter().map(|object| maps.create(&params, object))).await.unwrap();

    let mut params = ListParams::default().limit(120);
    let (mut names, mut versions, mut pages) = (Vec::new(), Vec::new(), 0);
    loop {
        let page = maps.list(&params).await.unwrap();
        assert!(page.items.len() <= 120);
        names.extend(page.items.iter().map(|map| map.name_any()));
        versions.push(page.metadata.resource_version.clone());
        pages += 1;
        // A change between two pages is not in the second.
        maps.create(&PostParams::default(), &map(&format!("new-{pages}"))).await.unwrap();
        match page.metadata.continue_ {
            Some(next) => params = params.continue_token(&next),
            None => break,
        }
    }
    assert_eq!((names.len(), pages), (ALL, 5));
    assert!(names.is_sorted() && names.iter().all(|name| name.starts_with("map-")));
    versions.dedup();
    assert_eq!(versions.len(), 1, "{versions:?}");

    let all = maps.list(&ListParams::default()).await.unwrap();
    assert_eq!(all.items.len(), ALL + 5);
    let then = ListParams::default().at(versions[0].as_deref().unwrap());
    let then = then.matching(kube::api::VersionMatch::Exact);
    assert_eq!(maps.list(&then).await.unwrap().items.len(), ALL);
    let bad = refused(maps.list(&ListParams::default().continue_token("no")).await);
    assert_eq!((bad.code, bad.reason.as_str()), (400, "BadRequest"));
}

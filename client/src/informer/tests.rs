use futures_util::FutureExt as _;
use kube::Client;
use serde_json::json;

use super::*;
use crate::Kind;

/// An informer whose API server does not answer.
fn informer() -> Arc<Informer<Value>> {
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = Client::try_from(config).unwrap();
    Informer::new(Kind::VMI.all(&client), watcher::Config::default(), without_spec)
}

fn object(name: &str, revision: u64) -> Object {
    let metadata = json!({"name": name, "namespace": "n", "uid": format!("uid-{name}"), "resourceVersion": revision.to_string(),
        "managedFields": [{"manager": "m"}]});
    serde_json::from_value(
        json!({"metadata": metadata, "spec": {"big": true}, "status": {"phase": "Running"}}),
    )
    .unwrap()
}

#[tokio::test]
async fn handlers_learn_of_everything_and_specs_are_left_out() {
    let informer = informer();
    informer.replace(vec![object("a", 3)]);
    let (seen, other) = (Arc::new(Mutex::new(Vec::new())), Arc::clone(&informer));
    let record = Arc::clone(&seen);
    informer.on_change(move |change| {
        assert_eq!(other.get(&change.key).is_some(), change.after.is_some(), "the cache has it by then");
        record.lock().unwrap().push((change.key.name.clone(), change.before.is_some()));
    });
    informer.apply(object("b", 4));
    informer.apply(object("b", 5));
    informer.delete(&object("a", 6));
    let of = |name: &str, known| (name.to_owned(), known);
    assert_eq!(*seen.lock().unwrap(), [of("a", false), of("b", false), of("b", true), of("a", true)]);
    let value = &informer.get(&ObjectKey::new("n", "b")).unwrap().value;
    assert_eq!((value.get("spec"), value["metadata"].get("managedFields")), (None, None));
    assert_eq!(value["status"]["phase"], "Running");
}

#[tokio::test(start_paused = true)]
async fn a_controller_waits_for_its_own_writes() {
    let informer = informer();
    assert!(informer.synced().now_or_never().is_none());
    informer.replace(vec![object("a", 3)]);
    assert!(informer.synced().now_or_never().is_some());
    let gone = [(ObjectKey::new("n", "a"), "uid-a".to_owned())];
    assert!(informer.shows(3, &[]).now_or_never().is_some());
    let waits = informer.shows(4, &gone);
    pin_mut!(waits);
    assert!((&mut waits).now_or_never().is_none());
    informer.apply(object("b", 5));
    assert!((&mut waits).now_or_never().is_none(), "one is not gone");
    informer.delete(&object("a", 6));
    assert!(waits.now_or_never().is_some());
    // A write that a new list skipped is not waited for without end.
    informer.shows(99, &[]).await;
}

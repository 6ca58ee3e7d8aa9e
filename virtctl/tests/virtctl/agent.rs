use crate::handler::{Handler, finish, virtctl};

#[tokio::test]
async fn what_the_agent_says_is_printed_as_it_came() {
    for (command, part) in
        [("guestosinfo", "guestosinfo"), ("fslist", "filesystemlist"), ("userlist", "userlist")]
    {
        let handler = Handler::start();
        let child = virtctl(&handler.state, &[command, "web", "-n", "prod"]);
        let asked = handler.answer("200 OK", r#"{"items":[{"userName":"ada"}]}"#).await;
        assert_eq!(asked, format!("GET /v1/namespaces/prod/virtualmachineinstances/web/{part} HTTP/1.1"));
        let output = finish(child).await;
        assert!(output.status.success(), "{command}");
        let printed: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(printed["items"][0]["userName"], "ada");
        assert!(output.stdout.ends_with(b"}\n") && output.stdout.contains(&b' '), "for people");
    }
}

#[tokio::test]
async fn no_agent_is_told_as_such() {
    let handler = Handler::start();
    let child = virtctl(&handler.state, &["guestosinfo", "web", "-n", "prod"]);
    let refusal = r#"{"kind":"Status","message":"VMI does not have guest agent connected"}"#;
    handler.answer("409 Conflict", refusal).await;
    let output = finish(child).await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stderr, b"virtctl: VMI does not have guest agent connected\n");
}

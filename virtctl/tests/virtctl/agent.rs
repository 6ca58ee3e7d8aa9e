use crate::handler::{Handler, finish, virtctl};

#[tokio::test]
async fn responses_of_the_agent_are_printed_unchanged() {
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
async fn an_absent_agent_is_reported() {
    let handler = Handler::start();
    let child = virtctl(&handler.state, &["guestosinfo", "web", "-n", "prod"]);
    let rejection = r#"{"kind":"Status","message":"VMI does not have guest agent connected"}"#;
    handler.answer("409 Conflict", rejection).await;
    let output = finish(child).await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stderr, b"virtctl: VMI does not have guest agent connected\n");
}

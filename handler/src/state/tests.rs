use super::*;

#[tokio::test(start_paused = true)]
async fn a_second_handler_is_refused_and_a_later_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::at(dir.path().join("state"));
    let lock = state.take().await.unwrap();
    let other = StateDir::at(dir.path().join("state"));
    assert!(matches!(other.take().await, Err(StateError::InUse { .. })));
    let give_up = async {
        tokio::task::yield_now().await;
        drop(lock);
    };
    let (taken, ()) = tokio::join!(other.take(), give_up);
    taken.unwrap();
}

#[test]
fn a_failed_write_leaves_the_old_content_and_no_litter() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    write_atomically(&path, b"old").unwrap();
    // A directory at the path of the temporary file makes the write fail, also for root.
    fs::create_dir(dir.path().join("file.new")).unwrap();
    assert!(write_atomically(&path, b"new").is_err());
    assert_eq!(fs::read(&path).unwrap(), b"old");
    fs::remove_dir(dir.path().join("file.new")).unwrap();
    write_atomically(&path, b"new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_directory_whose_sockets_could_not_be_named_is_refused() {
    // vmis/<36 characters of a uid>/launcher.sock, with its slashes.
    let most = LONGEST_SOCKET - 56;
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let path = |length: usize| {
        let stem = dir.path().to_str().unwrap().to_owned() + "/";
        stem.clone() + &"x".repeat(length - stem.len())
    };
    assert!(StateDir::at(path(most)).take().await.is_ok());
    assert!(matches!(StateDir::at(path(most + 3)).take().await, Err(StateError::TooLong { by: 3, .. })));
}

#[test]
fn only_directories_named_by_a_uid_are_vmi_directories() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::at(dir.path());
    assert_eq!(state.vmi_dirs().unwrap(), []);
    let uid = Uuid::from_u128(7);
    state.vmi_dir(uid).create().unwrap();
    fs::create_dir(dir.path().join("vmis/lost+found")).unwrap();
    assert_eq!(state.vmi_dirs().unwrap(), [(uid, state.vmi_dir(uid))]);
    state.vmi_dir(uid).remove().unwrap();
    state.vmi_dir(uid).remove().unwrap();
    assert_eq!(state.vmi_dirs().unwrap(), []);
}

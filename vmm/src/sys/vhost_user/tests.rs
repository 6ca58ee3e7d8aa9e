use super::testing::{Answers, BackEnd, GET_FEATURES, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM};
use super::*;

/// Long enough for an answer, and not for a test to wait for.
const SOON: Duration = Duration::from_millis(200);

fn connect(answers: Answers) -> io::Result<VhostUser> {
    let (backend, socket) = BackEnd::start(answers);
    let connected = VhostUser::with_timeout(socket, 2, SOON);
    drop(backend);
    connected
}

#[test]
fn what_both_know_is_negotiated() {
    let connected = connect(Answers::default()).unwrap();
    assert_eq!(connected.features(1 << 32 | 1 << 50), 1 << 32);
    assert_eq!(connected.protocol, WANTED);
}

#[test]
fn a_back_end_that_does_not_answer_is_given_up() {
    for request in [GET_FEATURES, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM] {
        let error = connect(Answers { silent: Some(request), ..Answers::default() }).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{request}: {error}");
        assert_eq!(error.to_string(), "the back end did not answer within 200ms");
    }
}

#[test]
fn a_back_end_that_goes_away_is_known_at_once() {
    for request in [GET_FEATURES, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM] {
        let (_backend, socket) = BackEnd::start(Answers { close: Some(request), ..Answers::default() });
        let error = VhostUser::new(socket, 2).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{request}: {error}");
    }
}

#[test]
fn an_answer_to_another_question_is_an_error() {
    for request in [GET_FEATURES, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM] {
        let error = connect(Answers { wrong: Some(request), ..Answers::default() }).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Other, "{request}: {error}");
    }
}

#[test]
fn a_back_end_without_what_is_needed_is_refused() {
    assert!(connect(Answers { features: 1 << 32, ..Answers::default() }).is_err(), "no protocol features");
    assert!(connect(Answers { queues: 1, ..Answers::default() }).is_err(), "too few queues");
    // Acknowledgements and resets are not needed.
    assert!(connect(Answers { protocol: 0, ..Answers::default() }).is_ok());
}

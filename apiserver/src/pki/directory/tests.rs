use super::super::DAY;
use super::*;

const NOW: i64 = 1_800_000_000;

fn certificates(directory: &Path) -> Certificates {
    Certificates::new(directory, vec!["localhost".to_owned(), "127.0.0.1".to_owned()])
}

fn reconcile(directory: &Path, now: i64) -> (Current, Option<Change>) {
    certificates(directory).reconcile(now).unwrap()
}

fn count(bundle: &str) -> usize {
    bundle.matches("BEGIN CERTIFICATE").count()
}

#[test]
fn certificates_are_made_once_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let (made, change) = reconcile(dir.path(), NOW);
    assert_eq!(change, Some(Change::Made));
    assert_eq!(reconcile(dir.path(), NOW + DAY), (made.clone(), None));
    let ends = |pair: &Pair| Facts::of(&pair.certificate).unwrap().until;
    assert_eq!([&made.server, &made.administrator].map(ends), [NOW + 365 * DAY; 2]);
    let (authority, leaf) = (NOW + 10 * 365 * DAY, NOW + 365 * DAY);
    let expected = [("authority", authority), ("server", leaf), ("administrator", leaf)];
    assert_eq!(expirations(dir.path()).unwrap(), expected);
    made.server_config().unwrap();
    let (renewed, change) = reconcile(dir.path(), NOW + 300 * DAY);
    assert_eq!((change, &renewed.authorities), (None, &made.authorities));
    assert!(renewed.server != made.server && renewed.administrator != made.administrator);
    // Another address of the server.
    let others = Certificates::new(dir.path(), vec!["localhost".to_owned(), "192.0.2.1".to_owned()]);
    let (other, _) = others.reconcile(NOW + 300 * DAY).unwrap();
    assert!(other.server != renewed.server && other.administrator == renewed.administrator);
    renew(dir.path()).unwrap();
    assert_ne!(others.reconcile(NOW + 300 * DAY).unwrap().0.administrator, renewed.administrator);
}

#[test]
fn an_authority_is_replaced_with_an_overlap() {
    const OVERLAP: i64 = 100;
    let dir = tempfile::tempdir().unwrap();
    let announce = |now| announce_authority(dir.path(), Duration::from_secs(100), now);
    assert!(announce(NOW).is_err(), "there is none yet");
    let (first, _) = reconcile(dir.path(), NOW);
    assert!(announce(NOW).unwrap());
    assert!(!announce(NOW).unwrap(), "one at a time");
    let (announced, change) = reconcile(dir.path(), NOW + OVERLAP - 1);
    assert_eq!((change, count(&announced.authorities.bundle())), (None, 2));
    assert_eq!((&announced.server, &announced.administrator), (&first.server, &first.administrator));
    let (switched, change) = reconcile(dir.path(), NOW + OVERLAP);
    assert_eq!((change, count(&switched.authorities.bundle())), (Some(Change::Issues), 2));
    assert!(switched.server != first.server && switched.administrator != first.administrator);
    assert!(announced.authorities.bundle().contains(&switched.authorities.issuing.certificate));
    assert_eq!(reconcile(dir.path(), NOW + 2 * OVERLAP - 1), (switched.clone(), None));
    let (settled, change) = reconcile(dir.path(), NOW + 2 * OVERLAP);
    assert_eq!((change, count(&settled.authorities.bundle())), (Some(Change::Forgot), 1));
    assert_eq!(settled.server, switched.server);
    assert_eq!(switched.overlap, Duration::from_secs(100));
    assert_eq!(settled.overlap, super::super::OVERLAP, "the next replacement has the default");
    let trusted = fs::read_to_string(dir.path().join(TRUSTED)).unwrap();
    assert_eq!(trusted, settled.authorities.issuing.certificate);
}

/// As `store` is interrupted behind each of its steps while an authority begins to issue.
#[test]
fn an_interrupted_replacement_is_read_as_before_or_as_after() {
    let dir = tempfile::tempdir().unwrap();
    let (first, _) = reconcile(dir.path(), NOW);
    let mut next = first.authorities.clone();
    assert!(next.announce(AUTHORITY, NOW).unwrap());
    let announced = next.announced.clone().unwrap();
    let stored = || authorities(dir.path()).unwrap().unwrap();
    fs::write(dir.path().join(NEXT.1), &announced.key).unwrap();
    assert_eq!(stored(), first.authorities, "a key alone");
    fs::write(dir.path().join(NEXT.0), &announced.certificate).unwrap();
    assert_eq!(stored(), next, "it is announced");
    let former = next.issuing.certificate.clone();
    let issues =
        Authorities { name: NAME, issuing: announced.clone(), announced: None, former: vec![former] };
    fs::write(dir.path().join(TRUSTED), issues.bundle()).unwrap();
    assert_eq!(stored(), issues, "the key is still in the file of the next one");
    fs::write(dir.path().join(KEY), &announced.key).unwrap();
    assert_eq!(stored(), issues);
    store(dir.path(), &issues).unwrap();
    assert!(!dir.path().join(NEXT.0).exists() && !dir.path().join(NEXT.1).exists());
    assert_eq!(stored(), issues);
}

#[test]
fn damaged_files_are_named_and_leaves_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (first, _) = reconcile(dir.path(), NOW);
    fs::write(dir.path().join(SERVER), "nonsense").unwrap();
    fs::write(
        dir.path().join(ADMINISTRATOR),
        format!("{}{}", first.administrator.certificate, first.server.key),
    )
    .unwrap();
    let (second, _) = reconcile(dir.path(), NOW);
    assert!(second.server != first.server && second.administrator != first.administrator);
    fs::write(dir.path().join(KEY), "nonsense").unwrap();
    let error = certificates(dir.path()).reconcile(NOW).unwrap_err();
    assert!(error.to_string().contains("ca.key is damaged"), "{error}");
}

/// Earlier releases made certificates that ended in 2124.
#[test]
fn authorities_of_earlier_releases_go_on_for_ten_years() {
    let dir = tempfile::tempdir().unwrap();
    let made = Authorities::make(NAME, vireo_certificates::Lifetime::lasting(100 * 365 * DAY), NOW).unwrap();
    store(dir.path(), &made).unwrap();
    assert_eq!(reconcile(dir.path(), NOW + 7 * 365 * DAY).1, None);
    assert_eq!(reconcile(dir.path(), NOW + 8 * 365 * DAY).1, Some(Change::Announced));
}

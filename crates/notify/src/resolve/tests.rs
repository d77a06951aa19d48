#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::atomic::AtomicUsize;

use rstest::rstest;
use tokio::net::UdpSocket;
use tokio::time::sleep;

use super::*;

/// Fake DNS servers, which respond after a delay and count started and running lookups.
#[derive(Clone, Default)]
struct FakeServers {
    started: Arc<AtomicUsize>,
    running: Arc<AtomicUsize>,
}

impl FakeServers {
    fn names(&self, answer_after: Duration) -> Names {
        let servers = self.clone();
        Names::new(Arc::new(move |_| {
            let servers = servers.clone();
            Box::pin(async move {
                servers.started.fetch_add(1, Ordering::Relaxed);
                servers.running.fetch_add(1, Ordering::Relaxed);
                let _ends = RunningGuard(servers.running);
                sleep(answer_after).await;
                Ok(vec![SocketAddr::from(([10, 0, 0, 1], 0))])
            })
        }))
    }

    fn started(&self) -> usize {
        self.started.load(Ordering::Relaxed)
    }

    fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }
}

struct RunningGuard(Arc<AtomicUsize>);

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn resolve(names: &Names, namespace: &str, name: &str) -> io::Result<Arc<[SocketAddr]>> {
    RequestContext::new(namespace)
        .run(async { names.resolve(name).await })
        .await
}

const HANGS: Duration = Duration::from_hours(1);

#[tokio::test(start_paused = true)]
async fn lookup_is_shared_by_all_requests_for_the_name() {
    let servers = FakeServers::default();
    let names = servers.names(Duration::from_secs(1));
    let all = (0..20).map(|number| {
        let names = names.clone();
        async move {
            resolve(&names, &format!("n-{number}"), "a.test")
                .await
                .unwrap()
                .len()
        }
    });
    assert_eq!(futures::future::join_all(all).await, [1; 20]);
    assert_eq!(servers.started(), 1);
}

#[tokio::test(start_paused = true)]
async fn addresses_are_kept_for_five_seconds_unless_forgotten() {
    let servers = FakeServers::default();
    let names = servers.names(Duration::ZERO);
    for (wait, started) in [(0, 1), (4, 1), (2, 2), (4, 2)] {
        sleep(Duration::from_secs(wait)).await;
        resolve(&names, "n", "a.test").await.unwrap();
        assert_eq!(servers.started(), started);
    }
    names.forget("a.test");
    resolve(&names, "n", "a.test").await.unwrap();
    assert_eq!(servers.started(), 3);
    sleep(CACHE_TTL).await;
    resolve(&names, "n", "b.test").await.unwrap();
    assert_eq!(
        names.state().known.len(),
        1,
        "expired addresses are removed"
    );
}

#[tokio::test(start_paused = true)]
async fn namespace_has_two_lookups_at_a_time_even_if_abandoned() {
    let servers = FakeServers::default();
    let names = servers.names(HANGS);
    let ask = |namespace: &'static str, name: String| {
        let names = names.clone();
        // The request gives up before the lookup ends.
        tokio::spawn(async move {
            timeout(Duration::from_secs(1), resolve(&names, namespace, &name)).await
        })
    };
    let tenant: Vec<_> = (0..20)
        .map(|number| ask("tenant", format!("{number}.test")))
        .collect();
    sleep(Duration::from_millis(10)).await;
    assert_eq!((servers.started(), servers.running()), (2, 2));
    drop(ask("other", "other.test".into()));
    sleep(Duration::from_millis(10)).await;
    assert_eq!(
        servers.running(),
        3,
        "another namespace has slots of its own"
    );
    sleep(Duration::from_secs(2)).await;
    assert!(tenant.iter().all(tokio::task::JoinHandle::is_finished));
    drop(ask("tenant", "late.test".into()));
    sleep(Duration::from_millis(10)).await;
    assert_eq!(
        servers.started(),
        3,
        "the slots are free once the lookups have ended"
    );
    sleep(LOOKUP_TIMEOUT * 2).await;
    assert_eq!(servers.running(), 0);
    assert!(names.state().running.is_empty());
}

#[tokio::test(start_paused = true)]
async fn lookup_ends_after_three_seconds() {
    let names = FakeServers::default().names(HANGS);
    let began = Instant::now();
    let error = resolve(&names, "n", "a.test")
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(error, "no answer from DNS within 3 s");
    assert_eq!(began.elapsed(), LOOKUP_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn lookup_restarts_after_a_panic() {
    let count = Arc::new(AtomicUsize::new(0));
    let started = count.clone();
    let names = Names::new(Arc::new(move |_| {
        let first = started.fetch_add(1, Ordering::Relaxed) == 0;
        Box::pin(async move {
            if first {
                panic!("at first")
            } else {
                Ok(Vec::new())
            }
        })
    }));
    resolve(&names, "n", "a.test").await.unwrap_err();
    resolve(&names, "n", "a.test").await.unwrap();
}

#[rstest]
#[case::of_a_pod(
    "nameserver 10.96.0.10\nsearch n.svc.cluster.local svc.cluster.local\noptions ndots:5",
    "10.96.0.10",
    5,
    2
)]
#[case::missing("", "127.0.0.1", 1, 0)]
#[case::without_a_server("# nameserver 1.1.1.1\nsearch a.test", "127.0.0.1", 1, 1)]
#[case::odd(
    "nameserver 10.0.0.1\n\u{0}options \u{1}ndots:x\nnonsense",
    "10.0.0.1",
    1,
    0
)]
fn resolv_conf_is_honoured(
    #[case] text: &str,
    #[case] server: &str,
    #[case] ndots: usize,
    #[case] search: usize,
) {
    let dns = Dns {
        port: 5353,
        ..Dns::default()
    };
    let (config, options) = dns.settings(text.as_bytes()).unwrap();
    assert_eq!(config.name_servers[0].ip, server.parse::<IpAddr>().unwrap());
    assert!(
        config
            .name_servers
            .iter()
            .flat_map(|server| &server.connections)
            .all(|one| one.port == 5353)
    );
    assert_eq!((options.ndots, config.search.len()), (ndots, search));
    assert!(search == 0 || config.domain.is_none());
}

#[test]
fn invalid_resolv_conf_is_an_error() {
    let message = Dns::default()
        .settings(b"nameserver 10.0.0.1\nsearch a..b")
        .unwrap_err()
        .to_string();
    assert!(
        message.starts_with("cannot use /etc/resolv.conf: "),
        "{message}"
    );
    for bytes in [
        &b"\xff\xfe\nnameserver \xff"[..],
        b"nameserver",
        b"nameserver x",
        b"\0",
    ] {
        let _ = Dns::default().settings(bytes);
    }
}

/// The name of a host has no underscore, but that of a service may have one.
#[tokio::test]
async fn name_with_an_underscore_is_looked_up() {
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let dns = Dns {
        resolv_conf: "/no/such/file".into(),
        port: server.local_addr().unwrap().port(),
        ..Dns::default()
    };
    let lookup = tokio::spawn(async move { dns.query("a_b.test.").await });
    let mut query = [0; 512];
    let received = timeout(Duration::from_mins(1), server.recv_from(&mut query));
    let (length, _) = received.await.unwrap().unwrap();
    let mut parts = query[..length].windows(9);
    assert!(parts.any(|part| part == b"\x03a_b\x04test"));
    lookup.abort();
}

#[tokio::test]
async fn missing_file_is_empty() {
    assert_eq!(read(Path::new("/no/such/file")).await.unwrap(), b"");
    assert!(
        read(Path::new("/"))
            .await
            .unwrap_err()
            .to_string()
            .starts_with("cannot read /: ")
    );
}

#[test]
fn hosts_file_takes_precedence() {
    let file = b"127.0.0.1 localhost\n::1 localhost ip6-localhost\n# 10.0.0.9 no\n10.0.0.1\tWeb.Shop web\n\xff";
    let found = |name| {
        in_hosts(&file[..file.len() - 1], name)
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(found("localhost"), ["127.0.0.1", "::1"]);
    assert_eq!(found("WEB.shop"), ["10.0.0.1"]);
    assert_eq!(found("web.shop."), ["10.0.0.1"]);
    assert!(
        found("no").is_empty()
            && found("elsewhere.test").is_empty()
            && found(&"a".repeat(300)).is_empty()
    );
    // Invalid UTF-8.
    assert!(in_hosts(file, "elsewhere.test").is_empty());
}

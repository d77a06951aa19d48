//! Webhook names: number of lookups, behaviour without an answer, and isolation of tenants.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use testbed::dns::DnsServer;
use testbed::process::Folder;
use testbed::receiver::Receiver;

use crate::support::{Bed, Operator, SOON, Settings, condition};

/// A DNS server, and settings that point the operator to it.
struct Scene {
    dns: DnsServer,
    /// Folder of `resolv.conf` and the hosts file.
    folder: Folder,
    settings: Settings,
}

async fn scene(resolv_conf: &str) -> Scene {
    let (dns, folder) = (DnsServer::start().await.unwrap(), Folder::new().unwrap());
    let file = dns.resolv_conf(folder.path(), resolv_conf).unwrap();
    let settings = Settings::default()
        .flag(&format!("--resolv-conf={}", file.display()))
        .flag(&format!("--dns-port={}", dns.port()));
    Scene {
        dns,
        folder,
        settings,
    }
}

fn url(name: &str, receiver: &Receiver) -> String {
    format!("http://{name}:{}/", receiver.port())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_names_delay_only_their_own_tenant() {
    const HANGING: usize = 40;
    let Scene {
        dns,
        folder: _folder,
        settings,
    } = scene("").await;
    let (tenant, other) = (Bed::shared("hanging").await, Bed::shared("prompt").await);
    let receiver = Receiver::start().unwrap();
    let both = format!("--watch-namespace={},{}", tenant.namespace, other.namespace);
    // No request loses its turn among those that wait for a lookup.
    let _operator = Operator::start(&tenant, settings.flag(&both).flag("--send-timeout=10m")).await;
    for number in 0..HANGING {
        dns.silence(&format!("hangs-{number}.test"));
        tenant
            .webhook(
                &format!("hangs-{number}"),
                &url(&format!("hangs-{number}.test"), &receiver),
            )
            .await;
    }
    let began = |queries: &[std::sync::Arc<testbed::dns::Query>]| {
        let mut began = BTreeMap::<String, Instant>::new();
        for query in queries
            .iter()
            .filter(|query| query.name.starts_with("hangs-"))
        {
            began.entry(query.name.clone()).or_insert(query.at);
        }
        began
    };
    dns.wait_for(SOON, |queries| began(queries).len() >= 4)
        .await
        .unwrap();
    dns.answer("prompt.test", Ipv4Addr::LOCALHOST);
    other
        .webhook("prompt", &url("prompt.test", &receiver))
        .await;
    let created = Instant::now();
    other.ready("prompt").await;
    let queries = dns.queries();
    let prompt = queries.iter().find(|query| query.name == "prompt.test");
    let looked_up = prompt.unwrap().at;
    let mut hanging: Vec<Instant> = began(&queries).into_values().collect();
    // Two lookups at a time take two seconds: the other tenant would wait 20 seconds or more until half of the earlier
    // ones had finished.
    let earlier = hanging
        .iter()
        .filter(|began| (created..looked_up).contains(*began))
        .count();
    assert!(
        earlier < HANGING / 2,
        "the tenant had to wait for others: {earlier}"
    );
    // Each lookup takes at least two seconds: two tries of a second each.
    hanging.sort();
    for three in hanging.windows(3) {
        assert!(
            three[2] - three[0] > Duration::from_secs(1),
            "three at once: {:?}",
            three[2] - three[0]
        );
    }
    let (_, message) = condition(&tenant.not_ready("hangs-0", "Unreachable").await);
    assert!(message.contains("no answer from DNS"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_queries_are_repeated_within_the_attempt() {
    let Scene {
        dns,
        folder: _folder,
        settings,
    } = scene("").await;
    let bed = Bed::shared("lost").await;
    let receiver = Receiver::start().unwrap();
    dns.answer("lost.test", Ipv4Addr::LOCALHOST);
    // Four lost queries outlast one try of a second, but not two.
    dns.lose("lost.test", 4);
    let operator = Operator::start(&bed, settings).await;
    bed.webhook("lost", &url("lost.test", &receiver)).await;
    bed.ready("lost").await;
    assert!(dns.lookups("lost.test") > 4);
    let retried = "quartermaster_delivery_attempts_total{type=\"webhook\",outcome=\"retried\"}";
    assert!(
        !operator.metrics().await.contains(retried),
        "the first attempt arrived"
    );
}

/// Many connections within seconds, and a single label that the search list completes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_one_name_within_seconds_cost_one_lookup() {
    let Scene {
        dns,
        folder: _folder,
        settings,
    } = scene("search tenant.test\noptions ndots:5").await;
    let bed = Bed::shared("often").await;
    let receiver = Receiver::start().unwrap();
    dns.answer("web.tenant.test", Ipv4Addr::LOCALHOST);
    let _operator = Operator::start(&bed, settings).await;
    for number in 0..30 {
        bed.webhook(
            &format!("web-{number}"),
            &format!("{}{number}", url("web", &receiver)),
        )
        .await;
    }
    for number in 0..30 {
        bed.ready(&format!("web-{number}")).await;
    }
    let queries = dns.queries();
    let lookups = dns.lookups("web.tenant.test");
    let took = queries.last().unwrap().at - queries[0].at;
    let most = usize::try_from(took.as_secs() / 5).unwrap() + 1;
    assert!(
        (1..=most).contains(&lookups),
        "{lookups} lookups in {took:?}"
    );
    assert_eq!(receiver.requests().len(), 30);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_in_etc_hosts_are_not_looked_up() {
    let Scene {
        dns,
        folder,
        settings,
    } = scene("search tenant.test\noptions ndots:5").await;
    let bed = Bed::shared("hosts").await;
    let receiver = Receiver::start().unwrap();
    let hosts = folder.path().join("hosts");
    std::fs::write(&hosts, "127.0.0.1 listed.test short\n").unwrap();
    // No server listens there.
    for name in ["listed.test", "short.tenant.test"] {
        dns.answer(name, Ipv4Addr::new(127, 0, 0, 9));
    }
    let _operator = Operator::start(
        &bed,
        settings.flag(&format!("--hosts-file={}", hosts.display())),
    )
    .await;
    for (point, name) in [("listed", "listed.test"), ("short", "short")] {
        bed.webhook(point, &url(name, &receiver)).await;
        bed.ready(point).await;
    }
    assert_eq!(dns.queries(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn address_is_looked_up_again_after_a_failed_connection() {
    let Scene {
        dns,
        folder: _folder,
        settings,
    } = scene("").await;
    let bed = Bed::shared("moved").await;
    let receiver = Receiver::start().unwrap();
    // No server listens there.
    dns.answer("moved.test", Ipv4Addr::new(127, 0, 0, 9));
    let _operator = Operator::start(&bed, settings).await;
    bed.webhook("moved", &url("moved.test", &receiver)).await;
    let lookups = |queries: &[std::sync::Arc<testbed::dns::Query>]| -> Vec<Instant> {
        queries
            .iter()
            .filter(|query| query.kind == "A")
            .map(|query| query.at)
            .collect()
    };
    let queries = dns
        .wait_for(SOON, |queries| lookups(queries).len() >= 5)
        .await
        .unwrap();
    let mut gaps = lookups(&queries)
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .collect::<Vec<_>>();
    gaps.sort();
    // Cached addresses would last five seconds.
    assert!(gaps[0] < Duration::from_secs(4), "{gaps:?}");
    dns.answer("moved.test", Ipv4Addr::LOCALHOST);
    bed.ready("moved").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_with_a_metadata_address_is_rejected() {
    let Scene {
        dns,
        folder: _folder,
        settings,
    } = scene("").await;
    let bed = Bed::shared("metadata").await;
    let _operator = Operator::start(&bed, settings).await;
    let denied = [
        "169.254.169.254",
        "fd00:ec2::254",
        "fd00:c1::a9fe:a9fe",
        "192.0.0.192",
        "fd00:42::42",
        "fd00:a9fe:a9fe::1",
        "fd00:100::100:200",
    ];
    for (number, address) in denied.into_iter().enumerate() {
        let name = format!("denied-{number}");
        dns.answer(&format!("{name}.test"), address.parse::<IpAddr>().unwrap());
        bed.webhook(&name, &format!("http://{name}.test/")).await;
    }
    for (number, address) in denied.into_iter().enumerate() {
        let name = format!("denied-{number}");
        let (_, message) = condition(&bed.not_ready(&name, "AddressNotAllowed").await);
        assert!(
            message.contains(address) && message.contains("metadata"),
            "{message}"
        );
    }
    bed.webhook("none", "http://none.test/").await;
    let (_, message) = condition(&bed.not_ready("none", "Unreachable").await);
    assert!(
        message.contains("DNS has no address for this name"),
        "{message}"
    );
}

/// Each name of the search list alone would take two seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lookup_of_names_without_answers_ends_at_its_limit() {
    let Scene {
        dns,
        folder: _folder,
        settings,
    } = scene("search one.test two.test\noptions ndots:5").await;
    let bed = Bed::shared("limit").await;
    for name in ["web.one.test", "web.two.test", "web"] {
        dns.silence(name);
    }
    let _operator = Operator::start(&bed, settings).await;
    bed.webhook("web", "http://web/").await;
    let (_, message) = condition(&bed.not_ready("web", "Unreachable").await);
    assert!(
        message.contains("no answer from DNS within 3 s"),
        "{message}"
    );
}

//! Which addresses a webhook may be at, checked when connecting: a name can resolve to anything at any time.

use std::iter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::resolve::{Names, RequestContext};

/// An address that is refused, and by which rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(String);

/// Which addresses are refused besides those that always are.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// `--webhook-allow-loopback`.
    pub allow_loopback: bool,
    /// `--webhook-deny-cidr`.
    pub deny: Vec<IpNet>,
    /// `--webhook-allow-port`; empty: every port.
    pub ports: Vec<u16>,
    /// The operator's own addresses, `--pod-ip`.
    pub own: Vec<IpAddr>,
}

/// Metadata services outside the link-local networks: all that AWS has over IPv6 (`::254` is the machine's metadata, `::23`
/// EKS Pod Identity), Google Cloud over IPv6, Alibaba Cloud, Azure, Oracle Cloud, Scaleway, and other clouds' own over IPv6.
const METADATA: [IpNet; 9] = [
    IpNet::V6(Ipv6Net::new_assert(
        Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0),
        32,
    )),
    IpNet::V6(Ipv6Net::new_assert(
        Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
        128,
    )),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(100, 100, 100, 200), 32)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(168, 63, 129, 16), 32)),
    IpNet::V6(Ipv6Net::new_assert(
        Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
        128,
    )),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(192, 0, 0, 192), 32)),
    IpNet::V6(Ipv6Net::new_assert(
        Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
        128,
    )),
    IpNet::V6(Ipv6Net::new_assert(
        Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1),
        128,
    )),
    IpNet::V6(Ipv6Net::new_assert(
        Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200),
        128,
    )),
];
/// Networks that are not the internet's: RFC 1918, RFC 6598 (shared address space, which clusters use for Pods), RFC 4193.
const PRIVATE: [IpNet; 5] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 8)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(172, 16, 0, 0), 12)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(192, 168, 0, 0), 16)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10)),
    IpNet::V6(Ipv6Net::new_assert(
        Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0),
        7,
    )),
];
/// "This network" (RFC 1122): Linux takes 0.0.0.0 for loopback.
const THIS_NETWORK: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 8);

impl Rules {
    /// Whether `address`, or an IPv4 address that it carries, may be connected to.
    ///
    /// # Errors
    /// By which rule it may not.
    pub fn check(&self, address: IpAddr) -> Result<(), Refused> {
        with_embedded(address)
            .into_iter()
            .try_for_each(|one| self.check_one(one, address))
    }

    /// Checks what a URL itself tells: its port, and its host when that is an address (those bypass a resolver).
    ///
    /// # Errors
    /// The rule that refuses the URL.
    pub fn check_url(&self, url: &reqwest::Url) -> Result<(), Refused> {
        if let Some(port) = url
            .port_or_known_default()
            .filter(|port| !self.allows_port(*port))
        {
            let ports: Vec<_> = self.ports.iter().map(u16::to_string).collect();
            let ports = ports.join(",");
            return Err(Refused(format!(
                "port {port} is refused: it is not in --webhook-allow-port={ports}"
            )));
        }
        literal(url).map_or(Ok(()), |address| self.check(address))
    }

    fn allows_port(&self, port: u16) -> bool {
        self.ports.is_empty() || self.ports.contains(&port)
    }

    fn check_one(&self, address: IpAddr, shown: IpAddr) -> Result<(), Refused> {
        let refuse = |why: &str| Err(Refused(format!("the address {shown} is refused: {why}")));
        let link_local = match address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        let unspecified = match address {
            IpAddr::V4(v4) => THIS_NETWORK.contains(&v4),
            IpAddr::V6(v6) => v6.is_unspecified(),
        };
        if link_local || METADATA.iter().any(|net| net.contains(&address)) {
            return refuse("link-local and cloud metadata addresses always are");
        }
        if unspecified {
            return refuse("the unspecified address always is");
        }
        if self.own.contains(&address) {
            return refuse("the operator's own address always is");
        }
        if address.is_loopback() && !self.allow_loopback {
            return refuse("loopback is, unless the operator runs with --webhook-allow-loopback");
        }
        match self.deny.iter().find(|net| net.contains(&address)) {
            Some(net) => refuse(&format!("it lies in --webhook-deny-cidr={net}")),
            None => Ok(()),
        }
    }
}

/// Returns the host of a URL if it is an address.
pub fn literal(url: &reqwest::Url) -> Option<IpAddr> {
    url.host_str()?
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse()
        .ok()
}

/// Returns whether `address`, or an IPv4 address that it carries, is loopback or of a private network. Answers from there
/// are not quoted: a webhook must not read what only the cluster can reach.
pub fn is_private(address: IpAddr) -> bool {
    let private =
        |address: &IpAddr| address.is_loopback() || PRIVATE.iter().any(|net| net.contains(address));
    with_embedded(address).iter().any(private)
}

/// Returns an address, and the IPv4 addresses that it carries.
fn with_embedded(address: IpAddr) -> Vec<IpAddr> {
    let inner = match address {
        IpAddr::V4(_) => Vec::new(),
        IpAddr::V6(v6) => embedded(v6),
    };
    iter::once(address)
        .chain(inner.into_iter().map(IpAddr::from))
        .collect()
}

/// The IPv4 addresses that an IPv6 address may stand for: IPv4-mapped and -compatible (RFC 4291), NAT64 (RFC 6052) and
/// its local-use prefix (RFC 8215), 6to4 (RFC 3056).
fn embedded(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let bytes = address.octets();
    let at = |places: [usize; 4]| Ipv4Addr::from(places.map(|place| bytes[place]));
    let last = at([12, 13, 14, 15]);
    match bytes {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..]
        | [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, ..] => {
            vec![last]
        }
        // `::` and `::1` are addresses of their own.
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ..] if u32::from(last) > 1 => vec![last],
        [0x20, 0x02, ..] => vec![at([2, 3, 4, 5])],
        [0, 0x64, 0xff, 0x9b, 0, 1, ..] => {
            // The prefix's length is the network's choice, and each reading but the right one may find zeros.
            let readings = [
                at([6, 7, 9, 10]),
                at([7, 9, 10, 11]),
                at([9, 10, 11, 12]),
                last,
            ];
            let set: Vec<_> = readings
                .into_iter()
                .filter(|v4| !THIS_NETWORK.contains(v4))
                .collect();
            if set.is_empty() { vec![last] } else { set }
        }
        _ => Vec::new(),
    }
}

/// A resolver that gives only addresses that the rules allow, so that nothing else is ever connected to.
#[derive(Clone)]
pub struct Checked {
    /// The rules.
    pub rules: Arc<Rules>,
    /// Cached lookups of webhook names.
    pub names: Names,
}

impl Resolve for Checked {
    fn resolve(&self, name: Name) -> Resolving {
        let rules = Arc::clone(&self.rules);
        // The lookup starts here because only this task has the request's context.
        let context = RequestContext::current();
        let names = self.names.clone();
        let found = self.names.resolve(name.as_str());
        Box::pin(async move {
            let found = found.await;
            let public = |addresses: &[SocketAddr]| {
                addresses.iter().all(|address| !is_private(address.ip()))
            };
            // A lookup that failed tells nothing of an address.
            context.set_public(true);
            let addresses = found?;
            context.set_public(public(&addresses));
            names.set_public(name.as_str(), public(&addresses));
            let mut refused = None;
            let mut allowed = Vec::with_capacity(addresses.len());
            for &address in &*addresses {
                match rules.check(address.ip()) {
                    Ok(()) => allowed.push(address),
                    Err(refusal) => refused = Some(refusal),
                }
            }
            match refused {
                Some(refusal) if allowed.is_empty() => Err(refusal.into()),
                _ => Ok(Box::new(allowed.into_iter()) as Addrs),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;
    use crate::resolve::Lookup;

    const ALWAYS: [&str; 17] = [
        "fd00:c1::a9fe:a9fe",
        "192.0.0.192",
        "fd00:42::42",
        "fd00:a9fe:a9fe::1",
        "fd00:100::100:200",
        "169.254.169.254",
        "169.254.0.1",
        "169.254.255.255",
        "100.100.100.200",
        "168.63.129.16",
        "0.0.0.0",
        "0.1.2.3",
        "fe80::1",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd00:ec2:ffff::1",
        "fd20:ce::254",
    ];

    fn open() -> Rules {
        Rules {
            allow_loopback: true,
            ..Rules::default()
        }
    }

    fn forms(v4: Ipv4Addr) -> Vec<String> {
        let [a, b, c, d] = v4.octets();
        let hex = format!("{a:02x}{b:02x}:{c:02x}{d:02x}");
        vec![
            v4.to_string(),
            format!("::ffff:{v4}"),
            format!("::{hex}"),
            format!("64:ff9b::{hex}"),
            format!("64:ff9b:1::{hex}"),
            format!("64:ff9b:1:{a:02x}{b:02x}:{c:x}:{d:02x}00::"),
            format!("2002:{hex}::1"),
        ]
    }

    #[test]
    fn some_are_refused_whatever_the_flags_say() {
        for address in ALWAYS {
            let refused = open()
                .check(address.parse().unwrap())
                .unwrap_err()
                .to_string();
            assert!(
                refused.contains(address) && refused.contains("always"),
                "{refused}"
            );
        }
        for address in ["fe80::", "febf:ffff::1", "::"] {
            assert!(open().check(address.parse().unwrap()).is_err(), "{address}");
        }
        for address in [
            "fec0::1",
            "fd00:ec1:ffff::1",
            "fd00:ec3::",
            "fd20:ce::253",
            "169.253.255.255",
            "169.255.0.0",
            "1.0.0.0",
            "100.100.100.201",
            "192.0.0.191",
            "fd00:42::43",
        ] {
            assert_eq!(open().check(address.parse().unwrap()), Ok(()), "{address}");
        }
    }

    #[test]
    fn so_are_they_within_ipv6() {
        for address in [
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
        ] {
            for form in forms(address.parse().unwrap()) {
                assert!(open().check(form.parse().unwrap()).is_err(), "{form}");
            }
        }
        assert!(open().check("::ffff:0.0.0.0".parse().unwrap()).is_err());
        assert!(open().check("64:ff9b::".parse().unwrap()).is_err());
    }

    #[test]
    fn own_addresses_are_refused_in_every_form() {
        let (v4, v6) = (Ipv4Addr::new(10, 244, 0, 7), "fd00:10:244::7");
        let rules = Rules {
            own: vec![v4.into(), v6.parse().unwrap()],
            ..open()
        };
        for form in forms(v4).into_iter().chain([v6.to_owned()]) {
            let refused = rules.check(form.parse().unwrap()).unwrap_err().to_string();
            assert!(
                refused.contains(&form.parse::<IpAddr>().unwrap().to_string()),
                "{refused}"
            );
            assert!(
                refused.ends_with("the operator's own address always is"),
                "{refused}"
            );
        }
        for neighbour in ["10.244.0.8", "fd00:10:244::8"] {
            assert_eq!(
                rules.check(neighbour.parse().unwrap()),
                Ok(()),
                "{neighbour}"
            );
        }
    }

    #[test]
    fn loopback_needs_its_flag_in_every_form() {
        for form in forms(Ipv4Addr::LOCALHOST)
            .into_iter()
            .chain(["::1".into(), "127.255.0.9".into()])
        {
            let refused = Rules::default()
                .check(form.parse().unwrap())
                .unwrap_err()
                .to_string();
            assert!(refused.contains("--webhook-allow-loopback"), "{refused}");
            assert_eq!(open().check(form.parse().unwrap()), Ok(()), "{form}");
        }
    }

    #[test]
    fn private_ranges_are_allowed_until_they_are_denied() {
        for form in [
            "10.1.2.3",
            "192.168.0.1",
            "172.16.0.1",
            "fd12::1",
            "::ffff:10.1.2.3",
            "64:ff9b:1::808:808",
        ] {
            assert_eq!(
                Rules::default().check(form.parse().unwrap()),
                Ok(()),
                "{form}"
            );
        }
        let rules = Rules {
            deny: vec!["10.0.0.0/8".parse().unwrap(), "fd12::/16".parse().unwrap()],
            ..Rules::default()
        };
        for form in forms("10.1.2.3".parse().unwrap())
            .into_iter()
            .chain(["fd12::1".into()])
        {
            let refused = rules.check(form.parse().unwrap()).unwrap_err().to_string();
            assert!(refused.contains("--webhook-deny-cidr="), "{refused}");
        }
        assert_eq!(rules.check("11.0.0.1".parse().unwrap()), Ok(()));
    }

    #[rstest]
    #[case("http://169.254.169.254/")]
    #[case("http://169.254.169.254./")]
    #[case("http://2852039166/")]
    #[case("http://0xa9fea9fe/")]
    #[case("http://0251.0376.0251.0376/")]
    #[case("http://0xa9.254.43518/")]
    #[case("http://[::ffff:169.254.169.254]/")]
    #[case("http://[fe80::1]:8080/x")]
    #[case("http://0/")]
    #[case("http://127.1/")]
    fn a_literal_in_the_url_is_checked_however_it_is_written(#[case] url: &str) {
        assert!(Rules::default().check_url(&url.parse().unwrap()).is_err());
    }

    #[test]
    fn a_name_is_no_literal() {
        assert_eq!(
            Rules::default().check_url(&"http://example.test/".parse().unwrap()),
            Ok(())
        );
        assert_eq!(
            Rules::default().check_url(&"https://8.8.8.8/".parse().unwrap()),
            Ok(())
        );
    }

    #[rstest]
    #[case("http://example.test/", false)]
    #[case("https://example.test/", true)]
    #[case("http://example.test:443/", true)]
    #[case("http://example.test:8443/", true)]
    #[case("https://example.test:6443/", false)]
    #[case("http://8.8.8.8:22/", false)]
    fn port_is_refused_unless_it_is_listed(#[case] url: &str, #[case] allowed: bool) {
        let rules = Rules {
            ports: vec![443, 8443],
            ..Rules::default()
        };
        let verdict = rules
            .check_url(&url.parse().unwrap())
            .map_err(|refused| refused.to_string());
        assert_eq!(verdict.is_ok(), allowed, "{verdict:?}");
        assert!(
            verdict.is_ok()
                || verdict
                    .unwrap_err()
                    .ends_with("--webhook-allow-port=443,8443")
        );
        assert_eq!(
            Rules::default().check_url(&url.parse().unwrap()),
            Ok(()),
            "without a list every port is allowed"
        );
    }

    #[test]
    fn private_addresses_are_known_in_every_form() {
        for v4 in [
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
        ] {
            for form in forms(v4.parse().unwrap()) {
                assert!(is_private(form.parse().unwrap()), "{form}");
            }
        }
        for v4 in [
            "9.255.255.255",
            "172.32.0.1",
            "192.167.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "8.8.8.8",
        ] {
            for form in forms(v4.parse().unwrap()) {
                assert!(!is_private(form.parse().unwrap()), "{form}");
            }
        }
        for address in ["::1", "fc00::1", "fd12:3456::1"] {
            assert!(is_private(address.parse().unwrap()), "{address}");
        }
        assert!(!is_private("2001:db8::1".parse().unwrap()));
    }

    #[tokio::test]
    async fn only_allowed_addresses_of_a_name_are_tried() {
        let resolve = async |addresses: &[&str]| {
            let addresses: Vec<SocketAddr> = addresses
                .iter()
                .map(|address| SocketAddr::new(address.parse().unwrap(), 0))
                .collect();
            let lookup: Lookup = Arc::new(move |_| {
                let addresses = addresses.clone();
                Box::pin(async move { Ok(addresses) })
            });
            let checked = Checked {
                rules: Arc::new(Rules::default()),
                names: Names::new(lookup),
            };
            checked
                .resolve("receiver.test".parse().unwrap())
                .await
                .map(|found| {
                    found
                        .map(|address| address.ip().to_string())
                        .collect::<Vec<_>>()
                })
                .map_err(|error| error.to_string())
        };
        assert_eq!(
            resolve(&["169.254.169.254", "10.0.0.1", "127.0.0.1"]).await,
            Ok(vec!["10.0.0.1".into()])
        );
        assert!(
            resolve(&["169.254.169.254"])
                .await
                .unwrap_err()
                .contains("metadata")
        );
        assert_eq!(resolve(&[]).await, Ok(vec![]));
    }

    #[rstest]
    #[case::public(&["192.0.2.1", "2001:db8::1"], true)]
    #[case::private(&["10.1.2.3"], false)]
    #[case::both(&["192.0.2.1", "10.1.2.3"], false)]
    #[tokio::test]
    async fn request_is_public_if_every_address_of_its_name_is(
        #[case] addresses: &[&str],
        #[case] public: bool,
    ) {
        let addresses: Vec<SocketAddr> = addresses
            .iter()
            .map(|address| SocketAddr::new(address.parse().unwrap(), 0))
            .collect();
        let lookup: Lookup = Arc::new(move |_| {
            let addresses = addresses.clone();
            Box::pin(async move { Ok(addresses) })
        });
        let checked = Checked {
            rules: Arc::new(Rules::default()),
            names: Names::new(lookup),
        };
        let context = RequestContext::new("team");
        assert!(!context.is_public(), "before the lookup nothing is known");
        let found = context
            .run(async { checked.resolve("receiver.test".parse().unwrap()).await })
            .await;
        assert!(found.is_ok());
        assert_eq!(
            (
                context.is_public(),
                checked.names.is_public("receiver.test")
            ),
            (public, public)
        );
    }

    proptest! {
        #[test]
        fn every_form_of_an_address_has_its_verdict(bits: u32, allow_loopback: bool) {
            let v4 = Ipv4Addr::from(bits);
            let rules = Rules { allow_loopback, deny: vec!["128.0.0.0/2".parse().unwrap()], ..Rules::default() };
            let verdict = rules.check(v4.into()).is_ok();
            for form in [
                v4.to_ipv6_mapped(),
                Ipv6Addr::from(0x0064_ff9b_u128 << 96 | u128::from(bits)),
                Ipv6Addr::from(0x2002_u128 << 112 | u128::from(bits) << 80),
            ] {
                prop_assert_eq!(rules.check(form.into()).is_ok(), verdict, "{}", form);
            }
        }
    }
}

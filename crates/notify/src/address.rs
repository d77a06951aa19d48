//! Addresses that a webhook may connect to. The check happens at each connection, because a name can resolve to any
//! address at any time.

use std::iter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::resolve::{Names, RequestContext};

/// Address or port that the policy denies, with the rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{denied} is not allowed: {rule}{setting}")]
pub(crate) struct AddressDenied {
    /// Denied part of the URL: `address` or `port`.
    part: &'static str,
    /// The part with its value.
    denied: String,
    rule: &'static str,
    /// Value of the flag that `rule` names, which may be the address itself.
    setting: String,
}

impl AddressDenied {
    /// Returns the message, without the address and the port if the URL is secret.
    pub(crate) fn message(&self, url_is_secret: bool) -> String {
        if url_is_secret {
            format!("the {} of the URL is not allowed: {}", self.part, self.rule)
        } else {
            self.to_string()
        }
    }
}

/// Policy of webhook addresses, in addition to the addresses that are always denied.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressPolicy {
    /// `--webhook-allow-loopback`.
    pub allow_loopback: bool,
    /// `--webhook-deny-cidr`.
    pub deny: Vec<IpNet>,
    /// `--webhook-allow-port`; an empty list allows every port.
    pub ports: Vec<u16>,
    /// The operator's own addresses, `--pod-ip`.
    pub own: Vec<IpAddr>,
}

/// Metadata services outside the link-local networks: AWS over IPv6 (`::254` is the instance metadata, `::23` EKS Pod
/// Identity), Google Cloud over IPv6, Alibaba Cloud, Azure, Oracle Cloud, Scaleway, and other clouds over IPv6.
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
/// Private networks: RFC 1918, RFC 6598 (shared address space, which clusters use for Pods), RFC 4193.
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
/// "This network" (RFC 1122): Linux treats 0.0.0.0 as loopback.
const THIS_NETWORK: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 8);

impl AddressPolicy {
    /// Checks `address` and every IPv4 address that it embeds.
    ///
    /// # Errors
    /// Returns the rule that denies the address.
    pub fn check(&self, address: IpAddr) -> Result<(), AddressDenied> {
        with_embedded(address)
            .into_iter()
            .try_for_each(|one| self.check_one(one, address))
    }

    /// Checks the port of a URL, and its host if that is an address, which no resolver sees.
    ///
    /// # Errors
    /// Returns the rule that denies the URL.
    pub(crate) fn check_url(&self, url: &reqwest::Url) -> Result<(), AddressDenied> {
        if let Some(port) = url
            .port_or_known_default()
            .filter(|port| !self.allows_port(*port))
        {
            let ports: Vec<_> = self.ports.iter().map(u16::to_string).collect();
            return Err(AddressDenied {
                part: "port",
                denied: format!("port {port}"),
                rule: "it is not in --webhook-allow-port",
                setting: format!("={}", ports.join(",")),
            });
        }
        literal(url).map_or(Ok(()), |address| self.check(address))
    }

    fn allows_port(&self, port: u16) -> bool {
        self.ports.is_empty() || self.ports.contains(&port)
    }

    fn check_one(&self, address: IpAddr, shown: IpAddr) -> Result<(), AddressDenied> {
        let denied_by = |rule: &'static str, setting: String| {
            Err(AddressDenied {
                part: "address",
                denied: format!("the address {shown}"),
                rule,
                setting,
            })
        };
        let denied = |rule| denied_by(rule, String::new());
        let is_link_local = match address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        let is_unspecified = match address {
            IpAddr::V4(v4) => THIS_NETWORK.contains(&v4),
            IpAddr::V6(v6) => v6.is_unspecified(),
        };
        if is_link_local || METADATA.iter().any(|net| net.contains(&address)) {
            return denied("link-local and cloud metadata addresses are always denied");
        }
        if is_unspecified {
            return denied("the unspecified address is always denied");
        }
        if self.own.contains(&address) {
            return denied("the operator's own address is always denied");
        }
        if address.is_loopback() && !self.allow_loopback {
            return denied("loopback needs --webhook-allow-loopback");
        }
        match self.deny.iter().find(|net| net.contains(&address)) {
            Some(net) => denied_by("it is in --webhook-deny-cidr", format!("={net}")),
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

/// Returns whether `address`, or an IPv4 address that it embeds, is loopback or private. A message quotes no response
/// from there: a webhook must not read services that only the cluster can reach.
pub(crate) fn is_private(address: IpAddr) -> bool {
    let private =
        |address: &IpAddr| address.is_loopback() || PRIVATE.iter().any(|net| net.contains(address));
    with_embedded(address).iter().any(private)
}

/// Returns an address and the IPv4 addresses that it embeds.
fn with_embedded(address: IpAddr) -> Vec<IpAddr> {
    let inner = match address {
        IpAddr::V4(_) => Vec::new(),
        IpAddr::V6(v6) => embedded(v6),
    };
    iter::once(address)
        .chain(inner.into_iter().map(IpAddr::from))
        .collect()
}

/// Returns the IPv4 addresses that an IPv6 address may embed: IPv4-mapped and -compatible (RFC 4291), NAT64 (RFC 6052)
/// and its local-use prefix (RFC 8215), 6to4 (RFC 3056).
fn embedded(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let bytes = address.octets();
    let at = |indexes: [usize; 4]| Ipv4Addr::from(indexes.map(|index| bytes[index]));
    let last = at([12, 13, 14, 15]);
    match bytes {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..]
        | [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, ..] => {
            vec![last]
        }
        // `::` and `::1` embed no IPv4 address.
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ..] if u32::from(last) > 1 => vec![last],
        [0x20, 0x02, ..] => vec![at([2, 3, 4, 5])],
        [0, 0x64, 0xff, 0x9b, 0, 1, ..] => {
            // Each network chooses its prefix length, so all lengths are tried; a wrong one may yield zeros.
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

/// Resolver that returns only addresses that the policy allows, so that a client never connects to others.
#[derive(Clone)]
pub(crate) struct FilteringResolver {
    pub policy: Arc<AddressPolicy>,
    /// Cached lookups of webhook names.
    pub names: Names,
}

impl Resolve for FilteringResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let policy = Arc::clone(&self.policy);
        // The lookup starts here because only this task has the request's context.
        let context = RequestContext::current();
        let names = self.names.clone();
        let found = self.names.resolve(name.as_str());
        Box::pin(async move {
            let found = found.await;
            let public = |addresses: &[SocketAddr]| {
                addresses.iter().all(|address| !is_private(address.ip()))
            };
            // A failed lookup reveals no address.
            context.set_public(true);
            let addresses = found?;
            context.set_public(public(&addresses));
            names.set_public(name.as_str(), public(&addresses));
            let mut denied = None;
            let mut allowed = Vec::with_capacity(addresses.len());
            for &address in &*addresses {
                match policy.check(address.ip()) {
                    Ok(()) => allowed.push(address),
                    Err(denial) => denied = Some(denial),
                }
            }
            match denied {
                Some(denial) if allowed.is_empty() => Err(denial.into()),
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
    use crate::resolve::AddressLookup;

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

    fn open() -> AddressPolicy {
        AddressPolicy {
            allow_loopback: true,
            ..AddressPolicy::default()
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
    fn metadata_addresses_are_denied_whatever_the_flags() {
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
    fn metadata_addresses_are_denied_within_ipv6() {
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
    fn own_addresses_are_denied_in_every_form() {
        let (v4, v6) = (Ipv4Addr::new(10, 244, 0, 7), "fd00:10:244::7");
        let policy = AddressPolicy {
            own: vec![v4.into(), v6.parse().unwrap()],
            ..open()
        };
        for form in forms(v4).into_iter().chain([v6.to_owned()]) {
            let refused = policy.check(form.parse().unwrap()).unwrap_err().to_string();
            assert!(
                refused.contains(&form.parse::<IpAddr>().unwrap().to_string()),
                "{refused}"
            );
            assert!(
                refused.ends_with("the operator's own address is always denied"),
                "{refused}"
            );
        }
        for neighbour in ["10.244.0.8", "fd00:10:244::8"] {
            assert_eq!(
                policy.check(neighbour.parse().unwrap()),
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
            let refused = AddressPolicy::default()
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
                AddressPolicy::default().check(form.parse().unwrap()),
                Ok(()),
                "{form}"
            );
        }
        let policy = AddressPolicy {
            deny: vec!["10.0.0.0/8".parse().unwrap(), "fd12::/16".parse().unwrap()],
            ..AddressPolicy::default()
        };
        for form in forms("10.1.2.3".parse().unwrap())
            .into_iter()
            .chain(["fd12::1".into()])
        {
            let refused = policy.check(form.parse().unwrap()).unwrap_err().to_string();
            assert!(refused.contains("--webhook-deny-cidr="), "{refused}");
        }
        assert_eq!(policy.check("11.0.0.1".parse().unwrap()), Ok(()));
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
    fn address_in_the_url_is_checked_in_every_notation(#[case] url: &str) {
        assert!(
            AddressPolicy::default()
                .check_url(&url.parse().unwrap())
                .is_err()
        );
    }

    #[test]
    fn name_in_the_url_is_allowed() {
        assert_eq!(
            AddressPolicy::default().check_url(&"http://example.test/".parse().unwrap()),
            Ok(())
        );
        assert_eq!(
            AddressPolicy::default().check_url(&"https://8.8.8.8/".parse().unwrap()),
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
        let policy = AddressPolicy {
            ports: vec![443, 8443],
            ..AddressPolicy::default()
        };
        let verdict = policy
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
            AddressPolicy::default().check_url(&url.parse().unwrap()),
            Ok(()),
            "without a list every port is allowed"
        );
    }

    #[test]
    fn private_addresses_are_recognised_in_every_form() {
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
            let lookup: AddressLookup = Arc::new(move |_| {
                let addresses = addresses.clone();
                Box::pin(async move { Ok(addresses) })
            });
            let resolver = FilteringResolver {
                policy: Arc::new(AddressPolicy::default()),
                names: Names::new(lookup),
            };
            resolver
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
        let lookup: AddressLookup = Arc::new(move |_| {
            let addresses = addresses.clone();
            Box::pin(async move { Ok(addresses) })
        });
        let resolver = FilteringResolver {
            policy: Arc::new(AddressPolicy::default()),
            names: Names::new(lookup),
        };
        let context = RequestContext::new("team");
        assert!(!context.is_public(), "before the lookup nothing is known");
        let found = context
            .run(async { resolver.resolve("receiver.test".parse().unwrap()).await })
            .await;
        assert!(found.is_ok());
        assert_eq!(
            (
                context.is_public(),
                resolver.names.is_public("receiver.test")
            ),
            (public, public)
        );
    }

    proptest! {
        #[test]
        fn every_form_of_an_address_has_the_same_verdict(bits: u32, allow_loopback: bool) {
            let v4 = Ipv4Addr::from(bits);
            let policy = AddressPolicy { allow_loopback, deny: vec!["128.0.0.0/2".parse().unwrap()], ..AddressPolicy::default() };
            let verdict = policy.check(v4.into()).is_ok();
            for form in [
                v4.to_ipv6_mapped(),
                Ipv6Addr::from(0x0064_ff9b_u128 << 96 | u128::from(bits)),
                Ipv6Addr::from(0x2002_u128 << 112 | u128::from(bits) << 80),
            ] {
                prop_assert_eq!(policy.check(form.into()).is_ok(), verdict, "{}", form);
            }
        }
    }
}

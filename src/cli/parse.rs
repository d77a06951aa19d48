//! Parses values of flags. An error says what to write instead.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr as _;
use std::time::Duration;

use clap::builder::{BoolishValueParser, PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command};
use ipnet::IpNet;
use jiff::SignedDuration;
use qm_core::validation::{is_dns_label, is_dns_subdomain};
use reqwest::Url;
use tracing_subscriber::filter::{LevelFilter, Targets};

/// Addresses that a server tries; the first that can be bound is used.
pub type ListenAddresses = Vec<SocketAddr>;

/// Parser of `true` and `false`, whose error names both.
#[derive(Clone)]
pub(super) struct Boolean;

impl TypedValueParser for Boolean {
    type Value = bool;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<bool, clap::Error> {
        let wrong = |_| {
            StringValueParser::new()
                .try_map(|_| Err("write true or false"))
                .parse_ref(command, arg, value)
        };
        BoolishValueParser::new()
            .parse_ref(command, arg, value)
            .or_else(wrong)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        BoolishValueParser::new()
            .possible_values()
            .map(|values| Box::new(values.collect::<Vec<_>>().into_iter()) as _)
    }
}

/// Maximum duration: ten years. A deadline that no clock can show would be a panic.
const MAX_DURATION: Duration = Duration::from_hours(87_600);

/// Parses `500ms`, `9s` or `1h30m`; zero and more than ten years are errors.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "write a number above 0 with a unit, such as 500ms, 9s, 5m or 1h30m".to_owned();
    let span: SignedDuration = text.parse().map_err(|_| wrong())?;
    let span = Duration::try_from(span).map_err(|_| wrong())?;
    if span.is_zero() {
        return Err(wrong());
    }
    if span > MAX_DURATION {
        return Err("write at most 87600h, which is ten years".into());
    }
    Ok(span)
}

/// Parses `:8080` (every address, IPv6 and IPv4), `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`; `0` gives none.
pub(super) fn listen(text: &str) -> Result<ListenAddresses, String> {
    if text == "0" {
        return Ok(Vec::new());
    }
    let both = |v6: Ipv6Addr, v4: Ipv4Addr, port: &str| {
        let port: u16 = port.parse().ok()?;
        Some(vec![
            SocketAddr::new(IpAddr::V6(v6), port),
            SocketAddr::new(IpAddr::V4(v4), port),
        ])
    };
    let addresses = if let Some(port) = text.strip_prefix(':') {
        both(Ipv6Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED, port)
    } else if let Some(port) = text.strip_prefix("localhost:") {
        both(Ipv6Addr::LOCALHOST, Ipv4Addr::LOCALHOST, port)
    } else {
        text.parse().ok().map(|address| vec![address])
    };
    addresses.ok_or_else(|| {
        "write :8080 for every address, or 127.0.0.1:8080, or [::1]:8080, or 0 to serve nothing"
            .to_owned()
    })
}

/// Parses a namespace's name. An empty name is allowed, because an empty environment variable names no namespace.
pub(super) fn namespace(text: &str) -> Result<String, String> {
    if text.is_empty() || is_dns_label(text) {
        Ok(text.to_owned())
    } else {
        Err("write a namespace's name: lower-case letters, digits and hyphens, at most 63".into())
    }
}

/// Parses the name of one namespace. An empty name is an error: it would select every namespace.
pub(super) fn one_namespace(text: &str) -> Result<String, String> {
    namespace(text).and_then(|name| {
        if name.is_empty() {
            Err("write a namespace's name".into())
        } else {
            Ok(name)
        }
    })
}

/// Parses a Lease's name.
pub(super) fn lease(text: &str) -> Result<String, String> {
    object(text).ok_or_else(|| {
        "write a Lease's name: lower-case letters, digits, hyphens and full stops, such as quartermaster-shop".into()
    })
}

/// Parses the prefix of the policies' names, which may be empty.
pub(super) fn policy_prefix(text: &str) -> Result<String, String> {
    let prefix = if text.is_empty() {
        Some(String::new())
    } else {
        object(text)
    };
    prefix.ok_or_else(|| {
        "write a prefix of admission policy names, such as quartermaster, or nothing to check none"
            .into()
    })
}

/// Parses the name of a `ClusterRole` that fits into a field selector: RBAC allows any path segment, such as
/// `system:node` (<https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#path-segment-names>).
pub(super) fn cluster_role(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    if (1..=253).contains(&text.len()) && text.chars().all(fits) && ![".", ".."].contains(&text) {
        Ok(text.to_owned())
    } else {
        Err("write a ClusterRole's name: letters, digits and - . _ :".into())
    }
}

/// Parses an object's name.
pub(super) fn object(text: &str) -> Option<String> {
    is_dns_subdomain(text).then(|| text.to_owned())
}

/// Parses a network such as `10.0.0.0/8`, or one address.
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    text.parse::<IpNet>()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| "write a network such as 10.0.0.0/8 or fd00::/8".to_owned())
}

/// Parses a TCP port, 1 to 65535.
pub(super) fn port(text: &str) -> Result<u16, String> {
    text.parse()
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| "write a port from 1 to 65535, such as 443".to_owned())
}

/// Parses the Pod's addresses. A Pod without an address gives an empty text.
pub(super) fn pod_ips(texts: &[String]) -> Result<Vec<IpAddr>, String> {
    let texts = texts
        .iter()
        .map(|text| text.trim())
        .filter(|text| !text.is_empty());
    texts
        .map(|text| {
            text.parse().map_err(|_| {
                format!("--pod-ip: {text:?} is not an address; write for example 10.0.0.7")
            })
        })
        .collect()
}

/// Parses the cluster's name, which may be empty.
pub(super) fn cluster_name(text: &str) -> Result<String, String> {
    if text.chars().count() <= 100 && !text.chars().any(char::is_control) {
        Ok(text.trim().to_owned())
    } else {
        Err("write at most 100 characters on one line".into())
    }
}

/// Parses a level, or directives such as `info,qm_notify=debug`.
pub(super) fn log_level(text: &str) -> Result<String, String> {
    let directives = text.split(',').map(str::trim).collect::<Vec<_>>();
    // tracing would read a misspelt level as the name of a crate and log nothing.
    let known = |part: &str| {
        part.contains('=') || (!part.is_empty() && part.parse::<LevelFilter>().is_ok())
    };
    if !directives.iter().all(|part| known(part)) {
        return Err(
            "write error, warn, info, debug or trace, or directives such as \
            info,qm_notify=debug"
                .into(),
        );
    }
    let directives = directives.join(",");
    Targets::from_str(&directives)
        .map_err(|error| format!("{error}; write for example info,qm_notify=debug"))?;
    Ok(directives)
}

/// Parses the base URL of the Bot API, and removes a trailing slash. Errors do not repeat the value: it may contain a
/// password.
pub(super) fn telegram_api_url(text: &str) -> Result<String, String> {
    let url = http_url(text)
        .filter(|url| url.query().is_none() && url.fragment().is_none())
        .ok_or("--telegram-api-url: write a URL such as https://api.telegram.org, without token, query and fragment")?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("--telegram-api-url: leave out the credentials; logs show the URL".into());
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

/// Parses the proxy for webhooks. Errors do not repeat the value: it may contain a password.
pub(super) fn webhook_proxy(text: &str) -> Result<String, String> {
    http_url(text)
        .map(|_| text.to_owned())
        .ok_or_else(|| "--webhook-proxy: write a URL such as http://proxy.example:3128".to_owned())
}

fn http_url(text: &str) -> Option<Url> {
    Url::parse(text)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

/// Parses kinds: `*` is every kind, `NAME` one of them, `-NAME` all but that one; without `*` only the named kinds are
/// on (kube-controller-manager's `--controllers`).
pub(super) fn controllers(
    list: &[String],
    kinds: &[&'static str],
) -> Result<BTreeSet<&'static str>, String> {
    let (mut named, mut excluded, mut all) = (BTreeSet::new(), BTreeSet::new(), false);
    for word in list
        .iter()
        .map(|word| word.trim())
        .filter(|word| !word.is_empty())
    {
        if word == "*" {
            all = true;
            continue;
        }
        let (name, set) = match word.strip_prefix('-') {
            Some(name) => (name, &mut excluded),
            None => (word, &mut named),
        };
        let kind = kinds.iter().find(|kind| kind.eq_ignore_ascii_case(name)).ok_or_else(|| {
            format!(
                "--controllers: there is no kind \"{name}\"; write * or some of {}, with - before those to exclude",
                kinds.join(", ")
            )
        })?;
        set.insert(*kind);
    }
    if all {
        named.extend(kinds);
    }
    let on: BTreeSet<_> = named.difference(&excluded).copied().collect();
    if on.is_empty() {
        return Err(format!(
            "--controllers: no kind remains; write *, or *,-NAME, or some of {}",
            kinds.join(", ")
        ));
    }
    Ok(on)
}

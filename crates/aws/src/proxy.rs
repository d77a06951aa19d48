//! HTTP client of the AWS SDK, with `HTTPS_PROXY` and `NO_PROXY`.

use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::{Builder, Connector};
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use qm_runtime::error::Class;

use super::error::{self, AwsError};

/// Addresses of the SDK's credential endpoints: the node's metadata and the Pod's identity, over IPv4 and IPv6. The
/// endpoints use HTTP, which [`ProxyConfig::https`] ignores; this list applies in case they ever use HTTPS.
const LINK_LOCAL: &str = "169.254.0.0/16,fe80::/10,fd00:ec2::/32";

/// Creates the HTTP client.
///
/// The SDK's own client also reads `HTTP_PROXY` and `ALL_PROXY`, and so sends requests for credentials through a proxy.
///
/// # Errors
/// `HTTPS_PROXY` names no usable proxy.
pub fn client() -> Result<SharedHttpClient, AwsError> {
    let proxy = from_environment()?;
    Ok(
        Builder::new().build_with_connector_fn(move |settings, components| {
            let mut connector = Connector::builder()
                .tls_provider(Provider::Rustls(CryptoMode::AwsLc))
                .proxy_config(proxy.clone());
            connector.set_connector_settings(settings.cloned());
            connector.set_sleep_impl(components.and_then(RuntimeComponents::sleep_impl));
            connector.build()
        }),
    )
}

/// Returns the proxy from the environment.
fn from_environment() -> Result<ProxyConfig, AwsError> {
    let variable = |names: [&str; 2]| {
        names
            .into_iter()
            .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    };
    let Some(url) = variable(["HTTPS_PROXY", "https_proxy"]) else {
        return Ok(ProxyConfig::disabled());
    };
    let url = if url.contains("://") {
        url
    } else {
        format!("http://{url}")
    };
    let listed = variable(["NO_PROXY", "no_proxy"]);
    let direct: Vec<_> = listed.as_deref().into_iter().chain([LINK_LOCAL]).collect();
    // The value may contain a password.
    let message = "AWS cannot be called through HTTPS_PROXY: write a URL such as http://proxy.example:3128; only http and https are supported";
    let proxy = ProxyConfig::https(url)
        .map_err(|_| AwsError::unsent(Class::Slow, error::PROXY_INVALID, message))?;
    Ok(proxy.no_proxy(direct.join(",")))
}

//! Kubeconfig files, for any identity.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::config::{
    AuthInfo, Context as KubeContext, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedContext,
};
use kube::{Api, Client, Config};
use serde_json::{Value, json};

use super::certs::Pair;

/// Lifetime of a `ServiceAccount`'s token: longer than any suite or demo runs.
const TOKEN_SECONDS: i64 = 24 * 60 * 60;

/// Returns a kubeconfig for `user` with a client certificate.
pub(super) fn with_certificate(
    server: &str,
    ca: &str,
    user: &str,
    pair: &Pair,
) -> Result<Kubeconfig> {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": {"server": server, "certificate-authority-data": base64(ca)?}}],
        "users": [{"name": user, "user": {
            "client-certificate-data": base64(&pair.certificate)?,
            "client-key-data": base64(&pair.key)?,
        }}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
        "current-context": "testbed",
    });
    Ok(serde_json::from_value(config)?)
}

/// Returns a kubeconfig for `admin`'s cluster as the `ServiceAccount` `namespace`/`name`, in that namespace, with a
/// token valid for 24 h.
///
/// # Errors
///
/// The `ServiceAccount` does not exist, or `admin` may not request its token.
pub async fn for_service_account(
    admin: &Kubeconfig,
    namespace: &str,
    name: &str,
) -> Result<Kubeconfig> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client(admin).await?, namespace);
    let spec = TokenRequestSpec {
        expiration_seconds: Some(TOKEN_SECONDS),
        ..TokenRequestSpec::default()
    };
    let request = TokenRequest {
        spec,
        ..TokenRequest::default()
    };
    let answer = accounts
        .create_token_request(name, &PostParams::default(), &request)
        .await
        .with_context(|| format!("requesting a token of ServiceAccount {namespace}/{name}"))?;
    let token = answer
        .status
        .context("a TokenRequest without a status")?
        .token;

    let mut config = admin.clone();
    let user = format!("system:serviceaccount:{namespace}:{name}");
    let current = config
        .current_context
        .as_deref()
        .context("the kubeconfig names no current-context")?;
    let cluster = config
        .contexts
        .iter()
        .find(|context| context.name == current)
        .and_then(|context| context.context.as_ref())
        .with_context(|| format!("the kubeconfig has no context {current}"))?
        .cluster
        .clone();
    config.contexts = vec![NamedContext {
        name: current.into(),
        context: Some(KubeContext {
            cluster,
            user: Some(user.clone()),
            namespace: Some(namespace.into()),
            ..KubeContext::default()
        }),
        ..NamedContext::default()
    }];
    let auth_info = AuthInfo {
        token: Some(token.into()),
        ..AuthInfo::default()
    };
    config.auth_infos = vec![NamedAuthInfo {
        name: user,
        auth_info: Some(auth_info),
        ..NamedAuthInfo::default()
    }];
    Ok(config)
}

/// Returns a client for this kubeconfig. The client belongs to the runtime that calls this function.
///
/// # Errors
///
/// The kubeconfig is invalid.
pub async fn client(config: &Kubeconfig) -> Result<Client> {
    let mut config =
        Config::from_custom_kubeconfig(config.clone(), &KubeConfigOptions::default()).await?;
    config.proxy_url = None; // the apiserver is on loopback, whatever the value of HTTPS_PROXY
    Ok(Client::try_from(config)?)
}

/// Writes `config` to `path`, readable by this user only; a reader sees all of the file or nothing. (The format is
/// JSON, which every YAML parser reads.)
///
/// # Errors
///
/// The file cannot be written.
pub fn write(config: &Kubeconfig, path: &Path) -> Result<()> {
    let part = path.with_extension("part");
    let mut file = std::fs::File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&part)
        .with_context(|| format!("writing {}", part.display()))?;
    serde_json::to_writer_pretty(&mut file, config)?;
    file.write_all(b"\n")?;
    std::fs::rename(&part, path).with_context(|| format!("writing {}", path.display()))
}

/// Encodes as base64, the format of Kubernetes' type for binary data.
fn base64(pem: &str) -> Result<Value> {
    Ok(serde_json::to_value(ByteString(pem.as_bytes().to_vec()))?)
}

//! Handling of a call: injected faults, credentials, AWS's rules, moto, the journal.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context as _, Result};
use http::{HeaderMap, StatusCode, header};

use super::account::REGION;
use super::answer::{self, AwsErrorResponse, CallResult};
use super::faults::{self, Fault, FaultResponse, Intervention};
use super::form::Form;
use super::gate::Point;
use super::layer::{Call, Layer, Outcome};
use super::rules;
use crate::serve::{Arrived, Reply, runtime};

impl Layer {
    /// Responds to a request. When the client closes the connection, the caller drops this future at any await.
    pub(super) async fn handle(self: Arc<Self>, arrived: Arrived) -> Reply {
        let form = Form::parse(&arrived.body);
        if !form.is_elb() {
            return self.forward(arrived).await;
        }
        let mut entry = Entry::new(&self, arrived.moment.instant, &form);
        let action = form.action();
        let mut after = Vec::new();
        for intervention in self.plan.decide(|on| on.matches(action)) {
            match intervention {
                Intervention::Gate(Point::Before, door) if !door.wait().await => {
                    return Reply::reset();
                }
                Intervention::Gate(Point::Before, _) => {}
                Intervention::Gate(Point::After, _) | Intervention::Fault(Fault::CutAfter) => {
                    after.push(intervention);
                }
                Intervention::Fault(Fault::CutBefore) => return Reply::reset(),
                Intervention::Fault(Fault::Slow(time)) => tokio::time::sleep(time).await,
                Intervention::Fault(Fault::Hang) => std::future::pending().await,
                Intervention::Fault(fault) => {
                    if let Some(response) = fault.response() {
                        return entry.respond_with(response);
                    }
                }
            }
        }
        if self.down.load(Ordering::SeqCst) {
            return entry.respond_with(FaultResponse::Error(faults::unavailable()));
        }
        if let Err(error) = self.check_credentials(&arrived.headers) {
            return entry.respond_with(FaultResponse::Error(error));
        }
        entry.call.done = true;
        let done = self.perform(form.clone()).await;
        for intervention in after {
            match intervention {
                Intervention::Gate(_, door) if door.wait().await => {}
                _ => return Reply::reset(),
            }
        }
        entry.answered(&done);
        answer::reply(action, done)
    }

    /// Performs the call to completion, even if no client waits for it any more.
    pub(super) async fn perform(self: &Arc<Self>, form: Form) -> CallResult {
        let layer = self.clone();
        let work = async move {
            if faults::is_read(form.action()) {
                let _guard = layer.write_lock.read().await;
                rules::perform(&layer, form).await
            } else {
                let _guard = layer.write_lock.write().await;
                rules::perform(&layer, form).await
            }
        };
        self.spawn(work).await.and_then(|done| done)
    }

    async fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, AwsErrorResponse> {
        let handle = runtime().map_err(|error| AwsErrorResponse::broken(&error))?;
        handle
            .spawn(work)
            .await
            .map_err(|error| AwsErrorResponse::broken(&error.into()))
    }

    /// Forwards a call of another API to moto.
    async fn forward(&self, arrived: Arrived) -> Reply {
        let path = arrived
            .uri
            .path_and_query()
            .map_or("/", http::uri::PathAndQuery::as_str);
        match self
            .moto
            .send(arrived.method, path, arrived.headers, arrived.body)
            .await
        {
            Ok((status, body)) => Reply::status(status).body(body),
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "moto does not answer");
                Reply::status(StatusCode::BAD_GATEWAY)
            }
        }
    }

    /// Checks the caller's credentials, but not the signature itself.
    fn check_credentials(&self, headers: &HeaderMap) -> Result<(), AwsErrorResponse> {
        let refuse = |code, message| Err(AwsErrorResponse::with_status(403, code, message));
        let Some(value) = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
        else {
            return refuse(
                "MissingAuthenticationToken",
                "Request is missing Authentication Token",
            );
        };
        let Ok((key, region, service)) = scope(value) else {
            return refuse(
                "IncompleteSignature",
                "Authorization header requires 'Credential' parameter.",
            );
        };
        if service != "elasticloadbalancing" {
            let message = "Credential should be scoped to correct service: 'elasticloadbalancing'.";
            return refuse("SignatureDoesNotMatch", message);
        }
        if region != REGION {
            return refuse(
                "SignatureDoesNotMatch",
                "Credential should be scoped to a valid region.",
            );
        }
        match self.state().keys.get(key) {
            None => refuse(
                "InvalidClientTokenId",
                "The security token included in the request is invalid.",
            ),
            Some(true) => Err(faults::expired()),
            Some(false) => Ok(()),
        }
    }
}

/// Returns the access key, the region and the service of a signature.
fn scope(authorization: &str) -> Result<(&str, &str, &str)> {
    let (_, credential) = authorization
        .split_once("Credential=")
        .context("no credential")?;
    let mut parts = credential
        .split([',', ' '])
        .next()
        .unwrap_or_default()
        .split('/');
    let mut next = || parts.next().context("a part is missing");
    let (key, _date, region, service) = (next()?, next()?, next()?, next()?);
    Ok((key, region, service))
}

/// A journal entry, written on drop, also while the call still waits.
struct Entry<'a> {
    layer: &'a Layer,
    call: Call,
}

impl<'a> Entry<'a> {
    fn new(layer: &'a Layer, at: Instant, form: &Form) -> Self {
        let (action, params) = (form.action().to_owned(), form.params());
        Self {
            layer,
            call: Call {
                at,
                action,
                params,
                answer: Outcome::Cut,
                done: false,
            },
        }
    }

    fn answered(&mut self, done: &CallResult) {
        self.call.answer = match done {
            Ok(_) => Outcome::Answered {
                http: 200,
                code: None,
            },
            Err(error) => Outcome::Answered {
                http: error.http,
                code: Some(error.code.clone()),
            },
        };
    }

    fn respond_with(mut self, response: FaultResponse) -> Reply {
        self.call.answer = match &response {
            FaultResponse::Error(error) => Outcome::Answered {
                http: error.http,
                code: Some(error.code.clone()),
            },
            FaultResponse::Bare(http) => Outcome::Answered {
                http: *http,
                code: None,
            },
        };
        let action = self.call.action.clone();
        response.reply(&action)
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.layer.journal.push(self.call.clone());
    }
}

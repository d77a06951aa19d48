//! Requests to webhooks.

use super::*;

#[tokio::test]
async fn every_status_of_a_webhook_has_its_error() {
    let (server, status) = by_status("no").await;
    let (sender, webhook) = (sender(config()), webhook(parts(&server.uri())));
    for code in 200..=599 {
        status.store(code, Ordering::SeqCst);
        let result = sender
            .send(
                &webhook,
                MessageContent::Entries(&[updated("1", "3")]),
                false,
            )
            .await;
        let expected = match code {
            200..=299 => "Sent",
            300..=399 => "Redirected",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            408 | 429 | 500.. => "Retry",
            410 => "Gone",
            400 | 413 | 415 | 422 => "Rejected",
            _ => "UnexpectedStatus",
        };
        assert_eq!(kind(&result), expected, "{code}: {result:?}");
        match result {
            Ok(receipt) => assert_eq!(receipt.accepted, 1),
            Err(error) => assert_eq!(error.carried, 1),
        }
    }
}

#[rstest]
#[case("3", 3)]
#[case("0", 0)]
#[case("86400", 3600)]
#[case("99999999999999999999999", 3600)]
#[tokio::test]
async fn retry_after_of_a_webhook_is_capped(#[case] value: &str, #[case] seconds: u64) {
    let server = answering(ResponseTemplate::new(503).insert_header("Retry-After", value)).await;
    let result = sender(config())
        .send(&webhook(parts(&server.uri())), TEST, false)
        .await;
    assert_eq!(after(&result), Some(Duration::from_secs(seconds)));
}

#[rstest]
#[case(60, 50..=60)]
#[case(-60, 0..=0)]
#[case(86400, 3600..=3600)]
#[tokio::test]
async fn retry_after_may_be_a_date(
    #[case] ahead: i64,
    #[case] expected: std::ops::RangeInclusive<u64>,
) {
    let date = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(ahead);
    let date = date.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let server =
        answering(ResponseTemplate::new(429).insert_header("Retry-After", date.as_str())).await;
    let result = sender(config())
        .send(&webhook(parts(&server.uri())), TEST, false)
        .await;
    let after = after(&result).unwrap();
    assert!(expected.contains(&after.as_secs()), "{after:?}");
}

#[tokio::test]
async fn webhook_gets_token_headers_and_signature() {
    let server = answering(ResponseTemplate::new(202)).await;
    let webhook = webhook(Parts {
        token: Some(Token::InHeader(
            "Authorization".into(),
            "Bearer s3cr3t".into(),
        )),
        headers: [("X-Team".to_owned(), "blue".to_owned())].into(),
        signing_key: Some(SigningKey::new(b"key").unwrap()),
        ..parts(&format!("{}/in?x=1", server.uri()))
    });
    let sender = sender(SenderConfig {
        cluster_name: Some("prod".into()),
        ..config()
    });
    sender
        .send(
            &webhook,
            MessageContent::Entries(&[updated("1", "3")]),
            false,
        )
        .await
        .unwrap();
    let request = &server.received_requests().await.unwrap()[0];
    let header = |name: &str| request.headers[name].to_str().unwrap();
    assert_eq!(
        (
            request.method.as_str(),
            request.url.path(),
            request.url.query()
        ),
        ("POST", "/in", Some("x=1"))
    );
    assert_eq!(
        (header("authorization"), header("x-team")),
        ("Bearer s3cr3t", "blue")
    );
    assert_eq!(
        (
            header("ce-id"),
            header("webhook-id"),
            header("idempotency-key")
        ),
        ("e1", "e1", "e1")
    );
    assert_eq!(request.body_json::<Value>().unwrap()["cluster"], "prod");
    sender.send(&webhook, TEST, false).await.unwrap();
    let test: Value = server.received_requests().await.unwrap()[1]
        .body_json()
        .unwrap();
    assert_eq!(
        (&test["cluster"], &test["text"]),
        (
            &json!("prod"),
            &json!("Contact point is ready\nCluster: prod")
        )
    );
    // The receiver's check of the signature.
    let signed = format!(
        "e1.{}.{}",
        header("webhook-timestamp"),
        std::str::from_utf8(&request.body).unwrap()
    );
    let mut mac = <hmac::Hmac<sha2::Sha256> as hmac::KeyInit>::new_from_slice(b"key").unwrap();
    hmac::Mac::update(&mut mac, signed.as_bytes());
    let expected = hmac::Mac::finalize(mac).into_bytes();
    let expected = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, expected);
    assert_eq!(header("webhook-signature"), format!("v1,{expected}"));
    let age =
        jiff::Timestamp::now().as_second() - header("webhook-timestamp").parse::<i64>().unwrap();
    assert!((0..60).contains(&age));
}

/// The signature covers the body with the token, as the receiver gets it.
#[tokio::test]
async fn signature_covers_the_token_in_the_body() {
    let server = answering(ResponseTemplate::new(202)).await;
    let body = Body::with_token(r#"{"key": "{{ token }}"}"#, TokenFormat::Json);
    let webhook = webhook(Parts {
        token: Some(Token::InBody("s3cr3t".into())),
        body: Some(body.unwrap()),
        signing_key: Some(SigningKey::new(b"key").unwrap()),
        ..parts(&server.uri())
    });
    sender(config()).send(&webhook, TEST, false).await.unwrap();
    let request = &server.received_requests().await.unwrap()[0];
    assert_eq!(request.body, br#"{"key": "s3cr3t"}"#);
    let header = |name: &str| request.headers[name].to_str().unwrap();
    let signed = format!(
        r#"test-1.{}.{{"key": "s3cr3t"}}"#,
        header("webhook-timestamp")
    );
    let mut mac = <hmac::Hmac<sha2::Sha256> as hmac::KeyInit>::new_from_slice(b"key").unwrap();
    hmac::Mac::update(&mut mac, signed.as_bytes());
    let expected = hmac::Mac::finalize(mac).into_bytes();
    let expected = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, expected);
    assert_eq!(header("webhook-signature"), format!("v1,{expected}"));
}

#[rstest]
#[case::metadata(&["169.254.169.254"], "metadata")]
#[case::loopback(&["127.0.0.1", "::1"], "--webhook-allow-loopback")]
#[case::denied(&["10.1.2.3"], "--webhook-deny-cidr=10.0.0.0/8")]
#[tokio::test]
async fn name_is_refused_if_it_resolves_to_a_denied_address(
    #[case] addresses: &'static [&str],
    #[case] expected: &str,
) {
    let lookup: AddressLookup = Arc::new(move |_| {
        let found = addresses
            .iter()
            .map(|address| SocketAddr::new(address.parse().unwrap(), 0))
            .collect();
        Box::pin(async move { Ok(found) })
    });
    let sender = sender(SenderConfig {
        allow_loopback: false,
        deny_cidrs: vec!["10.0.0.0/8".parse().unwrap()],
        lookup,
        ..config()
    });
    let result = sender
        .send(&webhook(parts("http://receiver.test/")), TEST, false)
        .await;
    assert_eq!(kind(&result), "AddressNotAllowed");
    let message = result.unwrap_err().to_string();
    assert!(message.contains(expected), "{message}");
}

#[rstest]
#[case::address(
    "http://10.96.0.1:8443/",
    "the address of the URL is not allowed: it is in --webhook-deny-cidr"
)]
#[case::port(
    "http://10.96.0.1:8444/",
    "the port of the URL is not allowed: it is not in --webhook-allow-port"
)]
#[case::name(
    "http://receiver.test:8443/",
    "the address of the URL is not allowed: it is in --webhook-deny-cidr"
)]
#[tokio::test]
async fn refused_secret_url_is_not_quoted(#[case] url: &str, #[case] expected: &str) {
    let sender = sender(SenderConfig {
        deny_cidrs: vec!["10.96.0.1/32".parse().unwrap()],
        allow_ports: vec![8443],
        lookup: resolving_to("10.96.0.1:0".parse().unwrap()),
        ..config()
    });
    let endpoint = webhook(Parts {
        url_is_secret: true,
        ..parts(url)
    });
    let result = sender.send(&endpoint, TEST, false).await;
    assert_eq!(kind(&result), "AddressNotAllowed");
    assert_eq!(result.unwrap_err().to_string(), expected);
}

#[tokio::test]
async fn name_is_reached_at_an_allowed_address() {
    let server = answering(ResponseTemplate::new(204)).await;
    let lookup: AddressLookup = Arc::new(move |name| {
        assert_eq!(name, "receiver.test");
        let found = ["169.254.169.254", "127.0.0.1"]
            .map(|address| SocketAddr::new(address.parse().unwrap(), 0));
        Box::pin(async move { Ok(found.to_vec()) })
    });
    let url = format!("http://receiver.test:{}/", server.address().port());
    assert_eq!(
        kind(
            &sender(SenderConfig { lookup, ..config() })
                .send(&webhook(parts(&url)), TEST, false)
                .await
        ),
        "Sent"
    );
}

#[tokio::test]
async fn denied_address_in_the_url_is_refused() {
    let server = answering(ResponseTemplate::new(204)).await;
    let closed = sender(SenderConfig {
        allow_loopback: false,
        ..config()
    });
    assert_eq!(
        kind(
            &closed
                .send(&webhook(parts(&server.uri())), TEST, false)
                .await
        ),
        "AddressNotAllowed"
    );
    assert_eq!(server.received_requests().await.unwrap().len(), 0);
    for url in [
        "http://169.254.169.254/latest/",
        "http://[::ffff:a9fe:a9fe]/",
        "http://2852039166/",
    ] {
        assert_eq!(
            kind(
                &sender(config())
                    .send(&webhook(parts(url)), TEST, false)
                    .await
            ),
            "AddressNotAllowed",
            "{url}"
        );
    }
}

#[tokio::test]
async fn unresolved_name_is_retried() {
    let lookup: AddressLookup =
        Arc::new(|_| Box::pin(async { Err(io::Error::other("no such name")) }));
    let result = sender(SenderConfig { lookup, ..config() })
        .send(&webhook(parts("http://receiver.test/")), TEST, false)
        .await;
    assert_eq!(kind(&result), "Retry");
    assert!(result.unwrap_err().to_string().contains("no such name"));
}

#[tokio::test]
async fn webhooks_use_the_configured_proxy() {
    let proxy = answering(ResponseTemplate::new(204)).await;
    let sender = sender(SenderConfig {
        webhook_proxy: Some(proxy.uri().into()),
        allow_loopback: false,
        ..config()
    });
    assert_eq!(
        kind(
            &sender
                .send(&webhook(parts("http://receiver.test/in")), TEST, false)
                .await
        ),
        "Sent"
    );
    let request = &proxy.received_requests().await.unwrap()[0];
    assert_eq!(request.headers["host"], "receiver.test");
    assert_eq!(
        kind(
            &sender
                .send(&webhook(parts("http://169.254.169.254/")), TEST, false)
                .await
        ),
        "AddressNotAllowed"
    );
}

fn resolving_to(address: SocketAddr) -> AddressLookup {
    Arc::new(move |_| Box::pin(async move { Ok(vec![address]) }))
}

#[tokio::test]
async fn answer_of_a_private_address_is_not_quoted() {
    let (server, status) = by_status("internal words").await;
    let name = format!("http://receiver.test:{}/", server.address().port());
    let config = |quote_private| SenderConfig {
        quote_private,
        lookup: resolving_to(*server.address()),
        ..config()
    };
    for url in [&server.uri(), &name] {
        for code in [400, 401, 403, 404, 410, 418, 500] {
            status.store(code, Ordering::SeqCst);
            let message = |quote| {
                let sender = sender(config(quote));
                async move {
                    sender
                        .send(&webhook(parts(url)), TEST, false)
                        .await
                        .unwrap_err()
                        .to_string()
                }
            };
            let (hidden, quoted) = (message(false).await, message(true).await);
            assert!(
                !hidden.contains("words") && hidden.contains(&code.to_string()),
                "{hidden}"
            );
            assert!(quoted.contains("internal words"), "{quoted}");
        }
    }
}

/// The proxy resolves the name, so the operator does not know the address of the response.
#[tokio::test]
async fn answer_through_a_proxy_is_not_quoted() {
    let proxy = answering(ResponseTemplate::new(404).set_body_string("internal words")).await;
    for quote_private in [false, true] {
        let webhook_proxy = Some(proxy.uri().into());
        let sender = sender(SenderConfig {
            webhook_proxy,
            quote_private,
            ..config()
        });
        for url in ["http://receiver.test/in", "http://8.8.8.8/in"] {
            let message = sender
                .send(&webhook(parts(url)), TEST, false)
                .await
                .unwrap_err()
                .to_string();
            assert_eq!(
                message.contains("internal words"),
                quote_private,
                "{message}"
            );
        }
    }
}

#[tokio::test]
async fn request_over_an_open_connection_is_as_public_as_the_lookup_before_it() {
    let server = raw(|mut stream| {
        let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 204 No MessageContent\r\n\r\n");
        std::mem::forget(stream);
    });
    let attempt_timeout = Duration::from_millis(500);
    let sender = sender(SenderConfig {
        quote_private: false,
        lookup: resolving_to(server),
        attempt_timeout,
        ..config()
    });
    let webhook = webhook(parts(&format!("http://receiver.test:{}/", server.port())));
    assert_eq!(kind(&sender.send(&webhook, TEST, false).await), "Sent");
    // The test's server has no public address.
    sender.names.set_public("receiver.test", true);
    let message = sender
        .send(&webhook, TEST, false)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("0.5 s") || message.contains("500ms"),
        "{message}"
    );
}

/// Tenants may name any number of hosts, each with connections of its own.
#[tokio::test]
async fn unused_connection_to_a_webhook_is_closed_within_seconds() {
    let connections = Arc::new(AtomicU16::new(0));
    let count = Arc::clone(&connections);
    let server = raw(move |mut stream| {
        count.fetch_add(1, Ordering::SeqCst);
        while stream.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
        }
    });
    let sender = sender(config());
    let webhook = webhook(parts(&format!("http://{server}")));
    assert_eq!(kind(&sender.send(&webhook, TEST, false).await), "Sent");
    // The paused clock advances only after every task has done its work.
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(3)).await;
    tokio::time::resume();
    assert_eq!(kind(&sender.send(&webhook, TEST, false).await), "Sent");
    assert_eq!(connections.load(Ordering::SeqCst), 2);
}

/// A closed port, a server without a response, one that hangs up and one that speaks no HTTP yield the same message.
#[tokio::test]
async fn private_address_without_an_answer_reads_the_same_whatever_the_cause() {
    let silent = raw(std::mem::forget);
    let hangs_up = raw(drop);
    let other = raw(|mut stream| drop(stream.write_all(b"SSH-2.0-OpenSSH_9.9\r\n")));
    // The port is bound but does not listen: connections are refused, and no other process gets the port.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed = bound.local_addr().unwrap();
    let mut hidden = std::collections::BTreeSet::new();
    let mut shown = std::collections::BTreeSet::new();
    for address in [silent, hangs_up, other, closed] {
        for (quote_private, messages) in [(false, &mut hidden), (true, &mut shown)] {
            let config = SenderConfig {
                quote_private,
                attempt_timeout: Duration::from_millis(500),
                lookup: resolving_to(address),
                ..config()
            };
            let sender = sender(config);
            for scheme in ["http", "https"] {
                for host in ["127.0.0.1", "receiver.test"] {
                    let url = format!("{scheme}://{host}:{}/", address.port());
                    let result = sender.send(&webhook(parts(&url)), TEST, false).await;
                    assert_eq!(kind(&result), "Retry");
                    messages.insert(result.unwrap_err().to_string());
                }
            }
        }
    }
    assert_eq!(hidden.len(), 1, "{hidden:?}");
    assert!(shown.len() >= 3, "{shown:?}");
}

/// A name without an address is usually a typing error, and reveals no address.
#[tokio::test]
async fn failed_lookup_is_reported_without_the_flag() {
    let lookup: AddressLookup =
        Arc::new(|_| Box::pin(async { Err(io::Error::other("no such name")) }));
    let sender = sender(SenderConfig {
        lookup,
        quote_private: false,
        ..config()
    });
    let message = sender
        .send(&webhook(parts("http://receiver.test/")), TEST, false)
        .await
        .unwrap_err()
        .to_string();
    assert!(message.contains("no such name"), "{message}");
}

#[tokio::test]
async fn port_that_is_not_allowed_gets_no_request() {
    let server = answering(ResponseTemplate::new(204)).await;
    let sender = sender(SenderConfig {
        allow_ports: vec![443],
        ..config()
    });
    let result = sender
        .send(&webhook(parts(&server.uri())), TEST, false)
        .await;
    assert_eq!(kind(&result), "AddressNotAllowed");
    assert!(
        result
            .unwrap_err()
            .to_string()
            .contains("--webhook-allow-port=443")
    );
    assert_eq!(server.received_requests().await.unwrap().len(), 0);
}

#[tokio::test]
async fn endpoints_with_the_same_tls_material_share_a_client() {
    let certificate = rcgen::generate_simple_self_signed(["receiver.test".to_owned()])
        .unwrap()
        .cert
        .pem();
    let tls = || Tls::new(Some(certificate.as_bytes()), None, None).unwrap();
    let sender = sender(config());
    let (one, two) = (tls(), tls());
    let client = sender.client_with_tls(&one).unwrap();
    assert!(Arc::ptr_eq(&client, &sender.client_with_tls(&two).unwrap()));
    drop((client, one));
    assert_eq!(
        sender
            .with_tls
            .lock()
            .unwrap()
            .values()
            .filter(|client| client.strong_count() > 0)
            .count(),
        1
    );
    drop(two);
    assert_eq!(
        sender
            .with_tls
            .lock()
            .unwrap()
            .values()
            .filter(|client| client.strong_count() > 0)
            .count(),
        0
    );
}

/// The endpoint requires a client certificate and responds 204 to the right one.
#[tokio::test]
async fn tls_material_is_trusted_and_presented() {
    let authority = rcgen::generate_simple_self_signed(["receiver.test".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(authority.signing_key.serialize_der().into());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(roots),
        Arc::clone(&provider),
    )
    .build()
    .unwrap();
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![authority.cert.der().clone()], key)
        .unwrap();
    let server = Arc::new(server);
    let address = raw(move |mut stream| {
        let mut connection = rustls::ServerConnection::new(Arc::clone(&server)).unwrap();
        let mut tls = rustls::Stream::new(&mut connection, &mut stream);
        if tls.read(&mut [0; 4096]).is_ok() {
            let _ = tls.write_all(b"HTTP/1.1 204 No MessageContent\r\n\r\n");
        }
    });
    let lookup: AddressLookup = Arc::new(move |_| Box::pin(async move { Ok(vec![address]) }));
    let sender = sender(SenderConfig { lookup, ..config() });
    let (pem, key) = (authority.cert.pem(), authority.signing_key.serialize_pem());
    let to = |tls: Option<Tls>| {
        webhook(Parts {
            tls,
            ..parts(&format!("https://receiver.test:{}/", address.port()))
        })
    };
    let tls = |own: bool| {
        let own = own.then_some((pem.as_bytes(), key.as_bytes()));
        Tls::new(
            Some(pem.as_bytes()),
            own.map(|own| own.0),
            own.map(|own| own.1),
        )
        .unwrap()
    };
    let send = async |tls| {
        sender
            .send(
                &to(tls),
                MessageContent::Entries(&[updated("1", "3")] as &[OutgoingEntry]),
                false,
            )
            .await
    };
    assert_eq!(kind(&send(Some(tls(true))).await), "Sent");
    assert_eq!(kind(&send(Some(tls(false))).await), "Retry");
    let untrusted = send(None).await;
    assert_eq!(kind(&untrusted), "Retry");
    assert!(untrusted.unwrap_err().to_string().contains("certificate"));
}

/// The shared client passes the namespace to the lookup: with one queue for all, the prompt name would come after the
/// four others.
#[tokio::test]
async fn hanging_names_delay_no_other_namespace() {
    let server = answering(ResponseTemplate::new(204)).await;
    let begun = Arc::new(AtomicU16::new(0));
    let count = Arc::clone(&begun);
    let lookup: AddressLookup = Arc::new(move |name| {
        let count = Arc::clone(&count);
        Box::pin(async move {
            if name.starts_with("hangs") {
                count.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<()>().await;
            }
            Ok(vec![SocketAddr::from(([127, 0, 0, 1], 0))])
        })
    });
    let sender = Arc::new(sender(SenderConfig {
        lookup,
        attempt_timeout: Duration::from_mins(1),
        ..config()
    }));
    for number in 0..4 {
        let sender = Arc::clone(&sender);
        tokio::spawn(async move {
            let endpoint = webhook(parts(&format!("http://hangs-{number}.test/")));
            sender.send(&endpoint, TEST, false).await
        });
    }
    while begun.load(Ordering::SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    let other = MessageContent::Test {
        namespace: "other",
        name: "point",
        id: "test-2",
    };
    let url = format!("http://prompt.test:{}/", server.address().port());
    assert_eq!(
        kind(&sender.send(&webhook(parts(&url)), other, false).await),
        "Sent"
    );
    assert_eq!(
        begun.load(Ordering::SeqCst),
        2,
        "each namespace has two lookups at a time, and others do not wait for them"
    );
}

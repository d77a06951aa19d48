//! `testbed`: a real control plane on this machine, for `make cluster`, `make demo` and manual use.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use kube::config::Kubeconfig;
use testbed::aws::{self, Aws, Call, Outcome};
use testbed::bot_api::{BotApi, Chat, Kind};
use testbed::control_plane::kubeconfig;
use testbed::receiver::{Receiver, Request};
use testbed::{ControlPlane, Options, process};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A real control plane on this machine, and fakes of the services that Quartermaster talks to.
#[derive(Parser)]
#[command(name = "testbed")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a control plane and keep it until Ctrl-C, SIGTERM or the end of the parent process.
    Cluster {
        /// Also write the admin's kubeconfig to this file, once the control plane is ready.
        #[arg(long, value_name = "FILE")]
        kubeconfig_out: Option<PathBuf>,
    },
    /// Start a fake Bot API and a webhook receiver that print each request, until Ctrl-C, SIGTERM or the end of the
    /// parent process.
    Receivers {
        /// A bot token that the Bot API knows.
        #[arg(long)]
        token: String,
        /// A private chat that the bot may write to.
        #[arg(long)]
        chat: i64,
        /// Write their URLs to this file, as `TELEGRAM_API_URL=...` and `WEBHOOK_URL=...`.
        #[arg(long, value_name = "FILE")]
        urls_out: PathBuf,
    },
    /// Start a fake of AWS's load balancers that prints the calls that change something, until Ctrl-C, SIGTERM or the
    /// end of the parent process.
    Aws {
        /// Write the environment of a process that uses the fake to this file, as shell text to source.
        #[arg(long, value_name = "FILE")]
        env_out: PathBuf,
        /// An instance that can be a target, and its zone; repeatable. The subnets are in a, b and c.
        #[arg(long, value_name = "ZONE:ID", value_parser = instance)]
        instance: Vec<(char, String)>,
    },
    /// Write a kubeconfig with a `ServiceAccount`'s permissions and a token valid for 24 hours.
    ServiceAccountKubeconfig {
        /// The `ServiceAccount`'s namespace.
        namespace: String,
        /// The `ServiceAccount`'s name.
        name: String,
        /// A kubeconfig that may request the token.
        #[arg(long, value_name = "FILE")]
        kubeconfig: PathBuf,
        /// The file to write.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

#[tokio::main]
async fn main() -> Result<()> {
    // The build may contain two TLS providers; this is the first use of one, so the choice cannot fail.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match Arguments::parse().command {
        Command::Cluster { kubeconfig_out } => cluster(kubeconfig_out.as_deref()).await,
        Command::Receivers {
            token,
            chat,
            urls_out,
        } => {
            let mut end = Signals::new()?;
            let _receivers = start_receivers(&token, chat, &urls_out)?;
            end.wait().await;
            Ok(())
        }
        Command::Aws { env_out, instance } => {
            let mut end = Signals::new()?;
            let started = tokio::select! {
                () = end.wait() => return Ok(()),
                started = start_aws(&env_out, &instance) => started,
            };
            let _aws = started?;
            end.wait().await;
            Ok(())
        }
        Command::ServiceAccountKubeconfig {
            namespace,
            name,
            kubeconfig,
            out,
        } => {
            let admin = Kubeconfig::read_from(&kubeconfig)
                .with_context(|| format!("reading {}", kubeconfig.display()))?;
            kubeconfig::write(
                &kubeconfig::for_service_account(&admin, &namespace, &name).await?,
                &out,
            )
        }
    }
}

async fn cluster(kubeconfig_out: Option<&Path>) -> Result<()> {
    let mut end = Signals::new()?;
    tokio::select! {
        () = end.wait() => Ok(()),
        outcome = run_cluster(kubeconfig_out) => outcome,
    }
}

/// Runs a control plane until this future is dropped.
async fn run_cluster(kubeconfig_out: Option<&Path>) -> Result<()> {
    if let Some(file) = kubeconfig_out {
        // Programs that wait for the file must not find that of a former control plane.
        if let Err(error) = std::fs::remove_file(file)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error).with_context(|| format!("removing {}", file.display()));
        }
    }
    eprintln!("Starting the control plane ...");
    let plane = ControlPlane::start(Options::default()).await?;
    let mut file = plane.admin_kubeconfig();
    if let Some(out) = kubeconfig_out {
        kubeconfig::write(&Kubeconfig::read_from(&file)?, out)?;
        file = std::path::absolute(out)?;
    }
    eprintln!(
        "The control plane listens on {} and runs until Ctrl-C. In another terminal:",
        plane.server_url()
    );
    println!("export KUBECONFIG={}", file.display());
    eprintln!(
        "kubectl, if it is not installed: {}",
        plane.binaries().join("kubectl").display()
    );
    std::future::pending().await
}

/// Starts the receivers, which run until they are dropped.
fn start_receivers(token: &str, chat: i64, urls_out: &Path) -> Result<(BotApi, Receiver)> {
    let telegram = BotApi::start()?;
    telegram.add_token(token);
    telegram.add_chat(Chat::new(Kind::Private, chat)?);
    telegram.on_message(|message| {
        print_from(
            &format!("Telegram, chat {}", message.chat_id),
            &message.text,
        );
    });
    telegram
        .on_rejected(|rejected| print_from("Telegram rejected a request", &rejected.description));
    let webhook = Receiver::start()?;
    webhook.on_request(|request| {
        print_from(
            &format!("Webhook, {} {}", request.method, request.path),
            &shown(request),
        );
    });
    write_whole(
        urls_out,
        &format!(
            "TELEGRAM_API_URL={}\nWEBHOOK_URL={}\n",
            telegram.url(),
            webhook.url()
        ),
    )?;
    Ok((telegram, webhook))
}

/// Starts the fake, which runs until it is dropped.
async fn start_aws(env_out: &Path, instances: &[(char, String)]) -> Result<Aws> {
    let stand_in = Aws::start().await?;
    for (zone, id) in instances {
        stand_in.add_instance(id, *zone);
    }
    stand_in.on_call(|call| {
        if !call.is_read() {
            print_from(&format!("AWS, {}", call.action), &shown_call(call));
        }
    });
    let mut text = format!("unset {}\n", aws::FOREIGN.join(" "));
    // None of these values has a quote in it.
    text.extend(
        stand_in
            .env()
            .into_iter()
            .map(|(name, value)| format!("export {name}='{value}'\n")),
    );
    write_whole(env_out, &text)?;
    Ok(stand_in)
}

fn instance(value: &str) -> Result<(char, String), String> {
    let known = value
        .split_once(':')
        .and_then(|(zone, id)| Some((zone.parse().ok()?, id.to_owned())));
    known.ok_or_else(|| "write it as a:i-0123456789abcdef0".to_owned())
}

fn shown_call(call: &Call) -> String {
    let params = call
        .params
        .iter()
        .map(|(name, value)| format!("{name}: {value}\n"));
    let answer = match &call.answer {
        Outcome::Answered { http, code } => {
            format!("-> {http} {}", code.as_deref().unwrap_or_default())
        }
        Outcome::Cut => "-> no answer".to_owned(),
    };
    params.chain([answer]).collect()
}

/// Writes a file so that programs that wait for it find all of its text.
fn write_whole(file: &Path, text: &str) -> Result<()> {
    let part = file.with_extension("part");
    std::fs::write(&part, text)
        .and_then(|()| std::fs::rename(&part, file))
        .with_context(|| format!("writing {}", file.display()))
}

/// Returns the body, and the headers that describe the body and prove its origin. Other headers stay out, because one
/// of them carries a token.
fn shown(request: &Request) -> String {
    let is_shown = |name: &&str| {
        name.starts_with("ce-") || name.starts_with("webhook-") || *name == "idempotency-key"
    };
    let names = request
        .headers
        .keys()
        .map(http::HeaderName::as_str)
        .filter(is_shown);
    let mut text: String = names
        .filter_map(|name| Some(format!("{name}: {}\n", request.header(name)?)))
        .collect();
    let body = request
        .json()
        .and_then(|json| serde_json::to_string_pretty(&json));
    text.push_str(&body.unwrap_or_else(|_| request.text()));
    text
}

fn print_from(source: &str, text: &str) {
    println!("{source}\n| {}", text.trim_end().replace('\n', "\n| "));
}

/// Signals that end a long-running command.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> Result<Self> {
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?, // the terminal was closed
        ]))
    }

    async fn wait(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
            () = process::parent_ended() => {}
        }
    }
}

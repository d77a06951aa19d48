//! A fake DNS server on loopback that answers, ignores or loses queries on request, and records them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{RData, Record, RecordType};
use tokio::net::UdpSocket;
use tokio::task::AbortHandle;

use crate::journal::{Journal, lock};

/// A query that reached the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Arrival time.
    pub at: Instant,
    /// Name in lower case, without the dot at its end.
    pub name: String,
    /// The type, such as `A`.
    pub kind: String,
}

/// Reaction of the server to the queries for a name.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Address(IpAddr),
    Silence,
}

/// A running server, which stops when dropped.
pub struct DnsServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Default)]
struct Shared {
    answers: Mutex<HashMap<String, Answer>>,
    lost: Mutex<HashMap<String, usize>>,
    queries: Journal<Query>,
}

impl DnsServer {
    /// Starts a server that knows no name: each query gets NXDOMAIN.
    ///
    /// # Errors
    /// If no port is free.
    pub async fn start() -> anyhow::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("no port for a DNS server")?;
        let (address, shared) = (socket.local_addr()?, Arc::<Shared>::default());
        let task = tokio::spawn(serve(socket, shared.clone())).abort_handle();
        Ok(Self {
            address,
            shared,
            task,
        })
    }

    /// Returns the server's port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Writes a `resolv.conf` that names this server into `folder`. The format has no field for the port.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn resolv_conf(&self, folder: &Path, further: &str) -> anyhow::Result<PathBuf> {
        let file = folder.join("resolv.conf");
        std::fs::write(
            &file,
            format!("nameserver {}\n{further}\n", self.address.ip()),
        )?;
        Ok(file)
    }

    /// Answers queries for `name` with this address.
    pub fn answer(&self, name: &str, address: impl Into<IpAddr>) {
        lock(&self.shared.answers).insert(name.into(), Answer::Address(address.into()));
    }

    /// Ignores queries for `name`.
    pub fn silence(&self, name: &str) {
        lock(&self.shared.answers).insert(name.into(), Answer::Silence);
    }

    /// Loses the next `count` queries of each type for `name`.
    pub fn lose(&self, name: &str, count: usize) {
        for kind in [RecordType::A, RecordType::AAAA] {
            lock(&self.shared.lost).insert(format!("{name} {kind}"), count);
        }
    }

    /// Returns all queries so far.
    pub fn queries(&self) -> Vec<Arc<Query>> {
        self.shared.queries.all()
    }

    /// Returns the number of IPv4 queries for `name`: one for each lookup of which none was lost.
    pub fn lookups(&self, name: &str) -> usize {
        self.queries()
            .iter()
            .filter(|query| query.name == name && query.kind == "A")
            .count()
    }

    /// Forgets the queries so far.
    pub fn forget(&self) {
        self.shared.queries.clear();
    }

    /// Returns all queries once `enough` accepts them.
    ///
    /// # Errors
    /// If `deadline` passes first.
    pub async fn wait_for(
        &self,
        deadline: Duration,
        enough: impl FnMut(&[Arc<Query>]) -> bool,
    ) -> anyhow::Result<Vec<Arc<Query>>> {
        self.shared.queries.wait_for(deadline, enough).await
    }
}

impl Drop for DnsServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(socket: UdpSocket, shared: Arc<Shared>) {
    let mut buffer = [0; 4096];
    loop {
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        let Ok(query) = Message::from_vec(&buffer[..length]) else {
            continue;
        };
        if let Some(answer) = shared.answer(&query) {
            let _ = socket.send_to(&answer, client).await;
        }
    }
}

impl Shared {
    fn answer(&self, message: &Message) -> Option<Vec<u8>> {
        let query = message.queries.first()?;
        let name = query
            .name()
            .to_lowercase()
            .to_ascii()
            .trim_end_matches('.')
            .to_owned();
        let kind = query.query_type();
        let lost = format!("{name} {kind}");
        self.queries.push(Query {
            at: Instant::now(),
            name: name.clone(),
            kind: kind.to_string(),
        });
        if let Some(left) = lock(&self.lost).get_mut(&lost).filter(|left| **left > 0) {
            *left -= 1;
            return None;
        }
        let mut answer = Message::response(message.metadata.id, message.metadata.op_code);
        answer.metadata.recursion_desired = message.metadata.recursion_desired;
        answer.metadata.recursion_available = true;
        answer.add_query(query.clone());
        match lock(&self.answers).get(&name) {
            Some(Answer::Silence) => return None,
            Some(Answer::Address(address)) if (kind == RecordType::A) == address.is_ipv4() => {
                answer.add_answer(Record::from_rdata(
                    query.name().clone(),
                    60,
                    RData::from(*address),
                ));
            }
            // The name exists, but without an address of this type.
            Some(Answer::Address(_)) => {}
            None => answer.metadata.response_code = ResponseCode::NXDomain,
        }
        answer.to_vec().ok()
    }
}

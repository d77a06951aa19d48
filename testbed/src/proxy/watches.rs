//! Running watches of the proxy: tests can hold back, hide and cut their events, event by event.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use serde::Deserialize;
use tokio::sync::{mpsc, watch};

use super::body::{Body, Error, FLUSHED};
use super::request::ApiRequest;
use super::rules::{Injection, Match};
use crate::journal::lock;
use crate::serve::Line;

/// The kind of an event without an object's news.
pub const BOOKMARK: &str = "BOOKMARK";

/// The annotation of the bookmark that ends a streamed list.
pub const LIST_END: &str = "k8s.io/initial-events-end";

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// The request of the watch.
    pub request: ApiRequest,
    /// ADDED, MODIFIED, DELETED, BOOKMARK or ERROR.
    pub kind: String,
    /// The object's namespace, empty if it has none.
    pub namespace: String,
    /// The object's name, empty if it has none.
    pub name: String,
}

/// End of a running watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A clean end, as after the apiserver's own timeout.
    Clean,
    /// A cut connection in the middle of an event (for HTTP/2, the stream).
    MidEvent,
    /// An `ERROR` event with code 410, then a clean end.
    Gone,
}

/// Event of a watch whose resource version is too old.
pub(super) const GONE: &[u8] =
    b"{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\
\"status\":\"Failure\",\"message\":\"too old resource version: 1 (2)\",\"reason\":\"Expired\",\"code\":410}}\n";

#[derive(Clone)]
enum WatchFault {
    Hold,
    /// Applies only to watches that already ran at the time of the injection.
    HoldRunning,
    Hide(Arc<dyn Fn(&WatchEvent) -> bool + Send + Sync>),
}

struct WatchInjection {
    id: u64,
    matching: Match,
    fault: WatchFault,
    hits: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    last_id: u64,
    injections: Vec<WatchInjection>,
    live: HashMap<u64, (ApiRequest, mpsc::UnboundedSender<Ending>)>,
}

#[derive(Default)]
pub(super) struct Watches {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

impl Watches {
    pub(super) fn hold(self: &Arc<Self>, matching: Match) -> Injection {
        self.inject(matching, WatchFault::Hold)
    }

    pub(super) fn hold_running(self: &Arc<Self>, matching: Match) -> Injection {
        self.inject(matching, WatchFault::HoldRunning)
    }

    pub(super) fn hide(
        self: &Arc<Self>,
        matching: Match,
        hidden: impl Fn(&WatchEvent) -> bool + Send + Sync + 'static,
    ) -> Injection {
        self.inject(matching, WatchFault::Hide(Arc::new(hidden)))
    }

    fn inject(self: &Arc<Self>, matching: Match, fault: WatchFault) -> Injection {
        let hits = watch::Sender::new(0);
        let mut state = lock(&self.state);
        state.last_id += 1;
        let id = state.last_id;
        state.injections.push(WatchInjection {
            id,
            matching,
            fault,
            hits: hits.clone(),
        });
        drop(state);
        self.changed.send_replace(());
        let watches = self.clone();
        Injection::new(hits, move || {
            lock(&watches.state)
                .injections
                .retain(|injection| injection.id != id);
            watches.changed.send_replace(());
        })
    }

    pub(super) fn clear(&self) {
        lock(&self.state).injections.clear();
        self.changed.send_replace(());
    }

    /// Ends the running watches that match and returns their number.
    pub(super) fn end(&self, matching: &Match, ending: Ending) -> usize {
        let mut ended = 0;
        lock(&self.state).live.retain(|_, (request, endings)| {
            let ends = matching.matches(request) && endings.send(ending).is_ok();
            ended += usize::from(ends);
            !ends
        });
        ended
    }

    pub(super) fn live(&self, matching: &Match) -> usize {
        lock(&self.state)
            .live
            .values()
            .filter(|(request, _)| matching.matches(request))
            .count()
    }

    /// Wraps a watch's response.
    pub(super) fn guard(
        self: &Arc<Self>,
        request: ApiRequest,
        upstream: Incoming,
        line: &Line,
    ) -> Body {
        let (out, events) = mpsc::channel(16);
        let (endings, inbox) = mpsc::unbounded_channel();
        let id = {
            let mut state = lock(&self.state);
            state.last_id += 1;
            let id = state.last_id;
            state.live.insert(id, (request.clone(), endings));
            id
        };
        let entry = LiveWatch {
            watches: self.clone(),
            id,
        };
        tokio::spawn(run(entry, request, upstream, inbox, out, line.flushed()));
        let frames = futures::stream::unfold(events, async |mut events| {
            Some((events.recv().await?, events))
        });
        StreamBody::new(frames).boxed_unsync()
    }

    /// Returns the counter of held events, if events are held.
    fn held(&self, live: &LiveWatch, request: &ApiRequest) -> Option<watch::Sender<u64>> {
        let state = lock(&self.state);
        let holds = |injection: &WatchInjection| match injection.fault {
            WatchFault::Hold => true,
            WatchFault::HoldRunning => live.id < injection.id,
            WatchFault::Hide(_) => false,
        };
        let hold =
            |injection: &&WatchInjection| holds(injection) && injection.matching.matches(request);
        state
            .injections
            .iter()
            .find(hold)
            .map(|injection| injection.hits.clone())
    }

    fn is_hidden(&self, request: &ApiRequest, line: &[u8]) -> bool {
        let hiding: Vec<_> = {
            let state = lock(&self.state);
            let matching = state
                .injections
                .iter()
                .filter(|injection| injection.matching.matches(request));
            matching
                .map(|injection| (injection.fault.clone(), injection.hits.clone()))
                .collect()
        };
        hiding.into_iter().any(|(fault, hits)| {
            let WatchFault::Hide(hidden) = fault else {
                return false;
            };
            let hide = event(request, line).is_some_and(|event| hidden(&event));
            if hide {
                hits.send_modify(|hits| *hits += 1);
            }
            hide
        })
    }
}

/// Removes a watch from the list on drop, however it ends.
struct LiveWatch {
    watches: Arc<Watches>,
    id: u64,
}

impl Drop for LiveWatch {
    fn drop(&mut self) {
        lock(&self.watches.state).live.remove(&self.id);
    }
}

type FrameSender = mpsc::Sender<Result<Frame<Bytes>, Error>>;

async fn run(
    entry: LiveWatch,
    request: ApiRequest,
    mut upstream: Incoming,
    mut endings: mpsc::UnboundedReceiver<Ending>,
    out: FrameSender,
    flushed: watch::Receiver<u64>,
) {
    let watches = entry.watches.clone();
    let mut changed = watches.changed.subscribe();
    let mut lines = Lines::default();
    let mut waiting: VecDeque<Result<Frame<Bytes>, Error>> = VecDeque::new();
    let mut ended = false;
    loop {
        changed.borrow_and_update();
        let held = watches.held(&entry, &request);
        if ended && waiting.is_empty() && held.is_none() {
            return;
        }
        tokio::select! {
            biased;
            () = out.closed() => return,
            Some(ending) = endings.recv() => return end(&out, ending, flushed).await,
            Ok(()) = changed.changed() => {}
            permit = out.reserve(), if held.is_none() && !waiting.is_empty() => {
                // The watch may have been frozen since.
                if watches.held(&entry, &request).is_none() && let (Ok(permit), Some(frame)) = (permit, waiting.pop_front()) {
                    permit.send(frame);
                }
            }
            frame = upstream.frame(), if !ended => match frame {
                Some(Ok(frame)) => if let Ok(data) = frame.into_data() {
                    for line in lines.push(&data) {
                        if watches.is_hidden(&request, &line) {
                            continue;
                        }
                        if let Some(hits) = watches.held(&entry, &request)
                            && has_news(&request, &line)
                        {
                            hits.send_modify(|hits| *hits += 1);
                        }
                        waiting.push_back(Ok(Frame::data(line)));
                    }
                },
                Some(Err(error)) => {
                    ended = true;
                    waiting.push_back(Err(error.into()));
                }
                None => {
                    ended = true;
                    waiting.extend(lines.rest().map(|rest| Ok(Frame::data(rest))));
                }
            },
        }
    }
}

async fn end(out: &FrameSender, ending: Ending, mut flushed: watch::Receiver<u64>) {
    match ending {
        Ending::Clean => {}
        Ending::Gone => {
            let _ = out.send(Ok(Frame::data(Bytes::from_static(GONE)))).await;
        }
        Ending::MidEvent => {
            let beginning = Bytes::from_static(b"{\"type\":\"MODIFIED\",\"object\":{\"kind\":");
            let before = *flushed.borrow_and_update();
            let _ = out.send(Ok(Frame::data(beginning))).await;
            // An error would discard bytes that are not yet written.
            let _ =
                tokio::time::timeout(FLUSHED, flushed.wait_for(|flushed| *flushed > before)).await;
            let _ = out
                .send(Err(io::Error::from(io::ErrorKind::ConnectionReset).into()))
                .await;
        }
    }
}

/// Splits a stream into lines.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn push(&mut self, data: &[u8]) -> Vec<Bytes> {
        let mut lines = Vec::new();
        for piece in data.split_inclusive(|byte| *byte == b'\n') {
            self.0.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                lines.push(std::mem::take(&mut self.0).into());
            }
        }
        lines
    }

    fn rest(&mut self) -> Option<Bytes> {
        (!self.0.is_empty()).then(|| std::mem::take(&mut self.0).into())
    }
}

/// Returns whether a client that does not get this line misses something: any event but a bookmark that ends no list.
fn has_news(request: &ApiRequest, line: &[u8]) -> bool {
    let is_bookmark = event(request, line).is_some_and(|it| it.kind == BOOKMARK);
    !is_bookmark || String::from_utf8_lossy(line).contains(LIST_END)
}

fn event(request: &ApiRequest, line: &[u8]) -> Option<WatchEvent> {
    #[derive(Deserialize)]
    struct Event {
        r#type: String,
        object: Object,
    }
    #[derive(Deserialize)]
    struct Object {
        #[serde(default)]
        metadata: Metadata,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Metadata {
        namespace: String,
        name: String,
    }
    let Event {
        r#type,
        object: Object { metadata },
    } = serde_json::from_slice(line).ok()?;
    Some(WatchEvent {
        request: request.clone(),
        kind: r#type,
        namespace: metadata.namespace,
        name: metadata.name,
    })
}

//! Cases: one fault at one place of one workload.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use http::StatusCode;
use testbed::aws;
use testbed::proxy::{self, ApiErrorResponse, Lost, Point};

use super::Kind;

/// Whole seconds of the header `Retry-After` of a 429.
const RETRY_AFTER: u32 = 1;

/// Number of events of a step of which each is hidden in turn.
const HIDDEN: u64 = 8;

/// A rejection of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    Conflict,
    /// With `Retry-After`; AWS answers `Throttling`.
    TooManyRequests,
    InternalError,
    Unavailable,
    /// The request is performed nevertheless, as behind a load balancer that does not wait.
    Timeout,
    /// The permission is revoked.
    Forbidden,
    /// The quota of the namespace is exhausted.
    QuotaExceeded,
    /// An admission policy denies the request.
    Denied,
    /// An admission webhook does not answer.
    WebhookFailed,
}

/// A fault of one watch during one step of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Staleness {
    /// Holds the events of the step back until the operator rests.
    Frozen,
    /// Hides the event of this number, from 1; a 410 follows once the operator rests.
    Hidden(u64),
    /// Answers 410 in place of the step's first event.
    Expired,
    /// Shows no event of the step, and answers 410 once the operator rests.
    Gap,
    /// Answers 410 after the step, and the list with the state before the step; then sends what came since.
    OldList,
    /// Cuts the watch at the step's first event, and answers 403 until the operator rests: the permission is revoked.
    Forbidden,
}

/// A fault at one place of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Kills the operator before the request is performed.
    KillBefore,
    /// Kills the operator after the request is performed, before its answer.
    KillApplied,
    /// Kills the operator once it has the answer.
    KillAnswered,
    /// Performs the request, and cuts the connection without an answer.
    LostAnswer,
    /// Answers the request with a rejection.
    Once(Answer),
    /// Answers the request and its repetitions with a rejection, for longer than the longest backoff.
    Lasting(Answer),
    /// Makes the operator's view stale.
    Stale(Staleness),
    /// Makes the view of a standby stale, and kills the leader after the step.
    StaleStandby(Staleness),
}

/// Kind of place that a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum PlaceKind {
    /// A write to the apiserver.
    Write,
    /// A call to AWS.
    Call,
    /// A watch during a step.
    Watch,
}

/// Place of a fault in a workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The write of this number, from 1.
    Write(u64),
    /// The call to AWS of this number, from 1.
    Call(u64),
    /// A watch, as [`super::steps::watch_name`] names it, during the step of this number, from 1.
    Watch(String, usize),
}

/// A fault at a place of a workload. The name, such as `app_service/write-7/lost-answer`, selects the case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    pub kind: Kind,
    pub place: Place,
    pub fault: Fault,
}

impl Place {
    pub fn kind(&self) -> PlaceKind {
        match self {
            Self::Write(_) => PlaceKind::Write,
            Self::Call(_) => PlaceKind::Call,
            Self::Watch(..) => PlaceKind::Watch,
        }
    }
}

impl Answer {
    pub const ALL: [Self; 9] = [
        Self::Conflict,
        Self::TooManyRequests,
        Self::InternalError,
        Self::Unavailable,
        Self::Timeout,
        Self::Forbidden,
        Self::QuotaExceeded,
        Self::Denied,
        Self::WebhookFailed,
    ];

    /// The answers that AWS gives, too: it has neither a general conflict nor a 504, quotas or webhooks of a namespace.
    const OF_AWS: [Self; 4] = [
        Self::TooManyRequests,
        Self::InternalError,
        Self::Unavailable,
        Self::Forbidden,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Conflict => "409",
            Self::TooManyRequests => "429",
            Self::InternalError => "500",
            Self::Unavailable => "503",
            Self::Timeout => "504",
            Self::Forbidden => "403",
            Self::QuotaExceeded => "quota",
            Self::Denied => "policy",
            Self::WebhookFailed => "webhook",
        }
    }

    fn code(self) -> StatusCode {
        match self {
            Self::Conflict => StatusCode::CONFLICT,
            Self::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            Self::InternalError | Self::WebhookFailed => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::Forbidden | Self::QuotaExceeded => StatusCode::FORBIDDEN,
            Self::Denied => StatusCode::UNPROCESSABLE_ENTITY,
        }
    }

    /// Returns the proxy's fault.
    pub fn of_apiserver(self) -> proxy::Fault {
        let error = ApiErrorResponse {
            code: self.code(),
            retry_after: (self == Self::TooManyRequests).then_some(RETRY_AFTER),
            message: match self {
                Self::Forbidden => {
                    "torture is forbidden: User \"torture\" cannot patch resource \"torture\" in API group \"\""
                }
                Self::QuotaExceeded => "exceeded quota: torture, requested: count/all=1",
                Self::Denied => {
                    "ValidatingAdmissionPolicy 'torture' with binding 'torture' denied request: not now"
                }
                Self::WebhookFailed => {
                    "Internal error occurred: failed calling webhook \"torture.example.com\": no answer"
                }
                _ => "",
            },
        };
        match self {
            Self::Timeout => proxy::Fault::LoseAnswer(Lost::Answer(error)),
            _ => proxy::Fault::Answer(error),
        }
    }

    /// Returns the fault of AWS.
    pub fn of_aws(self) -> aws::Fault {
        match self {
            Self::TooManyRequests => aws::Fault::Throttled,
            Self::Unavailable => aws::Fault::unavailable(),
            Self::Forbidden => {
                aws::Fault::code("AccessDenied", "User is not authorized to perform")
            }
            _ => aws::Fault::internal_failure(),
        }
    }
}

impl Fault {
    /// Returns every fault at writes, in a fixed order.
    pub fn at_writes() -> Vec<Self> {
        Self::at_requests(true, &Answer::ALL)
    }

    /// Returns every fault at calls of AWS, in a fixed order.
    pub fn at_calls() -> Vec<Self> {
        // AWS answers in clear text over one connection: a kill after the answer equals one before the next request.
        Self::at_requests(false, &Answer::OF_AWS)
    }

    fn at_requests(kill_answered: bool, answers: &[Answer]) -> Vec<Self> {
        let mut all = vec![Self::KillBefore, Self::KillApplied];
        if kill_answered {
            all.push(Self::KillAnswered);
        }
        all.push(Self::LostAnswer);
        all.extend(answers.iter().copied().map(Self::Once));
        all.extend(answers.iter().copied().map(Self::Lasting));
        all
    }

    /// Returns every fault of a watch with this number of events in a step, in a fixed order. `was_open` is whether the
    /// watch was open before the step, and a list `may_be_old` if the request allows an old one.
    pub fn of_watch(events: u64, was_open: bool, may_be_old: bool) -> Vec<Self> {
        let mut views = vec![Staleness::Frozen, Staleness::Expired, Staleness::Forbidden];
        if was_open && may_be_old {
            views.push(Staleness::OldList);
        }
        let hidden = (1..=events.min(HIDDEN)).map(Staleness::Hidden);
        let gap = (events > 1).then_some(Staleness::Gap);
        let alone = views.iter().copied().chain(gap).chain(hidden);
        let first = [Staleness::Hidden(1)];
        let mut standby: Vec<_> = views.iter().copied().chain(first).collect();
        // A standby's watch is frozen before the step.
        standby.retain(|view| was_open || *view != Staleness::Frozen);
        alone
            .map(Self::Stale)
            .chain(standby.into_iter().map(Self::StaleStandby))
            .collect()
    }

    /// Returns `name` if that is the name of a fault or of a group.
    pub fn parse_name(name: &str) -> Result<String, String> {
        let all = [
            Self::at_writes(),
            Self::at_calls(),
            Self::of_watch(HIDDEN, true, true),
        ]
        .concat();
        let mut names = all.iter().flat_map(|it| [it.to_string(), it.group()]);
        names.find(|it| it == name).ok_or_else(|| {
            format!("unknown fault {name}: use a name from docs/testing.md, such as 403-lasting")
        })
    }

    /// Returns the name without the number of an event.
    pub fn group(self) -> String {
        match self {
            Self::Stale(Staleness::Hidden(_)) => "hidden".into(),
            Self::StaleStandby(Staleness::Hidden(_)) => "standby-hidden".into(),
            _ => self.to_string(),
        }
    }

    /// Returns whether a request with this fault is performed, but the operator may not get its answer.
    pub fn performs_without_answer(self) -> bool {
        matches!(
            self,
            Self::KillApplied
                | Self::KillAnswered
                | Self::LostAnswer
                | Self::Once(Answer::Timeout)
                | Self::Lasting(Answer::Timeout)
        )
    }

    /// Returns the point of a kill at a request.
    pub fn kills_at(self) -> Option<Point> {
        match self {
            Self::KillBefore => Some(Point::Before),
            Self::KillApplied => Some(Point::AfterApplied),
            Self::KillAnswered => Some(Point::AfterAnswer),
            _ => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KillBefore => out.write_str("kill-before"),
            Self::KillApplied => out.write_str("kill-applied"),
            Self::KillAnswered => out.write_str("kill-answered"),
            Self::LostAnswer => out.write_str("lost-answer"),
            Self::Once(answer) => out.write_str(answer.name()),
            Self::Lasting(answer) => write!(out, "{}-lasting", answer.name()),
            Self::Stale(view) => view.fmt(out),
            Self::StaleStandby(view) => write!(out, "standby-{view}"),
        }
    }
}

impl fmt::Display for Staleness {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frozen => out.write_str("frozen"),
            Self::Hidden(number) => write!(out, "hidden-{number}"),
            Self::Expired => out.write_str("410"),
            Self::Gap => out.write_str("gap"),
            Self::OldList => out.write_str("old-list"),
            Self::Forbidden => out.write_str("forbidden"),
        }
    }
}

impl fmt::Display for PlaceKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.to_possible_value().unwrap().get_name())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(number) => write!(out, "write-{number}"),
            Self::Call(number) => write!(out, "call-{number}"),
            Self::Watch(watch, step) => write!(out, "{watch}-{step}"),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, place, fault } = self;
        write!(out, "{kind}/{place}/{fault}")
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let parse = || {
            let [kind, place, fault] = name.split('/').collect::<Vec<_>>().try_into().ok()?;
            let (of, number) = place.rsplit_once('-')?;
            let (place, faults) = match of {
                "write" => (Place::Write(number.parse().ok()?), Fault::at_writes()),
                "call" => (Place::Call(number.parse().ok()?), Fault::at_calls()),
                watch => (
                    Place::Watch(watch.into(), number.parse().ok()?),
                    Fault::of_watch(HIDDEN, true, true),
                ),
            };
            Some(Self {
                kind: Kind::from_str(kind, false).ok()?,
                place,
                fault: faults.into_iter().find(|it| it.to_string() == fault)?,
            })
        };
        parse().ok_or_else(|| {
            format!(
                "unknown case {name}: use KIND/PLACE/FAULT, such as app_service/write-7/lost-answer"
            )
        })
    }
}

//! Cases: one fault at one request of one workload.

use std::fmt;
use std::str::FromStr;

use http::StatusCode;
use testbed::aws;
use testbed::proxy::{self, Lost, Point, Refusal};

use super::Kind;

/// Whole seconds of the header `Retry-After` of a 429.
const RETRY_AFTER: u32 = 1;

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
}

/// A fault at one request of the operator.
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
}

/// The server of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A write to the apiserver.
    Write,
    /// A call to AWS.
    Call,
}

/// A fault at a request of a workload. The name, such as `app_service/write-7/lost-answer`, selects the case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    pub kind: Kind,
    pub step: Step,
    /// Number of the request in its workload, from 1.
    pub number: u64,
    pub fault: Fault,
}

impl Answer {
    const ALL: [Self; 5] = [
        Self::Conflict,
        Self::TooManyRequests,
        Self::InternalError,
        Self::Unavailable,
        Self::Timeout,
    ];

    fn code(self) -> StatusCode {
        match self {
            Self::Conflict => StatusCode::CONFLICT,
            Self::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            Self::InternalError => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// Returns the proxy's fault.
    pub fn of_apiserver(self) -> proxy::Fault {
        let refusal = Refusal {
            code: self.code(),
            retry_after: (self == Self::TooManyRequests).then_some(RETRY_AFTER),
        };
        match self {
            Self::Timeout => proxy::Fault::LoseAnswer(Lost::Answer(refusal)),
            _ => proxy::Fault::Answer(refusal),
        }
    }

    /// Returns the fault of AWS. AWS has neither a general conflict nor a 504.
    pub fn of_aws(self) -> aws::Fault {
        match self {
            Self::TooManyRequests => aws::Fault::Throttled,
            Self::Unavailable => aws::Fault::unavailable(),
            _ => aws::Fault::internal_failure(),
        }
    }
}

impl Fault {
    /// Returns every fault at requests of this server, in a fixed order.
    pub fn all(step: Step) -> Vec<Self> {
        let answers = Answer::ALL.into_iter().filter(|answer| match step {
            Step::Write => true,
            Step::Call => !matches!(answer, Answer::Conflict | Answer::Timeout),
        });
        let answers: Vec<_> = answers.collect();
        let mut all = vec![Self::KillBefore, Self::KillApplied];
        // AWS answers in clear text over one connection: a kill after the answer equals one before the next request.
        if step == Step::Write {
            all.push(Self::KillAnswered);
        }
        all.push(Self::LostAnswer);
        all.extend(answers.iter().copied().map(Self::Once));
        all.extend(answers.iter().copied().map(Self::Lasting));
        all
    }

    /// Returns the point of a kill.
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
            Self::Once(answer) => write!(out, "{}", answer.code().as_u16()),
            Self::Lasting(answer) => write!(out, "{}-lasting", answer.code().as_u16()),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Write => "write",
            Self::Call => "call",
        })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            step,
            number,
            fault,
        } = self;
        write!(out, "{kind}/{step}-{number}/{fault}")
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let parse = || {
            let [kind, request, fault] = name.split('/').collect::<Vec<_>>().try_into().ok()?;
            let (step, number) = request.split_once('-')?;
            let step = [Step::Write, Step::Call]
                .into_iter()
                .find(|it| it.to_string() == step)?;
            Some(Self {
                kind: kind.parse().ok()?,
                step,
                number: number.parse().ok()?,
                fault: Fault::all(step)
                    .into_iter()
                    .find(|it| it.to_string() == fault)?,
            })
        };
        parse().ok_or_else(|| format!("{name} is no case; write app_service/write-7/lost-answer"))
    }
}

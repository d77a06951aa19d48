//! The Lease of the operator that a command looks for.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches, Id};
use qm_runtime::ObjectKey;

use super::parse;

/// Default of `--operator-namespace`.
pub(crate) const OPERATOR_NAMESPACE: &str = "quartermaster-system";
/// Default name of the operator's Lease.
pub const LEASE: &str = "quartermaster";

/// The operator's Lease.
#[derive(Debug)]
pub struct LeaseArgs {
    flags: LeaseFlags,
    explicit_namespace: bool,
    explicit_name: bool,
}

#[derive(Debug, Args)]
struct LeaseFlags {
    /// Look for the operator's Lease in this namespace
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", value_parser = parse::namespace,
        default_value = OPERATOR_NAMESPACE, help_heading = "Operator")]
    operator_namespace: String,
    /// Look for a Lease of this name
    #[arg(long, env = "QUARTERMASTER_LEADER_ELECTION_ID", value_name = "NAME", value_parser = parse::lease,
        default_value = LEASE, help_heading = "Operator")]
    leader_election_id: String,
}

impl LeaseArgs {
    /// Returns the namespace if the user gave the flag. The environment variable does not count: in a Pod it names the
    /// Pod's own namespace.
    pub(crate) fn explicit_namespace(&self) -> Option<&str> {
        Some(self.flags.operator_namespace.as_str())
            .filter(|name| self.explicit_namespace && !name.is_empty())
    }

    /// Returns the name if the user gave the flag.
    pub(crate) fn explicit_name(&self) -> Option<&str> {
        Some(self.flags.leader_election_id.as_str()).filter(|_| self.explicit_name)
    }

    /// Returns the flags that select this Lease in a printed command; none for the default.
    pub fn flags(&self) -> String {
        let ObjectKey { namespace, .. } = self.key();
        let namespace_flag = if *namespace == *OPERATOR_NAMESPACE {
            String::new()
        } else {
            format!(" --operator-namespace={namespace}")
        };
        namespace_flag + &self.name_flag()
    }

    pub(crate) fn name_flag(&self) -> String {
        let name = &self.flags.leader_election_id;
        if name == LEASE {
            String::new()
        } else {
            format!(" --leader-election-id={name}")
        }
    }

    pub fn key(&self) -> ObjectKey {
        let LeaseFlags {
            operator_namespace,
            leader_election_id,
        } = &self.flags;
        let namespace = if operator_namespace.is_empty() {
            OPERATOR_NAMESPACE
        } else {
            operator_namespace
        };
        ObjectKey::new(namespace, leader_election_id)
    }
}

impl FromArgMatches for LeaseArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_explicit = |flag| matches.value_source(flag) == Some(ValueSource::CommandLine);
        let (explicit_namespace, explicit_name) = (
            is_explicit("operator_namespace"),
            is_explicit("leader_election_id"),
        );
        Ok(Self {
            flags: LeaseFlags::from_arg_matches(matches)?,
            explicit_namespace,
            explicit_name,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for LeaseArgs {
    fn group_id() -> Option<Id> {
        LeaseFlags::group_id()
    }

    fn augment_args(command: Command) -> Command {
        LeaseFlags::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        LeaseFlags::augment_args_for_update(command)
    }
}

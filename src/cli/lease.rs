//! Which Lease tells whether the operator runs.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches, Id};
use qm_runtime::Key;

use super::{LEASE, OPERATOR_NAMESPACE, value};

/// Where the operator's Lease is.
#[derive(Debug)]
pub struct LeaseOf {
    flags: LeaseFlags,
    said_namespace: bool,
    said_name: bool,
}

#[derive(Debug, Args)]
struct LeaseFlags {
    /// Namespace that the operator runs in: its Lease there tells whether it runs
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", value_parser = value::namespace,
        default_value = OPERATOR_NAMESPACE, help_heading = "Operator")]
    operator_namespace: String,
    /// Name of the Lease
    #[arg(long, env = "QUARTERMASTER_LEADER_ELECTION_ID", value_name = "NAME", value_parser = value::lease,
        default_value = LEASE, help_heading = "Operator")]
    leader_election_id: String,
}

impl LeaseOf {
    /// The namespace, if the user has said which. A variable says where to look, and no more: a Pod has it for itself.
    pub fn said_namespace(&self) -> Option<&str> {
        Some(self.flags.operator_namespace.as_str())
            .filter(|name| self.said_namespace && !name.is_empty())
    }

    /// The name, if the user has said it.
    pub fn said_name(&self) -> Option<&str> {
        Some(self.flags.leader_election_id.as_str()).filter(|_| self.said_name)
    }

    /// What says the same again, in a command that is shown; empty where it goes without saying.
    pub fn flags(&self) -> String {
        let Key { namespace, .. } = self.key();
        let place = if *namespace == *OPERATOR_NAMESPACE {
            String::new()
        } else {
            format!(" --operator-namespace={namespace}")
        };
        place + &self.name_flag()
    }

    /// Its part that says the name.
    pub fn name_flag(&self) -> String {
        let name = &self.flags.leader_election_id;
        if name == LEASE {
            String::new()
        } else {
            format!(" --leader-election-id={name}")
        }
    }

    /// Where it is.
    pub fn key(&self) -> Key {
        let LeaseFlags {
            operator_namespace,
            leader_election_id,
        } = &self.flags;
        let namespace = if operator_namespace.is_empty() {
            OPERATOR_NAMESPACE
        } else {
            operator_namespace
        };
        Key::new(namespace, leader_election_id)
    }
}

impl FromArgMatches for LeaseOf {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let said = |flag| matches.value_source(flag) == Some(ValueSource::CommandLine);
        let (said_namespace, said_name) = (said("operator_namespace"), said("leader_election_id"));
        Ok(Self {
            flags: LeaseFlags::from_arg_matches(matches)?,
            said_namespace,
            said_name,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for LeaseOf {
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

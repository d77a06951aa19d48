//! The subcommands that people run against a cluster, with their own kubeconfig.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fmt};

use clap::{Args, Subcommand, ValueEnum};
use kube::CustomResourceExt;
use kube::core::ApiResource;
use qm_api::{ConfigMapSync, MyApp, MyIngress, TrackedField};

use super::lease::LeaseOf;
use super::value;

const STATUS_AFTER_HELP: &str = "\
STATE is Ready, NotReady (REASON says why, and the words stand below the table), Delivering (messages are on their way),
Suspended, Deleting, or Unseen: nobody has looked at the object as it is now.

Examples:
  quartermaster status
      Everything, in all namespaces.
  quartermaster status -n shop --watch
      One namespace, again and again.
  quartermaster status -o json | jq '.objects[] | select(.state == \"NotReady\")'
      For scripts.

Exit codes: 0 shown, whatever it shows; 1 the cluster could not be asked, or not about every kind; 2 usage.";

const HISTORY_AFTER_HELP: &str = "\
Examples:
  quartermaster history tf/nginx-replicas -n shop
      What the TrackedField has recorded, oldest first, and how far each message got.
  quartermaster history nginx-replicas -o json
      For scripts: the entries as they are stored.

Exit codes: 0 shown; 1 there is no such TrackedField, or the cluster could not be asked; 2 usage.";

const ADOPT_AFTER_HELP: &str = "\
What is looked for: ConfigMaps where a ConfigMapSync is to have a copy, the Pod NAME-pod of a MyApp, the load balancer
NAME-alb of a MyIngress. Only what nobody else marked as theirs is offered. With --yes each one gets the mark
quartermaster.dev/adopt-by=NAMESPACE/NAME, an annotation or a tag, and the operator takes it over from there. What it would
then overwrite or replace is left alone, unless its resource is named.

Region and credentials of AWS are what the SDK finds: AWS_REGION, AWS_PROFILE and so on. They are looked for only where a
MyIngress is not ready.

Examples:
  quartermaster adopt
      Show what can be handed over. Nothing is changed.
  quartermaster adopt -n shop --yes
      Hand over what the resources of one namespace are to have, but nothing that changes by that.
  quartermaster adopt -n shop --yes cmsync/settings myapp/web
      Hand over what these two are to have, whatever becomes of it.

Exit codes: 0 shown, or handed over; 1 something could not be looked at or handed over; 2 usage.";

const UNINSTALL_AFTER_HELP: &str = "\
Run it while the operator runs: it is the operator that takes away copies of ConfigMaps and load balancers. Then delete the
operator. The CRDs stay unless --purge is given; so does whatever is not a resource of Quartermaster.

Examples:
  quartermaster uninstall --dry-run
      Show what would be deleted.
  quartermaster uninstall
      Show what would be deleted, and ask.
  quartermaster uninstall --yes --purge --timeout=2m
      For scripts: without a question, CRDs too.
  quartermaster uninstall --keep-children
      Delete the resources alone: apps run on, copies and load balancers stay.
  quartermaster uninstall --without-operator --operator-namespace=quartermaster-system
      The operator that ran there is gone, and resources stay Terminating: take its finalizers away. What it would have taken
      away itself is left behind, and named.

Exit codes: 0 all is gone, or shown; 1 something is left, and is named with what holds it up; 2 usage, or nobody said yes, and nothing was
done.";

/// What people ask of a cluster.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Show everything that Quartermaster manages, what is not well, and why
    #[command(after_help = STATUS_AFTER_HELP)]
    Status(StatusArgs),
    /// Draw what a TrackedField has recorded
    #[command(after_help = HISTORY_AFTER_HELP)]
    History(HistoryArgs),
    /// Hand over what another program left without a mark: copies, Pods, load balancers
    #[command(after_help = ADOPT_AFTER_HELP)]
    Adopt(AdoptArgs),
    /// Delete all resources of Quartermaster's kinds, and say what holds one up
    #[command(after_help = UNINSTALL_AFTER_HELP)]
    Uninstall(UninstallArgs),
}

/// Which cluster is meant, as kubectl's users say it.
#[derive(Debug, Default, Args)]
pub struct Cluster {
    /// The kubeconfig, in place of $KUBECONFIG and ~/.kube/config
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig, in place of its current one
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    pub context: Option<String>,
    /// The program, as the user runs it.
    #[arg(skip)]
    pub(crate) program: Program,
}

/// The words that run this program: `quartermaster`, or `kubectl quartermaster` where kubectl runs it as a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program(pub(crate) &'static str);

impl Program {
    const ALONE: &str = "quartermaster ";

    /// Returns the program by the path of the file that was executed.
    pub(crate) fn called(path: Option<&OsStr>) -> Self {
        let name = path.map(Path::new).and_then(Path::file_stem);
        let is_plugin = name
            .is_some_and(|name| name == "kubectl-quartermaster" || name == "kubectl_quartermaster");
        Self(if is_plugin {
            "kubectl quartermaster"
        } else {
            "quartermaster"
        })
    }

    pub(crate) fn as_str(self) -> &'static str {
        self.0
    }

    /// Returns a text of the help with the commands of its examples as the user types them.
    pub(crate) fn help(self, text: &str) -> String {
        text.replace(&format!("  {}", Self::ALONE), &format!("  {} ", self.0))
    }

    /// Returns a command as the user types it.
    fn command(self, text: &str) -> String {
        text.strip_prefix(Self::ALONE)
            .map_or_else(|| text.to_owned(), |rest| format!("{} {rest}", self.0))
    }
}

impl Default for Program {
    fn default() -> Self {
        Self::called(env::args_os().next().as_deref())
    }
}

impl Cluster {
    /// A command of this program's or of kubectl's, to be pasted into a shell: for this cluster too.
    pub fn command(&self, text: &str) -> String {
        let text = self.program.command(text);
        let file = self.kubeconfig.as_ref().map(|file| {
            format!(
                " --kubeconfig={}",
                shell_words::quote(&file.to_string_lossy())
            )
        });
        let context = self
            .context
            .as_ref()
            .map(|name| format!(" --context={}", shell_words::quote(name)));
        [Some(text), file, context].into_iter().flatten().collect()
    }
}

/// The whole cluster, or one namespace of it.
#[derive(Debug, Default, Args)]
pub struct Scope {
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    /// Only what is in this namespace. Default: every namespace
    #[arg(short, long, value_name = "NAMESPACE", value_parser = value::one_namespace)]
    pub(crate) namespace: Option<String>,
    /// Every namespace, which is the default: for fingers that are used to kubectl
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
}

impl Scope {
    /// The namespace that is meant; none means every one.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }
}

/// How something is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Table,
    /// For scripts
    Json,
}

/// The flags of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub(crate) scope: Scope,
    #[command(flatten)]
    pub(crate) lease: LeaseOf,
    /// How it is printed
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
    /// Show it again and again, until Ctrl-C; where the output is no terminal, when something has changed
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// How often --watch looks; never more than a tenth of the time is spent on it
    #[arg(long, value_name = "DURATION", value_parser = value::duration, default_value = "2s", hide = true)]
    pub(crate) interval: Duration,
}

/// The flags of `history`.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Name of the TrackedField, with or without tf/ before it
    #[arg(value_name = "tf/NAME", value_parser = tracked_field)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    /// Its namespace. Default: that of the kubeconfig's context
    #[arg(short, long, value_name = "NAMESPACE", value_parser = value::one_namespace)]
    pub(crate) namespace: Option<String>,
    /// How it is printed
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
}

/// The flags of `adopt`.
#[derive(Debug, Args)]
pub struct AdoptArgs {
    #[command(flatten)]
    pub(crate) scope: Scope,
    /// The resources of one namespace that are meant, such as cmsync/settings, myapp/web or mying/web. Default: all
    #[arg(value_name = "KIND/NAME", value_parser = adopter, requires = "namespace", conflicts_with = "all_namespaces")]
    pub(crate) resources: Vec<Named>,
    /// Hand over what is shown; what is overwritten or replaced by that only if its resource is named
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// The flags of `uninstall`.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools)] // flags are that
pub struct UninstallArgs {
    #[command(flatten)]
    pub(crate) scope: Scope,
    #[command(flatten)]
    pub(crate) lease: LeaseOf,
    /// Leave what the resources made: Deployments, Services and Pods run on, copies and load balancers stay
    #[arg(long)]
    pub(crate) keep_children: bool,
    /// Delete the CRDs too, once no resource is left
    #[arg(long, conflicts_with = "namespace")]
    pub(crate) purge: bool,
    /// Take the operator's finalizers away, because it is gone and does not come back
    ///
    /// What it would have taken away itself is left behind, and named: copies of ConfigMaps in other namespaces, load balancers
    /// in AWS. Refused unless it is known that the operator does not run: nobody renews its Lease, which is looked at for as
    /// long as that is good, or there is none in the namespace that --operator-namespace says (nor any other that is renewed,
    /// unless --leader-election-id says its name). Refused without -n while another operator's Lease is renewed. One that runs
    /// without --leader-elect has none: stop it first.
    #[arg(long)]
    pub(crate) without_operator: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Show what would be deleted, and change nothing
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
    /// How long to wait until all is gone
    #[arg(long, value_name = "DURATION", value_parser = value::duration, default_value = "5m")]
    pub(crate) timeout: Duration,
    /// Give up earlier when nothing has moved for so long, only the operator could move it, and no Lease says that it runs
    #[arg(long, value_name = "DURATION", value_parser = value::duration, default_value = "30s")]
    pub(crate) stalled_after: Duration,
}

/// A resource, as kubectl's users name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its kind, as the API spells it.
    pub(crate) kind: String,
    pub(crate) name: String,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.to_lowercase(), self.name)
    }
}

/// The kind `K`, if that is what kubectl's users call so.
fn called<K: CustomResourceExt>(word: &str) -> Option<String> {
    let ApiResource {
        kind,
        plural,
        group,
        ..
    } = K::api_resource();
    let long = [kind.to_lowercase(), plural]
        .into_iter()
        .flat_map(|word| [format!("{word}.{group}"), word]);
    (long.into_iter().any(|known| known == word) || K::shortnames().contains(&word)).then_some(kind)
}

/// What `adopt` hands something over to: `cmsync/NAME`, `myapp/NAME`, `mying/NAME`.
fn adopter(text: &str) -> Result<Named, String> {
    let named = text.split_once('/').and_then(|(word, name)| {
        let kind = called::<ConfigMapSync>(word)
            .or_else(|| called::<MyApp>(word))
            .or_else(|| called::<MyIngress>(word));
        Some(Named {
            kind: kind?,
            name: value::object(name)?,
        })
    });
    named.ok_or_else(|| {
        "write the name of a ConfigMapSync, MyApp or MyIngress, such as cmsync/settings or myapp/web".into()
    })
}

/// `tf/NAME`, `trackedfield/NAME` or `NAME`.
fn tracked_field(text: &str) -> Result<String, String> {
    let (kind, name) = text.rsplit_once('/').unwrap_or(("tf", text));
    if called::<TrackedField>(kind).is_some() && !name.is_empty() {
        Ok(name.to_owned())
    } else {
        Err("write the name of a TrackedField, such as tf/nginx-replicas: only these have a history".into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use clap::Parser as _;
    use rstest::rstest;

    use super::*;
    use crate::cli::Cli;

    #[rstest]
    #[case("web", Some("web"))]
    #[case("tf/web", Some("web"))]
    #[case("trackedfields.tg.azamaton.ru/web", Some("web"))]
    #[case("cp/web", None)]
    #[case("tf/", None)]
    fn what_has_a_history(#[case] text: &str, #[case] name: Option<&str>) {
        assert_eq!(tracked_field(text).ok().as_deref(), name);
    }

    #[rstest]
    #[case("cmsync/settings", Some("configmapsync/settings"))]
    #[case("configmapsyncs/a.b", Some("configmapsync/a.b"))]
    #[case("ma/web", Some("myapp/web"))]
    #[case("myapps.demo.rtfm.co.ua/web", Some("myapp/web"))]
    #[case("mying/web", Some("myingress/web"))]
    #[case("cp/web", None)]
    #[case("settings", None)]
    #[case("myapp/", None)]
    #[case("myapp/$(x)", None)]
    fn what_can_be_handed_something(#[case] text: &str, #[case] named: Option<&str>) {
        assert_eq!(
            adopter(text).ok().map(|it| it.to_string()).as_deref(),
            named
        );
    }

    #[test]
    fn a_command_that_is_pasted_is_for_the_same_cluster() {
        let command = |kubeconfig: Option<&str>, context: Option<&str>| {
            let context = context.map(Into::into);
            Cluster {
                kubeconfig: kubeconfig.map(Into::into),
                context,
                ..Cluster::default()
            }
            .command("kubectl get pods")
        };
        assert_eq!(command(None, None), "kubectl get pods");
        assert_eq!(
            command(None, Some("arn:aws:eks:c/1")),
            "kubectl get pods --context=arn:aws:eks:c/1"
        );
        let both = "kubectl get pods --kubeconfig='/my home/it'\\''s' --context='a$(b)'";
        assert_eq!(command(Some("/my home/it's"), Some("a$(b)")), both);
    }

    #[rstest]
    #[case("/usr/bin/quartermaster", "quartermaster")]
    #[case("/usr/local/bin/kubectl-quartermaster", "kubectl quartermaster")]
    #[case("kubectl-quartermaster.exe", "kubectl quartermaster")]
    fn program_is_named_as_its_user_runs_it(#[case] path: &str, #[case] name: &str) {
        let program = Program::called(Some(path.as_ref()));
        assert_eq!(program.as_str(), name);
        assert_eq!(
            program.command("quartermaster status"),
            format!("{name} status")
        );
        assert_eq!(program.command("kubectl get pods"), "kubectl get pods");
        assert_eq!(
            program.help("Examples:\n  quartermaster status\n      All."),
            format!("Examples:\n  {name} status\n      All.")
        );
    }

    #[rstest]
    #[case(&["status", "-A"], true)]
    #[case(&["status", "-A", "-n", "shop"], false)]
    #[case(&["status", "-o", "yaml"], false)]
    #[case(&["uninstall", "--purge", "--keep-children", "--yes"], true)]
    #[case(&["uninstall", "--purge", "-n", "shop"], false)]
    #[case(&["uninstall", "--timeout", "0s"], false)]
    #[case(&["history"], false)]
    // A name is one of many namespaces', and each would be meant.
    #[case(&["adopt", "myapp/web"], false)]
    #[case(&["adopt", "-A", "myapp/web"], false)]
    #[case(&["adopt", "-n", "", "myapp/web"], false)]
    #[case(&["adopt", "-n", "shop", "myapp/web"], true)]
    #[case(&["uninstall", "-n", "", "--yes"], false)]
    fn what_may_be_said(#[case] arguments: &[&str], #[case] good: bool) {
        // Whatever the program is called.
        for program in ["quartermaster", "/usr/local/bin/kubectl-quartermaster"] {
            let said = Cli::try_parse_from([&[program], arguments].concat());
            assert_eq!(said.is_ok(), good, "{said:?}");
        }
    }
}
